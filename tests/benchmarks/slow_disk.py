"""Logging every step to a disk that takes 50 ms for each write: what does the training thread feel of it?"""

from __future__ import annotations

import io
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import mean
from tempfile import TemporaryDirectory
from typing import Any, Final, cast

import torch

from callbacks import JSONLLogger, TensorBoardLogger
from eventloop import Bus, StepBegin, StepEnd, TrainBegin, TrainEnd, TrainState

from .size import Size
from .table import Row

DELAY: Final = 0.05


class SlowFile(io.FileIO):
    """A file of which each write takes its time."""

    writes = 0

    def write(self, data: Any) -> int:
        """Write, slowly."""
        SlowFile.writes += 1
        time.sleep(DELAY)
        return super().write(data)


@contextmanager
def slow_disk() -> Iterator[None]:
    """Every unbuffered file that `Path.open` opens for writing is a slow one."""
    opened = Path.open

    def open_slow(self: Path, mode: str = "r", buffering: int = -1, **more: Any) -> Any:
        if buffering == 0 and set(mode) & set("awx"):
            return SlowFile(self, mode)
        return opened(self, mode, buffering, **more)

    Path.open = open_slow  # type: ignore[assignment]  # for as long as it is measured
    SlowFile.writes = 0
    try:
        yield
    finally:
        Path.open = opened  # type: ignore[method-assign]  # as it was


def logged_steps(steps: int, folder: Path) -> list[int]:
    """Nanoseconds that each publish of a step_end took, by the clock on the wall."""
    bus, weights, spent = Bus(failure="raise"), torch.randn(256, 256), []
    bus.attach(TensorBoardLogger(folder / "tb", every=1))
    bus.attach(JSONLLogger(folder / "metrics.jsonl", every=1))
    bus.bind()
    state = TrainState(lr={"group_0": 0.1})
    bus.publish(TrainBegin(), state)
    for _ in range(steps):
        loss = (weights @ weights @ weights).mean()  # about the time of a small step
        state = state.begin_update()
        bus.publish(StepBegin(), state)
        state = state.end_update().report(loss=loss, rate=0.1)
        start = time.perf_counter_ns()
        bus.publish(StepEnd(), state)
        spent.append(time.perf_counter_ns() - start)
    bus.publish(TrainEnd(), state)
    bus.close()
    return spent


def slow(size: Size) -> Iterator[Row]:
    """The mean is over all steps, those included at which something went wrong."""
    what = "publish of step_end with both loggers at every step"
    figures: dict[str, float] = {}
    for disk, context in (("this disk", None), ("50 ms a write", slow_disk)):
        with TemporaryDirectory(prefix="bench-") as folder:
            figures[disk] = _mean_us(size.logged, Path(folder), cast("Callable[[], Any] | None", context))
    yield Row(f"{what}, 50 ms a write / this disk", figures["50 ms a write"], figures["this disk"], "us", target=20.0)
    yield Row("  slow writes made meanwhile, in other threads", SlowFile.writes, unit="", note="must not be 0")


def _mean_us(steps: int, folder: Path, context: Callable[[], Any] | None) -> float:
    if context is None:
        return mean(logged_steps(steps, folder)) / 1000
    with context():
        return mean(logged_steps(steps, folder)) / 1000
