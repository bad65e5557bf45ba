"""Checkpoints that live in memory: what a `FakeLoop` without a run_dir writes, and what another one goes on from."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..checkpoint import Checkpoint, Checkpoints
from ..checkpoint.codec import pack, unpack
from ..checkpoint.retention import Retention
from ..checkpoint.service import Stateful
from ..folder import Folder


@dataclass(frozen=True)
class Snapshot(Checkpoint):
    """A checkpoint in memory; give it to ``FakeLoop(resume=)``. Its states are as strict JSON would hold them."""

    states: str = field(default="", repr=False)
    tensors: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def verify(self) -> None:
        """Nothing can have happened to it."""

    def load(self) -> dict[str, Any]:
        """A fresh copy of every state."""
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return {name: unpack(state, tensors) for name, state in json.loads(self.states).items()}


class Snapshots(Checkpoints):
    """The checkpoints of one run in memory, with the retention of the real ones.

    Attributes:
        made: every checkpoint that was written, in order, also those that nobody wanted any longer.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(Path("checkpoints"), run_id)
        self.made: list[Snapshot] = []
        self._kept: dict[int, Checkpoint] = {}
        self._wishes = Retention()

    def list(self) -> list[Checkpoint]:
        """Those that stand, by rising step."""
        return [self._kept[step] for step in sorted(self._kept)]

    def keep(self, saver: str, steps: frozenset[int]) -> None:
        """What this saver wants kept from now on."""
        self._wishes.keep(saver, steps)
        self._remove()

    def save(
        self,
        step: int,
        parts: Mapping[str, Stateful],
        asked_by: Mapping[str, Iterable[str]],
        metrics: Mapping[str, float],
    ) -> Checkpoint:
        """Keep the state of every part as it is now."""
        asked = {who: sorted(tags) for who, tags in asked_by.items()}
        for who, tags in self._kept[step].asked_by.items() if step in self._kept else ():
            asked[who] = sorted({*tags, *asked.get(who, ())})
        tensors: dict[str, Any] = {}
        states = json.dumps({name: pack(part.state_dict(), name, tensors) for name, part in parts.items()})
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        told = tuple(sorted({tag for tags in asked.values() for tag in tags}))
        path = self.root / f"step-{step:08d}"
        made = Snapshot(path, step, self.run_id, told, asked, dict(metrics), {}, states, copies)
        self.made.append(made)
        self._kept[step] = made
        self._remove()
        return made

    def _remove(self) -> None:
        for checkpoint in self._wishes.unwanted(self.list()):
            del self._kept[checkpoint.step]


class Memory(Folder):
    """What a run keeps when it has no folder.

    Args:
        run_id: the run's name; one that is resumed keeps its own.
        origin: the checkpoint to go on from.
    """

    checkpoints: Snapshots

    def __init__(self, run_id: str, origin: Snapshot | None) -> None:
        self.checkpoints = Snapshots(run_id if origin is None else origin.run_id)
        self.origin, self.journal = origin, None
        self._ours = False
        self._parts: Mapping[str, Stateful] = {}
        self._describe = lambda: None

    def open(self, seed: int, callbacks: Iterable[tuple[str, Any]]) -> None:
        """There is nothing to open."""
