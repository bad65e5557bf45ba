"""Files that are really on the disk: flushed, synced and hashed."""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def make_folder(path: Path) -> None:
    """Make a folder and those above it, each synced as an entry of its parent."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


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

    Raises:
        TypeError: a tensor that the format cannot hold; the message names it.
        OSError: the disk.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    stored: dict[str, Any] = {}
    aliases: dict[str, str] = {}
    seen: dict[Any, str] = {}
    for name, given in tensors.items():
        tensor = _dense(name, given)
        same = (tensor.data_ptr(), tensor.device, tensor.dtype, tuple(tensor.shape), tensor.stride())
        if tensor.numel() and same in seen:
            aliases[name] = seen[same]
        else:
            seen[same] = name
            stored[name] = tensor
    storages = Counter(_storage(t) for t in stored.values())
    for name, tensor in stored.items():  # views into one storage are copied apart; safetensors refuses them otherwise
        stored[name] = (tensor.clone() if storages[_storage(tensor)] > 1 else tensor).contiguous()
    try:
        save_file(stored, path)
    except SafetensorError as error:
        raise OSError(f"{path.name} cannot be written: {error}") from error
    sync(path)
    return aliases


def _dense(name: str, tensor: Any) -> Any:
    """The tensor as plain memory; conjugate and negative views are lazy bits that a file would lose."""
    import torch

    odd = tensor.dtype in (torch.complex32, torch.complex128) or tensor.is_quantized or tensor.is_meta
    if odd or tensor.layout is not torch.strided:
        kind = "meta" if tensor.is_meta else f"{tensor.layout} {tensor.dtype}"
        raise TypeError(f"{name} is a {kind} tensor; a checkpoint holds dense tensors of the dtypes of safetensors")
    return tensor.detach().resolve_conj().resolve_neg()


def _storage(tensor: Any) -> tuple[Any, int]:
    return tensor.device, tensor.untyped_storage().data_ptr()


def read_tensors(path: Path, aliases: Mapping[str, str], *, mapped: bool = False) -> dict[str, Any]:
    """The tensors of a file, on the CPU, with those that share memory under all their names.

    ``mapped`` tensors lie in the file; that is for those who copy them at once, for the file may be removed.
    """
    from safetensors.torch import load_file

    tensors = {name: tensor if mapped else tensor.clone() for name, tensor in load_file(path).items()}
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
