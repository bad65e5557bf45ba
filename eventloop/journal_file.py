"""The file of a full journal: records of the training thread become rows, in the writer's thread."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .log import logger
from .metrics import Cell, fetch
from .rows import LineFile
from .state import TrainState

NUMBER: Final = "n"
"""The last field of a row: how many records its process had made by then, so that a row taken out later shows."""
CHANGING: Final = ("update", "micro", "samples", "evals", "skipped", "total")
"""The counters that a row holds only where they have changed."""


@dataclass(slots=True)
class Told:
    """One row to be: what the training thread took down. ``state`` is None for a request's fate."""

    event: str
    time: float
    nested: bool
    life: bool
    """Whether the short journal would have it too."""
    state: TrainState | None
    facts: Mapping[str, Any]
    metrics: Mapping[str, Any]
    reported: Mapping[str, Any]
    number: int = 0
    ready: tuple[Any, ...] = ()


class JournalFile:
    """The sink of a `Writer`.

    Args:
        path: the file.
        limit: bytes, give or take one write; behind them only lifecycle and requests are written.
    """

    def __init__(self, path: Path, limit: int) -> None:
        self._path, self._limit = path, limit
        self._file = LineFile(path)
        self._number = 0
        self._before: TrainState | None = None
        self._truncated = False

    def write(self, records: list[Told]) -> None:
        """Append a row for each, and one where some were dropped."""
        for record in records:
            for event in record.ready:
                event.synchronize()
        groups = [group for record in records for group in (record.metrics, record.reported)]
        fetch(value for group in groups for value in group.values() if value.__class__ is Cell)
        self._file.extend([*self._limited(records[0].time), *(row for record in records for row in self._rows(record))])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _limited(self, now: float) -> Iterator[dict[str, Any]]:
        if not self._truncated and self._path.stat().st_size >= self._limit:
            self._truncated = True
            logger().warning(f"{self._path} has reached {self._limit} bytes: from here on lifecycle and requests alone")
            yield {"event": "truncated", "time": now, "limit": self._limit}

    def _rows(self, record: Told) -> Iterator[dict[str, Any]]:
        missing, self._number = record.number - self._number - 1, record.number
        if missing:
            yield {"event": "missing", "time": record.time, "rows": missing}
        if record.life or not self._truncated:
            yield {**self._row(record), NUMBER: record.number}

    def _row(self, record: Told) -> dict[str, Any]:
        row: dict[str, Any] = {"event": record.event, "time": record.time}
        state = record.state
        if state is None:
            return {**row, **record.facts}
        row |= {"step": state.step, "epoch": state.epoch, "elapsed": state.elapsed, **record.facts}
        before = self._before
        counters = {name: getattr(state, name) for name in CHANGING}
        if before is not None:
            counters = {name: count for name, count in counters.items() if count != getattr(before, name)}
        if counters:
            row["counters"] = counters
        if lr := {g: rate for g, rate in state.lr.items() if before is None or before.lr.get(g) != rate}:
            row["lr"] = lr
        for name, values in (("metrics", record.metrics), ("reported", record.reported)):
            if values:
                row[name] = {key: v.value if v.__class__ is Cell else v for key, v in values.items()}
        if record.nested:
            row["nested"] = True
        else:
            self._before = state
        return row
