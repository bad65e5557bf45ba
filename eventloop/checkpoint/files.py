"""Files that are really on the disk: flushed, synced and hashed."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def write_text(path: Path, text: str) -> None:
    """Write and sync a file: flushed first, for fsync knows nothing of Python's buffer."""
    with path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: Any) -> None:
    """Strict JSON, synced."""
    write_text(path, json.dumps(value, allow_nan=False, separators=(",", ":")))


def write_tensors(path: Path, tensors: Mapping[str, Any]) -> dict[str, str]:
    """Write tensors as safetensors and sync the file.

    Tensors that share memory (tied weights) are stored once; returned is which name stands for which.
    """
    from safetensors.torch import save_file

    stored: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    seen: dict[Any, str] = {}
    for name, tensor in tensors.items():
        tensor = tensor.detach()
        same = (tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and same in seen:
            aliases[name] = seen[same]
        else:
            seen[same] = name
            stored[name] = tensor
    storages = [t.untyped_storage().data_ptr() for t in stored.values()]
    for name, tensor in stored.items():  # views into one storage are copied apart; safetensors refuses them otherwise
        shared = storages.count(tensor.untyped_storage().data_ptr()) > 1
        stored[name] = tensor.clone().contiguous() if shared else tensor.contiguous()
    save_file(stored, path)
    sync(path)
    return aliases


def read_tensors(path: Path, aliases: Mapping[str, str]) -> dict[str, Any]:
    """The tensors of a file, on the CPU, with those that share memory under all their names."""
    from safetensors.torch import load_file

    tensors = dict(load_file(path))
    for name, original in aliases.items():
        tensors[name] = tensors[original]
    return tensors


def sync(path: Path) -> None:
    """Sync a file or a folder to the disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def sha256(path: Path) -> str:
    """The file's hash."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
