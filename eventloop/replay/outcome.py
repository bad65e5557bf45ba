"""What a replay came to, in words, in numbers and as a row of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

from ..ledger import Entry


class Score(NamedTuple):
    """The best value of a metric and the step of its evaluation."""

    value: float
    step: int

    def __str__(self) -> str:
        return f"{self.value:.6g} at update {self.step}"


@dataclass(frozen=True)
class Replayed:
    """How a recorded run would have gone.

    Attributes:
        path: the journal.
        settings: what was changed, as ``{"EarlyStopping.patience": 5}``.
        live: the callbacks that decided anew.
        as_it_was: those that were played from the record although they had something to decide, with the reason.
        steps: the updates of the record.
        step: the updates of the replay.
        status: completed, stopped, failed or interrupted; open: it would have gone on where the record ends.
        stopped_at: the update after which it was stopped, or None.
        stopped_by: who has stopped it.
        reason: why.
        kept: the steps of the checkpoints that stand at its end.
        monitor: the metric that the deciders look at.
        best: its best value in the replay.
        best_recorded: its best value in the record.
        ledger: every request and its fate.
        reproduced: whether the recorded ledger comes out again with the recorded settings.
        difference: the first lines in which this ledger and the recorded one differ, (replayed, recorded).
        unknown: what the record cannot tell.
    """

    path: str
    settings: Mapping[str, Any]
    live: tuple[str, ...]
    as_it_was: Mapping[str, str]
    steps: int
    step: int
    status: str
    stopped_at: int | None
    stopped_by: str | None
    reason: str
    kept: tuple[int, ...]
    monitor: str | None
    best: Score | None
    best_recorded: Score | None
    ledger: tuple[Entry, ...]
    reproduced: bool
    difference: tuple[Entry | None, Entry | None] | None
    unknown: tuple[str, ...]

    @property
    def saved(self) -> int:
        """Updates that would not have been made."""
        return self.steps - self.step

    @property
    def share(self) -> float:
        """The same, in percent of the record."""
        return 100 * self.saved / self.steps if self.steps else 0.0

    @property
    def loss_of_best(self) -> float | None:
        """How far the best value of the replay is from the best of the record."""
        if self.best is None or self.best_recorded is None:
            return None
        return abs(self.best.value - self.best_recorded.value)

    def row(self) -> dict[str, Any]:
        """As a row of a table."""
        return {
            **self.settings,
            "stopped at": self._end(),
            "by": self.stopped_by or "",
            "saved": f"{self.saved} ({self.share:.0f} %)",
            f"best {self.monitor or ''}".strip(): "" if self.best is None else f"{self.best.value:.6g}",
            "at": "" if self.best is None else self.best.step,
            "loss": "" if self.loss_of_best is None else f"{self.loss_of_best:.3g}",
            "kept": " ".join(map(str, self.kept)),
        }

    def _end(self) -> str:
        if self.status == "open":
            return f"not within {self.steps}"
        return str(self.stopped_at) if self.stopped_at is not None else f"{self.step} ({self.status})"

    def as_json(self) -> dict[str, Any]:
        """Everything but the ledger, in plain form."""
        names = ("path", "settings", "live", "as_it_was", "steps", "step", "status", "stopped_at", "stopped_by")
        told = {name: getattr(self, name) for name in names}
        scores = {name: s._asdict() if (s := getattr(self, name)) else None for name in ("best", "best_recorded")}
        rest = {name: getattr(self, name) for name in ("reason", "kept", "monitor", "saved", "reproduced", "unknown")}
        return {**told, **rest, **scores, "loss_of_best": self.loss_of_best}

    def __str__(self) -> str:
        told = [self._verdict() if self.settings else self._verification()]
        if self.settings:
            told += [f"kept: {', '.join(map(str, self.kept)) or 'no checkpoint'}", *self._on_best()]
        told += [f"replayed as it was: {name}: {why}" for name, why in self.as_it_was.items()]
        told += [f"unknown: {sentence}" for sentence in self.unknown]
        return "\n".join(told)

    def _verification(self) -> str:
        who = f"decided anew: {', '.join(self.live)}" if self.live else "nobody to decide anew"
        if self.reproduced:
            return f"reproduced: all {len(self.ledger)} lines of the ledger over {self.steps} updates ({who})"
        mine, recorded = self.difference or (None, None)
        return f"NOT reproduced ({who}):\n  record: {recorded or 'nothing more'}\n  replay: {mine or 'nothing more'}"

    def _verdict(self) -> str:
        changed = ", ".join(f"{name}={value!r}" for name, value in self.settings.items())
        if self.status in ("open", "completed"):
            return f"with {changed}: would not have stopped within the {self.steps} recorded updates"
        by = f" by {self.stopped_by}" if self.stopped_by else ""
        because = f": {self.reason}" if self.reason else ""
        saved = f"; {self.saved} of {self.steps} updates saved ({self.share:.0f} %)"
        return f"with {changed}: {self.status} after update {self.step}{by}{because}{saved}"

    def _on_best(self) -> list[str]:
        if self.best is None or self.best_recorded is None:
            return []
        there = f"{self.monitor} {self.best}"
        if self.best == self.best_recorded:
            return [f"best: {there}, the same as in the record"]
        return [f"best: {there}; {self.best_recorded} in the record (loss {self.loss_of_best:.3g})"]


def best_of(evaluations: Mapping[int, Mapping[str, float]], monitor: str, mode: str) -> Score | None:
    """The best finite value, the earlier of equal ones."""
    scores = [
        Score(told[monitor], step) for step, told in evaluations.items() if math.isfinite(told.get(monitor, math.nan))
    ]
    sign = 1 if mode == "min" else -1
    return min(scores, key=lambda score: (sign * score.value, score.step), default=None)


def difference(mine: Sequence[Entry], recorded: Sequence[Entry]) -> tuple[Entry | None, Entry | None] | None:
    """The first lines in which two ledgers differ, or None."""
    for i in range(max(len(mine), len(recorded))):
        pair = mine[i] if i < len(mine) else None, recorded[i] if i < len(recorded) else None
        if pair[0] != pair[1]:
            return pair
    return None


def table(replays: Sequence[Replayed]) -> str:
    """One row a replay, and below what is to be said of them."""
    from tabulate import tabulate

    text: str = tabulate([replay.row() for replay in replays], headers="keys", disable_numparse=True)
    notes: dict[str, None] = {}
    for replay in replays:
        notes.update((f"replayed as it was: {name}: {why}", None) for name, why in replay.as_it_was.items())
        notes.update((f"unknown: {sentence}", None) for sentence in replay.unknown)
    return "\n".join([text, *notes])
