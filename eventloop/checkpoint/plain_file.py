"""Weights for elsewhere: one plain safetensors file."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

from ..errors import CheckpointError
from .catalog import Which, pick
from .files import sync
from .layout import DTYPES, same
from .manifest import SUFFIX, Checkpoint
from .staging import write_file
from .tensor_file import read_tensors


def export(
    path: str | Path, file: str | Path, *, which: Which = "newest", dtype: Any = None, overwrite: bool = False
) -> Checkpoint:
    """Write the model's weights of a checkpoint, verified, as one safetensors file that any engine reads.

    Parameters and buffers are there under the plain names of the module's own, whole, each with its own bytes: of tied
    weights every name, so that ``load_state_dict`` of the plain model takes the file strictly. The file appears at
    once, when all of it is on disk.

    Args:
        path: a checkpoint, a run folder or its folder of checkpoints.
        file: ends in ``.safetensors``; in a folder that is there.
        which: of a run the "newest" whole checkpoint, the "best", or that of a step.
        dtype: what to turn floating-point tensors into, such as "bfloat16" or torch's own; None: as they are.
        overwrite: replace a file that is there.

    Returns:
        The checkpoint that they come from.

    Raises:
        FileExistsError: the file is there.
        CheckpointError: there is no such checkpoint, it is damaged, or it holds no model.
        ValueError: the file's name ends otherwise, or ``dtype`` is none.
    """
    file = Path(file)
    _check(file, overwrite)
    kind = None if dtype is None else _dtype(dtype)
    checkpoint = pick(path, which)
    if not (files := checkpoint.files_of("model")):
        raise CheckpointError(f"{checkpoint.path} holds no model; weights are those of the part named 'model'")
    tensors = read_tensors(files)
    for alias in same(tensors):
        tensors[alias] = tensors[alias].clone()
    if kind is not None:
        tensors = {name: tensor.to(kind) if tensor.is_floating_point() else tensor for name, tensor in tensors.items()}
    temporary = file.with_name(f".{file.name}.{os.getpid()}")
    try:
        write_file(temporary, tensors)
        temporary.replace(file)
    finally:
        temporary.unlink(missing_ok=True)
    sync(file.parent)
    return checkpoint


def _check(file: Path, overwrite: bool) -> None:
    if file.suffix != SUFFIX:
        raise ValueError(f"{file}: the name of the file ends in {SUFFIX}, for engines go by that")
    if not file.parent.is_dir():
        raise FileNotFoundError(f"there is no folder {file.parent} to write {file.name} into")
    if file.is_dir() or (file.exists() and not overwrite):
        told = "is a folder" if file.is_dir() else "is there already; overwrite=True (--overwrite) replaces it"
        raise FileExistsError(f"{file} {told}")


def _dtype(given: Any) -> Any:
    import torch

    found = getattr(torch, given, None) if isinstance(given, str) else given
    if not isinstance(found, torch.dtype) or not found.is_floating_point or _name(found) not in DTYPES:
        known = ", ".join(name for name in DTYPES if getattr(torch, name).is_floating_point)
        raise ValueError(f"dtype={given!r}: give one of {known}")
    return found


def _name(dtype: Any) -> str:
    return str(dtype).removeprefix("torch.")
