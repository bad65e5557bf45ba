"""The baselines: the fastest plain code that a good engineer would write in place of a bus and a loop."""

from __future__ import annotations

import json
import math
import os
import time
from collections.abc import Callable, Iterable, Iterator
from itertools import repeat
from pathlib import Path
from typing import Any, Final

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.optim import Optimizer

Handler = Callable[[Any, Any], Any]
Batch = tuple[Tensor, Tensor]

# -- dispatch ----------------------------------------------------------------------------------------------------------


def call_all(handlers: tuple[Handler, ...], event: Any, state: Any, times: int) -> None:
    """So many dispatches to a tuple of handlers: each isolated, each reply looked at."""
    replies, errors = [], []
    for _ in repeat(None, times):
        for handler in handlers:
            try:
                reply = handler(event, state)
            except Exception as error:  # isolation is what is measured
                errors.append(error)
                continue
            if reply is not None:
                replies.append(reply)


class Smallest:
    """The smallest dispatcher that isolates: a dictionary of tuples, with no order, filter, fold or record."""

    def __init__(self, kind: type, handlers: tuple[Handler, ...]) -> None:
        self._handlers = {kind: handlers}
        self._errors: list[Exception] = []

    def publish(self, event: Any, state: Any) -> Any:
        """Call all; the last reply."""
        last = None
        for handler in self._handlers[type(event)]:
            try:
                reply = handler(event, state)
            except Exception as error:
                self._errors.append(error)
                continue
            if reply is not None:
                last = reply
        return last


def nothing(event: Any, state: Any) -> None:
    """What a function call costs."""


def call_nothing(event: Any, state: Any, times: int) -> None:
    """So many calls of an empty function."""
    for _ in repeat(None, times):
        nothing(event, state)


def step_calls(begin: tuple[Handler, ...], end: tuple[Handler, ...], event: Any, state: Any, times: int) -> None:
    """So many steps: the handlers of its begin, those of its end, and no snapshot."""
    replies, errors = [], []
    for _ in repeat(None, times):
        for handlers in (begin, end):
            for handler in handlers:
                try:
                    reply = handler(event, state)
                except Exception as error:  # isolation is what is measured
                    errors.append(error)
                    continue
                if reply is not None:
                    replies.append(reply)


# -- training ----------------------------------------------------------------------------------------------------------

WARM_UP: Final = 50  # updates, of the learning rate and before the clock is read
BASE_LR: Final = 0.01
LOG_EVERY: Final = 50
EVAL_EVERY: Final = 500
PATIENCE: Final = 1000  # it watches, and never stops
TOP_K: Final = 2


def tiny() -> tuple[nn.Module, Optimizer]:
    """A multilayer perceptron so small that whatever surrounds it is felt, with its optimizer."""
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 10))
    return model, torch.optim.SGD(model.parameters(), lr=BASE_LR)


def batches_of(count: int, seed: int) -> list[Batch]:
    """Batches of 32, ready in memory: up to 64 different ones, in turn."""
    source = torch.Generator().manual_seed(seed)
    pool = [(torch.randn(32, 64, generator=source), torch.randint(0, 10, (32,), generator=source)) for _ in range(64)]
    return [pool[i % len(pool)] for i in range(count)]


def train(model: nn.Module, optimizer: Optimizer, batches: list[Batch], folder: Path) -> Iterator[None]:
    """A training loop and nothing else. This and the others yield after each update, so that two can run in turns."""
    for x, y in batches:
        loss = F.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        optimizer.zero_grad()
        yield


def warmup_cosine(total: int) -> Callable[[int], float]:
    """The factor of the base rate after so many updates, as `torch.optim.lr_scheduler.LambdaLR` asks for it."""
    warmup = WARM_UP

    def factor(done: int) -> float:
        if done < warmup:
            return (done + 1) / warmup
        return (1 + math.cos(math.pi * min((done - warmup) / (total - warmup), 1.0))) / 2

    return factor


