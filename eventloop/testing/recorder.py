"""`Recorder`: what a bus published, as a plain list."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from ..events import Event
from ..subscription import Priority

if TYPE_CHECKING:
    from collections.abc import Callable

    from ..bus import Bus
    from ..state import TrainState


class Recorder(list[tuple[Any, ...]]):
    """A list that fills itself with what a bus publishes: ``(event name, step)``, and ``extra`` behind it if asked.

    Being a list of plain tuples, it is compared whole: ``assert recorder == [("step_begin", 0), ("step_end", 1)]``. It
    hears every kind of event first, so an event that a handler publishes stands behind the one that caused it.

    Args:
        bus: whose events to record.
        extra: called with (event, state); what it returns is the third member of each tuple.
        priority: its place in the order; ``Priority.LAST`` shows ``extra`` the state with everybody's reports in it.
    """

    def __init__(
        self,
        bus: Bus,
        extra: Callable[[Any, TrainState], Any] | None = None,
        *,
        priority: int = Priority.FIRST,
    ) -> None:
        super().__init__()
        self._extra = extra
        self.handle = bus.on(Event, self.record, priority=priority, failure="raise")

    def record(self, event: Event, state: TrainState) -> None:
        """Add one line; the handler that stands on the bus."""
        line = event.name, state.step
        self.append(line if self._extra is None else (*line, self._extra(event, state)))

    @property
    def names(self) -> list[str]:
        """The names of the events alone."""
        return [line[0] for line in self]
