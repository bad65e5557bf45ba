"""The random states of Python, NumPy and torch: taken, and put back."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any
from weakref import WeakKeyDictionary

from .loaders import generators, keeps_iterator, kept_iterator, set_epoch


def capture() -> dict[str, Any]:
    """The states of every generator that is in use: plain values and byte tensors."""
    import torch

    state: dict[str, Any] = {"python": random.getstate(), "torch": torch.get_rng_state()}
    if (numpy := sys.modules.get("numpy")) is not None:
        name, keys, *rest = numpy.random.get_state()
        state["numpy"] = (name, keys.tolist(), *rest)
    if torch.cuda.is_available() and torch.cuda.is_initialized():  # type: ignore[no-untyped-call]  # torch's
        state["cuda"] = list(torch.cuda.get_rng_state_all())
    return state


def restore(state: dict[str, Any]) -> None:
    """Put the states back."""
    import torch

    random.setstate(state["python"])
    torch.set_rng_state(state["torch"])
    if "numpy" in state and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(state["numpy"])
    if "cuda" in state and torch.cuda.is_available():
        torch.cuda.set_rng_state_all(state["cuda"])


@contextlib.contextmanager
def untouched() -> Iterator[None]:
    """Whatever is drawn inside, the random states are as before afterwards."""
    state = capture()
    try:
        yield
    finally:
        restore(state)


class RandomStates:
    """The random states as a part of a checkpoint, those of the loaders' own generators and samplers among them.

    The order in which a shuffling loader reads its data is drawn when its iterator is made, or from it, so winding a
    loader forward needs the states of that moment too. An epoch may have several loaders, each with its place in it.
    A loader with persistent workers makes its iterator once: the states of that moment are kept beside an epoch's own.
    """

    def __init__(self) -> None:
        self._place = self._epoch = 0
        self._loader: Any = None  # in hand
        self.loaders: Callable[[], dict[int, list[Any]]] = dict  # the states of the loaders' generators, by place
        self._generators: list[Any] = []  # of the loader in hand
        self._began: dict[int, dict[str, Any]] = {}  # the states when the loader's iterator was made, by place
        self._before: dict[int, dict[str, Any]] = {}  # of another process, until a loader's iterator is made, by place
        self._made: WeakKeyDictionary[Any, dict[str, Any]] = WeakKeyDictionary()  # the states when a kept one was made
        self._waiting: dict[int, list[Any]] = {}  # a checkpoint's states of generators whose loader has not come yet
        self._now: dict[str, Any] | None = None  # a checkpoint's states, until the first loader has come
        self._known: list[Any] = []  # the generators of this sitting

    def take(self, place: int, loader: object, epoch: int) -> None:
        """What follows is about this loader, in this place of the epoch."""
        self._place, self._loader, self._epoch, self._generators = place, loader, epoch, generators(loader)

    def begin_epoch(self) -> None:
        """The loader's iterator of a new epoch is about to be made, or reset where it is kept."""
        self._now = None
        _set_all(self._generators, self._due())
        before = self._before.pop(self._place, None)
        if before is not None and keeps_iterator(self._loader):
            self._keep(before.get("made", before))
        self._began[self._place] = began = self._stands()
        if keeps_iterator(self._loader):
            if kept_iterator(self._loader) is None:
                self._made[self._loader] = began
            elif self._loader in self._made:
                began["made"] = self._made[self._loader]

    @contextlib.contextmanager
    def rewound(self) -> Iterator[None]:
        """Inside, the states are as when the epoch's iterator was made; afterwards as in the checkpoint."""
        now, self._now = self._now or capture(), None
        due, began = self._due(), self._began.get(self._place)
        if began is not None:
            if "made" in began and keeps_iterator(self._loader):
                self._keep(began["made"])
            elif keeps_iterator(self._loader):
                self._made[self._loader] = began
            self._put(began)
        try:
            yield
        finally:
            if kept_iterator(self._loader) is not None:
                self._before.pop(self._place, None)
            self._put({**now, "loader": due})

    def _keep(self, made: dict[str, Any]) -> None:
        """Make an iterator that is kept from epoch to epoch as in the epoch in which the uncut run has made it.

        From it the workers have their seeds and their copy of the dataset. The epochs after it only reset the iterator:
        no seed for workers is drawn in them.
        """
        self._made[self._loader] = made
        if kept_iterator(self._loader) is None:
            now = self._stands()
            set_epoch(self._loader, made["epoch"])
            self._put(made)
            iter(self._loader)
            self._put(now)
            set_epoch(self._loader, self._epoch)

    def _stands(self) -> dict[str, Any]:
        return {**capture(), "loader": states_of(self._generators), "epoch": self._epoch}

    def _put(self, state: dict[str, Any]) -> None:
        restore(state)
        _set_all(self._generators, state["loader"])

    def _due(self) -> list[Any]:
        """The states that the loader's generators must have now: where it first comes, those of the checkpoint."""
        own, states = self._generators, states_of(self._generators)
        for i, (generator, saved) in enumerate(zip(own, self._waiting.pop(self._place, []), strict=False)):
            if all(generator is not known for known in self._known):
                states[i] = saved
        self._known = [*own, *self._known] if self._waiting else []
        return states

    def state_dict(self) -> dict[str, Any]:
        """Now, and where each loader began."""
        return {"now": capture(), "loaders": {**self.loaders(), **self._waiting}, "began": dict(self._began)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back; what belongs to a loader is put back when it is there."""
        self._now, self._waiting, self._began = state["now"], dict(state["loaders"]), dict(state["began"])
        self._before = dict(self._began)
        restore(state["now"])


def states_of(generators: list[Any]) -> list[Any]:
    """The states of a loader's own generators."""
    return [generator.get_state() for generator in generators]


def _set_all(generators: list[Any], states: list[Any]) -> None:
    for generator, state in zip(generators, states, strict=False):
        generator.set_state(state)
