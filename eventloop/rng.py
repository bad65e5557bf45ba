"""The random states of Python, NumPy and torch: taken, and put back."""

from __future__ import annotations

import contextlib
import random
import sys
from collections.abc import Iterator
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
    """The random states as a part of a checkpoint, those of the loader's own generators and sampler among them.

    The order in which a shuffling loader reads its data is drawn when its iterator is made, or from it, so winding a
    loader forward needs the states of that moment too.
    """

    def __init__(self) -> None:
        self._generators: list[Any] = []  # of the epoch's loader
        self._epoch_began: dict[str, Any] | None = None
        self._loaded: dict[str, Any] | None = None

    def begin_epoch(self, loader: object) -> None:
        """The iterator of a new epoch is about to be made."""
        self._generators, loaded, self._loaded = _generators(loader), self._loaded, None
        if loaded is not None:
            self._restore_generators(loaded)  # the others were put back at once
        self._epoch_began = self._capture()

    @contextlib.contextmanager
    def rewound(self, loader: object) -> Iterator[None]:
        """Inside, the states are as when the epoch's iterator was made; afterwards as in the checkpoint."""
        self._generators, loaded, self._loaded = _generators(loader), self._loaded, None
        if self._epoch_began is not None:
            restore(self._epoch_began)
            self._restore_generators(self._epoch_began)
        try:
            yield
        finally:
            if loaded is not None:
                restore(loaded)
                self._restore_generators(loaded)

    def _capture(self) -> dict[str, Any]:
        return {**capture(), "loader": [generator.get_state() for generator in self._generators]}

    def _restore_generators(self, state: dict[str, Any]) -> None:
        for generator, own in zip(self._generators, state["loader"], strict=False):
            generator.set_state(own)

    def state_dict(self) -> dict[str, Any]:
        """Now, and at the epoch's beginning."""
        now = self._capture()
        if self._loaded is not None:  # no loader has come yet
            now["loader"] = self._loaded["loader"]
        return {"now": now, "epoch_began": self._epoch_began}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back; what belongs to the loader is put back when it is there."""
        self._epoch_began, self._loaded = state["epoch_began"], state["now"]
        restore(state["now"])


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


def _generators(loader: object) -> list[Any]:
    found = [getattr(holder, "generator", None) for holder in (loader, *samplers(loader))]
    return list({id(g): g for g in found if hasattr(g, "set_state")}.values())
