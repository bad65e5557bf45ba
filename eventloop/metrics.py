"""Numbers that stay where they are until somebody asks.

A reported tensor is kept, detached, in a cell that every snapshot of its update shares. Reading it as a float is the
ask: all unread cells of that snapshot are then fetched together, one copy a device. At the next step_begin what was
asked for stays as a number and the rest is dropped, for its memory may be written again by then.
"""

from __future__ import annotations

import numbers
import sys
from collections.abc import Iterable, Iterator, KeysView, Mapping
from typing import Any, Final

from .errors import StaleMetricError, told

DROPPED: Final = object()


class Cell:
    """One metric of one update: a float, a tensor not yet read, a tuple of micro-losses, or DROPPED."""

    __slots__ = ("step", "value")

    def __init__(self, value: Any, step: int) -> None:
        self.value = value
        self.step = step


_NONE: Final[dict[str, Cell]] = {}  # shared by all that have none, and never written to


class Metrics(Mapping[str, float]):
    """A frozen mapping of metric names to floats; reading a value asks for it.

    `raw` does not ask. `fresh` are the names reported for this update (at eval_end: for this evaluation); every other
    name is older, `step_of` says from which step.
    """

    __slots__ = ("_live", "_now", "_old")

    def __init__(self, now: dict[str, Cell] = _NONE, old: dict[str, Cell] = _NONE, live: bool = False) -> None:
        self._now, self._old = now, old
        self._live = live  # whether _old may still hold tensors of the update in hand

    def __getitem__(self, key: str) -> float:
        cell = self._cell(key)
        value = cell.value
        if value.__class__ is float:
            return value
        if value is DROPPED:
            raise StaleMetricError(
                f"{key} of step {cell.step} was not read before the next step_begin and is gone; "
                f"read state.metrics[{key!r}] inside the handler if you keep the snapshot"
            )
        fetch([c for group in (self._now, self._old) for c in group.values() if _unread(c)])
        return cell.value  # type: ignore[no-any-return]  # fetch has made it a float

    def _cell(self, key: str) -> Cell:
        cell = self._now.get(key) or self._old.get(key)
        if cell is None:
            raise KeyError(f"no metric {key!r}; there are: {', '.join(self) or 'none'}")
        return cell

    def raw(self, key: str) -> Any:
        """The value without asking: a float, or a new one-element tensor on its own device."""
        value = self._cell(key).value
        if value.__class__ is float:
            return value
        if value is DROPPED:
            return self[key]  # raises, saying so
        if value.__class__ is tuple:
            torch = sys.modules["torch"]
            return _stacked(torch, [part if hasattr(part, "dtype") else torch.tensor(part) for part in value]).mean()
        return value.clone()  # the handlers behind must not see what this one does to it

    @property
    def fresh(self) -> KeysView[str]:
        """The names reported for this update, or for this evaluation."""
        return self._now.keys()

    def step_of(self, key: str) -> int:
        """The step that the value of ``key`` belongs to."""
        return self._cell(key).step

    def known(self) -> Iterator[tuple[str, Cell]]:
        """The names and cells of what is a number already."""
        both = {**self._old, **self._now}
        return ((key, cell) for key, cell in both.items() if cell.value.__class__ is float)

    def __iter__(self) -> Iterator[str]:
        yield from self._now
        for key in self._old:
            if key not in self._now:
                yield key

    def __len__(self) -> int:
        return len(self._old.keys() | self._now.keys())

    def __contains__(self, key: object) -> bool:
        return key in self._now or key in self._old

    def __repr__(self) -> str:
        return f"Metrics({', '.join(self)})"

    def added(self, cells: dict[str, Cell]) -> Metrics:
        """With these cells among the fresh ones; the mapping is kept, nobody may change it."""
        return Metrics({**self._now, **cells} if self._now else cells, self._old, self._live)

    def evaluated(self, cells: dict[str, Cell]) -> Metrics:
        """With exactly these cells fresh."""
        return Metrics(cells, {**self._old, **self._now}, live=True)

    def aged(self) -> Metrics:
        """At the next step_begin: numbers stay, tensors nobody asked for are dropped, nothing is fresh."""
        if not (self._now or self._live):
            return self
        old = self._old
        if self._live:  # an evaluation has pushed this update's cells among the old ones
            old = _numbers(old)
        if self._now:
            now = _numbers(self._now)
            if now:
                old = {**old, **now} if old else now
        return Metrics(_NONE, old)


