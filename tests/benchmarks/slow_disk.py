"""Logging every step to a disk that takes 50 ms for each write: what does the training thread feel of it?"""

from __future__ import annotations

import io
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any, Final, NamedTuple

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


class Felt(NamedTuple):
    """What the training thread felt of its logging: nanoseconds."""

    mean: float  # CPU time of a step's publish
    longest: float  # one publish, by the clock on the wall


def logged_steps(steps: int, folder: Path) -> Felt:
    """Log loss and rate at every step of a loop of one's own."""
    bus, weights, spent, longest = Bus(failure="raise"), torch.randn(256, 256), 0, 0
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
        wall, cpu = time.perf_counter_ns(), time.thread_time_ns()
        bus.publish(StepEnd(), state)
        spent += time.thread_time_ns() - cpu
        longest = max(longest, time.perf_counter_ns() - wall)
    bus.publish(TrainEnd(), state)
    bus.close()
    return Felt(spent / steps, longest)


def slow(size: Size) -> Iterator[Row]:
    """The same steps with this disk and with a slow one."""
    with TemporaryDirectory(prefix="bench-") as folder:
        usual = logged_steps(size.logged, Path(folder))
    with TemporaryDirectory(prefix="bench-") as folder, slow_disk():
        felt = logged_steps(size.logged, Path(folder))
    if not SlowFile.writes:
        raise RuntimeError("the loggers no longer write through Path.open, so nothing was slow")
    what = "publish of step_end with two loggers at every step, 50 ms a write"
    yield Row(f"{what} / this disk", felt.mean / 1e3, usual.mean / 1e3, "us", target=20.0)
    longest = felt.longest / 1e6, usual.longest / 1e6
    yield Row("- the longest of them on the wall, less than one write", *longest, "ms", target=DELAY * 1e3)
