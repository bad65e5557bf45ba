"""The random states of Python, NumPy and torch: taken, and put back."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Callable, Iterator
from typing import Any


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
    """

    def __init__(self) -> None:
        self._place = 0
        self.loaders: Callable[[], dict[int, list[Any]]] = dict  # the states of the loaders' generators, by place
        self._generators: list[Any] = []  # of the loader in hand
        self._began: dict[int, dict[str, Any]] = {}  # the states when the loader's iterator was made, by place
        self._waiting: dict[int, list[Any]] = {}  # a checkpoint's states of generators whose loader has not come yet
        self._now: dict[str, Any] | None = None  # a checkpoint's states, until the first loader has come
        self._known: list[Any] = []  # the generators of this sitting

    def take(self, place: int, loader: object) -> None:
        """What follows is about this loader, in this place of the epoch."""
        self._place, self._generators = place, generators(loader)

    def begin_epoch(self, loader: object) -> None:
        """The iterator of a new epoch is about to be made."""
        self._now = None
        _set_all(self._generators, self._due())
        self._began[self._place] = {**capture(), "loader": states_of(self._generators)}

    @contextlib.contextmanager
    def rewound(self) -> Iterator[None]:
        """Inside, the states are as when the epoch's iterator was made; afterwards as in the checkpoint."""
        now, self._now = self._now or capture(), None
        own, due, began = self._generators, self._due(), self._began.get(self._place)
        if began is not None:
            restore(began)
            _set_all(own, began["loader"])
        try:
            yield
        finally:
            restore(now)
            _set_all(own, due)

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
        restore(state["now"])


def states_of(generators: list[Any]) -> list[Any]:
    """The states of a loader's own generators."""
    return [generator.get_state() for generator in generators]


def _set_all(generators: list[Any], states: list[Any]) -> None:
    for generator, state in zip(generators, states, strict=False):
        generator.set_state(state)


def samplers(loader: object) -> list[Any]:
    """The samplers of a loader and those inside them."""
    found: list[Any] = []
    pending: list[Any] = [loader]
    while pending:
        holder = pending.pop(0)
        inner = [getattr(holder, name, None) for name in ("sampler", "batch_sampler")]
        new = [s for s in inner if s is not None and all(s is not known for known in found)]
        found += new
        pending += new
    return found


def generators(loader: object) -> list[Any]:
    """The generators of a loader and of its samplers, each once."""
    found = [getattr(holder, "generator", None) for holder in (loader, *samplers(loader))]
    return list({id(g): g for g in found if hasattr(g, "set_state")}.values())
