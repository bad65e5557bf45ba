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
    """The random states as a part of a checkpoint, with those at the beginning of the epoch in hand.

    The order in which a shuffling loader reads its data is drawn when its iterator is made, so winding a loader forward
    needs the states of that moment.
    """

    def __init__(self) -> None:
        self.epoch_began: dict[str, Any] | None = None
        self.loaded: dict[str, Any] | None = None

    def mark_epoch(self) -> None:
        """An epoch's iterator is about to be made."""
        self.epoch_began = capture()

    def state_dict(self) -> dict[str, Any]:
        """Now, and at the epoch's beginning."""
        return {"now": capture(), "epoch_began": self.epoch_began}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Put back; the epoch's beginning is kept for winding forward."""
        self.epoch_began, self.loaded = state["epoch_began"], state["now"]
        restore(state["now"])
