"""What stands in for a model where a run is made of numbers that are known before it: no gradients, no files."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint, Checkpoints, Saving
from .checkpoint.retention import Retention
from .checkpoint.service import Stateful
from .evaluation import Evaluation
from .folder import Folder
from .progress import Groups
from .rng import RandomStates
from .window import Window


class Rates:
    """The stand-in for an optimizer: groups with a learning rate, and no parameters."""

    def __init__(self, lr: float | Mapping[str, float]) -> None:
        named = [{"name": name, "lr": rate} for name, rate in lr.items()] if isinstance(lr, Mapping) else [{"lr": lr}]
        self.param_groups: list[dict[str, Any]] = [{**group, "params": []} for group in named]

    def state_dict(self) -> dict[str, Any]:
        """The rates in use, as an optimizer has them in its groups."""
        return {"param_groups": [dict(group) for group in self.param_groups]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on with these rates."""
        self.param_groups = [dict(group) for group in state["param_groups"]]


class Nothing:
    """The state of the model that is not there."""

    def names(self) -> dict[int, list[str]]:
        """It has no parameters."""
        return {}

    def state_dict(self) -> dict[str, Any]:
        """It has none."""
        return {}

    def load_state_dict(self, state: Any) -> None:
        """There is nothing to load."""


class Still(RandomStates):
    """A script has no random states."""

    def begin_epoch(self) -> None:
        """Nothing is drawn."""


class ScriptedEvaluation(Evaluation):
    """An evaluation whose numbers ``function`` knows; None: the loop cannot evaluate."""

    def __init__(self, function: Callable[[], Mapping[str, float]] | None) -> None:
        self.function = function

    def run(self) -> Mapping[str, Any]:
        """The metrics."""
        return {} if self.function is None else self.function() or {}


class ScriptedWindow(Window):
    """A window without gradients, in which only overflows happen."""

    def __init__(self, groups: Groups, accumulate: int) -> None:
        super().__init__({}, groups, accumulate, None, None)
        self._overflow = False

    def turn(self, *, overflow: bool) -> None:
        """One micro-batch; an overflow in any of them skips the update."""
        self.micro += 1
        self._overflow = self._overflow or overflow

    def backward(self, loss: Any) -> None:
        """One micro-batch."""
        self.micro += 1

    def gradients(self) -> None:
        """There are none."""

    def step(self) -> bool:
        """False if there was an overflow."""
        overflow, self._overflow = self._overflow, False
        return not overflow


class Standing(Checkpoints):
    """Which checkpoints of a run stand, by the retention of the real ones; nothing is written."""

    def __init__(self, run_id: str) -> None:
        super().__init__(Path("checkpoints"), run_id)
        self._standing: dict[int, Checkpoint] = {}
        self._wishes = Retention()

    def list(self) -> list[Checkpoint]:
        """Those that stand, by rising step."""
        return [self._standing[step] for step in sorted(self._standing)]

    def keep(self, saver: str, steps: frozenset[int], *, make_room: bool = False) -> None:
        """What this saver wants kept from now on; everything that stands is whole."""
        self._wishes.keep(saver, steps)
        standing = self.list()
        self._remove(
            self._wishes.in_the_way(standing, lambda _: True) if make_room else self._wishes.unwanted(standing)
        )

    def save(
        self,
        step: int,
        parts: Mapping[str, Stateful],
        asked_by: Mapping[str, Iterable[str]],
        metrics: Mapping[str, float],
    ) -> Saving:
        """Note it; whoever asked for this step before has asked for this one too."""
        asked = {who: sorted(tags) for who, tags in asked_by.items()}
        for who, tags in self._standing[step].asked_by.items() if step in self._standing else ():
            asked[who] = sorted({*tags, *asked.get(who, ())})
        told = tuple(sorted({tag for tags in asked.values() for tag in tags}))
        made = self._made(
            Checkpoint(self.root / f"step-{step:08d}", step, self.run_id, told, asked, metrics, {}), parts
        )
        self._standing[step] = made
        self._remove(self._wishes.unwanted(self.list()))
        return Saving.ended(made)

    def _made(self, checkpoint: Checkpoint, parts: Mapping[str, Stateful]) -> Checkpoint:
        """What is kept of it."""
        return checkpoint

    def _remove(self, checkpoints: Iterable[Checkpoint]) -> None:
        for checkpoint in checkpoints:
            del self._standing[checkpoint.step]


class NoFolder(Folder):
    """What a run keeps when it has no folder.

    Args:
        checkpoints: where they are noted.
        origin: the checkpoint to go on from.
    """

    def __init__(self, checkpoints: Standing, origin: Checkpoint | None = None) -> None:
        self.checkpoints, self.origin, self.journal = checkpoints, origin, None
        self._ours = False
        self._parts: Mapping[str, Stateful] = {}
        self._describe = lambda: None

    def _claim(self) -> None:
        """There is nothing to claim."""

    def open(self, seed: int, callbacks: Iterable[tuple[str, Any]]) -> None:
        """There is nothing to open."""

    def close(self) -> None:
        """There is nothing to close."""
