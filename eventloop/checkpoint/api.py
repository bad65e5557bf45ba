"""Checkpoints in a loop of one's own: `save` the parts of a training, `load` them back."""

from __future__ import annotations

import copy
import re
import uuid
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, overload

from ..errors import CheckpointError, shown
from ..model import Model
from ..optimizers import Optimizers
from .catalog import FOLDER, RUN, Which, pick
from .files import make_folder
from .lock import RunLock
from .manifest import Checkpoint
from .service import Checkpoints, Stateful
from .store import Store
from .tensor_file import Target

SAVER: Final = "save"  # who has asked for it, in the manifest
JUDGED: Final = Model | Optimizers  # parts that can tell beforehand whether a state fits
NAME: Final = re.compile(r"[A-Za-z0-9][\w -]*")


@dataclass(frozen=True)
class Loaded:
    """What came of loading parts.

    Attributes:
        checkpoint: where they came from.
        restored: the parts that have their state again.
        missing: the parts that the checkpoint has no state of.
        rest: the states and plain values that no part was given for, by name.
    """

    checkpoint: Checkpoint
    restored: tuple[str, ...]
    missing: tuple[str, ...]
    rest: Mapping[str, Any]


class _Exact(Optimizers):
    """An optimizer that is given back as torch itself would, settings included; parameters are found by their names.

    A loop of one's own has nobody who would know a base rate from one that a scheduler has set.
    """

    def load_state_dict(self, states: Mapping[str, Any]) -> None:
        for key, saved in states.items():
            self._hand_over(key, saved, self._places(key, saved))


class _Value:
    """A plain value as a part."""

    def __init__(self, value: Any) -> None:
        self._value = value

    def state_dict(self) -> Any:
        return self._value

    def load_state_dict(self, state: Any) -> None:
        self._value = state


# -- saving ------------------------------------------------------------------------------------------------------------


def save(
    folder: str | Path,
    parts: Mapping[str, Any],
    *,
    step: int,
    metrics: Mapping[str, Any] | None = None,
    tags: Iterable[str] = (),
    run_id: str | None = None,
) -> Checkpoint:
    """Write a checkpoint of a training that is run by a loop of one's own; it is whole and durable on return.

    It stands in ``checkpoints/`` of the folder, and is never removed by this library. Saved again, a step is replaced.
    A module's weights are under the plain names of its own tensors, whatever wraps it. One process alone saves.

    Args:
        folder: the run's; made if it is not there.
        parts: by name: modules, optimizers, a bus, whatever has ``state_dict`` and ``load_state_dict``, or plain values
            (JSON and tensors). What is to be used by `load_weights` and `export` is called "model".
        step: finished updates.
        metrics: numbers of this moment.
        tags: what it is saved for; "best" marks the best.
        run_id: the run's name; by default that of the checkpoints there, else a new one.

    Raises:
        CheckpointError: another process writes there, or a `Loop` does or did.
        TypeError: a state or a value is no plain JSON and no tensor, or an argument has the wrong type.
        ValueError: an argument is out of range.
        OSError: the disk.
    """
    _check_mapping("parts", parts, '{"model": model}')
    _check_mapping("metrics", {} if metrics is None else metrics, '{"eval_loss": 0.5}')
    tags = tags if isinstance(tags, str) else [*(tags or ())]
    _check(parts, step, tags)
    root = Path(folder) if Path(folder).name == FOLDER else Path(folder) / FOLDER
    taken = {name: part if hasattr(part, "state_dict") else _Value(part) for name, part in _parts(parts).items()}
    numbers = _numbers(metrics or {})
    make_folder(root.parent)
    lock = RunLock(root.parent)
    try:
        service = Checkpoints(root, _run_of(root, run_id))
        service.repair()
        try:
            return service.save(step, taken, {SAVER: tags}, numbers).result()
        finally:
            service.close()
    finally:
        lock.release()


def _check(parts: Mapping[str, Any], step: int, tags: Iterable[str]) -> None:
    if not isinstance(step, int) or isinstance(step, bool) or step < 0:
        raise ValueError(f"step={step!r}: give the number of finished updates, 0 or more")
    if isinstance(tags, str) or not all(isinstance(tag, str) for tag in tags):
        raise TypeError(f"tags={tags!r}: give a list of texts, such as ['best']")
    if not parts:
        raise ValueError("there are no parts to save; give {'model': model, ...}")
    for name in parts:
        if not isinstance(name, str) or not NAME.fullmatch(name):
            raise ValueError(f"{name!r} names a part: use letters, digits, '_', '-' and blanks")


def _numbers(metrics: Mapping[str, Any]) -> dict[str, float]:
    numbers = {}
    for name, value in metrics.items():
        try:
            numbers[str(name)] = float(value + 0)  # no text
        except (TypeError, ValueError, RuntimeError):
            raise TypeError(f"metric {name} is {shown(value)}; a metric is one real number") from None
    return numbers


