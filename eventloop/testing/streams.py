"""Whole runs for tests without a loop: every event in its place, with the snapshot that goes with it."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from ..events import (
    CheckpointSaved,
    EpochBegin,
    EpochEnd,
    EvalBegin,
    EvalEnd,
    Event,
    GradientsReady,
    RunFailed,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainEnd,
)
from ..state import TrainState
from .strategies import metric_values

Stream = list[tuple[Event, TrainState]]


@st.composite
def event_streams(draw: st.DrawFn, max_epochs: int = 3, max_updates: int = 4, evaluates: bool = True) -> Stream:
    """A run as a list of (event, state), such as a loop would publish it: completed, stopped or failed anywhere.

    Every begin has its end, an exception apart: after that only ``run_failed`` and ``train_end`` follow. An update may
    be skipped; a run that is left in the middle ends its open update and epoch first. ``loss`` is reported at
    ``step_end``, ``eval_loss`` at ``eval_end``, each now and then missing.

    Args:
        draw: hypothesis gives it.
        max_epochs: the most epochs.
        max_updates: the most updates in an epoch.
        evaluates: whether each epoch that is completed ends with an evaluation, and some updates too.
    """
    run = _Run(draw, evaluates)
    run.add(TrainBegin())
    try:
        for _ in range(draw(st.integers(0, max_epochs))):
            run.epoch(draw(st.integers(1, max_updates)))
        status = "completed"
    except _Left:
        status = draw(st.sampled_from(["stopped", "interrupted", "preempted"]))
    except _Raised as error:
        run.add(RunFailed(error))
        status = "failed"
    run.add(TrainEnd(status))
    return run.stream


class _Left(Exception):  # noqa: N818  # the run is left, as by a break
    pass


class _Raised(Exception):  # noqa: N818  # the loop's own code raised
    pass


class _Run:
    def __init__(self, draw: st.DrawFn, evaluates: bool) -> None:
        self._draw, self._evaluates = draw, evaluates
        self.state = TrainState()
        self.stream: Stream = []

    def add(self, event: Event) -> None:
        self.stream.append((event, self.state))

    def _pick(self, *fates: str) -> str:
        return self._draw(st.sampled_from(fates))

    def _number(self, name: str) -> dict[str, Any]:
        value = self._draw(st.none() | metric_values())
        return {} if value is None else {name: value}

    def epoch(self, updates: int) -> None:
        self.state = self.state.begin_epoch()
        self.add(EpochBegin())
        try:
            for _ in range(updates):
                self._update()
        except _Left:
            self.add(EpochEnd(completed=False))
            raise
        if self._evaluates:
            self._evaluation()
        self.add(EpochEnd())

    def _update(self) -> None:
        self.state = self.state.begin_update()
        self.add(StepBegin())
        fate = self._pick("done", "done", "evaluated", "saved", "skipped", "left", "left open", "raised")
        if fate == "raised":
            raise _Raised("the loop's own error")
        if fate != "left open":
            self.add(GradientsReady())
        skipped = fate in ("skipped", "left open")
        self.state = self.state.end_update(skipped=skipped, samples=self._draw(st.integers(1, 64)))
        self.state = self.state.report(self._number("loss"))
        self.add(StepEnd(skipped=skipped))
        if fate in ("left", "left open"):
            raise _Left
        if fate == "saved":
            self.add(CheckpointSaved(f"step_{self.state.step}", self.state.step, ("asked",)))
        elif fate == "evaluated" and self._evaluates:
            self._evaluation()

    def _evaluation(self) -> None:
        self.add(EvalBegin())
        self.state = self.state.end_evaluation(self._number("eval_loss"))
        self.add(EvalEnd())
