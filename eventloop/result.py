"""What a run came to: who stopped it, why, when, what was refused, what failed."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from .failures import Failure
from .ledger import Entry

EXIT_CODES: Final = {"completed": 0, "stopped": 0, "preempted": 75, "interrupted": 130, "failed": 1}


@dataclass(frozen=True, slots=True)
class Best:
    """The best value of a monitored metric, its step, and where its checkpoint lies if there is one."""

    monitor: str
    value: float
    step: int
    path: str | None = None

    def __str__(self) -> str:
        where = f", in {_near(self.path)}" if self.path else ""
        return f"{self.monitor} {self.value:.4g} at step {self.step}{where}"


def _near(path: str) -> str:
    """The path from here, if it is below."""
    try:
        return str(Path(path).relative_to(Path.cwd()))
    except ValueError:
        return path


@dataclass(frozen=True, slots=True)
class Result:
    """The end of a run. Prints as one sentence.

    Attributes:
        status: completed, stopped, interrupted, preempted or failed.
        stopped_by: the name of who asked for the stop, or None.
        reason: why.
        step: finished updates.
        epoch: the last epoch.
        total: planned updates, None if never known.
        best: the best monitored metric, if a callback watched one.
        failures: the last failures of handlers.
        failure_counts: all of them, by handler.
        refused: requests that were refused.
        ledger: the last entries, whatever their fate.
        error: what ended a run that failed or was interrupted.
    """

    status: str
    stopped_by: str | None
    reason: str
    step: int
    epoch: int
    total: int | None
    best: Best | None
    failures: tuple[Failure, ...]
    failure_counts: Mapping[str, int]
    refused: tuple[Entry, ...]
    ledger: tuple[Entry, ...]
    error: BaseException | None = None

    @property
    def exit_code(self) -> int:
        """For ``sys.exit``: 0 completed, stopped; 1 failed; 75 preempted (EX_TEMPFAIL: try again); 130 interrupted."""
        return EXIT_CODES[self.status]

    @property
    def unspent(self) -> int:
        """Planned updates that were not made."""
        return max((self.total or 0) - self.step, 0)

    def __str__(self) -> str:
        text = f"{self.status} after update {self.step}"
        if self.stopped_by is not None:
            text += f" by {self.stopped_by}" + (f": {self.reason}" if self.reason else "")
        elif self.error is not None:
            text += f": {type(self.error).__name__}" + (f": {self.error}" if str(self.error) else "")
        if self.unspent and self.total:
            text += f" ({100 * self.unspent / self.total:.0f} % of {self.total} planned updates not spent)"
        if self.failure_counts:
            failed = ", ".join(f"{name} {n}" for name, n in self.failure_counts.items())
            text += f"; handler failures: {failed}"
        if self.refused:
            refused = dict.fromkeys(
                f"{e.request} by {e.who}" + (f" ({e.note})" if e.note else "") for e in self.refused
            )
            text += f"; refused: {', '.join(refused)}"
        return text


def summaries_of(
    objects: Iterable[tuple[str, Any]], failed: Callable[[str, Exception], None]
) -> list[Mapping[str, Any]]:
    """What the attached objects tell of the run by their ``summary()``; an error there is that object's failure."""
    told = []
    for name, thing in objects:
        if hasattr(thing, "summary"):
            try:
                answer = thing.summary()
            except Exception as error:
                failed(name, error)
            else:
                told += [answer] if isinstance(answer, Mapping) else []
    return told


def best_of(summaries: Iterable[Mapping[str, Any]]) -> Best | None:
    """The best value that the first watching callback tells, with the path that any of them knows for its step."""
    best: Best | None = None
    for told in summaries:
        if told.get("best") is None or not told.keys() >= {"monitor", "best_step"}:
            continue
        path = told.get("best_path")
        if best is None:
            best = Best(told["monitor"], told["best"], told["best_step"], None if path is None else str(path))
        elif best.path is None and path is not None and told["best_step"] == best.step:
            best = Best(best.monitor, best.value, best.step, str(path))
    return best


def counts(failures: Counter[str]) -> dict[str, int]:
    """Failures by handler, most first."""
    return dict(failures.most_common())
