"""Going on from a checkpoint: which one it is, whether it fits, and what the run is told of it."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

from .checkpoint import Checkpoint, Checkpoints
from .errors import CheckpointError, ResumeError
from .log import logger
from .settings import Difference


class Jump(NamedTuple):
    """A parameter group whose learning rate went on otherwise than planned: of the last update before, and the next."""

    group: str
    was: float
    now: float

    def __str__(self) -> str:
        return f"{self.group}: {self.was:.6g} at the last update before, {self.now:.6g} at the next"


@dataclass(frozen=True)
class Resumed:
    """What came back from a checkpoint, and what differs; ``str`` of it is a block of lines.

    Attributes:
        path: the checkpoint.
        step: finished updates.
        epoch: the epoch it was made in.
        run_id: the run that goes on.
        skipped: newer checkpoints that were passed over, and why.
        restored: the parts, callbacks and filters that have their state again.
        missing: those that the checkpoint has no state of: they start fresh.
        unknown: the states that nobody here owns: they travel on in later checkpoints.
        settings: what the script has set otherwise; its values count.
        lr: the learning rates that jump because the plan is another; known once the first update has begun.
        loader: how the position in the data was restored; known once the loader is there.
        ended: why nothing is left to do; empty if something is.
    """

    path: Path
    step: int
    epoch: int
    run_id: str
    skipped: tuple[str, ...] = ()
    restored: tuple[str, ...] = ()
    missing: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    settings: tuple[Difference, ...] = ()
    lr: tuple[Jump, ...] = ()
    loader: str = ""
    ended: str = ""

    @property
    def differs(self) -> bool:
        """Whether anything is not as it was in the checkpoint."""
        return bool(self.missing or self.unknown or self.settings or self.lr)

    def __str__(self) -> str:
        return "\n".join([f"resumed from {self.path}, step {self.step}", *(f"  {line}" for line in self._lines())])

    def _lines(self) -> Iterator[str]:
        yield f"epoch {self.epoch} of run {self.run_id}"
        yield from (f"passed over: {why}" for why in self.skipped)
        yield f"restored: {', '.join(self.restored)}"
        yield from (f"no state of {name}; it starts fresh" for name in self.missing)
        yield from (f"a state of {name}, which this run is without; it is kept" for name in self.unknown)
        yield from map(str, self.settings)
        yield from (f"learning rate of {jump}" for jump in self.lr)
        if self.loader:
            yield f"data: {self.loader}"
        if self.ended:
            yield f"nothing left to do: {self.ended}"

    def log(self) -> None:
        """One record; a warning if anything differs or was passed over."""
        tell = logger().warning if self.differs or self.skipped else logger().info
        tell(str(self))

    def require_match(self) -> None:
        """Refuse to go on where anything differs.

        Raises:
            ResumeError: naming all of it.
        """
        if self.differs:
            told = "\n".join(f"  {line}" for line in self._lines() if not line.startswith(("epoch", "restored")))
            raise ResumeError(f"on_mismatch='error': {self.path} and this run differ\n{told}")


class Found(NamedTuple):
    """The checkpoint to go on from, None if there is none, and those that were passed over."""

    origin: Checkpoint | None
    skipped: tuple[str, ...] = ()


def find(checkpoints: Checkpoints, resume: object) -> Found:
    """The checkpoint that ``resume`` means.

    Args:
        checkpoints: those of the run folder.
        resume: None, "auto", a path or a step.

    Raises:
        CheckpointError: it does not exist or is damaged; "auto" passes over those that are.
        TypeError: ``resume`` is something else.
    """
    if resume is None:
        return Found(None)
    if resume == "auto":
        skipped: list[str] = []
        newest = checkpoints.newest(skipped)
        if newest is None:
            told = "".join(f"; passed over: {why}" for why in skipped)
            logger().warning(f"resume='auto': no whole checkpoint in {checkpoints.root}; starting fresh{told}")
        return Found(newest, tuple(skipped))
    if isinstance(resume, int) and not isinstance(resume, bool):
        path = checkpoints.at(resume)
    elif isinstance(resume, str | Path):
        path = Path(resume)
    else:
        raise TypeError(f"resume={resume!r}: give None, 'auto', a checkpoint's path or a step")
    if not path.is_dir():
        there = ", ".join(str(c.step) for c in checkpoints.list()) or "none"
        raise CheckpointError(f"resume={resume!r}: there is no checkpoint {path}; steps there: {there}")
    found = Checkpoint.read(path)
    found.verify()
    return Found(found)


def compare(origin: Checkpoint, skipped: Iterable[str], states: Mapping[str, Any], parts: Mapping[str, Any]) -> Resumed:
    """What will come back and what differs, found before anything is loaded.

    A part may tell it: ``problems(state)`` is why the state cannot be loaded, ``differences(state)`` which settings
    are others, ``match(state)`` the names in it that are restored, missing and unknown.

    Raises:
        CheckpointError: a state does not fit; all that does not is listed.
    """
    if "progress" not in states:
        raise CheckpointError(
            f"{origin.path} was not made by a Loop and cannot be gone on from; take its weights alone by init_from="
        )
    both = {name: part for name, part in parts.items() if name in states}
    if problems := [problem for name in both for problem in _ask(both[name], "problems", states[name])]:
        raise CheckpointError(
            f"{origin.path} does not fit this run: {'; '.join(problems)}; for another model take another run_dir"
        )
    matches = [found for name in both if (found := _ask(both[name], "match", states[name]))]
    return Resumed(
        origin.path,
        origin.step,
        states.get("progress", {}).get("epoch", 0),
        origin.run_id,
        skipped=tuple(skipped),
        restored=(
            *(name for name in both if name != "settings"),
            *(name for match in matches for name in match.restored),
        ),
        missing=(
            *(f"the {name}" for name in parts if name not in states and name != "settings"),
            *(name for match in matches for name in match.missing),
        ),
        unknown=(
            *(f"the {name}" for name in states if name not in parts),
            *(name for match in matches for name in match.unknown),
        ),
        settings=tuple(d for name in both for d in _ask(both[name], "differences", states[name])),
    )


def _ask(part: Any, what: str, state: Any) -> Any:
    return getattr(part, what, lambda _: ())(state)


def jumps(
    was: Mapping[str, float], now: Mapping[str, float], planned: Mapping[str, float], touched: Iterable[str]
) -> tuple[Jump, ...]:
    """The learning rates that went on otherwise than planned.

    Args:
        was: those of the last update before.
        now: those of the next one.
        planned: what the plan in the checkpoint has for the next one, of the groups whose schedule tells.
        touched: of the other groups those in whose schedule or base rate a setting was changed.
    """
    expected = {group: was[group] for group in touched if group in was} | dict(planned)
    return tuple(
        Jump(group, was[group], rate)
        for group, rate in now.items()
        if group in was and group in expected and not math.isclose(rate, expected[group], rel_tol=1e-9)
    )
