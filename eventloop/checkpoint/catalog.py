"""What checkpoints a run has: which of them are whole, and which is the newest or the best."""

from __future__ import annotations

import builtins
import json
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal

from ..errors import CheckpointError
from .codec import unpack
from .manifest import MANIFEST, STATE, Checkpoint
from .store import LATEST, REPLACED, Store

Which = Literal["newest", "best"] | int
FOLDER: Final = "checkpoints"
RUN: Final = ("run.json", "journal.jsonl")  # what makes a folder without checkpoints a run's
BEST: Final = "best"


@dataclass(frozen=True, slots=True)
class Inspected:
    """A folder that has a checkpoint's name.

    Attributes:
        path: the folder.
        checkpoint: what its manifest says; None if that cannot be read.
        problem: why it is not whole; empty if nothing is known against it.
    """

    path: Path
    checkpoint: Checkpoint | None
    problem: str = ""


def root_of(run: str | Path) -> Path:
    """The folder of checkpoints that is meant by a run folder, or by that folder itself; it may be yet to come.

    Raises:
        CheckpointError: there is no run.
    """
    path = Path(run)
    if _is_checkpoint(path):
        raise CheckpointError(f"{path} is a checkpoint; name its run, {path.parent}")
    if (path / FOLDER).is_dir():
        return path / FOLDER
    if path.is_dir() and (path.name == FOLDER or (path / LATEST).is_file() or any(path.glob("step-*"))):
        return path
    if any((path / name).is_file() for name in RUN):
        return path / FOLDER
    raise CheckpointError(f"no run at {path}: {_there(path)}; a run folder has {FOLDER}/, {' or '.join(RUN)}")


def _is_checkpoint(path: Path) -> bool:
    named = path.name.startswith("step-") and _number(path)[0] >= 0
    return path.is_dir() and ((path / MANIFEST).is_file() or (named and not (path / FOLDER).exists()))


def _there(path: Path) -> str:
    if not path.is_dir():
        return "it is a file" if path.exists() else "there is nothing"
    names = sorted(entry.name for entry in path.iterdir())
    return f"in it are {', '.join(names[:5])}{', ...' if len(names) > 5 else ''}" if names else "it is empty"


def inspect(
    run: str | Path, *, verify: bool = False, progress: Callable[[int], object] = lambda size: None
) -> builtins.list[Inspected]:
    """Everything in a run that has a checkpoint's name, whole or broken, the oldest first.

    Args:
        run: a run folder or its folder of checkpoints.
        verify: read all files and compare their hashes; else the manifests alone are read.
        progress: is told the bytes that have been read, bit by bit.

    Raises:
        CheckpointError: there is no run.
    """
    store, found = Store(root_of(run), ""), []
    for path in sorted(store.root.glob("step-*"), key=_number):
        if path.name.endswith(REPLACED) and path.with_name(path.name.removesuffix(REPLACED)).exists():
            continue  # its successor stands
        checkpoint, problem = None, ""
        try:
            checkpoint = store.read(path)
            if verify:
                checkpoint.verify(progress)
        except CheckpointError as error:
            problem = str(error)
        if path.exists():  # a run that goes on may just have removed it
            found.append(Inspected(path, checkpoint, problem))
    return found


def _number(path: Path) -> tuple[int, str]:
    digits = path.name.removeprefix("step-").removesuffix(REPLACED)
    return int(digits) if digits.isdecimal() else -1, path.name


def verify(path: str | Path, *, progress: Callable[[int], object] = lambda size: None) -> tuple[Checkpoint, ...]:
    """Read every file of a checkpoint, or of all checkpoints of a run, and compare sizes and hashes.

    Args:
        path: a checkpoint, a run folder or its folder of checkpoints.
        progress: is told the bytes that have been read, bit by bit.

    Returns:
        Those that were verified, the oldest first.

    Raises:
        CheckpointError: there is nothing to verify, or something is damaged: all that is, is named.
    """
    if _is_checkpoint(Path(path)):
        one = Checkpoint.read(path)
        one.verify(progress)
        return (one,)
    found = inspect(path, verify=True, progress=progress)
    if broken := [entry.problem for entry in found if entry.problem]:
        raise CheckpointError("; ".join(broken))
    return tuple(entry.checkpoint for entry in found if entry.checkpoint is not None)


# -- which one ---------------------------------------------------------------------------------------------------------


