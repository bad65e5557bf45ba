"""Checkpoints that live in memory: what a `FakeLoop` without a run_dir writes, and what another one goes on from."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..checkpoint import Checkpoint
from ..checkpoint.codec import pack, unpack
from ..checkpoint.service import Stateful
from ..scripted import NoFolder, Standing


@dataclass(frozen=True)
class Snapshot(Checkpoint):
    """A checkpoint in memory; give it to ``FakeLoop(resume=)``. Its states are as strict JSON would hold them."""

    states: str = field(default="", repr=False)
    tensors: Mapping[str, Any] = field(default_factory=dict, repr=False)

    def verify(self, progress: object = None) -> None:
        """Nothing can have happened to it."""

    def load(self, target: object = None) -> dict[str, Any]:
        """A fresh copy of every state."""
        tensors = {name: tensor.clone() for name, tensor in self.tensors.items()}
        return {name: unpack(state, tensors) for name, state in json.loads(self.states).items()}


class Snapshots(Standing):
    """The checkpoints of one run in memory, with the retention of the real ones.

    Attributes:
        made: every checkpoint that was written, in order, also those that nobody wanted any longer.
    """

    def __init__(self, run_id: str) -> None:
        super().__init__(run_id)
        self.made: list[Snapshot] = []

    def _made(self, checkpoint: Checkpoint, parts: Mapping[str, Stateful]) -> Snapshot:
        """With the state of every part as it is now."""
        tensors: dict[str, Any] = {}
        states = json.dumps({name: pack(part.state_dict(), name, tensors) for name, part in parts.items()})
        copies = {name: tensor.detach().clone() for name, tensor in tensors.items()}
        told = {name: getattr(checkpoint, name) for name in Checkpoint.__slots__}
        made = Snapshot(**told, states=states, tensors=copies)
        self.made.append(made)
        return made


class Memory(NoFolder):
    """What a run keeps when it has no folder.

    Args:
        run_id: the run's name; one that is resumed keeps its own.
        origin: the checkpoint to go on from.
    """

    checkpoints: Snapshots

    def __init__(self, run_id: str, origin: Snapshot | None) -> None:
        super().__init__(Snapshots(run_id if origin is None else origin.run_id), origin)
