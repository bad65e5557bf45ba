"""What each handler costs: sampled, so that knowing it costs next to nothing.

Two clock reads a handler would cost 3 to 5 times the dispatch. So the first 16 calls are timed, then 1 in 64, and each
sample stands for the calls since the one before.
"""

from __future__ import annotations

from time import perf_counter_ns
from typing import Any, Final

from .channel import Slot

DENSE: Final = 16
SPARSE: Final = 64


class Cost:
    """Calls, estimated total and worst sampled time of one subscription, in nanoseconds.

    ``unsampled`` counts the calls of a filtered handler since its last sample; an unfiltered one's table counts them.
    """

    __slots__ = ("calls", "samples", "total", "unsampled", "worst")

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Begin anew."""
        self.calls = self.total = self.worst = self.samples = self.unsampled = 0

    def add(self, spent: int, weight: int) -> None:
        """One sample that stands for ``weight`` calls."""
        self.calls += weight
        self.total += spent * weight
        self.samples += 1
        if spent > self.worst:
            self.worst = spent

    def count(self, calls: int) -> None:
        """So many calls that were not sampled."""
        self.total += round(self.mean * calls)
        self.calls += calls

    @property
    def mean(self) -> float:
        """Mean nanoseconds a call."""
        return self.total / self.calls if self.calls else 0.0

    def sampled(self, slot: Slot) -> Any:
        """The slot, under a stopwatch if this call of a filtered handler is one to sample."""
        if self.samples >= DENSE and self.unsampled < SPARSE - 1:
            self.unsampled += 1
            return slot
        weight, self.unsampled = self.unsampled + 1, 0
        return Timed(slot, self, weight)


class Timed:
    """A slot under a stopwatch. It calls whatever the slot holds by then, so a cancelled one stays silent."""

    __slots__ = ("_cost", "_slot", "_weight")

    def __init__(self, slot: Slot, cost: Cost, weight: int) -> None:
        self._slot, self._cost, self._weight = slot, cost, weight

    @property
    def owner(self) -> Any:
        """The slot's owner."""
        return self._slot.owner

    def call(self, event: Any, state: Any) -> Any:
        """Call and note the time, also of a call that raises."""
        start = perf_counter_ns()
        try:
            return self._slot.call(event, state)
        finally:
            self._cost.add(perf_counter_ns() - start, self._weight)
