"""Small runs of a `Loop`, for the tests of checkpoints and of resuming."""

from __future__ import annotations

import copy
import math
import random
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy
import torch
from torch import nn
from torch.nn import functional
from torch.utils.data import DataLoader, Dataset, IterableDataset

from callbacks import EarlyStopping, WarmupCosine
from eventloop import Loop, Priority, StepBegin, StepEnd, Stop, TrainEnd, TrainState
from eventloop.checkpoint import Checkpoint, Checkpoints

EVERY_UPDATE: Final = {"save_top_k": -1, "every_steps": 1}
SCORES: Final = {1: 0.9, 2: 0.5, 3: math.nan, 4: 0.5, 5: 0.4, 6: math.inf, 7: 0.7, 8: 0.4, 9: 0.6}


class Count(nn.Module):
    """A model whose one weight is the number of updates made: its gradient is -1, at a learning rate of 1."""

    def __init__(self):
        super().__init__()
        self.w = nn.Parameter(torch.zeros(()))

    def forward(self):
        return -self.w


def count(run_dir: Path | None, *callbacks: object, scores: Mapping[int, float] | None = None, **options: Any) -> Loop:
    """Run a `Count`; ``scores`` are the evaluations' eval_loss by step, one after each update unless told otherwise.

    Saves are made at once unless told otherwise, for these tests look at the disk after each update.
    """
    model, options = Count(), {"saves": "sync", **options}
    if scores is not None:
        options = {"evaluate": lambda: {"eval_loss": scores[loop.state.step]}, "eval_every": 1, **options}
    loop = Loop(model, torch.optim.SGD(model.parameters(), lr=1.0), run_dir=run_dir, callbacks=callbacks, **options)
    with loop:
        for _ in loop.updates():
            loop.backward(model())
            loop.update()
    return loop


def checkpoints(run_dir: Path) -> dict[int, Checkpoint]:
    """The committed checkpoints by step."""
    return {c.step: c for c in Checkpoints(run_dir / "checkpoints", "").list()}


def on_disk(run_dir: Path) -> set[int]:
    """The steps of the committed checkpoints."""
    return set(checkpoints(run_dir))


def leftovers(run_dir: Path) -> list[str]:
    """What lies beside the checkpoints and is none of them."""
    known = {"latest", *(c.path.name for c in checkpoints(run_dir).values())}
    return sorted(path.name for path in (run_dir / "checkpoints").iterdir() if path.name not in known)


class DiskWatch:
    """Notes which checkpoints were on the disk after each update, by step: read when the next one begins."""

    def __init__(self, run_dir: Path):
        self.run_dir = run_dir
        self.after: dict[int, set[int]] = {}

    def on_step_begin(self, event: StepBegin, state: TrainState):
        self.after[state.step] = on_disk(self.run_dir)


class Cut(BaseException):
    """The end of the process, as far as the run can tell."""


def cut_at(step):
    """A callback that ends the process in the midst of the update after ``step``."""

    class Cutter:
        def on_step_begin(self, event, state):
            if state.step == step:
                raise Cut

    return Cutter()


def stop_at(step, rule="now"):
    """A callback that asks for a stop after ``step``."""

    class Stopper:
        def on_step_end(self, event, state):
            return Stop("enough") if state.step == step else None

        def describe(self):
            return rule

    return Stopper()


def said(caplog):
    return [record.getMessage() for record in caplog.records]


class Samples(Dataset):
    """Twenty-six samples; with ``noise`` each is drawn anew from all three global generators when it is read."""

    def __init__(self, noise: bool = False):
        generator = torch.Generator().manual_seed(7)
        self.x = torch.randn(26, 5, generator=generator)
        self.y = (self.x[:, 0] > 0).long() + (self.x[:, 1] > 0.5).long()
        self.noise = noise

    def __len__(self):
        return len(self.x)

    def __getitem__(self, i):
        x = self.x[i]
        if self.noise:
            x = x + 0.1 * torch.randn(5) + 0.1 * random.random() + 0.1 * float(numpy.random.random())
        return x, self.y[i]