def _run_of(root: Path, given: str | None) -> str:
    """The run that goes on there."""
    standing = Store(root, "").list()
    if (root.parent / RUN[0]).exists() or any(SAVER not in c.asked_by for c in standing):
        raise CheckpointError(f"{root.parent} is the run of a Loop, which saves by itself; name another folder")
    there = {c.run_id for c in standing} or {given or uuid.uuid4().hex[:12]}
    if given is not None and there != {given}:
        raise CheckpointError(f"{root} holds checkpoints of run {', '.join(there)}, not {given}; name another folder")
    return standing[-1].run_id if standing else there.pop()


def _check_mapping(argument: str, value: object, such: str) -> None:
    if not isinstance(value, Mapping):
        raise TypeError(f"{argument} is a {type(value).__name__}; give a mapping of names, such as {such}")


def _parts(given: Mapping[str, Any]) -> dict[str, Any]:
    """Modules and optimizers as the parts that a `Loop` makes of them; the others as they are."""
    from torch.nn import Module
    from torch.optim import Optimizer

    models = {name: Model(part) for name, part in given.items() if isinstance(part, Module)}

    def names() -> dict[int, list[str]]:
        found: dict[int, list[str]] = {}
        for name, model in models.items():
            for key, known in model.names().items():
                found.setdefault(key, []).extend(n if name == "model" else f"{name}.{n}" for n in known)
        return found

    optimizers = {name: _Exact({"": part}, names) for name, part in given.items() if isinstance(part, Optimizer)}
    if "model" in given and "model" not in models:
        raise TypeError(f"the part 'model' is {shown(given['model'])}; a module goes by this name, so give it another")
    return {**given, **models, **optimizers}


# -- loading -----------------------------------------------------------------------------------------------------------


@overload
def load(path: str | Path, parts: None = None, *, which: Which = "newest") -> dict[str, Any]: ...


@overload
def load(path: str | Path, parts: Mapping[str, Any], *, which: Which = "newest", strict: bool = True) -> Loaded: ...


def load(
    path: str | Path, parts: Mapping[str, Any] | None = None, *, which: Which = "newest", strict: bool = True
) -> dict[str, Any] | Loaded:
    """Read a checkpoint, verified, and give the parts their states.

    Nothing is given to any part before all of it is known to fit. What only a part itself can judge is loaded first;
    if it fails there, the parts that had their state already are put back.

    Args:
        path: a checkpoint, a run folder or its folder of checkpoints.
        parts: by the names under which they were saved; None: nothing is loaded, the states are returned by name.
        which: of a run the "newest" whole one, the "best", or that of a step.
        strict: a part without a state in the checkpoint is an error; False: it is left as it is, and is in ``missing``.

    Raises:
        CheckpointError: there is none, it is damaged, or does not fit: all that does not is listed.
        TypeError: a part has no ``load_state_dict``.
    """
    if parts is None:
        return pick(path, which).load()
    _check_mapping("parts", parts, '{"model": model}')
    for name, part in parts.items():
        if not hasattr(part, "load_state_dict"):
            raise TypeError(f"part {name!r} is {shown(part)}, which cannot be loaded; a plain value is in .rest")
    taken = _parts(parts)
    checkpoint = pick(path, which)
    states = checkpoint.load(_target(taken))
    restored = {name: part for name, part in taken.items() if name in states}
    missing = tuple(name for name in taken if name not in states)
    problems = [f"no state of {', '.join(missing)} (there: {', '.join(states)})"] if missing and strict else []
    for name, part in restored.items():
        if isinstance(part, JUDGED):
            problems += [f"{name}: {problem}" for problem in part.problems(states[name])]
    if problems:
        raise CheckpointError(f"{checkpoint.path} does not fit: {'; '.join(problems)}")
    _give(restored, states, checkpoint.path)
    rest = {name: state for name, state in states.items() if name not in restored}
    return Loaded(checkpoint, tuple(restored), missing, MappingProxyType(rest))


def _target(parts: Mapping[str, Any]) -> Target:
    """Where a tensor is read into, if it is one that is spread over processes."""
    models = {name: part for name, part in parts.items() if isinstance(part, Model)}

    def find(place: str, shape: tuple[int, ...], dtype: Any) -> Any:
        part, _, inner = place.partition(".")
        if part in models:
            return models[part].target(f"model.{inner}", shape, dtype)
        if isinstance(parts.get(part), Optimizers):
            for name, model in models.items():
                own = inner if name == "model" else inner.replace(f".state.{name}.", ".state.")
                if (found := model.target(f"optimizer.{own}", shape, dtype)) is not None:
                    return found
        return None

    return find


def _give(parts: Mapping[str, Stateful], states: Mapping[str, Any], path: Path) -> None:
    """All or none: the parts that have been judged already come last."""
    before: dict[str, Any] = {}
    for name in sorted(parts, key=lambda name: isinstance(parts[name], JUDGED)):
        try:
            if not isinstance(parts[name], JUDGED):
                before[name] = copy.deepcopy(parts[name].state_dict())
            parts[name].load_state_dict(states[name])
        except Exception as error:
            error.add_note(f"while loading the {name} of {path}")
            for changed, state in before.items():
                parts[changed].load_state_dict(state)
            raise
