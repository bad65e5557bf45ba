"""The parts of a checkpoint that are not objects with a state of their own."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

from .errors import CheckpointError
from .log import logger

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer


def unwrap(model: Module) -> Module:
    """The user's own module inside DDP, DataParallel and torch.compile: its names are the ones in a checkpoint."""
    from torch.nn.parallel import DataParallel, DistributedDataParallel

    inner: Any = model
    while True:
        if isinstance(inner, DataParallel | DistributedDataParallel):
            inner = inner.module
        elif hasattr(inner, "_orig_mod"):
            inner = inner._orig_mod
        else:
            return inner  # type: ignore[no-any-return]  # what these wrap is a module


class Optimizers:
    """Moments and steps are state; learning rate, weight decay and the like are settings, and the script's win.

    The learning rate in use is the checkpoint's, scaled by the script's base rate over that of the checkpoint.
    """

    def __init__(self, optimizers: Mapping[str, Optimizer]) -> None:
        self._optimizers = optimizers
        self._bases = {key: [_rate(g) for g in o.param_groups] for key, o in optimizers.items()}

    def state_dict(self) -> dict[str, Any]:
        """Each optimizer's own state, and its base rates."""
        return {
            key: {"class": type(o).__name__, "state": o.state_dict(), "bases": self._bases[key]}
            for key, o in self._optimizers.items()
        }

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        """Load in place, keep the script's settings, say what differs.

        Raises:
            CheckpointError: the checkpoint is of other optimizers.
        """
        if states.keys() != self._optimizers.keys():
            there, here = (", ".join(map(repr, keys)) for keys in (states, self._optimizers))
            raise CheckpointError(f"the checkpoint is of the optimizers {there} (a single one is ''), not of {here}")
        for key, optimizer in self._optimizers.items():
            if states[key]["class"] != type(optimizer).__name__:
                raise CheckpointError(
                    f"the checkpoint holds the state of a {states[key]['class']}, the optimizer is a "
                    f"{type(optimizer).__name__}: their states do not fit each other"
                )
            script = [{k: v for k, v in g.items() if k != "params"} for g in optimizer.param_groups]
            optimizer.load_state_dict(states[key]["state"])
            old, self._bases[key] = states[key]["bases"], [_rate(mine) for mine in script]
            for i, (group, mine) in enumerate(zip(optimizer.param_groups, script, strict=True)):
                base = self._bases[key][i]
                in_use = _rate(group) * (base / old[i] if i < len(old) and old[i] else 1.0)
                changed = {k: (group.get(k), v) for k, v in mine.items() if k != "lr" and group.get(k) != v}
                if i < len(old) and old[i] != base:
                    changed["lr"] = (old[i], base)
                for name, (was, now) in changed.items():
                    of = f" of optimizer {key!r}" if key else ""
                    logger().warning(f"parameter group {i}{of}: {name} is {now} now, was {was} in the checkpoint")
                rate = mine["lr"]
                group.update(mine)
                if hasattr(rate, "fill_"):
                    rate.fill_(in_use)
                else:
                    group["lr"] = in_use


def _rate(group: Mapping[str, Any]) -> float:
    return float(group["lr"])


class Position:
    """Where in its epoch the run stands, what has been done at this update already, and who has stopped the run."""

    SAVED: Final = ("batch", "completed", "evaluated_at", "epochs_done", "stopped")

    def __init__(self) -> None:
        self.batch = 0
        self.completed = True
        self.evaluated_at = -1
        self.epochs_done = 0
        self.stopped: dict[str, Any] | None = None
        self.resumed_at: int | None = None

    def state_dict(self) -> dict[str, Any]:
        """Plain values."""
        return {name: getattr(self, name) for name in self.SAVED}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        for name in self.SAVED:
            setattr(self, name, state[name])
        self.resumed_at = None if self.completed else self.batch


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
