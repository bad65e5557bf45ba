"""The checkpoint service: writes, verifies, reads and removes the checkpoints of one run folder. It knows no loop.

A checkpoint is a folder ``step-00000840`` that appears by one rename, after every file in it was synced and hashed::

    checkpoints/.tmp-00000840-PID/   model.safetensors  state.safetensors  state.json  MANIFEST.json (last)
    checkpoints/step-00000840/       after the rename = committed
    checkpoints/latest               its name, replaced atomically; a hint, not the truth
"""

from __future__ import annotations

import builtins
import json
import os
import shutil
import time
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

from ..errors import CheckpointError
from ..log import logger
from .codec import pack, unpack
from .files import read_tensors, sha256, sync, write_json, write_tensors, write_text

FORMAT: Final = 1
MANIFEST: Final = "MANIFEST.json"


class Stateful(Protocol):
    """Whatever has a part in a checkpoint."""

    def state_dict(self) -> Any:
        """Plain JSON plus tensors."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Take it back, in place."""
        ...


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A committed checkpoint, as its manifest describes it.

    Attributes:
        path: its folder.
        step: finished updates.
        run_id: the run that wrote it.
        tags: what it was asked for under.
        asked_by: the savers that asked for it, with their tags.
        metrics: the fresh metrics of its moment.
    """

    path: Path
    step: int
    run_id: str
    tags: tuple[str, ...]
    asked_by: Mapping[str, list[str]]
    metrics: Mapping[str, float]
    files: Mapping[str, tuple[int, str]] = field(repr=False)

    @classmethod
    def read(cls, path: Path) -> Checkpoint:
        """Read the manifest.

        Raises:
            CheckpointError: there is none, or it cannot be read.
        """
        try:
            data = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise CheckpointError(f"{path} has format {data['format']}; this version reads format {FORMAT}")
            metrics = {key: float(value) for key, value in data["metrics"].items()}
            files = {name: (size, digest) for name, (size, digest) in data["files"].items()}
            return cls(path, data["step"], data["run_id"], tuple(data["tags"]), data["asked_by"], metrics, files)
        except FileNotFoundError:
            raise CheckpointError(f"{path} is no checkpoint: it has no {MANIFEST}") from None
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise CheckpointError(f"the manifest of {path} cannot be read: {error}") from error

    def verify(self) -> None:
        """Compare sizes and hashes with the manifest.

        Raises:
            CheckpointError: naming the files that differ or are missing.
        """
        damaged = []
        for name, (size, digest) in self.files.items():
            file = self.path / name
            if not file.is_file():
                damaged.append(f"{name} is missing")
            elif file.stat().st_size != size:
                damaged.append(f"{name} has {file.stat().st_size} bytes instead of {size}")
            elif sha256(file) != digest:
                damaged.append(f"{name} does not match its hash")
        if damaged:
            raise CheckpointError(f"{self.path} is damaged: {'; '.join(damaged)}")

    def load(self) -> dict[str, Any]:
        """Verify and read the state of every part, by name. Nothing is unpickled."""
        self.verify()
        document = json.loads((self.path / "state.json").read_text(encoding="utf-8"))
        aliases = document["aliases"]
        tensors = read_tensors(self.path / "state.safetensors", aliases["state"])
        states = unpack(document["states"], tensors)
        states["model"] = read_tensors(self.path / "model.safetensors", aliases["model"])
        return dict(states)


class Checkpoints:
    """The checkpoints under one root, and which of them each saver wants.

    Args:
        root: the folder; made at the first save.
        run_id: only checkpoints of this run are counted and removed.
    """

    def __init__(self, root: Path, run_id: str) -> None:
        self.root, self.run_id = root, run_id
        self._wanted: dict[str, frozenset[int]] = {"Loop": frozenset()}

    def list(self) -> list[Checkpoint]:
        """The committed checkpoints, by rising step. What has no readable manifest is left out, and left alone."""
        found = []
        for path in sorted(self.root.glob("step-*")):
            try:
                found.append(Checkpoint.read(path))
            except CheckpointError as error:
                logger().warning(f"ignored: {error}")
        return sorted(found, key=lambda c: c.step)

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

    def save(
        self,
        step: int,
        parts: Mapping[str, Stateful],
        asked_by: Mapping[str, Iterable[str]],
        metrics: Mapping[str, float],
    ) -> Checkpoint:
        """Write, sync, commit; then remove what nobody wants any more. ``parts`` holds ``model`` and any others.

        Raises:
            OSError: the disk; whatever was written is removed and the earlier checkpoints stand.
        """
        self.root.mkdir(parents=True, exist_ok=True)
        temporary = self.root / f".tmp-{step:08d}-{os.getpid()}"
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir()
        try:
            self._write(temporary, parts)
            checkpoint = self._commit(temporary, step, {who: sorted(tags) for who, tags in asked_by.items()}, metrics)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._point_latest(checkpoint)
        self._remove_unwanted()
        return checkpoint

    def _write(self, folder: Path, parts: Mapping[str, Stateful]) -> None:
        tensors: dict[str, Any] = {}
        states = {name: pack(part.state_dict(), name, tensors) for name, part in parts.items() if name != "model"}
        aliases = {
            "model": write_tensors(folder / "model.safetensors", parts["model"].state_dict()),
            "state": write_tensors(folder / "state.safetensors", tensors),
        }
        write_json(folder / "state.json", {"states": states, "aliases": aliases})

    def _commit(
        self, folder: Path, step: int, asked_by: dict[str, builtins.list[str]], metrics: Mapping[str, float]
    ) -> Checkpoint:
        import torch

        files = {file.name: [file.stat().st_size, sha256(file)] for file in sorted(folder.iterdir())}
        manifest = {
            "format": FORMAT,
            "run_id": self.run_id,
            "step": step,
            "time": time.time(),
            "tags": sorted({tag for tags in asked_by.values() for tag in tags}),
            "asked_by": asked_by,
            "metrics": {key: value if abs(value) < float("inf") else str(value) for key, value in metrics.items()},
            "torch": str(torch.__version__),
            "files": files,
        }
        write_json(folder / MANIFEST, manifest)
        sync(folder)
        target = self.root / f"step-{step:08d}"
        if target.exists():  # the same step again, of a part of the run that was lost or of a later moment
            self._trash(target)
        folder.rename(target)  # the commit
        sync(self.root)
        return Checkpoint.read(target)

    def _point_latest(self, checkpoint: Checkpoint) -> None:
        temporary = self.root / f".latest-{os.getpid()}"
        write_text(temporary, checkpoint.path.name)
        temporary.replace(self.root / "latest")
        sync(self.root)

    def keep(self, saver: str, steps: frozenset[int]) -> None:
        """What this saver wants kept from now on."""
        self._wanted[saver] = steps
        if self.root.is_dir():
            self._remove_unwanted()

    def _remove_unwanted(self) -> None:
        mine = [c for c in self.list() if c.run_id == self.run_id]
        for checkpoint in mine[:-1]:  # the newest always stays
            askers = checkpoint.asked_by
            if all(who in self._wanted and checkpoint.step not in self._wanted[who] for who in askers):
                self._trash(checkpoint.path)

    def _trash(self, path: Path) -> None:
        trash = self.root / f".trash-{path.name}-{time.time_ns()}"
        path.rename(trash)  # at once, so that no half of it is ever seen
        shutil.rmtree(trash, ignore_errors=True)

    def clear_rubbish(self) -> None:
        """Remove what a killed run left half-written or half-removed."""
        for pattern in (".tmp-*", ".trash-*", ".latest-*"):
            for path in self.root.glob(pattern):
                if path.is_dir():
                    shutil.rmtree(path, ignore_errors=True)
                else:
                    path.unlink(missing_ok=True)