class Log:
    """TensorBoard and a file of JSON lines, written where they are called."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder / "tb"))
        self._lines = (folder / "metrics.jsonl").open("w", encoding="utf-8")

    def write(self, step: int, **scalars: float) -> None:
        """One row."""
        for name, value in scalars.items():
            self._writer.add_scalar(name, value, step)
        self._lines.write(json.dumps({"step": step, "time": time.time(), **scalars}) + "\n")

    def close(self) -> None:
        """Let everything out."""
        self._writer.close()
        self._lines.close()


class Keeper:
    """Early stopping, and the k best checkpoints."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._kept: list[tuple[float, Path]] = []
        self._best, self._worse = math.inf, 0

    def judge(self, step: int, value: float, model: nn.Module, optimizer: Optimizer) -> bool:
        """Whether to stop; saves if the value is among the best."""
        if len(self._kept) < TOP_K or value < self._kept[-1][0]:
            self._save(step, value, model, optimizer)
        self._worse = 0 if value < self._best else self._worse + 1
        self._best = min(value, self._best)
        return self._worse >= PATIENCE

    def _save(self, step: int, value: float, model: nn.Module, optimizer: Optimizer) -> None:
        path, temporary = self._folder / f"step-{step}.pt", self._folder / "new.tmp"
        torch.save({"model": model.state_dict(), "optimizer": optimizer.state_dict(), "step": step}, temporary)
        os.replace(temporary, path)  # noqa: PTH105  # as one writes it
        self._kept = sorted([*self._kept, (value, path)], key=lambda pair: pair[0])
        for _, worst in self._kept[TOP_K:]:
            worst.unlink()
        del self._kept[TOP_K:]


def evaluate(model: nn.Module, batches: list[Batch]) -> float:
    """The mean loss."""
    model.eval()
    with torch.no_grad():
        value = sum(F.cross_entropy(model(x), y) for x, y in batches) / len(batches)
    model.train()
    return float(value)


def train_with_everything(model: nn.Module, optimizer: Optimizer, batches: list[Batch], folder: Path) -> Iterator[None]:
    """Warmup and cosine, three scalars now and then, evaluation, early stopping, top-k checkpoints, all by hand."""
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, warmup_cosine(len(batches)))
    log, keeper, evaluation = Log(folder), Keeper(folder), batches_of(4, seed=2)
    for step, (x, y) in enumerate(batches, 1):
        loss = F.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        if due := step % LOG_EVERY == 0:
            norm = torch.nn.utils.get_total_norm([p.grad for p in model.parameters() if p.grad is not None])
            rate = optimizer.param_groups[0]["lr"]
        optimizer.step()
        optimizer.zero_grad()
        schedule.step()
        if due:
            log.write(step, loss=loss.item(), lr=rate, grad_norm=norm.item())
        if step % EVAL_EVERY == 0 and keeper.judge(step, evaluate(model, evaluation), model, optimizer):
            break
        yield
    log.close()


def train_with_logs(model: nn.Module, optimizer: Optimizer, batches: list[Batch], folder: Path) -> Iterator[None]:
    """Loss and learning rate to TensorBoard and JSON lines after every update."""
    log = Log(folder)
    for step, (x, y) in enumerate(batches, 1):
        loss = F.cross_entropy(model(x), y)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        optimizer.step()
        optimizer.zero_grad()
        log.write(step, loss=loss.item(), lr=optimizer.param_groups[0]["lr"])
        yield
    log.close()


# -- checkpoints -------------------------------------------------------------------------------------------------------

PORTION: Final = 16 << 20  # bytes a write: Linux takes at most 2 GiB at once


class KeptBuffers:
    """One block of memory for copies of tensors, the large ones first, so that they lie aligned."""

    def __init__(self, tensors: Iterable[Tensor]) -> None:
        self._sources = sorted(tensors, key=lambda tensor: -tensor.nbytes)
        self._buffer = torch.empty(self.size, dtype=torch.uint8)
        parts = torch.split(self._buffer, [tensor.nbytes for tensor in self._sources])
        self._views = [part.view(t.dtype).view(t.shape) for part, t in zip(parts, self._sources, strict=True)]

    @property
    def size(self) -> int:
        """In bytes."""
        return sum(tensor.nbytes for tensor in self._sources)

    def copy(self) -> None:
        """The tensors as they are now."""
        torch._foreach_copy_(self._views, self._sources)

    def write(self, path: Path) -> None:
        """The copies, to one new file, synced."""
        data: memoryview = self._buffer.numpy().data
        with path.open("xb", buffering=0) as file:
            for start in range(0, len(data), PORTION):
                part = data[start : start + PORTION]
                while part:
                    part = part[file.write(part) :]
            os.fsync(file.fileno())
