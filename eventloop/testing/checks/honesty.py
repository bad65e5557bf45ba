"""What it says of itself: its keys, its words, its place."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from .subject import TWICE, Finding, Subject
from .trial import answers, is_of


def keys(subject: Subject) -> Finding | None:
    """The keys that it reports are the same in every run, texts without blanks, and nobody else's.

    Loggers, dashboards and ``monitor=`` go by these names. What the loop reports, or it decides by itself, is not its
    to report again.

    Failed on `AnotherKeyEachRun`, which numbers its key, on ``"grad norm"`` and on a reporter of ``loss``.
    """
    first, second = subject.alone.keys, subject.again.keys
    if first != second:
        told = f"in two equal runs it reports {first} and {second}"
        return Finding(told, f"{TWICE}assert first.keys == second.keys")
    blank = [key for key in first if not key or key.split() != [key]]
    if blank:
        body = "for key in answers(loop(make())).keys:\n    assert key.split() == [key], key"
        return Finding(f"its key {blank[0]!r} is no text without blanks", body)
    taken = [key for key in first if key in subject.script["metrics"] or key in (subject.script["evaluations"] or ())]
    if taken:
        body = 'assert not {*answers(loop(make())).keys} & {*script["metrics"], *script["evaluations"]}'
        return Finding(f"it reports {taken[0]!r}, which the loop has reported", body)
    return None


def names(subject: Subject) -> Finding | None:
    """What it says of itself is what it should be: ``describe``, ``summary``, ``gauges``, ``touches_model``, its names.

    ``describe()`` is one line of text, also before a run; ``summary()`` a mapping with names as keys, ``gauges`` names,
    ``touches_model`` a truth. A handler that it registers itself has a name that begins with its class, for that is
    what failures and ``explain`` say.

    Failed on `DescribesNothing`, whose ``describe`` returns None.
    """
    thing = subject.make()
    loop = subject.loop(thing)
    for when in ("before a run", "after a run"):
        for told, body in _words(thing):
            run = "" if when == "before a run" else "answers(loop(thing))\n"
            return Finding(f"{when} {told}", f"thing = make()\n{run}{body}")
        if when == "before a run":
            strangers = _strangers(thing, loop)
            if strangers:
                body = "run = loop(make())\nanswers(run)\nraise AssertionError(run.bus.costs())"
                return Finding(f"its handler {strangers[0]!r} does not have its name", body)
    return None


def _strangers(thing: Any, loop: Any) -> list[str]:
    seen: set[str] = set()

    def around(who: Any, call: Any, event: Any, state: Any) -> Any:
        if is_of(who, thing):
            seen.add(who.name)
        return call(event, state)

    answers(loop, around=around)
    return sorted(name for name in seen if not name.startswith(type(thing).__name__))


def _words(thing: Any) -> Iterable[tuple[str, str]]:
    """What is wrong, and an assertion that shows it."""
    if hasattr(thing, "describe"):
        text = _said(thing.describe)
        if not isinstance(text, str) or not text.strip() or "\n" in text:
            body = 'text = thing.describe()\nassert isinstance(text, str) and text.strip() and "\\n" not in text, text'
            yield f"describe() gives {text!r}, not a line of text", body
    if hasattr(thing, "summary"):
        found = _said(thing.summary)
        if not isinstance(found, dict) or not all(isinstance(key, str) for key in found):
            body = "assert all(isinstance(key, str) for key in dict(thing.summary()))"
            yield f"summary() gives {found!r}, not a mapping of names", body
    gauges = getattr(thing, "gauges", ())
    listed = (gauges,) if isinstance(gauges, str) else gauges
    if not isinstance(listed, list | tuple | set | frozenset) or not all(isinstance(n, str) and n for n in listed):
        body = "assert all(isinstance(name, str) and name for name in thing.gauges), thing.gauges"
        yield f"gauges is {gauges!r}, not names", body
    touches = getattr(thing, "touches_model", False)
    if not isinstance(touches, bool):
        yield f"touches_model is {touches!r}, not True or False", "assert thing.touches_model in (True, False)"


def _said(call: Any) -> Any:
    try:
        return call()
    except Exception as error:
        return error


def priority(subject: Subject) -> Finding | None:
    """It says where it stands: ``priority`` on its class, or in its ``options()`` for each event that it hears.

    The order of handlers decides what each of them sees, so its author should. ``Priority.NORMAL`` is an answer too.

    Failed on `SaysNoPriority`.
    """
    from ...bus import Bus

    thing = subject.make()
    if hasattr(thing, "priority"):
        return None
    options: dict[str, Any] = getattr(thing, "options", dict)()
    heard = [s.event.name for s in Bus().attach(thing).subscriptions]
    open_events = [event for event in heard if "priority" not in (options.get(event) or {})]
    if open_events:
        body = 'thing = make()\noptions = getattr(thing, "options", dict)()\n'
        body += f'assert all("priority" in options.get(event, {{}}) for event in {open_events})'
        return Finding(f"it says no priority for {', '.join(open_events)}", body)
    return None
