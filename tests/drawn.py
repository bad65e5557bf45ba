"""What a strategy draws in a few hundred examples, counted, and what a failing example prints, run."""

from collections import Counter

from hypothesis import event, given, settings


def reached(strategy, examples=300, **conditions):
    """How many of the values drawn meet each condition; also in hypothesis' statistics."""
    seen = Counter(dict.fromkeys(conditions, 0))

    @settings(max_examples=examples, database=None)
    @given(strategy)
    def look(value):
        for name, holds in conditions.items():
            if holds(value):
                seen[name] += 1
                event(name)

    look()
    return seen


def run(snippet, **names):
    """Run what was printed as a user would who has pasted it."""
    exec(f"from eventloop import *\nfrom eventloop.testing import *\n{snippet}", names)
    return names
