"""`ProgressBar`: how far the run is."""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Iterable
from typing import Any, Final, TextIO

from eventloop import EpochEnd, EvalBegin, EvalEnd, EvalStep, Priority, StepEnd, TrainBegin, TrainEnd, TrainState

SHOWN: Final = 4  # numbers on one line


class ProgressBar:
    """Shows finished updates of the planned total, with the newest numbers.

    On a terminal it is a bar that moves at most twice a second, and only then asks for numbers; its rate counts
    training time alone. While ``loop.eval_batches`` draws, it tells the batch of the evaluation too. Elsewhere, a log
    file or a pipe, it prints a plain line for each evaluation, each epoch and at the end, without any control
    character. It uses no colour, so ``NO_COLOR`` changes nothing. Without a known total it counts. Rank 0 alone shows
    anything.

    Args:
        file: where to; by default what ``sys.stderr`` is when the run begins.
    """

    priority = Priority.LOG

    def __init__(self, file: TextIO | None = None) -> None:
        self.file = file
        self._bar: Any = None  # a tqdm
        self._away: float | None = None  # since when an evaluation is under way, and not taken off the rate

    def options(self) -> dict[str, dict[str, Any]]:
        """Look at most twice a second."""
        return {name: {"every": {"seconds": 0.5}} for name in ("step_end", "eval_step")}

    def on_train_begin(self, event: TrainBegin, state: TrainState) -> None:
        """Put up the bar, at the step that the run goes on from."""
        self._draw(state)

    def on_step_end(self, event: StepEnd, state: TrainState) -> None:
        """Move the bar."""
        self._draw(state, state.metrics.fresh)

    def on_eval_begin(self, event: EvalBegin, state: TrainState) -> None:
        """The clock of the rate stops."""
        self._away = time.monotonic()

    def on_eval_step(self, event: EvalStep, state: TrainState) -> None:
        """Tell how far the evaluation is."""
        if self._bar is not None:
            self._take_off()
            of = "" if event.total is None else f"/{event.total}"
            self._bar.set_description_str(", ".join([*_epoch(state), f"evaluation {event.batch}{of}"]))

    def on_eval_end(self, event: EvalEnd, state: TrainState) -> None:
        """Show what the evaluation has found."""
        self._take_off()
        self._away = None
        self._draw(state, state.metrics.fresh)
        if event.completed:
            self._line(state, "evaluation", state.metrics.fresh)

    def on_epoch_end(self, event: EpochEnd, state: TrainState) -> None:
        """An epoch is over."""
        self._draw(state, state.metrics)
        self._line(state, f"epoch {state.epoch}", state.metrics)

    def on_train_end(self, event: TrainEnd, state: TrainState) -> None:
        """The final state, exactly."""
        self._draw(state, state.metrics)
        self._line(state, event.status, state.metrics)
        self.close()

    def close(self) -> None:
        """Leave the bar where it is; nothing stays open."""
        bar, self._bar, self._away = self._bar, None, None
        if bar is not None:
            bar.close()

    def _take_off(self) -> None:
        """The time of an evaluation is none of the rate."""
        if self._bar is not None and self._away is not None:
            now = time.monotonic()
            self._bar.away, self._away = self._bar.away + now - self._away, now

    def _draw(self, state: TrainState, names: Iterable[str] = ()) -> None:
        file = self._file()
        if state.rank or not _moves(file):
            return
        if self._bar is None:
            options = {"initial": state.step, "total": state.total, "unit": "update", "dynamic_ncols": True}
            self._bar = _bar_class()(file=file, **options)
        bar = self._bar
        bar.n, bar.total = state.step, state.total
        bar.set_description_str("".join(_epoch(state)), refresh=False)
        bar.set_postfix_str(_numbers(state, names), refresh=False)
        bar.refresh()

    def _line(self, state: TrainState, what: str, names: Iterable[str]) -> None:
        file = self._file()
        if state.rank or _moves(file):
            return
        done = f"{state.step}/{state.total}" if state.total is not None else f"{state.step}"
        numbers = _numbers(state, names)
        print(f"{what}: {done} updates" + (f", {numbers}" if numbers else ""), file=file, flush=True)

    def _file(self) -> TextIO:
        return sys.stderr if self.file is None else self.file


def _epoch(state: TrainState) -> list[str]:
    return [f"epoch {state.epoch}"] if state.epoch else []


def _numbers(state: TrainState, names: Iterable[str]) -> str:
    shown = [name for name in names if state.metrics.step_of(name) == max(state.step, state.update)][:SHOWN]
    return ", ".join(f"{name}={state.metrics[name]:.4g}" for name in shown)


def _moves(file: TextIO) -> bool:
    """Whether a line there can be written over: a terminal that knows its width, and is not a dumb one."""
    isatty = getattr(file, "isatty", None)
    if isatty is None or not isatty() or os.environ.get("TERM") == "dumb":
        return False
    try:
        return os.get_terminal_size(file.fileno()).columns > 0
    except (OSError, ValueError, AttributeError):  # a stand-in that says it is a terminal
        return True


def _bar_class() -> Any:
    from tqdm import tqdm

    class Bar(tqdm):  # type: ignore[type-arg]  # it iterates over nothing
        monitor_interval = 0  # no thread of tqdm's
        away = 0.0

        @property
        def format_dict(self) -> dict[str, Any]:
            told = dict(super().format_dict)
            trained = told["elapsed"] - self.away
            told["rate"] = (self.n - self.initial) / trained if trained > 0 else None
            return told

    return Bar
