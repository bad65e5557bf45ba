"""What the updates since a logger's last row come to, without asking a device for a number before a row is due."""

from __future__ import annotations

import math
import weakref
from collections import deque
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from .events import EvalEnd, StepEnd, TrainBegin
from .metrics import Cell, fetch
from .state import TrainState
from .subscription import Priority

if TYPE_CHECKING:
    from .bus import Bus

BATCH: Final = 64  # updates kept as they came before they are added up where they are
MANY: Final = 512  # shares not yet read before a window joins them


class Share(NamedTuple):
    """``number`` values of one key, added up; a tensor until somebody reads it, a float for everybody from then on."""

    key: str
    number: int
    total: Cell


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
        self._windows: list[weakref.ref[Window]] = []
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

    def window(self, state: Mapping[str, Any] | None = None) -> Window:
        """A window that opens now, or goes on from what `Window.state_dict` gave."""
        self.fold()
        window = Window(self, state or {})
        self._windows = [ref for ref in self._windows if ref() is not None] + [weakref.ref(window)]
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
            self.fold()

    def on_eval_end(self, event: EvalEnd, state: TrainState) -> None:
        """Note which names are the evaluation's."""
        self._seen = state.metrics.fresh

    def fold(self) -> None:
        """Hand what is pending to every window; still without asking."""
        if not self._pending:
            return
        gauges: dict[str, Cell] = {}
        shares: list[Share] = []
        for key, values in self._values.items():
            if not values:
                continue
            if values.__class__ is deque:
                gauges[key] = Cell(values[0], 0)
            elif len(values) == 1:  # a row each update needs no more than this
                shares.append(Share(key, 1, Cell(values[0], 0)))
            else:
                shares += _shares(key, values)
            values.clear()
        for ref in self._windows:
            if (window := ref()) is not None:
                window.add(shares, gauges)
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
        self._unread: list[Share] = []

    def take(self) -> dict[str, float]:
        """The mean of each key over the updates that reported it, the last value of a gauge; then it begins anew.

        Updates that were skipped count with what they report. A key with a value that is not finite is NaN. A key that
        no update reported is absent. This is an ask: one copy
        a device, shared by all windows that are read at the same step.
        """
        self._read()
        row = {key: total / count if math.isfinite(total) else math.nan for key, (total, count) in self._sums.items()}
        row |= {key: cell.value for key, cell in self._gauges.items()}
        self._sums, self._gauges = {}, {}
        return row

    def state_dict(self) -> dict[str, Any]:
        """The window as plain numbers. This is an ask."""
        self._read()
        gauges = {key: cell.value for key, cell in self._gauges.items()}
        return {"sums": {key: list(sums) for key, sums in self._sums.items()}, "gauges": gauges}

    def add(self, shares: Sequence[Share], gauges: Mapping[str, Cell]) -> None:
        """So much more, for `Totals` to call."""
        self._gauges.update(gauges)
        self._settle(shares)
        if len(self._unread) > MANY:
            unread, self._unread = self._unread, []
            self._settle(unread)  # another window may have read them
            self._unread = _joined(self._unread)

    def _read(self) -> None:
        self._totals.fold()
        cells = [*(share.total for share in self._unread), *self._gauges.values()]
        if unread := [cell for cell in cells if cell.value.__class__ is not float]:
            fetch(unread)
        shares, self._unread = self._unread, []
        self._settle(shares)

    def _settle(self, shares: Iterable[Share]) -> None:
        """Add up the shares that are numbers by now; the others wait."""
        sums = self._sums
        for share in shares:
            key, number, total = share
            mine = sums.get(key)
            if mine is None:
                mine = sums[key] = [0.0, 0]  # in order of appearance, read or not
            if total.value.__class__ is float:
                mine[0] += total.value
                mine[1] += number
            else:
                self._unread.append(share)


def _shares(key: str, values: Iterable[Any]) -> Iterator[Share]:
    """The values, numbers added up here and tensors on their device."""
    tensors = [value for value in values if value.__class__ is not float]
    if numbers := [value for value in values if value.__class__ is float]:
        yield Share(key, len(numbers), Cell(sum(numbers), 0))
    alike: dict[Any, list[Any]] = {}
    for tensor in tensors:
        alike.setdefault(tensor.get_device(), []).append(tensor)
    for group in alike.values():
        yield Share(key, len(group), Cell(group[0] if len(group) == 1 else _added(group), 0))


def _added(tensors: list[Any]) -> Any:
    import torch

    wide = torch.float32 if tensors[0].device.type == "mps" else torch.float64  # mps has no doubles
    return torch.stack([t if t.dim() == 0 else t.reshape(()) for t in tensors]).sum(dtype=wide)


def _joined(shares: list[Share]) -> list[Share]:
    """As few shares as there are keys and devices, each still on its device."""
    alike: dict[tuple[str, int], list[Share]] = {}
    for share in shares:
        alike.setdefault((share.key, share.total.value.get_device()), []).append(share)
    return [
        Share(key, sum([s.number for s in group]), Cell(_added([s.total.value for s in group]), 0))
        for (key, _), group in alike.items()
    ]
