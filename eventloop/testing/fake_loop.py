"""`FakeLoop`: a `Loop` without a model, whose numbers are written down before the run."""

from __future__ import annotations

import uuid
from collections.abc import Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from ..budget import Budget
from ..bus import Bus
from ..checkpoint import Checkpoint
from ..checks import check_numbers
from ..course import Course
from ..folder import Folder
from ..ledger import Ledger
from ..limits import Limits, whole
from ..loop import Loop
from ..model import Model
from ..optimizers import Optimizers
from ..progress import MICRO, Groups, Progress
from ..ranks import Alone
from ..result import Result
from ..run import Run
from ..scripted import Nothing, Rates, ScriptedEvaluation, ScriptedWindow, Still
from .arguments import (
    Series,
    callbacks_in,
    check_bus,
    check_fails,
    check_leaves,
    check_rates,
    check_script,
    check_time,
    check_turns,
)
from .clock import Clock
from .memory import Memory, Snapshot


class FakeLoop(Loop):
    """A `Loop` in every respect but one: there is no model, and its numbers come from a script.

    Events, their order, the counters, requests and their fate, checkpoints and resume are the real loop's own code.
    `run` makes the whole run. `epochs`, `batches`, ``backward(0.5)``, `update` and `step_end` may be called by hand as
    well; numbers take the place of losses. Time is the clock's alone: each update takes ``seconds``.

    A turn is an attempt at an update, skipped ones included; turns and evaluations count from 1 over the whole run,
    also over a resume. Where a script's list has ended, its metric is no longer reported. Without a limit the run is as
    long as the longest list, else one epoch.

    Args:
        callbacks: attached in this order.
        metrics: reported at each turn, by name.
        evaluations: reported at each evaluation, by name; None: the loop cannot evaluate.
        updates: turns an epoch.
        max_epochs: as in `Loop`, like ``max_steps``, ``min_epochs``, ``min_steps``, ``accumulate`` and ``eval_every``.
        max_steps: see there.
        min_epochs: see there.
        min_steps: see there.
        accumulate: see there; a turn is a micro-batch then.
        eval_every: see there.
        lr: the learning rate, or one for each group by name.
        skipped: turns at which the optimizer skips the update, as a scaler does at an overflow.
        fails: what the body of the loop raises, by turn: an error, or a KeyboardInterrupt.
        leaves: the turn at which the body breaks out of the run, after its update.
        seconds: what an update takes on the clock.
        bus: your own, else a new one that goes by ``clock``.
        clock: the time; give a bus of your own the same one.
        run_dir: a real folder, with the real journal and real checkpoints. Without one, checkpoints are in memory.
        resume: as in `Loop`; without a ``run_dir`` one of another FakeLoop's `checkpoints`.
        model: for callbacks that bind one.
        optimizer: for callbacks that bind one; else a stand-in that has ``param_groups`` and nothing else.
        bind: further live objects for the callbacks' ``bind``.

    Raises:
        TypeError: ``callbacks`` is no list of objects, or ``bus`` no Bus.
        ValueError: an argument is out of range; the message names it and its value. A turn behind the end of the run
            is allowed.
    """

    def __init__(
        self,
        callbacks: Iterable[object] = (),
        *,
        metrics: Mapping[str, Series] | None = None,
        evaluations: Mapping[str, Series] | None = None,
        updates: int = 4,
        max_epochs: int | None = None,
        max_steps: int | None = None,
        min_epochs: int = 0,
        min_steps: int = 0,
        accumulate: int = 1,
        eval_every: int | str | None = "epoch",
        lr: float | Mapping[str, float] = 0.1,
        skipped: Collection[int] = (),
        fails: Mapping[int, BaseException] | None = None,
        leaves: int | None = None,
        seconds: float = 1.0,
        bus: Bus | None = None,
        clock: Clock | None = None,
        run_dir: str | Path | None = None,
        resume: int | str | Path | Snapshot | None = None,
        model: Any = None,
        optimizer: Any = None,
        bind: Mapping[str, Any] | None = None,
    ) -> None:
        check_numbers(accumulate, None, eval_every)
        self._updates = cast("int", whole("updates", updates, least=1))
        things = callbacks_in(callbacks, "callbacks =", "a list, FakeLoop([...])")
        self._metrics, self._evaluations = check_script("metrics", metrics), check_script("evaluations", evaluations)
        self._skipped, self._fails, self._leaves = (
            check_turns("skipped", skipped),
            check_fails(fails),
            check_leaves(leaves),
        )
        check_rates(lr)
        check_time(seconds, clock)
        self._seconds = seconds
        if max_epochs is None and max_steps is None:
            max_epochs, max_steps = self._length(accumulate, eval_every)
        limits = Limits(max_epochs, max_steps, min_epochs, min_steps)
        self.clock = Clock() if clock is None else clock
        self.bus = Bus(clock=self.clock) if bus is None else check_bus(bus, "FakeLoop(bus=)")
        optimizer = Rates(lr) if optimizer is None else optimizer
        run_id = uuid.uuid4().hex[:12]
        folder = _folder(run_dir, run_id, resume)
        self._progress = Progress(Groups({"": optimizer}), run_id, self.clock)
        evaluation = ScriptedEvaluation(None if evaluations is None else self._evaluate)
        self._run = Run(self.bus, self._progress, Ledger(Alone()), evaluation, limits, folder)
        self._window = self._script_window = ScriptedWindow(self._progress.groups, accumulate)
        self._course = Course(self._run, self._window, eval_every, Budget(self.bus, None), Still())
        live = {} if model is None else {"model": model}
        self._live = {**(bind or {}), **live, "optimizer": optimizer, "run_dir": run_dir and Path(run_dir)}
        held = Nothing() if model is None else Model(model)
        self._parts = {"model": held, "optimizer": Optimizers({"": optimizer}, held.names), **self._run.parts()}
        self._attach(things)

    def _length(self, accumulate: int, eval_every: int | str | None) -> tuple[int | None, int | None]:
        """How long the lists are, as (max_epochs, max_steps)."""
        turns, evaluations = _longest(self._metrics), _longest(self._evaluations)
        if turns:
            return None, -(-turns // accumulate)
        if isinstance(eval_every, int):
            return None, max(evaluations, 1) * eval_every
        return max(evaluations, 1), None

    @property
    def checkpoints(self) -> list[Checkpoint]:
        """Every checkpoint of this run in memory, in order; with a ``run_dir`` those that stand there."""
        folder = self._run.folder
        return [*folder.checkpoints.made] if isinstance(folder, Memory) else folder.checkpoints.list() if folder else []

    @property
    def kept(self) -> list[int]:
        """The steps of the checkpoints that the savers have left standing."""
        folder = self._run.folder
        return [] if folder is None else [checkpoint.step for checkpoint in folder.checkpoints.list()]

    def run(self) -> Result:
        """Make the run that the script says.

        Raises:
            BaseException: what ``fails`` has for a turn; ``result`` is there all the same.
            Exception: a handler under the policy ``raise`` failed.
        """
        with self:
            self._body()
        return self.result

    def _body(self) -> None:
        for _ in self.epochs():
            for _ in self.batches(range(self._updates)):
                turn = self._progress.fields[MICRO] + 1
                self.clock.advance(self._seconds)
                if turn in self._fails:
                    raise self._fails[turn]
                self._progress.report(_at(turn, self._metrics))
                self._script_window.turn(overflow=turn in self._skipped)
                self._progress.fields[MICRO] = turn
                self.update()
                if turn == self._leaves:
                    return

    def _evaluate(self) -> Mapping[str, float]:
        return _at(self.state.evals + 1, self._evaluations)


def _longest(script: Mapping[str, Series]) -> int:
    return max((len(series) for series in script.values() if isinstance(series, Sequence)), default=0)


def _at(turn: int, script: Mapping[str, Series]) -> dict[str, float]:
    values = {name: _value(series, turn) for name, series in script.items()}
    return {name: value for name, value in values.items() if value is not None}


def _value(series: Series, turn: int) -> float | None:
    if callable(series):
        return series(turn)
    if isinstance(series, Sequence):
        return series[turn - 1] if turn <= len(series) else None
    return series


def _folder(run_dir: str | Path | None, run_id: str, resume: Any) -> Folder:
    if run_dir is not None:
        return Folder(run_dir, run_id, resume, overwrite=False)
    if resume is not None and not isinstance(resume, Snapshot):
        raise ValueError(f"resume={resume!r} needs a run_dir; without one give one of another FakeLoop's checkpoints")
    return Memory(run_id, resume)