def _numbers(cells: dict[str, Cell]) -> dict[str, Cell]:
    """The cells that were read; the others let their tensors go."""
    kept = {}
    for key, cell in cells.items():
        if cell.value.__class__ is float:
            kept[key] = cell
        else:
            cell.value = DROPPED
    return kept


NO_METRICS: Final = Metrics()


def cells(report: Mapping[str, Any], step: int) -> tuple[dict[str, Cell], dict[str, str]]:
    """A report as cells, and for each key that cannot be one a sentence that says why."""
    good: dict[str, Cell] = {}
    bad: dict[str, str] = {}
    for key, value in report.items():
        if value.__class__ is float and key.__class__ is str:
            good[key] = Cell(value, step)
        else:
            _add(key, value, step, good, bad)
    return good, bad


def _add(key: Any, value: Any, step: int, good: dict[str, Cell], bad: dict[str, str]) -> None:
    if not isinstance(key, str):
        bad[repr(key)] = f"metric name {key!r} is no text"
        return
    try:
        number = _number(value)
    except Exception as error:  # a tensor of a lost device, say
        bad[key] = f"metric {key!r} cannot be read: {told(error)}"
        return
    if number is not None:
        good[key] = Cell(number, step)
    elif isinstance(value, Mapping):
        for inner, item in value.items():
            _add(f"{key}/{inner}", item, step, good, bad)
    else:
        shape = f" of shape {tuple(value.shape)}" if hasattr(value, "shape") else ""
        bad[key] = f"metric {key!r} must be one real number, not {type(value).__module__}.{type(value).__name__}{shape}"


def _number(value: Any) -> Any:
    """A float, or a detached tensor of one element, or None if the value is neither."""
    torch = sys.modules.get("torch")
    if torch is not None and isinstance(value, torch.Tensor):
        one = value.numel() == 1 and not value.is_complex()
        return (value.detach() if value.requires_grad else value) if one else None
    if isinstance(value, numbers.Real):
        try:
            return float(value)
        except OverflowError:
            return None
    if not hasattr(value, "dtype"):
        return None
    try:
        number = value.item()  # a NumPy scalar or array: on the host already
    except (ValueError, TypeError, AttributeError):
        return None
    return float(number) if isinstance(number, int | float) else None


def _unread(cell: Cell) -> bool:
    return cell.value.__class__ is not float and cell.value is not DROPPED


def _wide(torch: Any, tensor: Any) -> Any:
    return torch.float32 if tensor.device.type == "mps" else torch.float64  # mps has no doubles


def _stacked(torch: Any, tensors: Iterable[Any]) -> Any:
    flat = [t.reshape(()) for t in tensors]
    return torch.stack([t.to(_wide(torch, t)) for t in flat])


def _on_host(value: Any) -> bool:
    return getattr(value, "is_cpu", True)  # what has no device is a number


def fetch(unread: Iterable[Cell]) -> None:
    """Turn cells into floats: one copy for all tensors of a device. The only place that makes a device wait."""
    split: list[tuple[Cell, list[Any]]] = []
    by_device: dict[Any, list[tuple[list[Any], int]]] = {}
    for cell in unread:
        value = cell.value
        if value.__class__ is not tuple:
            if _on_host(value):
                cell.value = float(value)  # nothing to batch on the host: 40 times cheaper than a stack
                continue
            value = (value,)
        parts: list[Any] = [float(part) if _on_host(part) else part for part in value]
        split.append((cell, parts))
        for i, part in enumerate(parts):
            if part.__class__ is not float:
                by_device.setdefault(part.device, []).append((parts, i))
    for places in by_device.values():
        values = _stacked(sys.modules["torch"], [parts[i] for parts, i in places]).tolist()
        for (parts, i), value in zip(places, values, strict=True):
            parts[i] = value
    for cell, parts in split:
        cell.value = parts[0] if len(parts) == 1 else sum(parts) / len(parts)
