"""When a handler is due.

Filters watch counters by crossing. Each says in which window of its counter nothing can change, so that a publish
inside all windows costs one comparison however many handlers wait: `Table` is that calendar.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from .channel import Slot
from .cost import DENSE, SPARSE, Timed
from .events import Event
from .state import COUNTERS, FIELD

SECONDS: Final = -1
Amount = int | float | Mapping[str, float]


class Condition:
    """One rule on one counter. Inside ``[low, high)`` its answer is ``steady`` and looking changes nothing."""

    __slots__ = ("before", "high", "index", "low", "n", "steady", "word")

    def __init__(self, word: str, index: int, n: float) -> None:
        self.word, self.index, self.n = word, index, n
        self.before: float | None = None  # the counter at the last look
        self.rebase(None)

    def rebase(self, now: float | None) -> None:
        """Count from ``now``; None means one before whatever is seen first."""
        self.before = now
        self.low, self.high, self.steady = math.inf, -math.inf, False

    def look(self, now: float) -> bool:
        """Whether the rule holds at this value of the counter; moves the window there."""
        before = self.before
        if before is None:
            before = now if self.index == SECONDS else max(now - 1, 0)
        self.before = now
        return self._look(before, now)

    def _look(self, before: float, now: float) -> bool:
        raise AssertionError(f"{self.word}: a rule must say when it holds")

    def __str__(self) -> str:
        unit = "seconds" if self.index == SECONDS else _UNITS[_NAME[self.index]]
        return f"{self.word} {self.n:g} {unit.removesuffix('s') if self.n == 1 else unit}"


class Every(Condition):
    """Holds when the counter crosses a multiple of n, never by remainder: a counter that jumps misses nothing."""

    __slots__ = ()

    def _look(self, before: float, now: float) -> bool:
        multiple = now // self.n
        self.low, self.high = multiple * self.n, (multiple + 1) * self.n
        return multiple > before // self.n


class Once(Condition):
    """Holds at the one look at which the counter has reached n and had not before."""

    __slots__ = ()

    def _look(self, before: float, now: float) -> bool:
        self.low, self.high = (-math.inf, self.n) if now < self.n else (self.n, math.inf)
        return before < self.n <= now


class After(Condition):
    """Holds while the counter is above n."""

    __slots__ = ()

    def _look(self, before: float, now: float) -> bool:
        above = math.nextafter(self.n, math.inf)
        self.steady = now > self.n
        self.low, self.high = (above, math.inf) if self.steady else (-math.inf, above)
        return self.steady


class Before(Condition):
    """Holds while the counter is below n."""

    __slots__ = ()

    def _look(self, before: float, now: float) -> bool:
        self.steady = now < self.n
        self.low, self.high = (-math.inf, self.n) if self.steady else (self.n, math.inf)
        return self.steady


_RULES: Final[Mapping[str, type[Condition]]] = {"every": Every, "after": After, "before": Before, "once": Once}
_NAME: Final = {FIELD[name]: name for name in COUNTERS}
_UNITS: Final = {
    "update": "updates",
    "step": "steps",
    "epoch": "epochs",
    "micro": "micro-batches",
    "evals": "evals",
} | {name: name for name in ("samples", "skipped")}


def condition(word: str, amount: Amount, kind: type[Event]) -> Condition:
    """The rule that ``every=``, ``after=``, ``before=`` or ``once=`` states for an event.

    Raises:
        ValueError: the amount is no whole number >= 1 of the event's counter and no ``{counter: amount}``.
    """
    counter, n = kind.counter, amount
    if isinstance(amount, Mapping):
        if len(amount) != 1:
            raise ValueError(f"{word}={dict(amount)!r}: give one counter, such as {{'samples': 1000}}")
        counter, n = next(iter(amount.items()))
    if counter != "seconds" and counter not in COUNTERS:
        raise ValueError(f"{word}={amount!r}: no counter {counter!r}; there are {', '.join(COUNTERS)} and seconds")
    smallest = 1 if word in ("every", "once") else 0
    if counter == "seconds":
        if isinstance(n, bool) or not isinstance(n, int | float) or not 0 < n < math.inf:
            raise ValueError(f"{word}={amount!r}: seconds must be a number above 0")
    elif isinstance(n, bool) or not isinstance(n, int) or n < smallest:
        raise ValueError(f"{word}={amount!r} must be a whole number >= {smallest} (of {counter})")
    return _RULES[word](word, SECONDS if counter == "seconds" else FIELD[counter], n)


class Filter:
    """All conditions of one subscription."""

    __slots__ = ("conditions",)

    def __init__(self, conditions: Sequence[Condition]) -> None:
        self.conditions = tuple(conditions)

    def look(self, state: Sequence[Any], seconds: float) -> bool:
        """Whether all hold now. Each looks, so that a crossing is consumed whoever else forbids it."""
        looks = [c.look(seconds if c.index == SECONDS else state[c.index]) for c in self.conditions]
        return all(looks)

    @property
    def steady(self) -> bool:
        """Whether the handler is due at every publish inside the windows."""
        return all(c.steady for c in self.conditions)

    def rebase(self, state: Sequence[Any], seconds: float) -> None:
        """Count from here."""
        for c in self.conditions:
            c.rebase(seconds if c.index == SECONDS else state[c.index])

    def state_dict(self) -> list[float | None]:
        """Where each condition looked last."""
        return [c.before for c in self.conditions]

    def load_state_dict(self, before: Sequence[float | None]) -> None:
        """Go on from there."""
        for c, value in zip(self.conditions, before, strict=False):
            c.rebase(value)

    def __str__(self) -> str:
        return ", ".join(map(str, self.conditions))


class Table:
    """What one event class calls in order: ``always``, or with filters ``current`` while inside the windows.

    ``index`` is the counter's place in the snapshot if a single one decides, else -1: ask `due`.
    """

    __slots__ = (
        "_clock",
        "_shared",
        "_taken",
        "_watched",
        "_windows",
        "always",
        "current",
        "high",
        "index",
        "left",
        "low",
        "slots",
    )

    def __init__(self, kind: type[Event], slots: tuple[Slot, ...], clock: Callable[[], float]) -> None:
        self.slots = slots
        # A filter on a base class moves with every event under it, so its window tells nothing here.
        self._shared = any(s.owner.filter is not None and s.kind is not kind for s in slots)
        watched = {c.index for s in slots if (f := s.owner.filter) is not None for c in f.conditions}
        self.always = None if watched else slots
        self.index = watched.pop() if len(watched) == 1 and not self._shared else -1
        self.low, self.high = math.inf, -math.inf  # the first publish looks
        self.current: tuple[Slot, ...] = ()
        self._windows: list[tuple[int, float, float]] = []
        self._clock = clock
        self.left, self._taken = 0, 0
        self._watched: dict[int, tuple[tuple[Any, ...], tuple[Any, ...]]] = {}

    @property
    def unsampled(self) -> int:
        """Publishes since the last sample."""
        return SPARSE - 1 - self.left if self._taken >= DENSE else 0

    def settle(self) -> None:
        """Count the publishes since the last sample, before this table is thrown away."""
        for slot in self.always or self.current:
            slot.owner.cost.count(self.unsampled)

    def quiet(self, state: Sequence[Any]) -> bool:
        """Whether every watched counter is still inside its window."""
        if self._shared:
            return False
        if self.index >= 0:
            return bool(self.low <= state[self.index] < self.high)
        return bool(self._windows) and all(
            low <= (self._clock() if i == SECONDS else state[i]) < high for i, low, high in self._windows
        )

    def due(self, event: Event, state: Sequence[Any]) -> tuple[Any, ...]:
        """The slots to call now, when the counters may have left the windows; opens the next windows."""
        if self.quiet(state):
            return self.current
        seconds = self._clock()
        due: list[Any] = []
        current: list[Slot] = []
        windows: dict[int, tuple[float, float]] = {}
        for slot in self.slots:
            filter_ = slot.owner.filter
            if filter_ is None:
                due.append(slot)
                current.append(slot)
                continue
            holds, steady = filter_.look(state, seconds), filter_.steady
            if steady:
                current.append(slot)
            if holds:
                due.append(slot if steady else slot.owner.cost.sampled(slot))
            for c in filter_.conditions:
                low, high = windows.get(c.index, (-math.inf, math.inf))
                windows[c.index] = max(low, c.low), min(high, c.high)
        self.current = tuple(current)
        self._windows = [(i, *bounds) for i, bounds in windows.items()]
        if self.index >= 0:
            self.low, self.high = windows[self.index]
        return tuple(due)

    def timed(self, slots: tuple[Any, ...]) -> tuple[Any, ...]:
        """The same slots, some of them under a stopwatch; sets the countdown to the next sample.

        A sample takes at most 8 slots, in turn, for 50 stopwatches in one publish would be felt.
        """
        dense = self._taken < DENSE
        self._taken += 1
        self.left = 0 if self._taken < DENSE else SPARSE - 1
        turns = 1 if dense else -(-len(slots) // 8)
        turn, weight = self._taken % turns, 1 if dense else SPARSE * turns
        known = self._watched.get(turn)
        if dense or known is None or known[0] is not slots:  # kept, for making stopwatches costs more than reading them
            timed = [_watch(s, weight) if i % turns == turn else s for i, s in enumerate(slots)]
            known = slots, tuple(timed)
            if not dense:
                self._watched[turn] = known
        return known[1]


def _watch(slot: Any, weight: int) -> Any:
    """The slot under a stopwatch, unless it is due for a filter's moment: then it counts its own samples."""
    filter_ = slot.owner.filter
    steady = slot.__class__ is not Timed and (filter_ is None or filter_.steady)
    return Timed(slot, slot.owner.cost, weight) if steady else slot
