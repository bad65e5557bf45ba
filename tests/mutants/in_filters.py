"""Faults of filters: when a handler is due."""

from __future__ import annotations

from typing import Final

from .mutant import Mutant

FILTERS: Final = "eventloop/filters.py"

MUTANTS: Final = (
    Mutant(
        "every n by remainder",
        FILTERS,
        "return multiple > before // self.n",
        "return now % self.n == 0",
        ("test_filters.py",),
    ),
    Mutant(
        "every n fires at 0",
        FILTERS,
        "max(now - 1, 0)",
        "now - 1",
        ("test_filters.py",),
    ),
    Mutant(
        "once fires again and again",
        FILTERS,
        "return before < self.n <= now",
        "return self.n <= now",
        ("test_filters.py",),
    ),
    Mutant(
        "after n holds at n already",
        FILTERS,
        "self.steady = now > self.n",
        "self.steady = now >= self.n",
        ("test_filters.py",),
    ),
    Mutant(
        "a forbidden crossing is made up for later",
        FILTERS,
        "looks = [c.look(seconds if c.index == SECONDS else state[c.index]) for c in self.conditions]",
        "looks = (c.look(seconds if c.index == SECONDS else state[c.index]) for c in self.conditions)",
        ("test_filters.py",),
    ),
    Mutant(
        "of several handlers the last one's window decides when to look",
        FILTERS,
        "windows[c.index] = max(low, c.low), min(high, c.high)",
        "windows[c.index] = c.low, c.high",
        ("test_filters.py",),
    ),
    Mutant(
        "after a resume intervals count anew",
        FILTERS,
        "            c.rebase(value)",
        "            c.rebase(None)",
        ("test_filters_over_time.py",),
    ),
)
