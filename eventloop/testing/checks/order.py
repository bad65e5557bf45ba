"""Whether its decisions are its own: the same again, whoever else is there, wherever it was registered."""

from __future__ import annotations

from ...bus import Bus
from .standins import AHEAD, BEHIND, Does, Neighbour, Peer
from .subject import Finding, Subject
from .trial import answers, difference


def repeats(subject: Subject) -> Finding | None:
    """Two equal runs get equal answers: nothing is drawn at random, nor taken from the wall clock or the process.

    A run that cannot be repeated cannot be debugged, nor resumed exactly. Another key each time is for ``keys``.

    Failed on `TossesACoin`, which asks for an evaluation now and then.
    """
    if subject.alone.keys != subject.again.keys:
        return None
    if unlike := difference(subject.alone.lines, subject.again.lines):
        body = "first, second = answers(loop(make())), answers(loop(make()))\nassert_same(first.lines, second.lines)"
        return Finding(f"in two equal runs {unlike}", body)
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
