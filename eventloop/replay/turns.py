"""The turns of a recorded loop, and where between them it carried out what was asked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

from ..events import EpochBegin, EpochEnd, GradientsReady, RunFailed, StepBegin, StepEnd, TrainEnd
from .moments import Moment, RecordedEvent, Row

WAITS: Final = ("Report", "SetLR", "Keep")
"""Requests whose fate is not told."""
LATE: Final = "late"
"""Marks a row on a save of which the fate was told before: it came at a boundary, but nothing was carried out by it."""
UPDATE: Final = ("step_begin", "gradients_ready", "step_end")


@dataclass(slots=True)
class Turn:
    """One publish that the body of the loop led to.

    Attributes:
        boundary: whether requests were carried out between the turn before and this one.
        over: whether no further update could begin by then.
        closing: of a run_failed or train_end: the rows before it, if they came of closing an epoch that did not end.
        leaving: of an epoch_end: no epoch followed because the body had left.
        finishing: of a run_failed: it came of the last evaluation or the last save; of a train_end: nobody had stopped
            the run before these.
    """

    moment: Moment
    boundary: bool
    over: bool
    closing: list[Row] | None = None
    leaving: bool = False
    finishing: bool = False


class Turns:
    """Reads the turns of one process off its rows.

    A boundary shows by what is told between two turns. Where nothing was pending nothing shows, and it is taken where
    the usual loops have it: before each update, and at the end of an epoch whose length was not known.
    """

    def __init__(self, loop: Mapping[str, Any], begin: Moment) -> None:
        self.done: list[Turn] = []
        self._loop = loop
        self._gap: list[Row] = []
        self._pending = _pending(begin)  # what was asked for and not carried out yet
        self._stopped = self._was_stopped = False  # by now, and before the turn in hand
        self._evaluated = 0
        self._epoch_samples = self._window_began = 0

    def between(self, row: Row) -> None:
        """A fate, an evaluation or a checkpoint."""
        self._gap.append(row)
        self._stopped = self._stopped or _grants(row, "Stop")

    def add(self, moment: Moment) -> None:
        """The next turn."""
        last = self.done[-1].moment if self.done else None
        turn = Turn(moment, False, self._over(moment.step))
        turn.boundary = self._boundary(last, turn)
        if moment.kind in (RunFailed, TrainEnd) and self.closing():
            turn.boundary, turn.closing = False, self._gap
        if moment.kind is RunFailed and last is not None and last.kind is EpochEnd:
            turn.finishing = any(_is_finish(row) for row in self._gap)
        if moment.kind is TrainEnd and not self._was_stopped:
            turn.finishing = _finish_before_stop(self._gap)
        if last is not None and last.kind is EpochEnd and moment.kind in (EpochBegin, TrainEnd):
            self.done[-1].leaving = moment.kind is TrainEnd and not _evaluates(self._gap)
        if moment.kind is EpochEnd:
            turn.leaving = _evaluates(self._gap)  # until it is known
        if moment.kind is StepBegin:
            self._window_began = moment.counters[0]
        if moment.kind is EpochBegin:
            self._epoch_samples = moment.counters[1]
        self._look_behind()
        self._was_stopped = self._stopped
        self._pending += _pending(moment)
        self.done.append(turn)
        self._gap = []

    def close(self) -> list[Row]:
        """The rows behind the last turn."""
        if (
            self.done
            and self.done[-1].moment.kind is EpochEnd
            and any("last" in row.get("tags", ()) for row in self._gap)
            and not _evaluates(self._gap)
        ):
            self.done[-1].leaving = True
        return self._gap

    def closing(self) -> bool:
        """Whether the rows behind the last turn came of closing the epoch, where saves wait.

        It shows by an evaluation that no boundary makes: one that nobody asked for, and that is not due by updates.
        """
        last = self.done[-1].moment if self.done else None
        gap = self._gap
        begun = next((i for i, row in enumerate(gap) if row["event"] == "eval_begin"), None)
        if last is None or last.kind is EpochEnd or begun is None or any(map(_saves, gap)):
            return False
        if self._due(last.step):  # a boundary evaluates before it looks at requests
            return any(map(settles, gap[:begun]))
        return not any(asked[1] == "Evaluate" for asked in self._pending)

    def _due(self, step: int) -> bool:
        every = self._loop["eval_every"]
        return isinstance(every, int) and step // every > self._evaluated // every

    def _look_behind(self) -> None:
        if any(map(settles, self._gap)):
            self._pending = []
        self._evaluated = max([row["step"] for row in self._gap if row["event"] == "eval_begin"] + [self._evaluated])

    def _over(self, step: int) -> bool:
        most = self._loop["max_steps"]
        return self._stopped or (most is not None and step >= most)

    def _boundary(self, last: Moment | None, turn: Turn) -> bool:
        kind = turn.moment.kind
        settled = any(map(settles, self._gap))
        if kind is StepBegin:
            return last is not None and (last.kind is StepEnd or settled or not self._pending)
        if kind is EpochEnd:
            return last is not None and self._before_close(turn)
        if kind is RecordedEvent:
            return settled
        if kind in (RunFailed, TrainEnd):
            after_update = last is not None and last.kind is StepEnd
            return settled or (after_update and not self._pending)
        return kind not in (EpochBegin, GradientsReady, StepEnd) and settled

    def _before_close(self, turn: Turn) -> bool:
        """Whether a boundary came before the epoch was closed, which has a settling of its own but saves later."""
        gap = self._gap
        if any(map(_saves, gap)):
            return True
        if any(asked[1] == "Save" for asked in self._pending):
            return False
        if self._due(turn.moment.step):
            # A boundary evaluates before it looks at requests, and then at those of the evaluation first.
            asked = _first(gap, UPDATE, but="Evaluate")
            begun = next((i for i, row in enumerate(gap) if row["event"] == "eval_begin"), None)
            if asked is not None and begun is not None:
                return begun < asked
            evaluate, stop = _first(gap, UPDATE, but="Stop"), _first(gap, ("eval_begin", "eval_end"), but="Save")
            if evaluate is not None and stop is not None:
                return stop < evaluate
        return self._usual(turn)

    def _usual(self, turn: Turn) -> bool:
        moment = turn.moment
        micro, samples, total = moment.counters
        if not moment.event.completed and turn.over:  # type: ignore[attr-defined]  # an EpochEnd
            return True
        if samples == self._epoch_samples:
            return True  # batches of its own: at once in `step_end`
        if not moment.event.completed:  # type: ignore[attr-defined]  # the body has left it
            return False
        short = 0 < micro - self._window_began < self._loop["accumulate"]  # then the loader had been read to its end
        return total is None and self._loop["max_epochs"] is not None and not short  # it does not tell its length


def _pending(moment: Moment) -> list[list[Any]]:
    return [asked for asked in moment.asked if asked[1] not in WAITS]


def _first(gap: list[Row], at: tuple[str, ...], *, but: str) -> int | None:
    """The first fate in a gap of a request that was made there, of any class but this one."""
    fates = [i for i, row in enumerate(gap) if row.get("at") in at and row["request"] != but and settles(row)]
    return next((i for i in fates if LATE not in gap[i]), None)


def _is(row: Row, *kinds: str) -> bool:
    return row["event"] == "request" and row["request"] in kinds


def settles(row: Row) -> bool:
    """Whether the row tells that requests were carried out: others are decided where they are asked."""
    if row["event"] != "request":
        return True
    return row["fate"] in ("granted", "refused") and row["request"] != "SkipUpdate"


def _saves(row: Row) -> bool:
    return LATE not in row and (row["event"] == "checkpoint_saved" or (settles(row) and _is(row, "Save")))


def _is_finish(row: Row) -> bool:
    return row["event"] == "eval_begin" or "last" in row.get("tags", ())


def _evaluates(gap: list[Row]) -> bool:
    """Behind an epoch_end: the body had not left that epoch, or the last evaluation would stand before it."""
    return any(row["event"] == "eval_begin" for row in gap)


def _grants(row: Row, kind: str) -> bool:
    return _is(row, kind) and row["fate"] == "granted"


def _finish_before_stop(gap: list[Row]) -> bool:
    """Whether the run had come to its last evaluation or save when it was stopped."""
    asked_for = any(_grants(row, "Evaluate") for row in gap)
    for row in gap:
        if _grants(row, "Stop"):
            return False
        if _is_finish(row) and not (asked_for and row["event"] == "eval_begin"):
            return True
    return False
