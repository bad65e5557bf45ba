"""The manifest of a checkpoint: what it is, who asked for it, and which files it is made of. It is written last."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..errors import CheckpointError
from ..rows import plain
from .codec import unpack
from .files import read_tensors, sha256, sync, write_json

FORMAT: Final = 1
MANIFEST: Final = "MANIFEST.json"


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
    """

    path: Path
    step: int
    run_id: str
    tags: tuple[str, ...]
    asked_by: Mapping[str, list[str]]
    metrics: Mapping[str, float]
    files: Mapping[str, tuple[int, str]] = field(repr=False)

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
        states: dict[str, Any] = unpack(document["states"], tensors)
        states["model"] |= read_tensors(self.path / "model.safetensors", aliases["model"], mapped=True)
        return states


def write_manifest(
    folder: Path, run_id: str, step: int, asked_by: Mapping[str, list[str]], metrics: Mapping[str, float]
) -> None:
    """Seal a folder: hash its files, write the manifest, sync both."""
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
        "files": {file.name: [file.stat().st_size, sha256(file)] for file in sorted(folder.iterdir())},
    }
    write_json(folder / MANIFEST, {**data, "sha256": _seal(data)})
    sync(folder)


def _seal(data: Mapping[str, Any]) -> str:
    return hashlib.sha256(json.dumps(data, sort_keys=True).encode()).hexdigest()
