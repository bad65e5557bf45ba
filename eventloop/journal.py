"""The journal of a run: lifecycle, every request with its fate, every failure; one strict JSON object a line."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .errors import shown
from .events import (
    CheckpointSaved,
    EpochBegin,
    EpochEnd,
    EvalEnd,
    EvalStep,
    Event,
    HandlerFailed,
    RunFailed,
    StepEnd,
    TrainBegin,
    TrainEnd,
)
from .rows import LineFile
from .state import TrainState
from .subscription import Priority

if TYPE_CHECKING:
    from .ledger import Entry

JOURNAL: Final = "journal.jsonl"
"""The name of the journal in a run's folder."""
LIFE: Final = (TrainBegin, EpochBegin, EvalEnd, EpochEnd, CheckpointSaved, HandlerFailed, RunFailed, TrainEnd)
"""The events of the short journal."""
FACTS: Final[Mapping[type[Event], Callable[[Any, TrainState], dict[str, Any]]]] = {
    TrainBegin: lambda event, state: {"run_id": state.run_id, "resumed": event.resumed, "total": state.total},
    StepEnd: lambda event, state: {"skipped": event.skipped},
    EvalStep: lambda event, state: {"batch": event.batch, "total": event.total},
    EvalEnd: lambda event, state: {"evals": state.evals, **({} if event.completed else {"completed": False})},
    EpochEnd: lambda event, state: {"completed": event.completed},
    CheckpointSaved: lambda event, state: {  # by its folder's name, for a run may be moved
        "checkpoint": Path(event.path).name,
        "tags": list(event.tags),
    },
    HandlerFailed: lambda event, state: {
        "handler": event.subscription,
        "at": event.event.name if event.event is not None else "",
        "error": shown(event.error),
    },
    RunFailed: lambda event, state: {"error": shown(event.error)},
    TrainEnd: lambda event, state: {"status": event.status, "reason": event.reason},
}


class Journal:
    """A subscriber like any other, in the last place; the ledger's entries reach it through `entry`."""

    priority = Priority.LAST

    def __init__(self, path: Path) -> None:
        self._path = path
        self._file: LineFile | None = None

    def _write(self, event: Event, state: TrainState) -> None:
        facts = facts_of(event, state)
        if isinstance(event, EvalEnd) and event.completed:
            facts["metrics"] = {key: state.metrics[key] for key in state.metrics.fresh}
        place = {"step": state.step, "epoch": state.epoch, "elapsed": round(state.elapsed, 6)}
        self._row({"event": event.name, "time": time.time(), **place, **facts})

    on_train_begin = on_epoch_begin = on_eval_end = on_epoch_end = on_checkpoint_saved = _write
    on_handler_failed = on_run_failed = on_train_end = _write

    def entry(self, entry: Entry) -> None:
        """One request and its fate."""
        facts = asdict(entry)
        self._row({"event": "request", "time": time.time(), "at": facts.pop("event"), **facts})

    def close(self) -> None:
        """Close the file."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def _row(self, row: dict[str, Any]) -> None:
        if self._file is None:
            self._file = LineFile(self._path)
        self._file.append(row)


def facts_of(event: Event, state: TrainState) -> dict[str, Any]:
    """What a row says of an event beside where it happened."""
    tell = next((FACTS[kind] for kind in type(event).__mro__ if kind in FACTS), None)
    return {} if tell is None else tell(event, state)
