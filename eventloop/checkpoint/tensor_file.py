"""Safetensors files: written from memory as it lies there, hashed on the way; read by torch's own planner."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Final

from ..errors import CheckpointError
from .files import named
from .layout import ALIASES, DTYPES, SHARDS

Target = Callable[[str, tuple[int, ...], Any], Any]
PORTION: Final = 16 << 20  # bytes a write: Linux takes at most 2 GiB at once
SMALL: Final = 1 << 20  # below, a thread costs more than it saves


def write_tensors(path: Path, header: bytes, data: memoryview) -> tuple[int, str]:
    """Write and sync the file; returns its size and hash.

    The hash is made of the memory while the disk is busy, in a thread that lives as long as this call.

    Raises:
        OSError: the disk.
    """
    parts = [memoryview(header), *(data[i : i + PORTION] for i in range(0, len(data), PORTION))]
    if len(data) < SMALL:
        _write(path, parts)
        return path.stat().st_size, _digest(parts)
    with ThreadPoolExecutor(1, "eventloop-hash") as pool:
        digest = pool.submit(_digest, parts)
        _write(path, parts)
        return path.stat().st_size, digest.result()


def _write(path: Path, parts: Iterable[memoryview]) -> None:
    with named(path), path.open("xb", buffering=0) as file:
        for part in parts:
            while part:
                part = part[file.write(part) :]  # a write may take less than it is given
        os.fsync(file.fileno())


def _digest(parts: Iterable[memoryview]) -> str:
    sha = hashlib.sha256()
    for part in parts:
        sha.update(part)
    return sha.hexdigest()


def read_tensors(paths: Sequence[Path], target: Target = lambda name, shape, dtype: None) -> dict[str, Any]:
    """The tensors of one or several files that were written together, under all their names, on the CPU.

    Args:
        paths: the files; each may hold parts of the same tensors.
        target: given a name, shape and dtype, a tensor to fill in (a DTensor, say, that wants a part); None: a new one.

    Raises:
        CheckpointError: a file cannot be read.
    """
    from safetensors import SafetensorError, safe_open

    if not paths:
        return {}
    with ExitStack() as stack:
        try:
            files = [stack.enter_context(safe_open(path, "pt")) for path in paths]
            return _Reader(files).read(target)
        except (SafetensorError, OSError) as error:
            names = ", ".join(str(path) for path in paths)
            raise CheckpointError(f"{names} cannot be read: {error}") from error


class _Reader:
    """Files that are open, and where in them each part of each tensor lies."""

    def __init__(self, files: list[Any]) -> None:
        self._parts: dict[str, dict[tuple[int, ...], Any]] = {}  # of each tensor, by where they begin, with their files
        self._wholes: dict[str, tuple[int, ...]] = {}
        self._aliases: dict[str, str] = {}
        for file in files:
            facts: Mapping[str, str] = file.metadata() or {}
            self._aliases |= json.loads(facts.get(ALIASES, "{}"))
            shards = json.loads(facts.get(SHARDS, "{}"))
            for name in file.keys():  # noqa: SIM118  # it is no mapping
                shape = file.get_slice(name).get_shape()
                whole, offsets = shards.get(name, (shape, [0] * len(shape)))
                self._wholes[name] = tuple(whole)
                self._parts.setdefault(name, {})[tuple(offsets)] = file

    def read(self, target: Target) -> dict[str, Any]:
        found: dict[str, Any] = {}
        spread: dict[str, Any] = {}
        for name, whole in self._wholes.items():
            into = target(name, whole, self._dtype(name))
            first = next(iter(self._parts[name].values()))
            if into is None and len(self._parts[name]) == 1 and tuple(first.get_slice(name).get_shape()) == whole:
                found[name] = first.get_tensor(name).clone()  # for the file may be removed
            else:
                spread[name] = self._empty(name) if into is None else into
        if spread:
            self._fill(spread)
        found |= spread
        return found | {name: found[first] for name, first in self._aliases.items()}

    def _empty(self, name: str) -> Any:
        import torch

        return torch.empty(self._wholes[name], dtype=self._dtype(name))

    def _dtype(self, name: str) -> Any:
        import torch

        code = next(iter(self._parts[name].values())).get_slice(name).get_dtype()
        return next(getattr(torch, known) for known, of in DTYPES.items() if of == code)

    def _fill(self, tensors: dict[str, Any]) -> None:
        """Each process reads of each tensor what it has a part of, as torch's planner says."""
        from torch.distributed.checkpoint.default_planner import DefaultLoadPlanner
        from torch.distributed.checkpoint.metadata import Metadata

        planner = DefaultLoadPlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
        told = Metadata({name: self._description(name) for name in tensors})
        planner.set_up_planner(tensors, told, is_coordinator=True)
        for item in planner.finish_plan(planner.create_local_plan()).items:
            into = planner.resolve_tensor(item).detach()
            into.copy_(self._part(item, len(into.shape)))
            planner.commit_tensor(item, into)

    def _description(self, name: str) -> Any:
        import torch
        from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, TensorProperties, TensorStorageMetadata

        chunks = [
            ChunkStorageMetadata(torch.Size(offsets), torch.Size(file.get_slice(name).get_shape()))
            for offsets, file in self._parts[name].items()
        ]
        properties = TensorProperties(dtype=self._dtype(name))
        return TensorStorageMetadata(properties, torch.Size(self._wholes[name]), chunks)

    def _part(self, item: Any, dimensions: int) -> Any:
        name = item.storage_index.fqn
        file = self._parts[name][tuple(item.storage_index.offset or [0] * dimensions)]
        if not dimensions:
            return file.get_tensor(name)
        asked = zip(item.storage_offsets, item.lengths, strict=True)
        return file.get_slice(name)[tuple(slice(start, start + length) for start, length in asked)]
