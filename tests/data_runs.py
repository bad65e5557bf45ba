"""Runs that note which samples they were given, over loaders of every kind, for the tests of a resume's data."""

from __future__ import annotations

import itertools
import random
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import numpy
import torch
from torch.utils.data import BatchSampler, DataLoader, Dataset, RandomSampler

from callbacks import ModelCheckpoint
from eventloop import Loop
from eventloop.data import SeededDataset, SeededSampler

SAVE_ALL: Final = {"save_top_k": -1, "every_steps": 1}


class Numbers(Dataset[torch.Tensor]):
    """The numbers from 0; with ``noise`` each has fractions drawn from all three global generators. Counts reads."""

    def __init__(self, n: int, noise: bool = False):
        self.n, self.noise, self.reads = n, noise, 0

    def __len__(self):
        return self.n

    def __getitem__(self, index):
        if index >= self.n:
            raise IndexError(index)
        self.reads += 1
        drawn = [random.random(), float(numpy.random.random()), float(torch.rand(()))] if self.noise else [0.0]
        return torch.tensor([float(index), *drawn])


class Keeping:
    """A loader that keeps its own place and draws each epoch's order from a generator that is part of its state.

    Args:
        n: samples.
        size: of a batch.
        says_end_again: given the state of an epoch's end, its next iterator is empty; else it is the next epoch's.
    """

    def __init__(self, n: int, size: int, says_end_again: bool):
        self._n, self._size, self._says_end_again = n, size, says_end_again
        self._random, self._given, self._loaded = random.Random(3), 0, False
        self._began = self._random.getstate()

    def state_dict(self):
        return {"given": self._given, "began": self._began}

    def load_state_dict(self, state):
        self._given, self._began, self._loaded = state["given"], state["began"], True

    def __len__(self):
        return -(-self._n // self._size)

    def __iter__(self) -> Iterator[torch.Tensor]:
        goes_on, self._loaded = self._loaded, False
        if goes_on:
            self._random.setstate(self._began)
        if goes_on and self._given == len(self) and not self._says_end_again:
            self._random.sample(range(self._n), self._n)
            goes_on = False
        if not goes_on:
            self._given, self._began = 0, self._random.getstate()
        order = self._random.sample(range(self._n), self._n)
        return self._batches(order)

    def _batches(self, order):
        while self._given < len(self):
            at = self._given * self._size
            self._given += 1
            yield torch.tensor(order[at : at + self._size]).float().unsqueeze(1)


class Unsized:
    """A loader that does not know its length."""

    def __init__(self, batches: Iterable[Any]):
        self._batches = batches

    def __iter__(self):
        return iter(self._batches)


def plain(n: int, size: int) -> list[torch.Tensor]:
    return list(DataLoader(Numbers(n), batch_size=size))


def seeded(n: int, size: int, workers: int = 0, noise: bool = False, **options: Any) -> DataLoader[torch.Tensor]:
    data = SeededDataset(Numbers(n, noise), seed=7) if noise else Numbers(n)
    return DataLoader(data, batch_size=size, sampler=SeededSampler(n, seed=5), num_workers=workers, **options)


def shuffled(n: int, size: int, workers: int = 0) -> DataLoader[torch.Tensor]:
    return DataLoader(Numbers(n), batch_size=size, shuffle=True, num_workers=workers)


def own_generator(n: int, size: int) -> DataLoader[torch.Tensor]:
    order = RandomSampler(range(n), generator=torch.Generator().manual_seed(5))
    return DataLoader(Numbers(n), batch_sampler=BatchSampler(order, size, drop_last=False))


LOADERS: Final[dict[str, Callable[[int, int], Any]]] = {
    "a list": plain,
    "of unknown length": lambda n, size: Unsized(plain(n, size)),
    "shuffled": shuffled,
    "shuffled, a generator of its own": own_generator,
    "shuffled, noise from the global generators": lambda n, size: DataLoader(Numbers(n, True), size, shuffle=True),
    "seeded": seeded,
    "seeded, in batches of a sampler's": lambda n, size: DataLoader(
        Numbers(n), batch_sampler=BatchSampler(SeededSampler(n), size, drop_last=False)
    ),
    "seeded, noise": lambda n, size: seeded(n, size, noise=True),
    "with a state, its next epoch follows": lambda n, size: Keeping(n, size, says_end_again=False),
    "with a state, it says its end again": lambda n, size: Keeping(n, size, says_end_again=True),
}


@dataclass
class Seen:
    """What a run was given, and what it made of it.

    Attributes:
        batches: epoch and samples of each micro-batch.
        at: the number of micro-batches when each update was finished, by step.
        weights: at the end.
    """

    batches: list[tuple[int, list[list[float]]]] = field(default_factory=list)
    at: dict[int, int] = field(default_factory=dict)
    weights: list[float] = field(default_factory=list)

    def ids(self, epoch: int) -> list[int]:
        """The samples of an epoch, sorted."""
        return sorted(int(sample[0]) for e, batch in self.batches if e == epoch for sample in batch)


def read(
    folder: Path | None,
    *loaders: Any,
    own_update: bool = False,
    together: bool = False,
    of_each: int | None = None,
    **options: Any,
) -> Seen:
    """Two epochs unless told otherwise, every update saved: each loader by itself, or all of them ``together``.

    Args:
        folder: of the run.
        loaders: of each epoch.
        own_update: the body makes its updates itself.
        together: read them side by side.
        of_each: leave a loader after so many batches.
        options: of the `Loop`, and a seed.
    """
    torch.manual_seed(options.pop("seed", 1))
    model = torch.nn.Sequential(torch.nn.Linear(1, 1), torch.nn.Dropout(0.5))
    optimizer, seen = torch.optim.SGD(model.parameters(), lr=0.001), Seen()
    callbacks = [] if folder is None else [ModelCheckpoint(**SAVE_ALL)]
    loop = Loop(model, optimizer, run_dir=folder, callbacks=callbacks, **{"max_epochs": 2, **options})
    with loop:
        for epoch in loop.epochs():
            parts = [zip(*map(loop.batches, loaders), strict=False)] if together else map(loop.batches, loaders)
            for part in parts:
                for batch in itertools.islice(part, of_each):
                    for each in batch if together else [batch]:
                        seen.batches.append((epoch, each.tolist()))
                    _learn(loop, model, optimizer, each[:, :1], own_update)
                    seen.at.setdefault(loop.state.step, len(seen.batches))
    seen.at.pop(0, None)
    seen.weights = torch.cat([p.detach().flatten() for p in model.parameters()]).tolist()
    return seen


def _learn(loop: Loop, model: Any, optimizer: Any, x: torch.Tensor, own_update: bool) -> None:
    loss = model(x).mean()
    if not own_update:
        loop.backward(loss)
        loop.update()
        return
    loss.backward()
    optimizer.step()
    optimizer.zero_grad()
    loop.step_end(loss=loss)
