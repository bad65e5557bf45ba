"""Standing around the calls of handlers, for tests and traces: who was given what, and what came back.

A watched bus compiles its tables with these in place of slots, so a bus that nobody watches pays nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .channel import Slot, paused, silent
from .events import Event
from .state import TrainState
from .subscription import Subscription

Around = Callable[[Subscription, Callable[[Any, Any], Any], Any, Any], Any]
"""``around(who, call, event, state)`` calls ``call(event, state)`` and returns the answer, or does otherwise."""


class Watched:
    """A slot whose calls go through ``around``; one that is cancelled or switched off stays silent."""

    __slots__ = ("_around", "_slot")

    def __init__(self, slot: Any, around: Around) -> None:
        self._slot, self._around = slot, around

    @property
    def owner(self) -> Any:
        """The slot's owner."""
        return self._slot.owner

    @property
    def kind(self) -> type[Event]:
        """The event class that it is connected to."""
        return self._slot.kind  # type: ignore[no-any-return]  # a Slot, or one of these

    @property
    def call(self) -> Callable[[Any, Any], Any]:
        """What a publish calls."""
        call: Callable[[Any, Any], Any] = self._slot.call
        around, owner = self._around, self._slot.owner
        if call is silent or call is paused:
            return call

        def watched(event: Event, state: TrainState) -> Any:
            return around(owner, call, event, state)

        return watched


def watched_by(slots: Sequence[Slot], watchers: Sequence[Around]) -> tuple[Any, ...]:
    """The slots with every watcher around them, the first one innermost."""
    found: list[Any] = list(slots)
    for around in watchers:
        found = [Watched(slot, around) for slot in found]
    return tuple(found)
