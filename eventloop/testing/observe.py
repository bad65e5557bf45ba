"""What the callbacks of a run do to each other: who writes what, and who reads it, at which event."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

from ..fold import Control
from ..metrics import cells
from ..requests import Report, Request, SetLR, Stop
from ..totals import Totals
from .attributes import Watched, changed, values
from .reads import Reads

if TYPE_CHECKING:
    from ..bus import Bus
    from ..events import Event
    from ..state import TrainState
    from ..subscription import Subscription

Thing = tuple[str, str]
"""What is written and read: ("metrics", key), ("lr", group), ("held", group), ("of Name", attribute)."""


class Who(NamedTuple):
    """A subscription at one event, in running order: smaller ``place`` first."""

    name: str
    priority: int
    place: tuple[int, int]
    origin: int

    @classmethod
    def of(cls, subscription: Subscription) -> Who:
        """The one that a subscription is."""
        place = subscription.slot.order if subscription.slot is not None else (-subscription.priority, 0)
        return cls(subscription.name, -place[0], place, id(subscription.origin))


@dataclass
class Seen:
    """What was seen at the events of one name; the how of each read, as in `reads.Read`."""

    writes: dict[Who, dict[Thing, None]] = field(default_factory=dict)
    reads: dict[Who, dict[Thing, dict[str, None]]] = field(default_factory=dict)
    clashes: dict[tuple[Who, Who], dict[str, None]] = field(default_factory=dict)  # of one dispatch: the key of both
    stops: dict[tuple[Who, Who], None] = field(default_factory=dict)  # of one dispatch, in that order

    def write(self, who: Who, thing: Thing) -> None:
        """Note a write."""
        self.writes.setdefault(who, {})[thing] = None

    def read(self, who: Who, thing: Thing, how: str) -> None:
        """Note a read."""
        self.reads.setdefault(who, {}).setdefault(thing, {})[how] = None


class _Dispatch(NamedTuple):
    event: Event
    reporters: dict[str, Who]
    stoppers: list[Who]


class Observer:
    """Stands around every call on a bus, until `stop`.

    Attributes:
        bus: the bus.
        seen: by event name.
        setters: who sets the rate of each group, and at which event.
        totals: those who read through the `Totals` of the bus, by origin.
        accumulates: the place of the `Totals` itself, by event name.
    """

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.seen: dict[str, Seen] = {}
        self.setters: dict[str, dict[Who, str]] = {}
        self.totals: set[int] = set()
        self.accumulates: dict[str, Who] = {}
        self._dispatches: dict[int, _Dispatch] = {}  # every event is kept, so that no id comes twice
        self._running: list[tuple[Subscription, str]] = []
        self._watched = Watched(self._touched)
        self._watching = bus.watch(self._around)
        self._watching.__enter__()

    def stop(self) -> None:
        """Watch no longer; every object is what it was."""
        self._watching.__exit__(None, None, None)
        self._watched.release()

    def _around(self, who: Subscription, call: Callable[[Any, Any], Any], event: Event, state: TrainState) -> Any:
        self._watched.add([thing for _, thing in self.bus.objects])
        seen, me, reads = self.seen.setdefault(event.name, Seen()), Who.of(who), Reads()
        if isinstance(who.owner, Totals):
            self.accumulates[event.name] = me
        before = values(who.owner)
        self._running.append((who, event.name))
        try:
            answer = call(event, reads.noting(state))
        finally:
            self._running.pop()
            for of, key, how, _ in reads:
                seen.read(me, (of, key), how)
            for name in changed(before, values(who.owner)):
                seen.write(me, (f"of {who.name}", name))
        for request in _requests(answer):
            self._asked(me, request, event, state, seen)
        return answer

    def _touched(self, thing: object, name: str) -> None:
        """Somebody asks for an attribute of a watched object: one that is running, or nobody of ours."""
        if not self._running:
            return
        who, event = self._running[-1]
        if who.owner is thing or name.startswith("__"):
            return
        me = Who.of(who)
        if isinstance(thing, Totals):
            self.totals.add(me.origin)
        else:
            title = next((title for title, other in self.bus.objects if other is thing), "")
            self.seen.setdefault(event, Seen()).read(me, (f"of {title}", name), "attribute")

    def _asked(self, me: Who, request: Request, event: Event, state: TrainState, seen: Seen) -> None:
        dispatch = self._dispatches.setdefault(id(event), _Dispatch(event, {}, []))
        if isinstance(request, Report):
            for key in cells(request.metrics, 0)[0]:
                seen.write(me, ("metrics", key))
                first = dispatch.reporters.setdefault(key, me)
                if first.origin != me.origin:
                    seen.clashes.setdefault((first, me), {})[key] = None
        elif isinstance(request, SetLR):
            for group in request.by_group(state.lr or ("group_0",)):
                seen.write(me, ("lr" if event.folds_lr else "held", group))
                self.setters.setdefault(group, {}).setdefault(me, event.name)
        elif isinstance(request, Stop):
            for first in dispatch.stoppers:
                seen.stops[first, me] = None
            dispatch.stoppers.append(me)


def _requests(answer: Any) -> tuple[Any, ...]:
    """What a handler answered; what was reported at a publish of its own reaches the handlers behind through it."""
    if isinstance(answer, Control):
        return tuple(reply.request for reply in answer.of(Report))
    return tuple(answer) if isinstance(answer, list | tuple) else (answer,)
