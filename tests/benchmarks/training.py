"""Whole training loops beside the same loops written by hand: the tiny model makes the worst case."""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

import torch
import torch.nn.functional as F
from torch import nn
from torch.optim import Optimizer

from callbacks import (
    EarlyStopping,
    GradNormMonitor,
    JSONLLogger,
    LearningRateMonitor,
    ModelCheckpoint,
    TensorBoardLogger,
    WarmupCosine,
)
from eventloop import Loop

from . import plain
from .size import Size
from .table import Row
from .timing import Comparison, Samples

Training = Callable[[nn.Module, Optimizer, list[plain.Batch], Path], Iterator[None]]
"""Trains the model with these batches, with a folder to write to; yields after each update."""

TURN: Final = 10  # updates that one of the runs makes before it is the next one's turn
LOGGED_TURN: Final = 50  # where threads go on writing while it is another one's turn


def train(loop: Loop, model: nn.Module, batches: list[plain.Batch]) -> Iterator[None]:
    """One epoch."""
    with loop:
        for x, y in loop.batches(batches):
            loop.backward(F.cross_entropy(model(x), y))
            loop.update()
            yield
    if loop.result.failures:
        raise RuntimeError(f"not the same work: {loop.result.failures[0]}")


def without_callbacks(
    model: nn.Module, optimizer: Optimizer, batches: list[plain.Batch], folder: Path
) -> Iterator[None]:
    """`Loop` alone."""
    return train(Loop(model, optimizer, max_epochs=1), model, batches)


def with_everything(model: nn.Module, optimizer: Optimizer, batches: list[plain.Batch], folder: Path) -> Iterator[None]:
    """`Loop` with what `plain.train_with_everything` does."""
    evaluation = plain.batches_of(4, seed=2)
    loop = Loop(
        model,
        optimizer,
        run_dir=folder / "run",
        max_epochs=1,
        eval_every=plain.EVAL_EVERY,
        evaluate=lambda: loop.mean_over(evaluation, lambda b: {"eval_loss": F.cross_entropy(model(b[0]), b[1])}),
        callbacks=[
            WarmupCosine(warmup_steps=plain.WARM_UP),
            LearningRateMonitor(),
            GradNormMonitor(every=plain.LOG_EVERY),
            TensorBoardLogger(every=plain.LOG_EVERY),
            JSONLLogger(every=plain.LOG_EVERY),
            EarlyStopping("eval_loss", patience=plain.PATIENCE),
            ModelCheckpoint("eval_loss", save_top_k=plain.TOP_K),
        ],
    )
    return train(loop, model, batches)


def with_logs(model: nn.Module, optimizer: Optimizer, batches: list[plain.Batch], folder: Path) -> Iterator[None]:
    """`Loop` with what `plain.train_with_logs` does."""
    loggers = [LearningRateMonitor(), TensorBoardLogger(every=1), JSONLLogger(every=1)]
    return train(Loop(model, optimizer, run_dir=folder / "run", max_epochs=1, callbacks=loggers), model, batches)


class Run:
    """One training run, made in turns."""

    def __init__(self, training: Training, updates: int) -> None:
        self.model, optimizer = plain.tiny()
        self._folder = TemporaryDirectory(prefix="bench-")
        batches = plain.batches_of(plain.WARM_UP + updates, seed=1)
        self._course = training(self.model, optimizer, batches, Path(self._folder.name))
        self.go_on(plain.WARM_UP)

    def go_on(self, updates: int) -> float:
        """So many updates more; the CPU time of this thread, in nanoseconds."""
        start = time.thread_time_ns()
        for _ in range(updates):
            next(self._course)
        return time.thread_time_ns() - start

    def finish(self) -> None:
        """To the end of the run."""
        for _ in self._course:
            pass
        self._folder.cleanup()


def measure(ours: Training, base: Training, size: Size, turn: int = TURN) -> Comparison:
    """Pairs of as many updates as lie between two evaluations, made in turns of a few updates.

    Raises:
        RuntimeError: the two do not train the same.
    """
    updates = size.pairs * size.updates
    runs = {"ours": Run(ours, updates), "base": Run(base, updates), "again": Run(base, updates)}
    samples = Samples()
    for _ in range(size.pairs):
        spent = dict.fromkeys(runs, 0.0)
        gc.collect()
        for _ in range(size.updates // turn):
            for name in random.sample(list(runs), len(runs)):
                spent[name] += runs[name].go_on(turn)
        samples.add({name: ns / size.updates for name, ns in spent.items()})
    for run in runs.values():
        run.finish()
    same_weights(runs["ours"].model.parameters(), runs["base"].model.parameters())
    return samples.comparison()


def same_weights(ours: Iterable[torch.Tensor], base: Iterable[torch.Tensor]) -> None:
    """Make sure that the same work was done.

    Raises:
        RuntimeError: it was not.
    """
    for a, b in zip(ours, base, strict=True):
        if not torch.allclose(a, b, rtol=1e-3, atol=1e-5):  # the two ways to write a cosine differ in the last bit
            raise RuntimeError("not the same work: the weights differ at the end")


def alone(size: Size) -> Iterator[Row]:
    """`Loop` without callbacks."""
    found = measure(without_callbacks, plain.train, size)
    yield Row.of("Loop without callbacks, an update / the same by hand", found, 1.03, "us")


def stack(size: Size) -> Iterator[Row]:
    """`Loop` with the full stack."""
    found = measure(with_everything, plain.train_with_everything, size)
    yield Row.of("Loop with the full stack, an update / the same by hand", found, 1.05, "us")


def every_step(size: Size) -> Iterator[Row]:
    """Logging every update."""
    found = measure(with_logs, plain.train_with_logs, size, LOGGED_TURN)
    yield Row.of("Loop that logs every update / by hand, tensorboardX and JSON lines", found, 1.0, "us")
