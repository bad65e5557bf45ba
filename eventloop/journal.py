"""The journal of a run: lifecycle, every request with its fate, every failure; one strict JSON object a line."""

from __future__ import annotations

import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any

from .errors import shown
from .events import (
    CheckpointSaved,
    EpochBegin,
    EpochEnd,
    EvalEnd,
    Event,
    HandlerFailed,
    RunFailed,
    TrainBegin,
    TrainEnd,
)
from .rows import LineFile
from .state import TrainState
from .subscription import Priority

if TYPE_CHECKING:
    from .ledger import Entry


class Journal:
    """A subscriber like any other, in the last place; the ledger's entries reach it through `entry`."""

    priority = Priority.LAST

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: LineFile | None = None

    def on_train_begin(self, event: TrainBegin, state: TrainState) -> None:
        """The run, and whether it goes on from a checkpoint."""
        self._write(event, state, run_id=state.run_id, resumed=event.resumed, total=state.total)

    def on_epoch_begin(self, event: EpochBegin, state: TrainState) -> None:
        """An epoch."""
        self._write(event, state)

    def on_epoch_end(self, event: EpochEnd, state: TrainState) -> None:
        """An epoch, and whether it was completed."""
        self._write(event, state, completed=event.completed)

    def on_eval_end(self, event: EvalEnd, state: TrainState) -> None:
        """An evaluation with its metrics."""
        metrics = {key: state.metrics[key] for key in state.metrics.fresh}
        self._write(event, state, evals=state.evals, metrics=metrics)

    def on_checkpoint_saved(self, event: CheckpointSaved, state: TrainState) -> None:
        """A checkpoint; by its folder's name, for a run may be moved."""
        self._write(event, state, checkpoint=Path(event.path).name, tags=list(event.tags))

    def on_handler_failed(self, event: HandlerFailed, state: TrainState) -> None:
        """A failure."""
        at = event.event.name if event.event is not None else ""
        self._write(event, state, handler=event.subscription, at=at, error=shown(event.error))

    def on_run_failed(self, event: RunFailed, state: TrainState) -> None:
        """The loop's own error."""
        self._write(event, state, error=shown(event.error))

    def on_train_end(self, event: TrainEnd, state: TrainState) -> None:
        """How it ended."""
        self._write(event, state, status=event.status, reason=event.reason)

    def entry(self, entry: Entry) -> None:
        """One request and its fate."""
        facts = asdict(entry)
        self._row({"event": "request", "time": time.time(), "at": facts.pop("event"), **facts})

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _write(self, event: Event, state: TrainState, **facts: Any) -> None:
        place = {"step": state.step, "epoch": state.epoch, "elapsed": round(state.elapsed, 6)}
        self._row({"event": event.name, "time": time.time(), **place, **facts})

    def _row(self, row: dict[str, Any]) -> None:
        if self._file is None:
            self._file = LineFile(self._path)
        self._file.append(row)
