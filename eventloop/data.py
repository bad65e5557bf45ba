"""Data whose order and randomness need no saving: both are functions of a seed, the epoch and the index."""

from __future__ import annotations

import contextlib
import hashlib
import operator
import random
import sys
from collections.abc import Iterator, Sized
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, Sampler

from .limits import whole


class SeededSampler(Sampler[int]):
    """Indices in an order that is a pure function of (seed, epoch); the global random states have no part in it.

    `Loop.batches` calls `set_epoch`, and `skip` when it goes on in the midst of an epoch, so that not one sample is
    read in vain. In a loop of your own call them in this order.

    Args:
        source: a dataset, or how many samples there are.
        seed: a whole number >= 0.
        shuffle: False for the order 0, 1, 2, ...

    Raises:
        ValueError: naming the argument and its value.
    """

    def __init__(self, source: Sized | int, seed: int = 0, shuffle: bool = True) -> None:
        if not isinstance(source, Sized):
            whole("source", source)
        if shuffle not in (True, False):
            raise ValueError(f"shuffle={shuffle!r} must be True or False")
        whole("seed", seed)
        self.source, self.seed, self.shuffle = source, seed, shuffle
        self.epoch = 0
        self._skip = 0

    def __len__(self) -> int:
        """All of an epoch, whatever is skipped."""
        return len(self.source) if isinstance(self.source, Sized) else self.source

    def set_epoch(self, epoch: int) -> None:
        """The next iterator is of this epoch, counted from 0; what another epoch was to skip is forgotten."""
        whole("epoch", epoch)
        if epoch != self.epoch:
            self.epoch, self._skip = epoch, 0

    def skip(self, samples: int) -> None:
        """The next iterator, and only that one, begins behind so many indices; nothing is read from the dataset."""
        whole("samples", samples)
        self._skip = samples

    def __iter__(self) -> Iterator[int]:
        """The indices."""
        first, self._skip = self._skip, 0
        if not self.shuffle:
            return iter(range(first, len(self)))
        generator = torch.Generator().manual_seed(_number(self.seed, self.epoch, "order"))
        order: list[int] = torch.randperm(len(self), generator=generator).tolist()
        return iter(order[first:])


class SeededDataset(Dataset[Any]):
    """A map-style dataset in which whatever is drawn while a sample is read is a function of (seed, epoch, index).

    An augmentation may use `random`, ``numpy.random`` and torch's global generator on the CPU: while ``dataset[i]``
    runs they are seeded, afterwards they are as before. So a sample is the same in every process, in every worker and
    after every resume. Generators of the dataset's own are its own affair.

    Attributes of the wrapped dataset are passed on; it is `dataset`.

    Args:
        dataset: has ``__getitem__``.
        seed: a whole number >= 0.

    Raises:
        ValueError: naming the argument and its value.
    """

    def __init__(self, dataset: Any, seed: int = 0) -> None:
        if isinstance(dataset, IterableDataset) or not hasattr(dataset, "__getitem__"):
            raise ValueError(f"dataset={dataset!r} must be a map-style dataset: dataset[i] is one sample")
        whole("seed", seed)
        self.dataset, self.seed = dataset, seed
        self._epoch = torch.zeros((), dtype=torch.int64)
        self._epoch.share_memory_()  # type: ignore[no-untyped-call]  # torch's; workers that live on see it move

    def set_epoch(self, epoch: int) -> None:
        """From now on samples are of this epoch, counted from 0, in workers too."""
        whole("epoch", epoch)
        self._epoch.fill_(epoch)
        if hasattr(self.dataset, "set_epoch"):
            self.dataset.set_epoch(epoch)

    def __len__(self) -> int:
        """As many as there are in the wrapped one."""
        return len(self.dataset)

    def __getitem__(self, index: Any) -> Any:
        """The sample, of this epoch."""
        with _seeded(_number(self.seed, int(self._epoch), _plain(index))):
            return self.dataset[index]

    def __getattr__(self, name: str) -> Any:
        """What this wrapper has not; no special method, for ``__getitems__`` would read past the seeds."""
        if name == "dataset" or name.startswith("__"):
            raise AttributeError(f"{type(self).__name__!r} object has no attribute {name!r}")
        return getattr(self.dataset, name)


@contextlib.contextmanager
def _seeded(number: int) -> Iterator[None]:
    """Inside, the CPU's global generators begin at a number; afterwards they are as before."""
    numpy = sys.modules.get("numpy")
    before = random.getstate(), torch.get_rng_state(), numpy and numpy.random.get_state()
    random.seed(number)
    torch.default_generator.manual_seed(number)  # torch.manual_seed would seed every device
    if numpy is not None:
        numpy.random.seed(number % 2**32)
    try:
        yield
    finally:
        random.setstate(before[0])
        torch.set_rng_state(before[1])
        if numpy is not None:
            numpy.random.set_state(before[2])


def _number(*parts: object) -> int:
    """A seed that neighbouring parts do not share: nearby seeds give generators that resemble each other."""
    return int.from_bytes(hashlib.sha256(repr(parts).encode()).digest()[:7], "big")


def _plain(index: Any) -> Any:
    """A whole number is the same index in whatever type it comes."""
    try:
        return operator.index(index)
    except TypeError:
        return index
