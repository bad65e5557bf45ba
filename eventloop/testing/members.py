"""The list that `BusMachine` compares a bus with: its members, and who of them is to be called at each publish."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from ..events import Event, HandlerFailed
from ..state import TrainState

if TYPE_CHECKING:
    from ..bus import Bus

Act = Literal["silent", "stops", "raises", "publishes", "adds", "registers"]
ACTS: Final[tuple[Act, ...]] = get_args(Act)
Way = Literal["subscribed", "connected", "weak"]


class Owner:
    """Holds the bound method that is connected weakly."""

    def __init__(self, handler: Callable[[Any, Any], Any]) -> None:
        self._handler = handler

    def receive(self, sender: Any, event: Event, state: TrainState) -> Any:
        """Called as blinker calls."""
        return self._handler(event, state)


class Member:
    """A subscriber of the machine's own: its place in the list, and what holds it on the bus.

    Attributes:
        name: ``member_0``, ``member_1``, ...
        kind: the event class that it hears.
        priority: its place; ties go by ``ticket``, the order of registration.
        does: what it does when it is called.
        way: whether ``bus.on`` or blinker registers it.
        victim: whom it cancels when it is called.
        on: whether it is on the bus.
    """

    def __init__(
        self, ticket: int, kind: type[Event], priority: int, does: Act, way: Way, victim: Member | None = None
    ) -> None:
        self.name, self.ticket, self.kind, self.priority = f"member_{ticket}", ticket, kind, priority
        self.does, self.way, self.victim = does, way, victim
        self.on, self.stays = True, 0
        self.newcomer: Member | None = None  # whom it has added
        self.handle: Any = None
        self.receiver: Callable[..., Any] | None = None
        self.owner: Owner | None = None

    @property
    def place(self) -> tuple[int, int]:
        """Its place in the running order."""
        return -self.priority, self.ticket

    def join(self, bus: Bus, handler: Callable[[Any, Any], Any]) -> None:
        """It is put on the bus by its way; to blinker it stays the receiver that it has been."""
        if self.way == "subscribed":
            self.handle = bus.on(self.kind, handler, name=self.name, priority=self.priority)
            return
        if self.way == "weak":
            self.owner = self.owner or Owner(handler)
        else:
            self.receiver = self.receiver or receiver_of(handler)
        receiver: Any = self.receiver if self.owner is None else self.owner.receive
        bus.signal(self.kind).connect(receiver, weak=self.way == "weak", priority=self.priority)

    def cancel(self, bus: Bus) -> None:
        """It is taken off the bus, perhaps not for the first time."""
        self.leave()
        if self.handle is not None:
            self.handle.cancel()
        elif self.receiver is not None:
            bus.signal(self.kind).disconnect(self.receiver)
        elif self.owner is not None:
            bus.signal(self.kind).disconnect(self.owner.receive)

    def leave(self) -> None:
        """It is off the bus at once; should it come back within the dispatch that is running, it waits for the next."""
        self.on = False
        self.stays += 1

    def __repr__(self) -> str:
        return f"<{self.name}: {self.way} to {self.kind.name}, priority {self.priority}, {self.does}>"


def receiver_of(handler: Callable[[Any, Any], Any]) -> Callable[..., Any]:
    """What blinker calls."""
    return lambda sender, event, state: handler(event, state)


class _Dispatch:
    """One dispatch: its event, and the members whose turn is still to come, each with the stay that it is in."""

    def __init__(self, event: Event | None, heard: list[Member], error: Exception | None = None) -> None:
        self.event, self.error = event, error
        self.rest = [(member, member.stays) for member in heard]
        self.whole = True  # whether it was seen from its beginning

    def is_of(self, event: Event) -> bool:
        """Whether it is the dispatch of this event; of a failure the error is known before the event is there."""
        if self.event is None and isinstance(event, HandlerFailed) and event.error is self.error:
            self.event = event
        return self.event is event


class Members:
    """The machine's own subscribers as a list, and the calls that follow from it.

    Attributes:
        called: who was called in the publish at hand, and with which event.
        expected: who was to be called.
    """

    def __init__(self) -> None:
        self.all: list[Member] = []
        self.muted: set[type[Event]] = set()
        self.called: list[tuple[str, str]] = []
        self.expected: list[tuple[str, str]] = []
        self._tickets = 0
        self._running: list[_Dispatch] = []

    def add(self, kind: type[Event], priority: int, does: Act, way: Way, victim: Member | None = None) -> Member:
        """A new member, the last among its equals."""
        self.all.append(Member(self._next(), kind, priority, does, way, victim))
        return self.all[-1]

    def come_back(self, member: Member) -> None:
        """It registers again: the last among its equals."""
        member.on, member.ticket = True, self._next()

    def _next(self) -> int:
        self._tickets += 1
        return self._tickets - 1

    def hearing(self, kind: type[Event]) -> list[Member]:
        """Who hears this event, in running order."""
        heard = (m for m in self.all if m.on and issubclass(kind, m.kind) and m.kind not in self.muted)
        return sorted(heard, key=lambda member: member.place)

    def begin(self, event: Event) -> _Dispatch:
        """A dispatch begins."""
        self._running.append(_Dispatch(event, self.hearing(type(event))))
        return self._running[-1]

    def begin_failure(self, error: Exception, event: Event) -> Exception:
        """A member is about to raise this at ``event``, whereupon the bus publishes its `HandlerFailed`."""
        if not isinstance(event, HandlerFailed):  # a failure there is told to nobody, or there would be no end
            self._running.append(_Dispatch(None, self.hearing(HandlerFailed), error))
        return error

    def end(self, dispatch: _Dispatch) -> None:
        """A dispatch has ended, and with it all that began inside it."""
        while self._running:
            last = self._running.pop()
            self._missed(last, last.rest)
            if last is dispatch:
                return

    def note(self, member: Member, event: Event) -> None:
        """A member is called: whoever was to come before it has been missed."""
        self.called.append((member.name, event.name))
        dispatch = self._of(event)
        turns = [one for one, _ in dispatch.rest]
        if member in turns:
            i = turns.index(member)
            ahead, (_, stays), dispatch.rest = dispatch.rest[:i], dispatch.rest[i], dispatch.rest[i + 1 :]
            self._missed(dispatch, [*ahead, (member, stays)] if member.stays == stays else ahead, but=member)

    def _of(self, event: Event) -> _Dispatch:
        if any(dispatch.is_of(event) for dispatch in self._running):
            while not self._running[-1].is_of(event):
                self.end(self._running[-1])
        else:  # somebody has published it who is no member: what happened before this call is not known
            self.begin(event).whole = False
        return self._running[-1]

    def _missed(self, dispatch: _Dispatch, turns: list[tuple[Member, int]], but: Member | None = None) -> None:
        name = HandlerFailed.name if dispatch.event is None else dispatch.event.name
        for member, stays in turns:
            if member is but or (dispatch.whole and member.stays == stays):
                self.expected.append((member.name, name))


def compare(event: Event, what: str, told: list[Any], expected: list[Any]) -> None:
    """Compare what the bus has done at an event with what the list says.

    Raises:
        AssertionError: they differ; it says where.
    """
    if told != expected:
        i = next(i for i, (a, b) in enumerate(itertools.zip_longest(told, expected)) if a != b)
        text = f"at {event.name} the bus {what} {told}\nby the list it should be {expected}"
        raise AssertionError(f"{text}\nthe first difference is at {i}")