class Stream(IterableDataset):
    """The same samples one after the other, and nobody knows how many."""

    def __init__(self):
        self.samples = Samples(noise=True)

    def __iter__(self):
        return (self.samples[i] for i in range(len(self.samples)))


@dataclass
class Recipe:
    """A run that has everything which can go wrong in a resume: dropout, batch norm, moments, schedule, patience."""

    accumulate: int = 1
    noise: bool = False
    own_generator: bool = False
    stream: bool = False
    evaluate_every: int | str = "epoch"
    total_steps: int = 25

    def loader(self) -> DataLoader:
        if self.stream:
            return DataLoader(Stream(), batch_size=4)
        generator = torch.Generator().manual_seed(11) if self.own_generator else None
        return DataLoader(Samples(self.noise), batch_size=4, shuffle=True, generator=generator)


@dataclass
class Outcome:
    """How a run went: its losses in order, and everything that it ended with."""

    loop: Loop
    losses: list[float]
    model: dict[str, Any]  # before the best weights are given back
    restored: dict[str, Any]  # and after it
    optimizer: dict[str, Any]
    callbacks: dict[str, Any]
    drawn: tuple[float, float, float]  # the next numbers of the global generators


def build(recipe: Recipe) -> tuple[nn.Module, torch.optim.Optimizer]:
    """The model and the optimizer of a script, with the seeds that it sets."""
    random.seed(1)
    numpy.random.seed(1)
    torch.manual_seed(1)
    model = nn.Sequential(nn.Linear(5, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, 3))
    return model, torch.optim.AdamW(model.parameters(), lr=0.05)


def train(recipe: Recipe, run_dir: Path | None, *callbacks: object, seed: int | None = None, **options: Any) -> Outcome:
    """Epochs of seven batches, three unless told otherwise; a resumed run's ``seed`` is another and must not matter."""
    model, optimizer = build(recipe)
    if seed is not None:
        random.seed(seed)
        numpy.random.seed(seed)
        torch.manual_seed(seed)
    samples, losses, last = Samples(), [], {}

    def evaluate():
        torch.rand(3)
        return {"eval_loss": functional.cross_entropy(model(samples.x), samples.y)}

    stopper = EarlyStopping("eval_loss", patience=10_000, restore_best=True)
    settings = {"max_epochs": 3, "clip_norm": 0.5, "accumulate": recipe.accumulate} | options
    settings |= {"evaluate": evaluate, "eval_every": recipe.evaluate_every, "run_dir": run_dir}
    schedule = WarmupCosine(3, recipe.total_steps)
    loop = Loop(model, optimizer, callbacks=[schedule, stopper, *callbacks], **settings)

    @loop.bus.on(StepEnd, failure="raise")
    def note_loss(event, state):
        losses.append(state.metrics["loss"])

    @loop.bus.on(TrainEnd, priority=Priority.FIRST)
    def note_weights(event, state):
        last.update(copy.deepcopy(model.state_dict()))

    loader = recipe.loader()
    with loop:
        for _ in loop.epochs():
            for x, y in loop.batches(loader):
                loop.backward(functional.cross_entropy(model(x), y))
                loop.update()
    drawn = random.random(), float(numpy.random.random()), float(torch.rand(()))
    state = loop.bus.state_dict()["callbacks"]
    mine = {key: state[key] for key in ("EarlyStopping(eval_loss)", "WarmupCosine")}
    return Outcome(loop, losses, last, model.state_dict(), optimizer.state_dict(), mine, drawn)


def identical(a: Any, b: Any) -> bool:
    """Whether two nested states are the same to the last bit."""
    if isinstance(a, torch.Tensor):
        return isinstance(b, torch.Tensor) and a.dtype == b.dtype and torch.equal(a, b)
    if isinstance(a, Mapping):
        return a.keys() == b.keys() and all(identical(a[key], b[key]) for key in a)
    if isinstance(a, list | tuple):
        return type(a) is type(b) and len(a) == len(b) and all(map(identical, a, b))
    if isinstance(a, numpy.ndarray):
        return type(b) is type(a) and a.dtype == b.dtype and a.tobytes() == b.tobytes() and a.shape == b.shape
    return type(a) is type(b) and repr(a) == repr(b)  # 0.0 and -0.0 differ, NaN and NaN do not
