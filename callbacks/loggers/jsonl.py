"""`JSONLLogger`: the metric log as lines of strict JSON."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final

from eventloop import TrainState
from eventloop.log import logger
from eventloop.rows import METRICS, LineFile
from eventloop.writer import Writer

from .aside import beside
from .rows import Row, RowLogger

FIELDS: Final = frozenset({"event", "step", "epoch", "evals", "time", "elapsed"})


class JSONLLogger(RowLogger):
    """Writes rows to a file, one JSON object a line; `eventloop.read_metrics` reads them back.

    A row holds ``event``, ``step``, ``epoch``, at an evaluation ``evals``, ``time`` (ISO 8601, UTC), ``elapsed``
    (seconds of the run), then its keys. NaN and the infinities are the texts "NaN", "Infinity" and "-Infinity". A
    metric that bears one of the names above is written with ``metric/`` before it. See `RowLogger` for when there is a
    row.

    A resumed run first cuts the rows of the part that was lost; a fresh run moves an earlier file of that name aside.
    Each rank but 0 writes to a file of its own, with ``.rank_<n>`` in its name.

    Args:
        path: the file; ``metrics.jsonl`` in the run's folder if left out.
        every: updates a row.
        first: a row for update 1 too.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, path: str | PathLike[str] | None = None, every: int = 50, first: bool = False) -> None:
        super().__init__(every, first)
        self.path = path

    def locate(self, run_dir: Path | None) -> Path:
        """The path given, else the run folder's."""
        if self.path is not None:
            return Path(self.path)
        if run_dir is None:
            raise ValueError("JSONLLogger has no place for its rows: give it a path=, or the run a run_dir")
        return run_dir / METRICS

    def open(self, state: TrainState, resumed: bool) -> Writer:
        """A writer to this rank's file."""
        path = self.target or self.locate(None)
        if state.rank:
            path = path.with_name(f"{path.stem}.rank_{state.rank}{path.suffix}")
        keep = partial(_is_kept, state.step, state.evals) if resumed else None
        writer = Writer(f"{type(self).__name__} to {path}", partial(Lines, path, keep))
        if resumed:
            writer.start()  # rows of the lost part should not stay until the first new one
        return writer


class Lines:
    """The sink: rows as lines of a file.

    Args:
        path: the file.
        keep: which rows at its end stay; None: it is to be a new file.
    """

    def __init__(self, path: Path, keep: Callable[[Mapping[str, Any]], bool] | None) -> None:
        if keep is None and path.exists() and path.stat().st_size:
            path.rename(aside := beside(path))
            logger().warning(f"{path} is the log of another run; moved aside to {aside.name}")
        self._file = LineFile(path, keep)

    def write(self, records: list[Row]) -> None:
        """Append the rows."""
        self._file.extend(map(_mapping, records))

    def close(self) -> None:
        """Close the file."""
        self._file.close()


def _is_kept(step: int, evals: int, row: Mapping[str, Any]) -> bool:
    return bool(row.get("step", 0) <= step and row.get("evals", 0) <= evals)


def _mapping(row: Row) -> dict[str, Any]:
    when = datetime.fromtimestamp(row.time, UTC).isoformat(timespec="milliseconds")
    evals = {"evals": row.evals} if row.event == "eval_end" else {}
    fields = {"event": row.event, "step": row.step, "epoch": row.epoch, **evals, "time": when, "elapsed": row.elapsed}
    return fields | {f"metric/{key}" if key in FIELDS else key: value for key, value in row.values.items()}