def pick(path: str | Path, which: Which = "newest") -> Checkpoint:
    """The checkpoint that a path means, verified.

    Args:
        path: a checkpoint, a run folder or its folder of checkpoints.
        which: of a run the "newest" whole one, the "best" one (see `best_of`), or that of a step.

    Raises:
        CheckpointError: there is none, it is damaged, or several are the best, each by a metric of its own.
        ValueError: ``which`` is something else, or is given for a path that is one checkpoint.
    """
    number = isinstance(which, int) and not isinstance(which, bool)
    if not number and which not in ("newest", BEST):
        raise ValueError(f"which={which!r}: give 'newest', 'best' or a step")
    if _is_checkpoint(Path(path)):
        if which != "newest":
            raise ValueError(f"which={which!r} chooses among the checkpoints of a run, and {path} is one checkpoint")
        found = Checkpoint.read(path)
    else:
        found = _of_run(Store(root_of(path), ""), which)
    found.verify()
    return found


def _of_run(store: Store, which: Which) -> Checkpoint:
    standing = store.list()
    steps = ", ".join(str(c.step) for c in standing) or "none"
    if which == "newest":
        found = store.newest()
        if found is None:
            raise CheckpointError(f"no whole checkpoint in {store.root}; steps there: {steps}")
        return found
    if which == BEST:
        best = {c.step: c for c in best_of(standing).values()}
        if len(best) > 1:
            told = ", ".join(f"{c.step} by {monitor}" for monitor, c in best_of(standing).items())
            raise CheckpointError(f"in {store.root} the best are of steps {told}: name the step")
        if not best:
            raise CheckpointError(f"no checkpoint in {store.root} is known as the best; steps there: {steps}")
        return best.popitem()[1]
    named = next((c for c in standing if c.step == which), None)
    if named is None:
        raise CheckpointError(f"no checkpoint of step {which} in {store.root}; steps there: {steps}")
    return named


def best_of(checkpoints: Sequence[Checkpoint]) -> dict[str, Checkpoint]:
    """The best of the newest one's run, by the metric that they were judged by.

    The savers' own record in the newest checkpoint decides: monitor, mode and scores, of equal scores the earlier. In a
    run without such a record (a loop of one's own) it is the last that was tagged "best", under the name "".

    Args:
        checkpoints: by rising step.
    """
    mine = [c for c in checkpoints if c.run_id == checkpoints[-1].run_id]
    best: dict[str, Checkpoint] = {}
    for judge in (judges := judges_of(mine)):
        if (found := judge.best(mine)) is not None:
            best.setdefault(judge.monitor, found)
    tagged = [c for c in mine if BEST in c.tags]
    if not judges and tagged:
        best[""] = tagged[-1]
    return best


@dataclass(frozen=True, slots=True)
class Judge:
    """A saver with a monitor, as the newest checkpoint knows it."""

    name: str
    monitor: str
    mode: str
    scores: Mapping[int, float | None]

    def best(self, checkpoints: Sequence[Checkpoint]) -> Checkpoint | None:
        """The best of those that it asked for."""
        scored: dict[float, Checkpoint] = {}
        for checkpoint in checkpoints:
            score = self.scores.get(checkpoint.step)
            score = checkpoint.metrics.get(self.monitor) if score is None else score
            if self.name in checkpoint.asked_by and score is not None and math.isfinite(score):
                scored.setdefault(score if self.mode == "min" else -score, checkpoint)
        return scored[min(scored)] if scored else None


def judges_of(checkpoints: Sequence[Checkpoint]) -> builtins.list[Judge]:
    """The savers with a monitor that asked for these, in the order in which they were attached."""
    askers = {who for c in checkpoints for who in c.asked_by}
    document = next((found for c in reversed(checkpoints) if (found := document_of(c))), {})
    judges = []
    for who in askers.intersection(settings := inside(document, "settings")):
        monitor, mode = inside(settings, who).get("monitor"), inside(settings, who).get("mode")
        if isinstance(monitor, str) and mode in ("min", "max"):
            scores = unpack(inside(document, "bus", "callbacks", who, "scores"), {})
            judges.append(Judge(who, monitor, mode, scores))
    return sorted(judges, key=lambda judge: [*settings].index(judge.name))


def inside(document: Mapping[str, Any], *keys: str) -> Mapping[str, Any]:
    """What lies deeper in a document; empty if something else lies there."""
    for key in keys:
        found = document.get(key)
        document = found if isinstance(found, dict) else {}
    return document


def document_of(checkpoint: Checkpoint) -> dict[str, Any]:
    """What is no tensor in its state, as it was packed; empty if it cannot be read or is not as it was written."""
    try:
        text = (checkpoint.path / STATE).read_bytes()
    except OSError:
        return {}
    from hashlib import sha256

    intact = checkpoint.files.get(STATE) == (len(text), sha256(text).hexdigest())
    return dict(json.loads(text)) if intact else {}


def list(run: str | Path) -> builtins.list[Checkpoint]:  # noqa: A001  # called as checkpoint.list
    """The committed checkpoints of a run, the oldest first; see `inspect` for those that are broken.

    Args:
        run: a run folder or its folder of checkpoints.

    Raises:
        CheckpointError: there is no run.
    """
    return Store(root_of(run), "").list()
