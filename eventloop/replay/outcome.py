"""What a replay came to, in words, in numbers and as a row of a table."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from ..failures import Failure
from ..ledger import Entry

IN_JSON: Final = (
    *("path", "settings", "live", "as_it_was", "unverified", "not_anew", "open", "steps", "step", "status"),
    *("stopped_at", "stopped_by", "reason", "kept", "monitor", "mode", "saved", "verified", "unknown"),
)


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
        unverified: whose decisions, a stop or a save, the replay does not make by itself, with the reason.
        not_anew: the callbacks that had nothing to decide, with what they did.
        open: whether the record ends without the run's end.
        steps: the updates of the record.
        step: the updates of the replay.
        status: completed, stopped, failed or interrupted; open: it would have gone on where the record ends.
        stopped_at: the update after which it was stopped, or None.
        stopped_by: who has stopped it.
        reason: why.
        kept: the steps of the checkpoints that stand at its end.
        monitor: the metric that the deciders look at.
        mode: "min" or "max", what is better for it.
        best: its best value in the replay.
        best_recorded: its best value in the record.
        ledger: every request and its fate.
        reproduced: whether the recorded ledger comes out again with the recorded settings of those who decide anew.
        difference: the first lines in which this ledger and the recorded one differ, (replayed, recorded).
        unknown: what the record cannot tell.
        failures: of the callbacks that decided anew, those that the record does not have.
    """

    path: str
    settings: Mapping[str, Any]
    live: tuple[str, ...]
    as_it_was: Mapping[str, str]
    unverified: Mapping[str, str]
    not_anew: Mapping[str, str]
    open: bool
    steps: int
    step: int
    status: str
    stopped_at: int | None
    stopped_by: str | None
    reason: str
    kept: tuple[int, ...]
    monitor: str | None
    mode: str
    best: Score | None
    best_recorded: Score | None
    ledger: tuple[Entry, ...]
    reproduced: bool
    difference: tuple[Entry | None, Entry | None] | None
    unknown: tuple[str, ...]
    failures: tuple[Failure, ...]

    @property
    def verified(self) -> bool:
        """Whether the recorded ledger comes out again, and whoever had a stop or a save in it has decided anew."""
        return self.reproduced and not self.unverified

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
        told = {name: getattr(self, name) for name in IN_JSON}
        scores = {name: s._asdict() if (s := getattr(self, name)) else None for name in ("best", "best_recorded")}
        reproduced = self.reproduced and (self.verified or not self.settings)
        failures = [str(failure) for failure in self.failures]
        return {**told, **scores, "loss_of_best": self.loss_of_best, "reproduced": reproduced, "failures": failures}

    def __str__(self) -> str:
        told = [self._verdict() if self.settings else self._verification()]
        if self.settings:
            told += [f"kept: {', '.join(map(str, self.kept)) or 'no checkpoint'}", *self._on_best()]
        elif self.not_anew:
            told.append("not decided anew: " + ", ".join(f"{name} ({what})" for name, what in self.not_anew.items()))
        return "\n".join([*told, *self.notes()])

    def notes(self) -> list[str]:
        """What must be known to judge it, a sentence a line."""
        others = {name: why for name, why in self.as_it_was.items() if name not in self.unverified}
        told = [f"not verified: {name}: {why}" for name, why in self.unverified.items() if self.settings]
        told += [f"replayed as it was: {name}: {why}" for name, why in others.items()]
        if self.open:
            told.append(
                f"the record ends at update {self.steps} without an end: the run is still going on, or was killed"
            )
        told += [f"unknown: {sentence}" for sentence in self.unknown]
        places: dict[tuple[str, str], list[Failure]] = {}
        for failure in self.failures:
            places.setdefault((failure.subscription, failure.event), []).append(failure)
        for first, *more in places.values():
            told.append(f"failed: {first}" + (f" (and {len(more)} times more)" if more else ""))
        return told

    def _verification(self) -> str:
        who = f"decided anew: {', '.join(self.live)}" if self.live else "nobody to decide anew"
        came = f"all {len(self.ledger)} lines of the ledger over {self.steps} updates ({who})"
        if self.verified:
            return f"reproduced: {came}"
        if self.reproduced:
            whom = "; ".join(f"{name}: {why}" for name, why in self.unverified.items())
            return f"not verified: {whom}\nwith this taken from the record there are again {came}"
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
        by_mode = any(name.rpartition(".")[2] == "mode" for name in self.settings)
        there = f"{self.monitor}{f' ({self.mode})' if by_mode else ''} {self.best}"
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
        notes.update(dict.fromkeys(replay.notes()))
    return "\n".join([text, *notes])
