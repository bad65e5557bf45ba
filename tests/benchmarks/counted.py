"""What is counted and not timed: how often a device would have to wait, and what memory a long run keeps."""

from __future__ import annotations

import gc
import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from tempfile import TemporaryDirectory
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch.utils._python_dispatch import TorchDispatchMode

import eventloop.metrics
import eventloop.totals
from callbacks import GradNormMonitor, JSONLLogger, LearningRateMonitor, TensorBoardLogger, WarmupCosine
from eventloop import Bus, Event, Loop, Report, Save, StepBegin, StepEnd, TrainState

from . import plain
from .size import Size
from .table import Row

ASK_EVERY: Final = 10
UPDATES: Final = 100
KEPT: Final = 1000  # failures and ledger entries


class Reads(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch leaves it untyped
    """Counts the fetches of metrics, and the numbers that are read out of a tensor by anybody else."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.fetches = self.elsewhere = 0
        self._fetching = False

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Count, and do it."""
        if func is torch.ops.aten._local_scalar_dense.default and not self._fetching:
            self.elsewhere += 1
        return func(*args, **(kwargs or {}))

    @contextmanager
    def counting(self) -> Iterator[None]:
        """While it counts."""
        fetch = eventloop.metrics.fetch

        def counted(unread: Any) -> None:
            self.fetches += 1
            self._fetching = True
            try:
                fetch(unread)
            finally:
                self._fetching = False

        modules: tuple[Any, ...] = (eventloop.metrics, eventloop.totals)
        for module in modules:
            module.fetch = counted
        try:
            with self:
                yield
        finally:
            for module in modules:
                module.fetch = fetch


def fetches(callbacks: list[object]) -> tuple[list[int], list[int], int]:
    """Fetches at each update at which nobody is due, at each of the others, and reads elsewhere."""
    quiet: list[int] = []
    asked: list[int] = []
    reads = Reads()
    model, optimizer = plain.tiny()
    measuring = [WarmupCosine(plain.WARM_UP), LearningRateMonitor(), GradNormMonitor(every=1)]
    with TemporaryDirectory(prefix="bench-") as folder:
        loop = Loop(model, optimizer, run_dir=folder, max_epochs=1, callbacks=[*measuring, *callbacks])
        with reads.counting(), loop:
            batches = plain.batches_of(UPDATES, seed=1)
            for step, (x, y) in enumerate(loop.batches(batches), 1):
                before = reads.fetches
                loop.backward(F.cross_entropy(model(x), y))
                loop.update()
                (quiet if step % ASK_EVERY else asked).append(reads.fetches - before)
    return quiet, asked, reads.elsewhere


class Asker:
    """Reads two numbers now and then."""

    def options(self) -> dict[str, dict[str, int]]:
        """Now and then."""
        return {"step_end": {"every": ASK_EVERY}}

    def on_step_end(self, event: StepEnd, state: TrainState) -> None:
        """Ask twice; the first brings both."""
        self.sum = state.metrics["loss"] + state.metrics["grad_norm"]


def syncs(size: Size) -> Iterator[Row]:
    """How often numbers are fetched from where they are."""
    kinds: dict[str, list[object]] = {
        "a handler asks for two numbers": [Asker()],
        "two loggers ask": [TensorBoardLogger(every=ASK_EVERY), JSONLLogger(every=ASK_EVERY)],
    }
    for who, callbacks in kinds.items():
        quiet, asked, elsewhere = fetches(callbacks)
        yield Row(f"{who} each {ASK_EVERY} updates: fetches at the {len(quiet)} others", sum(quiet), unit="", target=0)
        yield Row("- fetches at one where they do, at most", max(asked), unit="", target=1)
        yield Row("- numbers read from tensors by anybody else", elsewhere, unit="", target=0)


class Busy:
    """Reports, asks, fails: whatever might leave something behind. It begins with what fills the bounded logs."""

    def on_step_begin(self, event: Event, state: TrainState) -> Report:
        """A number, under a few names in turn."""
        return Report({f"key_{state.step % 10}": float(state.step)})

    def on_step_end(self, event: Event, state: TrainState) -> Save | None:
        """A failure, a request that is refused, or nothing."""
        if state.step <= KEPT or state.step % 50 == 0:
            raise ValueError(f"the failure of step {state.step}")
        return Save(f"tag {state.step % 7}") if state.step % 25 == 0 else None


def looping(updates: int) -> Iterator[None]:
    """A `Loop` without a model worth the name, whose every update publishes two events."""
    model, optimizer = plain.tiny()
    loop = Loop(model, optimizer, max_steps=updates, callbacks=[Busy()])
    with loop:
        for _ in loop.updates():
            loop.step_end(loss=0.5)
            yield


class Tick(Event):
    """An event of one's own, of which there are many."""

    __slots__ = ()


def driving(updates: int) -> Iterator[None]:
    """The same with a bus alone, and eight events more at each update."""
    bus, state = Bus(), TrainState()
    bus.attach(Busy())
    bus.on(Tick, lambda event, state: None)
    for _ in range(updates):
        state = state.begin_update()
        state = bus.publish(StepBegin(), state).apply(state)
        for _ in range(8):
            bus.publish(Tick(), state)
        state = state.end_update().report(loss=0.5)
        state = bus.publish(StepEnd(), state).apply(state)
        yield


def memory(size: Size) -> Iterator[Row]:
    """What Python holds more after all the events than after the first half of them."""
    kinds = (("a bus", driving, 10, size.events), ("a Loop", looping, 2, size.events // 20))
    for who, run, a_step, events in kinds:
        for _ in run(10):  # what is imported or made once
            pass
        before, grown = kept(run, events // a_step)
        what = f"memory that {who} keeps after {events:,} events, beyond that after the first half"
        yield Row(what, grown / 1000, before / 1000, "kB", target=50.0)


def kept(run: Callable[[int], Iterator[None]], updates: int) -> tuple[int, int]:
    """Bytes held after the first half, and how many more before the run ends."""
    tracemalloc.start()
    try:
        before = grown = 0
        for update, _ in enumerate(run(updates), 1):
            if update == updates // 2:
                before = _held()
            elif update == updates:
                grown = _held() - before
        return before, grown
    finally:
        tracemalloc.stop()


def _held() -> int:
    gc.collect()
    return tracemalloc.get_traced_memory()[0]
