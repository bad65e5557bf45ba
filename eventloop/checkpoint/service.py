"""The checkpoint service: writes, verifies, reads and removes the checkpoints of one run folder. It knows no loop.

A checkpoint is a folder ``step-00000840`` that appears by one rename, after every file in it was synced and hashed::

    checkpoints/.tmp-00000840-PID/       model.safetensors  state.safetensors  state.json  MANIFEST.json (last)
    checkpoints/step-00000840/           after the rename = committed
    checkpoints/step-00000840.replaced/  its forerunner, when a step is saved again; counts until the new one is there
    checkpoints/latest                   the name of the newest, replaced atomically; a hint, not the truth
    checkpoints/aside-1/                 what was in the way of a run that went on differently; not read, not removed
"""

from __future__ import annotations

import os
import shutil
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Protocol

from ..errors import CheckpointError
from ..log import logger
from .codec import pack
from .files import make_folder, sync, write_json, write_tensors, write_text
from .manifest import Checkpoint, write_manifest
from .retention import Retention

REPLACED: Final = ".replaced"


class Stateful(Protocol):
    """Whatever has a part in a checkpoint."""

    def state_dict(self) -> Any:
        """Plain JSON plus tensors."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Take it back, in place."""
        ...


class Checkpoints:
    """The checkpoints under one root, and which of them each saver wants.

    Args:
        root: the folder; made at the first save.
        run_id: only checkpoints of this run are counted and removed.
    """

    def __init__(self, root: Path, run_id: str) -> None:
        self.root, self.run_id = root, run_id
        self._retention = Retention()
        self._said: set[Path] = set()

    # -- reading -------------------------------------------------------------------------------------------------------

    def list(self) -> list[Checkpoint]:
        """The committed checkpoints, by rising step. What is none is named, once, left out, and left alone."""
        found: dict[int, Checkpoint] = {}
        for path in sorted(self.root.glob("step-*")):  # step-N comes before step-N.replaced
            try:
                checkpoint = self._read(path)
                found.setdefault(checkpoint.step, checkpoint)
            except CheckpointError as error:
                if path not in self._said:
                    self._said.add(path)
                    logger().warning(f"ignored: {error}")
        return [found[step] for step in sorted(found)]

    def _read(self, path: Path) -> Checkpoint:
        checkpoint = Checkpoint.read(path)
        if path not in (self._place(checkpoint.step), self._spare(checkpoint.step)):
            raise CheckpointError(f"{path} holds step {checkpoint.step}, so it is not where it belongs")
        return checkpoint

    def newest(self) -> Checkpoint | None:
        """The newest whole one; says which damaged ones it passes over."""
        for checkpoint in reversed(self.list()):
            try:
                checkpoint.verify()
            except CheckpointError as error:
                logger().warning(f"passed over: {error}")
            else:
                return checkpoint
        return None

    def at(self, step: int) -> Path:
        """Where the checkpoint of a step lies, if there is one."""
        place, spare = self._place(step), self._spare(step)
        return spare if spare.is_dir() and not place.is_dir() else place

    def _place(self, step: int) -> Path:
        return self.root / f"step-{step:08d}"

    def _spare(self, step: int) -> Path:
        return self.root / f"step-{step:08d}{REPLACED}"

    # -- writing -------------------------------------------------------------------------------------------------------

    def save(
        self,
        step: int,
        parts: Mapping[str, Stateful],
        asked_by: Mapping[str, Iterable[str]],
        metrics: Mapping[str, float],
    ) -> Checkpoint:
        """Write, sync, commit; then remove what nobody wants any more. ``parts`` holds ``model`` and any others.

        Where this run has saved the step already, whoever asked for it then has asked for this one too.

        Raises:
            OSError: the disk; whatever was written is removed and the earlier checkpoints stand.
            TypeError: a part has a state that no file can hold.
        """
        make_folder(self.root)
        temporary = self.root / f".tmp-{step:08d}-{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            forerunner = self._mine_at(step)
            asked = {who: sorted(tags) for who, tags in asked_by.items()}
            if forerunner is not None:
                metrics = {**forerunner.metrics, **metrics}
                for who, tags in forerunner.asked_by.items():
                    asked[who] = sorted({*tags, *asked.get(who, ())})
            _write_parts(temporary, parts)
            write_manifest(temporary, self.run_id, step, asked, metrics)
            self._commit(temporary, step, forerunner)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._point_latest(step)
        self._remove_unwanted()
        return Checkpoint.read(self._place(step))

    def _mine_at(self, step: int) -> Checkpoint | None:
        try:
            there = Checkpoint.read(self.at(step))
        except CheckpointError:
            return None
        return there if there.run_id == self.run_id else None

    def _commit(self, folder: Path, step: int, forerunner: Checkpoint | None) -> None:
        place, spare = self._place(step), self._spare(step)
        if place.exists() and forerunner is None:
            self._set_aside([place])  # of another run, or damaged
        elif place.exists():  # no moment without a checkpoint of this step, and latest never names what is not there
            if self._latest() == place.name:
                (self.root / "latest").unlink()
            if spare.exists():
                self._trash(spare)
            place.rename(spare)
        folder.rename(place)  # the commit
        sync(self.root)
        if spare.exists():
            self._trash(spare)

    def _latest(self) -> str | None:
        try:
            return (self.root / "latest").read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None

    def _point_latest(self, step: int) -> None:
        temporary = self.root / f".latest-{os.getpid()}"
        try:
            write_text(temporary, self._place(step).name)
            temporary.replace(self.root / "latest")
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(self.root)

    # -- removing ------------------------------------------------------------------------------------------------------

    def keep(self, saver: str, steps: frozenset[int]) -> None:
        """What this saver wants kept from now on."""
        self._retention.keep(saver, steps)
        if self.root.is_dir():
            self._remove_unwanted()

    def _remove_unwanted(self) -> None:
        mine = [c for c in self.list() if c.run_id == self.run_id]
        latest = self._latest()
        for checkpoint in self._retention.unwanted(mine):
            if checkpoint.path.name != latest:
                self._trash(checkpoint.path)

    def _trash(self, path: Path) -> None:
        trash = self.root / f".trash-{path.name}-{time.time_ns()}"
        path.rename(trash)  # at once, so that no half of it is ever seen
        shutil.rmtree(trash, ignore_errors=True)

    def _set_aside(self, paths: Iterable[Path]) -> None:
        n = 1
        while (aside := self.root / f"aside-{n}").exists():
            n += 1
        aside.mkdir()
        for path in paths:
            path.rename(aside / path.name)
            logger().warning(f"moved aside: {path} to {aside}")

    # -- beginning -----------------------------------------------------------------------------------------------------

    def clear_rubbish(self) -> None:
        """Remove what a killed run left half-written or half-removed, and finish what it was replacing."""
        for pattern in (".tmp-*", ".trash-*", ".latest-*"):
            for path in self.root.glob(pattern):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        for spare in self.root.glob(f"step-*{REPLACED}"):
            place = spare.with_name(spare.name.removesuffix(REPLACED))
            if place.exists():
                self._trash(spare)
            else:
                spare.rename(place)

    def go_on_from(self, origin: Checkpoint) -> None:
        """The run goes on from this one: it is the latest, and what is later is moved aside, to be made anew."""
        if later := [c.path for c in self.list() if c.step > origin.step]:
            self._set_aside(later)
        self._point_latest(origin.step)


def _write_parts(folder: Path, parts: Mapping[str, Stateful]) -> None:
    import torch

    tensors: dict[str, Any] = {}
    states = {name: part.state_dict() for name, part in parts.items()}
    model = {name: value for name, value in states["model"].items() if isinstance(value, torch.Tensor)}
    states["model"] = {name: value for name, value in states["model"].items() if name not in model}  # its extra state
    packed = {name: pack(state, name, tensors) for name, state in states.items()}
    aliases = {
        "model": write_tensors(folder / "model.safetensors", model),
        "state": write_tensors(folder / "state.safetensors", tensors),
    }
    write_json(folder / "state.json", {"states": packed, "aliases": aliases})
