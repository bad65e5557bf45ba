"""Weights alone: from a checkpoint, the newest one of a run, or a safetensors file of anybody's."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from ..errors import CheckpointError
from ..model import VERSIONS, Model
from .manifest import MANIFEST, SUFFIX, Checkpoint
from .store import Store
from .tensor_file import read_tensors

if TYPE_CHECKING:
    from torch.nn import Module

WRAPPERS: Final = ("module.", "_orig_mod.")  # what DDP and torch.compile put before each name


@dataclass(frozen=True)
class LoadedWeights:
    """What came of loading weights.

    Attributes:
        path: the checkpoint or the file.
        loaded: the names of the model that were filled.
        missing: the names of the model that are not there; these keep their values.
        unexpected: the names there that the model is without.
        prefix: what stood before each name there and was left out.
    """

    path: Path
    loaded: tuple[str, ...]
    missing: tuple[str, ...]
    unexpected: tuple[str, ...]
    prefix: str = ""


def find_weights(path: str | Path) -> Path:
    """The checkpoint or the file that a path means; of a run folder its newest whole checkpoint.

    Raises:
        CheckpointError: there is none.
    """
    path = Path(path)
    if path.is_file() and path.suffix == SUFFIX:
        return path
    if (path / MANIFEST).is_file():
        return path
    for root in (path / "checkpoints", path):
        newest = Store(root, "").newest() if root.is_dir() else None
        if newest is not None:
            return newest.path
    there = "there is nothing" if not path.exists() else "it is none of these"
    raise CheckpointError(
        f"no weights at {path}: {there}; give a checkpoint, a run folder with a whole one, or a {SUFFIX} file"
    )


def load_weights(model: Module, path: str | Path, *, strict: bool = True) -> LoadedWeights:
    """Fill a model's parameters and buffers, and nothing else, once all of it is known to fit.

    Names are those of the plain module: wrappers (DDP, torch.compile) are looked through, around the model and around
    its parts. If every name in a foreign file begins with "module." or "_orig_mod.", that is left out. Of tied
    weights one name is enough, and a file has no extra states, so none is missed.

    Args:
        model: filled in place.
        path: a checkpoint, a run folder (its newest whole checkpoint is taken), or a ``.safetensors`` file.
        strict: names that are missing or not expected are an error; False: they are returned. Another shape always is.

    Raises:
        CheckpointError: nothing is there, it is damaged, or it does not fit: all names that do not are listed.
    """
    source, part = find_weights(path), Model(model)
    wanted = part.state_dict()
    given, prefix = _fitting(_read(source, part), wanted)
    missing = _missing(part, wanted, given)
    unexpected = tuple(name for name in given if name not in wanted)
    kept = {name: value for name, value in given.items() if name in wanted}
    problems = part.problems(kept, strict=False)
    if strict:
        listed = [f"{word}: {', '.join(names)}" for word, names in (("missing", missing), ("unexpected", unexpected))
                  if names]  # fmt: skip
        problems = listed + problems
    if problems:
        hint = _hint(unexpected, wanted)
        raise CheckpointError(f"the weights of {source} are of another model: {'; '.join(problems)}{hint}")
    part.load_state_dict(kept, strict=False)
    return LoadedWeights(source, tuple(name for name in wanted if name in kept), missing, unexpected, prefix)


def _read(source: Path, part: Model) -> dict[str, Any]:
    files = [source]
    if not source.is_file():
        checkpoint = Checkpoint.read(source)
        checkpoint.verify()
        files = checkpoint.files_of("model")
    return read_tensors(files, lambda name, *told: part.target(f"model.{name}", *told))


def _fitting(given: Mapping[str, Any], wanted: Iterable[str]) -> tuple[dict[str, Any], str]:
    """The tensors without the wrappers' prefix, if every name has it, and the prefix."""
    prefix, names = "", list(given)
    while not any(name in wanted for name in names):
        found = next((w for w in WRAPPERS if names and all(name.startswith(w) for name in names)), None)
        if found is None:
            return dict(given), ""
        prefix, names = prefix + found, [name.removeprefix(found) for name in names]
    return dict(zip(names, given.values(), strict=True)), prefix


def _missing(part: Model, wanted: Mapping[str, Any], given: Mapping[str, Any]) -> tuple[str, ...]:
    """The tensors of the model that nothing is given for, under none of their names."""
    from torch import Tensor

    tied = {name for names in part.names().values() if any(n in given for n in names) for name in names}
    tensors = (name for name, value in wanted.items() if name != VERSIONS and isinstance(value, Tensor))
    return tuple(name for name in tensors if name not in given and name not in tied)


def _hint(unexpected: Iterable[str], wanted: Iterable[str]) -> str:
    """A prefix that would make the names fit."""
    for name in unexpected:
        for known in wanted:
            if name.endswith(f".{known}"):
                return f" (names there begin with {name.removesuffix(known)!r}; save the inner module, or rename them)"
            if known.endswith(f".{name}"):
                return f" (names of the model begin with {known.removesuffix(name)!r}; load into that part of it)"
    return ""
