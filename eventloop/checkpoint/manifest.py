"""The manifest of a checkpoint: what it is, who asked for it, and which files it is made of. It is written last."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..errors import CheckpointError
from ..model import with_versions
from ..rows import plain
from .codec import unpack
from .files import sha256, sync, write_json
from .tensor_file import Target, read_tensors

FORMAT: Final = 2
MANIFEST: Final = "MANIFEST.json"
STATE: Final = "state.json"
SUFFIX: Final = ".safetensors"


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
        files: size and hash of each of its files.
        time: when it was committed, in seconds since 1970.
    """

    path: Path
    step: int
    run_id: str
    tags: tuple[str, ...]
    asked_by: Mapping[str, list[str]]
    metrics: Mapping[str, float]
    files: Mapping[str, tuple[int, str]] = field(repr=False)
    time: float = field(default=0.0, repr=False)

    @property
    def size(self) -> int:
        """Bytes of its files, the manifest apart."""
        return sum(size for size, _ in self.files.values())

    @classmethod
    def read(cls, path: str | Path) -> Checkpoint:
        """Read the manifest.

        Raises:
            CheckpointError: there is none, it cannot be read, or it is not as it was written.
        """
        path = Path(path)
        try:
            data = json.loads((path / MANIFEST).read_text(encoding="utf-8"))
            if data["format"] != FORMAT:
                raise CheckpointError(f"{path} has format {data['format']}; this version reads format {FORMAT}")
            if data.pop("sha256") != _seal(data):
                raise CheckpointError(f"the manifest of {path} does not match its own hash")
            metrics = {key: float(value) for key, value in data["metrics"].items()}
            files = {name: (size, digest) for name, (size, digest) in data["files"].items()}
            told = (data["step"], data["run_id"], tuple(data["tags"]), data["asked_by"], metrics, files, data["time"])
            return cls(path, *told)
        except FileNotFoundError:
            raise CheckpointError(f"{path} is no checkpoint: it has no {MANIFEST}") from None
        except (ValueError, KeyError, TypeError, AttributeError, OSError) as error:
            raise CheckpointError(f"the manifest of {path} cannot be read: {error}") from error

    def verify(self, progress: Callable[[int], object] = lambda size: None) -> None:
        """Compare sizes and hashes with the manifest; ``progress`` is told the bytes that have been read, bit by bit.

        Raises:
            CheckpointError: naming the files that differ or are missing.
        """
        damaged = [wrong for name in self.files if (wrong := self._wrong(name, progress))]
        if damaged and self.gone:
            raise CheckpointError(f"{self.path} has been removed while it was read")
        if damaged:
            raise CheckpointError(f"{self.path} is damaged: {'; '.join(damaged)}")

    def _wrong(self, name: str, progress: Callable[[int], object]) -> str:
        (size, digest), file = self.files[name], self.path / name
        try:
            there = file.stat().st_size
            if there != size:
                return f"{name} has {there} bytes instead of {size}"
            return "" if sha256(file, progress) == digest else f"{name} does not match its hash"
        except FileNotFoundError:
            return f"{name} is missing"
        except OSError as error:
            return f"{name} cannot be read: {error.strerror or error}"

    @property
    def gone(self) -> bool:
        """Whether it is no longer there: a run that goes on has removed or replaced it."""
        return not (self.path / MANIFEST).is_file()

    def load(self, target: Target | None = None) -> dict[str, Any]:
        """Verify and read the state of every part, by name. Nothing is unpickled.

        Args:
            target: given a tensor's place ("model.layer.weight"), shape and dtype, what to read it into, such as a
                DTensor that takes its own part; None for a new tensor on the CPU.

        Raises:
            CheckpointError: it is damaged, or has been removed while it was read.
        """
        self.verify()
        find: Target = target or (lambda place, shape, dtype: None)
        try:
            packed = json.loads((self.path / STATE).read_text(encoding="utf-8"))
        except OSError as error:
            raise CheckpointError(f"{self.path} has been removed while it was read: {error}") from error
        states: dict[str, Any] = unpack(packed, read_tensors(self.files_of("state"), find))
        if "model" in states:
            model = read_tensors(self.files_of("model"), lambda name, *told: find(f"model.{name}", *told))
            states["model"] = with_versions(states["model"] | model)
        return states

    def files_of(self, kind: str) -> list[Path]:
        """The tensor files of a kind: ``model`` or ``state``."""
        named = sorted(name for name in self.files if name.startswith(kind) and name.endswith(SUFFIX))
        return [self.path / name for name in named]


def write_manifest(
    folder: Path,
    run_id: str,
    step: int,
    asked_by: Mapping[str, list[str]],
    metrics: Mapping[str, float],
    files: Mapping[str, tuple[int, str]],
) -> None:
    """Seal a folder: write the manifest of what has been written there, sync both."""
    import torch

    data: dict[str, Any] = {
        "format": FORMAT,
        "run_id": run_id,
        "step": step,
        "time": time.time(),
        "tags": sorted({tag for tags in asked_by.values() for tag in tags}),
        "asked_by": asked_by,
        "metrics": plain(metrics),
        "torch": str(torch.__version__),
        "files": {name: list(facts) for name, facts in sorted(files.items())},
    }
    write_json(folder / MANIFEST, {**data, "sha256": _seal(data)})
    sync(folder)


def _seal(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
