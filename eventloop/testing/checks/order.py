"""Whether its decisions are its own: the same again, whoever else is there, wherever it was registered."""

from __future__ import annotations

from ...bus import Bus
from .standins import AHEAD, BEHIND, Does, Neighbour, Peer
from .subject import TWICE, Finding, Subject
from .trial import answers, difference, shared


def repeats(subject: Subject) -> Finding | None:
    """Two equal runs get equal answers: nothing is drawn at random, nor taken from the wall clock or the process.

    A run that cannot be repeated cannot be debugged, nor resumed exactly. Another key each time is for ``keys``. In the
    second run the clocks of the module ``time`` go on by an hour after the first call; who has taken a function out of
    that module (``from time import time``) is not seen. What all objects of a class have in common, a list on the class
    or a mutable default of ``__init__``, stays as it is.

    Failed on `TossesACoin`, which asks for an evaluation now and then, on one that stops after half an hour, and on one
    that appends to a list of its class.
    """
    before, after = subject.shared, shared(type(subject.make())) if subject.alone.calls else subject.shared
    if changed := [name for name in after if before.get(name) != after[name]]:
        told = f"a run has changed {changed[0]}, which all objects of the class share: make a new one in __init__"
        body = "before = shared(type(make()))\nanswers(loop(make()))\nassert shared(type(make())) == before"
        return Finding(told, body)
    if subject.alone.keys != subject.again.keys:
        return None
    if unlike := difference(subject.alone.lines, subject.again.lines):
        return Finding(f"in two equal runs {unlike}", f"{TWICE}assert_same(first.lines, second.lines)")
    return None


def company(subject: Subject) -> Finding | None:
    """It asks for the same whoever else is subscribed: silent ones, ones with metrics of their own, ones that publish.

    Else a logger that is added changes when the run stops. These others stand before and behind it, not in its band.

    Failed on `MindsItsCompany`, which counts the handlers of the event.
    """
    for does in _BEHAVIOURS:
        others = [Neighbour(does, place) for place in _around(subject)]
        found = answers(subject.loop(subject.make(), *others))
        if unlike := difference(subject.alone.lines, found.lines):
            body = (
                f"others = [Neighbour({does!r}, place) for place in {_around(subject)}]\n"
                "assert_same(answers(loop(make())).lines, answers(loop(make(), *others)).lines)"
            )
            return Finding(f"with others on the bus, each of which {_DOING[does]}, {unlike}", body)
    return None


_BEHAVIOURS: tuple[Does, ...] = ("silent", "reports", "publishes")
_DOING = {"silent": "is silent", "reports": "reports a metric of its own", "publishes": "publishes an event of its own"}


def _places(subject: Subject) -> dict[str, int]:
    """Its priority at each event that it hears."""
    bus, thing = Bus(), subject.make()
    return {s.event.name: s.priority for s in bus.attach(thing).subscriptions}


def _around(subject: Subject) -> list[int]:
    own = set(_places(subject).values())
    near = {place + step for place in own for step in (-1, 1)}
    return sorted({AHEAD, BEHIND, *near} - own)


def registration(subject: Subject) -> Finding | None:
    """It asks for the same whether it was attached before or after others of its own band.

    Ties go by order of registration; whoever needs a place says so by ``priority``.

    Failed on `MindsItsPlace`, which reports only while it is the first of its band.
    """
    places = _places(subject)
    before = answers(subject.loop(Peer(places), subject.make()), who=1)
    after = answers(subject.loop(subject.make(), Peer(places)))
    if unlike := difference(after.lines, before.lines):
        body = (
            f"places = {places}\nafter = answers(loop(make(), Peer(places)))\n"
            f"before = answers(loop(Peer(places), make()), who=1)\nassert_same(after.lines, before.lines)"
        )
        return Finding(f"attached behind another of its band rather than before it, {unlike}", body)
    return None
