"""The parts of a checkpoint that are not objects with a state of their own."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final


class Position:
    """Where in its epoch the run stands, what has been done at this update already, and who has stopped the run."""

    SAVED: Final = ("batches", "completed", "evaluated_at", "epochs_done", "stopped")

    def __init__(self) -> None:
        self.batches: list[int | None] = []  # drawn by each `batches()` of the epoch; None: the body is done with it
        self.completed = True
        self.evaluated_at = -1
        self.epochs_done = 0
        self.stopped: dict[str, Any] | None = None
        self.resumed_at: int | None = None
        self.restored: list[str] = []  # how each loader of the resumed epoch has found its place
        self.loaders: Callable[[], dict[int, Any]] = dict  # the loaders' own states, by their place in the epoch

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in self.SAVED} | {"loaders": self.loaders()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        for name in self.SAVED:
            setattr(self, name, state[name])
        loaders = state["loaders"]
        self.loaders = lambda: loaders
        self.resumed_at = None if self.completed else sum(n or 0 for n in self.batches)


class Scaler:
    """A ``torch.amp.GradScaler``; one that is disabled has no state, and takes none."""

    def __init__(self, scaler: Any) -> None:
        self._scaler = scaler

    def state_dict(self) -> dict[str, Any]:
        """Scale and counters; nothing if it is disabled."""
        state: dict[str, Any] = self._scaler.state_dict()
        return state

    def problems(self, state: Mapping[str, Any]) -> list[str]:
        """Why the state cannot be loaded."""
        was, now = ("enabled" if known else "disabled" for known in (state, self._scaler.state_dict()))
        return [] if was == now else [f"the GradScaler of the checkpoint was {was}, this one is {now}"]

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with it."""
        self._scaler.load_state_dict(state)


class Ownerless:
    """A state in a checkpoint that no part of this run answers to: it travels on."""

    def __init__(self, state: Any) -> None:
        self._state = state

    def state_dict(self) -> Any:
        """As it was found."""
        return self._state

    def load_state_dict(self, state: Any) -> None:
        """Take another."""
        self._state = state
