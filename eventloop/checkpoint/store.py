"""The folder of checkpoints: what stands in it, how one is committed, and how one is removed. It knows no tensors.

A checkpoint is a folder ``step-00000840`` that appears by one rename, after every file in it was synced and hashed::

    checkpoints/.tmp-00000840-PID-N/     model.safetensors  state.safetensors  state.json  MANIFEST.json (last)
    checkpoints/step-00000840/           after the rename = committed
    checkpoints/step-00000840.replaced/  its forerunner, when a step is saved again; counts until the new one is there
    checkpoints/latest                   the name of the newest, replaced atomically; a hint, not the truth
    checkpoints/aside-1/                 what was in the way of a run that went on differently; not read, not removed
"""

from __future__ import annotations

import itertools
import os
import shutil
import time
from collections.abc import Collection, Iterator, MutableSequence
from pathlib import Path
from typing import Final

from ..errors import CheckpointError
from ..log import logger
from .files import make_folder, sync, write_text
from .manifest import Checkpoint

REPLACED: Final = ".replaced"
LATEST: Final = "latest"
LOOKS: Final = 10  # at a folder in which a run removes what is being read
_count: Final = itertools.count()


class Store:
    """The checkpoints under one root.

    Args:
        root: the folder; made at the first save.
        run_id: only checkpoints of this run are counted and removed.
    """

    def __init__(self, root: Path, run_id: str) -> None:
        self.root, self.run_id = root, run_id
        self._said: set[Path] = set()

    # -- reading -------------------------------------------------------------------------------------------------------

    def list(self) -> list[Checkpoint]:
        """The committed checkpoints, by rising step. What is none is named, once, left out, and left alone."""
        found: dict[int, Checkpoint] = {}
        for path in sorted(self.root.glob("step-*")):  # step-N comes before step-N.replaced
            try:
                checkpoint = self.read(path)
                found.setdefault(checkpoint.step, checkpoint)
            except CheckpointError as error:
                if path.exists() and path not in self._said:  # else a run that goes on has just removed it
                    self._said.add(path)
                    logger().warning(f"ignored: {error}")
        return [found[step] for step in sorted(found)]

    def read(self, path: Path) -> Checkpoint:
        """One of them.

        Raises:
            CheckpointError: it is none, or not where it belongs.
        """
        checkpoint = Checkpoint.read(path)
        if path not in (self._place(checkpoint.step), self._spare(checkpoint.step)):
            raise CheckpointError(f"{path} holds step {checkpoint.step}, so it is not where it belongs")
        return checkpoint

    def newest(self, passed_over: MutableSequence[str] | None = None) -> Checkpoint | None:
        """The newest whole one; which damaged ones it passes over is said in the list given, else in the log."""
        damaged: dict[Path, str] = {}
        for checkpoint in self._down(damaged):
            try:
                checkpoint.verify()
            except CheckpointError as error:
                if not checkpoint.gone:
                    damaged[checkpoint.path] = str(error)
            else:
                break
        else:
            checkpoint = None
        for why in damaged.values():
            if passed_over is None:
                logger().warning(f"passed over: {why}")
            else:
                passed_over.append(why)
        return checkpoint

    def _down(self, damaged: Collection[Path]) -> Iterator[Checkpoint]:
        """Those that are not known to be damaged, from the newest down; where one is gone, a run has made a newer."""
        for _ in range(LOOKS):
            here = [c for c in reversed(self.list()) if c.path not in damaged]
            for checkpoint in here:
                yield checkpoint
                if checkpoint.gone:
                    break
            else:
                return

    def at(self, step: int) -> Path:
        """Where the checkpoint of a step lies, if there is one."""
        place, spare = self._place(step), self._spare(step)
        return spare if spare.is_dir() and not place.is_dir() else place

    def mine_at(self, step: int) -> Checkpoint | None:
        """This run's checkpoint of a step."""
        try:
            there = Checkpoint.read(self.at(step))
        except CheckpointError:
            return None
        return there if there.run_id == self.run_id else None

    def latest(self) -> str | None:
        """The name that the hint gives."""
        try:
            return (self.root / LATEST).read_text(encoding="utf-8", errors="replace")
        except FileNotFoundError:
            return None

    def _place(self, step: int) -> Path:
        return self.root / f"step-{step:08d}"

    def _spare(self, step: int) -> Path:
        return self.root / f"step-{step:08d}{REPLACED}"

    # -- writing -------------------------------------------------------------------------------------------------------

    def temporary(self, step: int) -> Path:
        """A new empty folder for what is not yet committed; its name is never used again."""
        make_folder(self.root)
        folder = self.root / f".tmp-{step:08d}-{os.getpid()}-{next(_count)}"
        folder.mkdir()
        return folder

    def commit(self, folder: Path, step: int, forerunner: Checkpoint | None) -> None:
        """One rename makes a finished folder the checkpoint of its step; then the hint follows.

        Raises:
            OSError: the disk.
        """
        place, spare = self._place(step), self._spare(step)
        if place.exists() and forerunner is None:
            self._set_aside(place)  # of another run, or damaged
        elif place.exists():  # no moment without a checkpoint of this step, and latest never names what is not there
            if self.latest() == place.name:
                (self.root / LATEST).unlink()
            if spare.exists():
                self.trash(spare)
            place.rename(spare)
        folder.rename(place)  # the commit
        sync(self.root)
        if spare.exists():
            self.trash(spare)
        try:
            self.point_latest(step)
        except OSError as error:  # it is no more than a hint, and the checkpoint stands
            logger().warning(f"{self.root / LATEST} still names {self.latest()}: {error}")

    def point_latest(self, step: int) -> None:
        """Let the hint name this step."""
        temporary = self.root / f".latest-{os.getpid()}"
        try:
            write_text(temporary, self._place(step).name)
            temporary.replace(self.root / LATEST)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
        sync(self.root)

    # -- removing ------------------------------------------------------------------------------------------------------

    def trash(self, path: Path) -> None:
        """Remove a checkpoint: at once by a rename, so that no half of it is ever seen."""
        trash = self.root / f".trash-{path.name}-{time.time_ns()}"
        path.rename(trash)
        shutil.rmtree(trash, ignore_errors=True)

    def _set_aside(self, *paths: Path) -> None:
        n = 1
        while (aside := self.root / f"aside-{n}").exists():
            n += 1
        aside.mkdir()
        for path in paths:
            path.rename(aside / path.name)
            logger().warning(f"moved aside: {path} to {aside}")

    # -- beginning -----------------------------------------------------------------------------------------------------

    def repair(self) -> None:
        """What a killed run left half-written or half-removed goes, what it was replacing is finished, the hint is set.

        For the one that holds the folder's lock.
        """
        for pattern in (".tmp-*", ".trash-*", ".latest-*"):
            for path in self.root.glob(pattern):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
        for spare in self.root.glob(f"step-*{REPLACED}"):
            place = spare.with_name(spare.name.removesuffix(REPLACED))
            if place.exists():
                self.trash(spare)
            else:
                spare.rename(place)
        standing = self.list()
        if standing and self.latest() != standing[-1].path.name:  # killed between the two renames
            self.point_latest(standing[-1].step)

    def go_on_from(self, origin: Checkpoint) -> None:
        """The run goes on from this one: it is the latest, and what is later is moved aside, to be made anew."""
        if later := [c.path for c in self.list() if c.step > origin.step]:
            self._set_aside(*later)
        self.point_latest(origin.step)
