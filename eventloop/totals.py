"""What the updates since a logger's last row come to, without asking a device for a number before a row is due."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from .events import EvalEnd, StepEnd, TrainBegin
from .metrics import Cell, fetch
from .state import TrainState
from .subscription import Priority

if TYPE_CHECKING:
    from .bus import Bus

BATCH: Final = 64  # updates kept as they came before they are folded on their device
FEW: Final = 8  # up to so many values are fetched as they are: folding them would cost more
MANY: Final = 512  # shares not yet read before a window joins them


class Totals:
    """The accumulator that all loggers of one bus share; it adds up what every step_end reports afresh.

    It stands just before the loggers, so it has what every reporter has said. Each logger holds a `window` of its own,
    so loggers that write at different intervals are all exact. Values stay tensors on their device until a window is
    read. Names that an attached object lists in its ``gauges`` (a name ending in ``/`` stands for all that begin so)
    give their last value in place of a mean.

    Sums are kept by window, not as differences of running totals: one loss of 1e30 would take the digits of every
    window after it.
    """

    priority = Priority.LOG + 1

    def __init__(self, bus: Bus) -> None:
        self._bus = weakref.ref(bus)  # the bus holds this object
        self._values: dict[str, list[Any] | deque[Any]] = {}
        self._pending = 0
        self._windows: weakref.WeakSet[Window] = weakref.WeakSet()
        self._seen: Iterable[str] = ()

    @classmethod
    def of(cls, bus: Bus) -> Totals:
        """The accumulator of this bus, attached to it at the first call."""
        for _, thing in bus.objects:
            if isinstance(thing, cls):
                return thing
        totals = cls(bus)
        bus.attach(totals)
        return totals

    @property
    def names(self) -> Iterable[str]:
        """What has been reported in this run, in order of appearance."""
        return self._values.keys()

    def window(self, state: Mapping[str, Any] | None = None) -> Window:
        """A window that opens now, or goes on from what `Window.state_dict` gave."""
        self.fold(reading=False)
        window = Window(self, state or {})
        self._windows.add(window)
        return window

    def news(self, state: TrainState) -> list[str]:
        """The fresh names that no step_end and no eval_end has shown: what was reported at an epoch's end, say."""
        seen = set(self._seen)
        return [key for key in state.metrics.fresh if key not in seen]

    def on_train_begin(self, event: TrainBegin, state: TrainState) -> None:
        """A run begins with nothing pending, and perhaps with other gauges."""
        self._values, self._pending, self._seen = {}, 0, ()

    def on_step_end(self, event: StepEnd, state: TrainState) -> None:
        """Keep what is fresh; nothing is asked for."""
        metrics, values = state.metrics, self._values
        fresh = self._seen = metrics.fresh
        raw = metrics.raw
        for key in fresh:
            try:
                values[key].append(raw(key))
            except KeyError:
                values[key] = deque([raw(key)], maxlen=1) if self._is_gauge(key) else [raw(key)]
        self._pending += 1
        if self._pending >= BATCH:
            self.fold(reading=False)

    def on_eval_end(self, event: EvalEnd, state: TrainState) -> None:
        """Note which names are the evaluation's."""
        self._seen = state.metrics.fresh

    def fold(self, *, reading: bool) -> None:
        """Hand what is pending to every window; if somebody is ``reading``, in the form that is cheapest to fetch."""
        if not self._pending:
            return
        gauges: dict[str, Cell] = {}
        values: dict[str, list[Any]] = {}
        for key, pending in self._values.items():
            if pending and isinstance(pending, deque):
                gauges[key] = Cell(pending[0], 0)
            elif pending:
                values[key] = list(pending)
            pending.clear()
        windows = list(self._windows)
        shares = list(_shares(values, reading)) if windows else []
        for window in windows:
            window.add(self._pending, shares, gauges)
        self._pending = 0

    def _is_gauge(self, key: str) -> bool:
        bus = self._bus()
        for _, thing in bus.objects if bus is not None else ():
            names = getattr(thing, "gauges", ())
            for name in (names,) if isinstance(names, str) else names:
                if key == name or (name.endswith("/") and key.startswith(name)):
                    return True
        return False

    def describe(self) -> str:
        """What it does."""
        return "adds up fresh metrics for the loggers"


