"""`RowLogger`: when there is a row and what is in it, for every logger alike; where it goes is the logger's own."""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

from eventloop import Bus, EpochEnd, EvalEnd, Event, Handle, Priority, StepEnd, Totals, TrainBegin, TrainEnd, TrainState

from ..arguments import flag, whole


class Row(NamedTuple):
    """One row before it has a form: of which ``event``, where the run stood, the wall clock, and the numbers."""

    event: str
    step: int
    epoch: int
    evals: int
    total: int | None
    time: float
    elapsed: float
    values: Mapping[str, float]


class Output(Protocol):
    """What a logger hands its rows to; a `Writer`, or something as quick."""

    def put(self, record: Row) -> None:
        """Take a row."""

    def flush(self, timeout: float) -> bool:
        """Wait until all rows are out, so long at most."""

    def close(self) -> None:
        """Let the rows out and end."""

    def summary(self) -> dict[str, Any]:
        """Rows written and dropped, and what failed."""


class RowLogger(ABC):
    """The base of the loggers: rows at the multiples of ``every``, at each evaluation, and at the end for the rest.

    * ``step_end``: the mean of each key over the updates since the row before (of a gauge the last value); a window
      with a value that is not finite gives NaN.
    * ``train_end``: the same for the rest, if the run is completed or stopped. After any other end the open window is
      state, and the next row of the resumed run is over the whole of it.
    * ``eval_end``: what this evaluation has reported, and nothing else.
    * ``epoch_end``: what a handler has reported at the epoch's end, if one has.

    Args:
        every: updates a row.
        first: a row for update 1 too.

    Raises:
        ValueError: ``every`` is no whole number >= 1, or ``first`` no bool.
    """

    priority = Priority.LOG

    def __init__(self, every: int, first: bool) -> None:
        self.every = whole(self, "every", every, 1)
        self.first = flag(self, "first", first)
        self.target: Path | None = None
        self._bus: Bus | None = None
        self._window: Any = None
        self._loaded: Mapping[str, Any] | None = None
        self._last = -1
        self._output: Output | None = None
        self._told: dict[str, Any] = {}
        self._first_row: Handle | None = None

    # -- what a logger adds --------------------------------------------------------------------------------------------

    def locate(self, run_dir: Path | None) -> Path | None:
        """Where the rows go, None if that is no path."""
        return None

    @abstractmethod
    def open(self, state: TrainState, resumed: bool) -> Output:
        """The output of a run that begins; if ``resumed``, rows after ``state.step`` are of a part that was lost."""

    # -- what the bus asks ---------------------------------------------------------------------------------------------

    def options(self) -> dict[str, dict[str, Any]]:
        """Rows at multiples of ``every``; what cannot even begin to log should not train for hours."""
        rows = {"every": self.every} if self.every > 1 else {}  # no filter need watch for what is always due
        return {"step_end": rows, "train_begin": {"failure": "raise"}}

    def bind(self, bus: Bus, run_dir: str | Path | None = None) -> None:
        """Take hold of the bus, whose totals the rows are made of, and of the run folder.

        Raises:
            ValueError: there is no place for the rows, or another logger of this bus writes to the same one.
        """
        self.target = self.locate(None if run_dir is None else Path(run_dir))
        loggers = [(name, thing) for name, thing in bus.objects if isinstance(thing, RowLogger) and thing is not self]
        for name, other in loggers if self.target is not None else ():
            if other.target == self.target:
                raise ValueError(f"{bus.name_of(self)} and {name} both write to {self.target}; give them two places")
        self._bus, self._window, self._last = bus, Totals.of(bus).window(), -1
        if self.first:
            name = f"{bus.name_of(self)}.first"
            self._first_row = bus.on(StepEnd, self._write_window, once=1, priority=self.priority, name=name)

    def on_train_begin(self, event: TrainBegin, state: TrainState) -> None:
        """A run begins, or goes on with the window that a checkpoint has kept."""
        loaded, self._loaded = self._loaded if event.resumed else None, None
        self._window = Totals.of(self._bound()).window(loaded)
        self._last = state.step
        self._shut()
        self._output = self.open(state, event.resumed)

    def on_step_end(self, event: StepEnd, state: TrainState) -> None:
        """Write the row that is due."""
        self._write_window(event, state)

    def on_eval_end(self, event: EvalEnd, state: TrainState) -> None:
        """Write the evaluation's row."""
        self._write(event, state, {key: state.metrics[key] for key in state.metrics.fresh})

    def on_epoch_end(self, event: EpochEnd, state: TrainState) -> None:
        """Write what was reported at the epoch's end."""
        self._write(event, state, {key: state.metrics[key] for key in Totals.of(self._bound()).news(state)})

    def on_train_end(self, event: TrainEnd, state: TrainState) -> None:
        """Write a row for the rest."""
        if event.status in ("completed", "stopped"):
            self._write_window(event, state)

    def close(self) -> None:
        """Let every row out; bounded in time.

        Raises:
            OSError: the file could not be written.
            TimeoutError: writing takes too long.
        """
        self._bus = self._window = None
        if self._first_row is not None:
            self._first_row.cancel()
            self._first_row = None
        self._shut()

    def state_dict(self) -> dict[str, Any]:
        """The open window; the rows before it are put on disk by `persist`, as a run resumed from here expects."""
        return {} if self._window is None else {"window": self._window.state_dict()}

    def persist(self) -> None:
        """Put the rows so far on disk; called in the thread that writes a checkpoint, before that is committed."""
        output = self._output
        if output is not None:
            output.flush(1.0)  # a slow disk may cost the checkpoint this much, and no more

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with that window when the run resumes."""
        self._loaded = state.get("window")

    def describe(self) -> str:
        """Where the rows go."""
        return f"rows to {self.target}" if self.target is not None else "rows"

    def summary(self) -> dict[str, Any]:
        """Rows written and dropped in this run, and why the output failed, or None."""
        return self._told if self._output is None else self._output.summary()

    # -- rows ----------------------------------------------------------------------------------------------------------

    def _bound(self) -> Bus:
        if self._bus is None:
            raise RuntimeError(f"{type(self).__name__} is not bound: call bus.bind() before the run begins")
        return self._bus

    def _write_window(self, event: Event, state: TrainState) -> None:
        self._bound()
        if state.step != self._last:
            self._last = state.step
            self._put(event, state, self._window.take())

    def _write(self, event: Event, state: TrainState, values: Mapping[str, float]) -> None:
        if values:
            self._bound()
            self._put(event, state, values)

    def _put(self, event: Event, state: TrainState, values: Mapping[str, float]) -> None:
        if self._output is None:  # a raw loop that publishes no train_begin
            self._output = self.open(state, resumed=False)
        now = time.time()
        row = (event.name, state.step, state.epoch, state.evals, state.total, now, state.elapsed, values)
        self._output.put(Row(*row))

    def _shut(self) -> None:
        output, self._output = self._output, None
        if output is not None:
            try:
                output.close()
            finally:
                self._told = output.summary()
