"""Saves asked for in a whole loop: what a batch that has to wait for one waits for, besides the copy."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from statistics import mean, median
from tempfile import TemporaryDirectory
from typing import Any, Final

from callbacks import EarlyStopping, JSONLLogger, LearningRateMonitor, TensorBoardLogger, WarmupCosine
from eventloop import Callback, Keep, Loop, Request, Save

from .checkpoints import STALL, Training, fits, scratch_for, settle
from .plain import KeptBuffers
from .size import Saved, Size
from .table import Row
from .timing import Samples

LEDGER: Final = 1000  # entries, as many as are kept
IDLE: Final = 0.1  # seconds in which what follows a commit is done
BATCHES: Final = 1_000_000  # more than are drawn


class Mark(Request):
    """A request that is granted, so that it has a line in the ledger."""


class Saver(Callback):
    """Fills the ledger at the first update, and asks for a save when it is told to."""

    due = False
    landed = False

    def on_step_end(self, event: Any, state: Any) -> Any:
        """Ask."""
        if state.step == 1:
            return [Mark()] * LEDGER
        due, self.due = self.due, False
        return [Save("bench"), Keep(frozenset())] if due else None

    def on_checkpoint_saved(self, event: Any, state: Any) -> None:
        """Note it."""
        self.landed = True


class InALoop:
    """A loop with the usual callbacks, a full ledger and this state; its updates are empty."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._saver = Saver()
        observers = [LearningRateMonitor(), TensorBoardLogger(every=50), JSONLLogger(every=50)]
        callbacks = [WarmupCosine(warmup_steps=1), *observers, EarlyStopping("eval_loss"), self._saver]
        self.loop = Loop(training.model, training.optimizer, run_dir=folder, max_epochs=1, callbacks=callbacks)
        self.loop.carry_out(Mark, lambda mark: None)
        self._batches: Iterator[int] = iter(())

    def begin(self) -> None:
        """The first update, after which the ledger is full, and the first save."""
        self._batches = self.loop.batches(range(BATCHES))
        next(self._batches)
        self.turn()
        self.save()

    def turn(self) -> float:
        """An update, and on to the next batch, which is when requests are carried out: nanoseconds of the latter."""
        self.loop.step_end(loss=0.5)
        start = time.perf_counter_ns()
        next(self._batches)
        return time.perf_counter_ns() - start

    def save(self) -> float:
        """The same with a save; back when that has been told of."""
        self._saver.due, self._saver.landed = True, False
        spent = self.turn()
        while not self._saver.landed:
            time.sleep(IDLE)
            self.turn()
        time.sleep(IDLE)
        return spent


def saves_in_a_loop(size: Size) -> Iterator[Row]:
    """Each state."""
    for saved in filter(fits, size.saved):
        yield from measured(saved)


def measured(saved: Saved) -> Iterator[Row]:
    """The rows of one state.

    Raises:
        RuntimeError: something failed in the loop.
    """
    training, samples = Training(saved), Samples()
    beside: list[float] = []
    with TemporaryDirectory(prefix="bench-") as folder:
        plain, run = KeptBuffers(training.tensors()), InALoop(training, Path(folder) / "run")
        plain.copy()
        works: dict[str, Callable[[], float]] = {
            "ours": run.save,
            "base": lambda: timed_copy(plain),
            "again": lambda: timed_copy(plain),
        }
        scratch = scratch_for(plain)
        with run.loop:
            run.begin()
            for _ in range(saved.rounds):
                spent: dict[str, float] = {}
                for name in random.sample(list(works), len(works)):
                    settle(scratch)
                    spent[name] = works[name]()
                samples.add(spent)
                beside.append(spent["ours"] - run.turn() - mean([spent["base"], spent["again"]]))
    if run.loop.result.failures:
        raise RuntimeError(f"not what was to be measured: {run.loop.result.failures[0]}")
    found = samples.comparison()
    yield Row.of(
        f"{saved.name}: a save in a Loop, stall on the wall / one copy into kept buffers",
        found,
        STALL if saved.judged else None,
        "ms",
    )
    yield Row("- of it neither copy nor what is done without a save", median(beside) / 1e6, unit="ms")


def timed_copy(plain: KeptBuffers) -> float:
    """Nanoseconds of one copy."""
    start = time.perf_counter_ns()
    plain.copy()
    return time.perf_counter_ns() - start
