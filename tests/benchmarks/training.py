"""Whole training loops beside the same loops written by hand: the tiny model makes the worst case."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from tempfile import TemporaryDirectory

import torch
import torch.nn.functional as F
from torch import nn

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
from .timing import Comparison, Work, compare

Training = Callable[[int, Path], tuple[float, nn.Module]]


def run(loop: Loop, model: nn.Module, batches: plain.Batches) -> float:
    """Train one epoch; nanoseconds an update."""
    with loop:
        for x, y in loop.batches(batches):
            loop.backward(F.cross_entropy(model(x), y))
            loop.update()
    if loop.result.failures:
        raise RuntimeError(f"not the same work: {loop.result.failures[0]}")
    return batches.ns


def without_callbacks(updates: int, folder: Path) -> tuple[float, nn.Module]:
    """`Loop` alone."""
    model, optimizer = plain.tiny()
    return run(Loop(model, optimizer, max_epochs=1), model, plain.Batches(updates)), model


def with_everything(updates: int, folder: Path) -> tuple[float, nn.Module]:
    """`Loop` with what `plain.train_with_everything` does."""
    model, optimizer = plain.tiny()
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
    return run(loop, model, plain.Batches(updates)), model


def with_logs(updates: int, folder: Path) -> tuple[float, nn.Module]:
    """`Loop` with what `plain.train_with_logs` does."""
    model, optimizer = plain.tiny()
    loggers = [LearningRateMonitor(), TensorBoardLogger(every=1), JSONLLogger(every=1)]
    loop = Loop(model, optimizer, run_dir=folder / "run", max_epochs=1, callbacks=loggers)
    return run(loop, model, plain.Batches(updates)), model


def in_new_folder(training: Training, updates: int) -> Work:
    """A training run that has a folder of its own."""

    def work() -> float:
        with TemporaryDirectory(prefix="bench-") as folder:
            return training(updates, Path(folder))[0]

    return work


def same_training(ours: Training, base: Training, updates: int) -> None:
    """Make sure that both train the same.

    Raises:
        RuntimeError: they do not.
    """
    with TemporaryDirectory(prefix="bench-") as one, TemporaryDirectory(prefix="bench-") as other:
        mine, theirs = ours(updates, Path(one))[1], base(updates, Path(other))[1]
    for a, b in zip(mine.parameters(), theirs.parameters(), strict=True):
        if not torch.allclose(a, b, rtol=1e-5):  # the two ways to write a cosine differ in the last bit
            raise RuntimeError("not the same work: the weights differ at the end")


def measure(ours: Training, base: Training, updates: int, pairs: int) -> Comparison:
    """Compare training runs."""
    same_training(ours, base, plain.EVAL_EVERY + plain.LOG_EVERY)
    return compare(in_new_folder(ours, updates), in_new_folder(base, updates), pairs)


def alone(updates: int, folder: Path) -> tuple[float, nn.Module]:
    """`plain.train`, which needs no folder."""
    return plain.train(updates)


def loop(size: Size) -> Iterator[Row]:
    """`Loop` without callbacks."""
    found = measure(without_callbacks, alone, size.updates, size.pairs)
    yield Row.of("Loop without callbacks, an update / the same by hand", found, 1.03, "us")


def stack(size: Size) -> Iterator[Row]:
    """`Loop` with the full stack."""
    found = measure(with_everything, plain.train_with_everything, size.updates, size.pairs)
    yield Row.of("Loop with the full stack, an update / the same by hand", found, 1.05, "us")


def every_step(size: Size) -> Iterator[Row]:
    """Logging every update."""
    found = measure(with_logs, plain.train_with_logs, size.logged, size.pairs)
    yield Row.of("Loop that logs every update / by hand, tensorboardX and JSON lines", found, 1.0, "us")