class Window:
    """The updates from when it was opened, or last taken, until now. Made by `Totals.window`."""

    def __init__(self, totals: Totals, state: Mapping[str, Any]) -> None:
        self._totals = totals
        self._sums: dict[str, list[float]] = {key: list(sums) for key, sums in state.get("sums", {}).items()}
        self._gauges = {key: Cell(value, 0) for key, value in state.get("gauges", {}).items()}
        self._updates: int = state.get("updates", 0)
        self._waiting: list[Share] = []

    @property
    def updates(self) -> int:
        """How many updates it spans, those included that were skipped."""
        self._totals.fold(reading=False)
        return self._updates

    def take(self) -> dict[str, float]:
        """The mean of each key over the updates that reported it, the last value of a gauge; then it begins anew.

        A key with a value that is not finite is NaN. A key that no update reported is absent. This is an ask: one copy
        a device, shared by all windows that are read at the same step.
        """
        self._read()
        row = {key: math.nan if bad else total / count for key, (total, bad, count) in self._sums.items()}
        row |= {key: cell.value for key, cell in self._gauges.items()}
        self._updates, self._sums, self._gauges = 0, {}, {}
        return {key: row.pop(key) for key in self._totals.names if key in row} | row

    def state_dict(self) -> dict[str, Any]:
        """The window as plain numbers. This is an ask."""
        self._read()
        gauges = {key: cell.value for key, cell in self._gauges.items()}
        return {"updates": self._updates, "sums": {k: list(s) for k, s in self._sums.items()}, "gauges": gauges}

    def add(self, updates: int, shares: Sequence[Share], gauges: Mapping[str, Cell]) -> None:
        """So much more, for `Totals` to call."""
        self._updates += updates
        self._gauges.update(gauges)
        self._settle(shares)
        if len(self._waiting) > MANY:
            waiting, self._waiting = self._waiting, []
            self._settle(waiting)  # another window may have read them
            self._waiting = _joined(self._waiting)

    def _read(self) -> None:
        self._totals.fold(reading=True)
        waiting, self._waiting = self._waiting, []
        cells = [*(cell for share in waiting for cell in share.cells), *self._gauges.values()]
        if unread := [cell for cell in cells if cell.value.__class__ is not float]:
            fetch(unread)
        self._settle(waiting)

    def _settle(self, shares: Iterable[Share]) -> None:
        """Add up the shares that are numbers by now; the others wait."""
        sums = self._sums
        for share in shares:
            if not share.known():
                self._waiting.append(share)
            elif (mine := sums.get(share.key)) is not None:
                mine[0] += share.total
                mine[1] += share.bad
                mine[2] += share.count
            else:
                sums[share.key] = [share.total, share.bad, share.count]


class Share:
    """A part of one key's total: ``count`` values whose finite ones sum to ``total``, ``bad`` of them not finite.

    Args:
        key: the metric.
        count: of how many values.
        cells: the values themselves, or, if ``folded``, the two numbers made of them.
        folded: which of the two.
    """

    __slots__ = ("bad", "cells", "count", "folded", "key", "total")

    def __init__(self, key: str, count: int, cells: Sequence[Cell], folded: bool) -> None:
        self.key, self.count, self.cells, self.folded = key, count, cells, folded
        self.total = self.bad = 0.0

    def known(self) -> bool:
        """Whether ``total`` and ``bad`` are there; they are when all cells have been read, by whomever."""
        if not self.cells:
            return True
        values = [cell.value for cell in self.cells]
        if any(value.__class__ is not float for value in values):
            return False
        if self.folded:
            self.total, self.bad = values
        else:
            finite = [value for value in values if math.isfinite(value)]
            self.total, self.bad = sum(finite), float(len(values) - len(finite))
        self.cells = ()
        return True


def _shares(values: Mapping[str, list[Any]], reading: bool) -> Iterator[Share]:
    """The values of each key as shares: to be added up here, or by their device if they are many or nobody reads."""
    stacks: dict[tuple[Any, Any, int], tuple[list[str], list[Any]]] = {}
    for key, items in values.items():
        tensors = [item for item in items if item.__class__ is not float]
        if tensors and (not reading or (len(tensors) > FEW and tensors[0].device.type != "cpu")):
            for (device, dtype), alike in _alike(tensors).items():
                keys, stack = stacks.setdefault((device, dtype, len(alike)), ([], []))
                keys.append(key)
                stack += alike
            items = [item for item in items if item.__class__ is float]  # the rest
        if items:
            yield Share(key, len(items), [Cell(item, 0) for item in items], folded=False)
    for (_, _, count), (keys, stack) in stacks.items():
        yield from _folded(keys, stack, count)


def _alike(tensors: list[Any]) -> dict[tuple[Any, Any], list[Any]]:
    alike: dict[tuple[Any, Any], list[Any]] = {}
    for tensor in tensors:
        alike.setdefault((tensor.device, tensor.dtype), []).append(tensor)
    return alike


def _folded(keys: list[str], tensors: list[Any], count: int) -> Iterator[Share]:
    """``count`` values of each key, added up where they are: one stack, and no wait."""
    import torch

    wide = torch.float32 if tensors[0].device.type == "mps" else torch.float64  # mps has no doubles
    flat = torch.stack([t if t.dim() == 0 else t.reshape(()) for t in tensors]).view(len(keys), count).to(wide)
    finite = torch.isfinite(flat)
    total, bad = torch.where(finite, flat, 0.0).sum(1), (~finite).sum(1).to(wide)
    for key, *numbers in zip(keys, total.unbind(), bad.unbind(), strict=True):
        yield Share(key, count, [Cell(number, 0) for number in numbers], folded=True)


def _joined(shares: list[Share]) -> list[Share]:
    """As few shares as there are keys and devices, each still on its device; those of raw values stay as they are."""
    import torch

    joined = [share for share in shares if not share.folded]
    alike: dict[tuple[str, Any], list[Share]] = {}
    for share in shares:
        if share.folded:
            alike.setdefault((share.key, share.cells[0].value.device), []).append(share)
    for (key, _), group in alike.items():
        numbers = [torch.stack([s.cells[i].value for s in group]).sum() for i in (0, 1)]
        joined.append(Share(key, sum([s.count for s in group]), [Cell(n, 0) for n in numbers], folded=True))
    return joined
