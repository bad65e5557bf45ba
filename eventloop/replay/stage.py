"""The run of a replay: the real bus, counters and ledger, whose numbers and whose other handlers are the record's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ..budget import Budget
from ..bus import Bus
from ..course import Course
from ..events import (
    CheckpointSaved,
    EpochEnd,
    EvalBegin,
    EvalEnd,
    EvalStep,
    Event,
    GradientsReady,
    RunFailed,
    StepBegin,
    TrainBegin,
    TrainEnd,
)
from ..fold import NOTHING, Control
from ..ledger import Asked, Entry, Ledger
from ..limits import Limits
from ..progress import HELD, MICRO, SAMPLES, TOTAL, Groups, Progress
from ..ranks import Alone
from ..requests import Keep, SetLR
from ..run import Run
from ..scripted import Rates, ScriptedEvaluation, ScriptedWindow, Still
from ..telling import Teller
from .moments import Moment, RecordedError, RecordedInterrupt, Row
from .record import REACTIONS, Record, Sitting
from .saves import AT_ONCE, Outcome, RecordedFolder


class Time:
    """The clock: it stands where the record stands."""

    now = 0.0

    def __call__(self) -> float:
        """Seconds since the run began."""
        return self.now


class Cut(BaseException):
    """Here the process ended whose work was lost: no error, for the history goes on in another process."""


class Vote(Alone):
    """The agreement of one process that ends when its last checkpoint is made."""

    cut: Callable[[], bool]

    def now(self, asked: list[Any]) -> list[Any]:
        """Everything, unless the process is gone."""
        if self.cut():
            raise Cut
        return asked


class Stage(Run):
    """A `Run` whose publishes are given what the record has for them.

    Attributes:
        moment: what the record has for the publish that runs; None: the record has no such publish.
        turn: the turn in hand.
        as_recorded: whether the run has come to the end that it had in the record.
        entries: the ledger, whole.
        evaluated: the steps of the evaluations made, in order.
        live: the names of the deciders.
        rest: the rows behind the last turn of the record while they are carried out: nothing is done behind them.
        unknown: what the record cannot tell, in sentences.
    """

    def __init__(self, record: Record, bus: Bus, clock: Time) -> None:
        self.clock, self.record, self.sitting = clock, record, record.sittings[0]
        self.moment: Moment | None = None
        self.turn: Moment | None = None
        self.as_recorded = False
        self.entries: list[Entry] = []
        self.evaluated: list[int] = []
        self.live: frozenset[str] = frozenset()
        self.rest: list[Row] | None = None
        self.strayed = False  # a decider has set another rate than in the record
        self.unknown: dict[str, None] = {}
        self._publish = self._fates = 0  # the record's last publish that was made again, the ledger's length then
        self._seen: Counter[tuple[type[Event], int]] = Counter()
        self._tried: Counter[int] = Counter()
        self._left_out: Counter[int] = Counter()
        self._obeyed = {entry.request for entry in record.ledger if entry.fate == "granted"}
        begin, loop = self.sitting.begin, self.sitting.loop
        self.rates = Rates(begin.lr or {})
        progress = Progress(Groups({"": self.rates}), "replay", clock)  # type: ignore[dict-item]  # a stand-in
        vote = Vote()
        vote.cut = lambda: False
        self.vote = vote
        super().__init__(
            bus,
            progress,
            Ledger(vote),
            ScriptedEvaluation(self._evaluation if loop["evaluate"] else None),
            Limits(**self.sitting.limits),
            RecordedFolder(self.outcome, self.is_told),
        )
        self.ledger.written = self.entries.append
        self.window = ScriptedWindow(progress.groups, loop["accumulate"])
        self.course = Course(self, self.window, loop["eval_every"], Budget(bus, None), Still())

    def keep_pending(self) -> None:
        """Carry out every Keep, and nothing else."""
        for asked in [a for a in self.ledger.pending if isinstance(a.request, Keep)]:
            self.keep(asked)

    def next_sitting(self, sitting: Sitting) -> None:
        """Another process goes on: what was pending is lost, and what was said is said again."""
        self.keep_pending()  # the deciders' memory is whole: they will not ask for it again
        self.sitting, self.limits = sitting, Limits(**sitting.limits)
        self._seen.clear()
        self._tried.clear()
        self._left_out.clear()
        entries, totals = self.ledger.entries, self.ledger.totals
        self.ledger = Ledger(self.vote)
        self.ledger.entries, self.ledger.totals, self.ledger.written = entries, totals, self.entries.append
        loop = sitting.loop
        self.evaluation = ScriptedEvaluation(self._evaluation if loop["evaluate"] else None)
        self.window = ScriptedWindow(self.progress.groups, loop["accumulate"])
        self.course = Course(self, self.window, loop["eval_every"], Budget(self.bus, None), Still())
        self.saved_at, self.saving, self.progress.in_hand = None, None, False
        self.deadline, self._given_up = None, False
        self._reach(sitting.begin)
        self.position.resumed_at = None if self.position.completed else 0

    # -- telling -------------------------------------------------------------------------------------------------------

    def tell(self, event: Event) -> Control:
        """Publish with what the record has for it."""
        if self.rest and isinstance(event, EpochEnd):
            raise Cut
        self._prepare(event)
        control = self._tell(event) if self.bus.hears(type(event), self.progress.fields) else NOTHING
        if control.failures:
            control.raise_failures()
        if self.rest and self.rest[-1]["event"] == event.name and not self._has(event):
            raise Cut
        return control

    def tell_quietly(self, event: Event) -> Control:
        """The same without raising."""
        self._prepare(event)
        return self._tell(event)

    def _tell(self, event: Event) -> Control:
        moment = self.moment
        control = Teller.tell_quietly(self, event)
        if moment is not None and not self.strayed and (control.requests or moment.asked):
            self._compare_rates(moment, control)
        return control

    def _compare_rates(self, moment: Moment, control: Control) -> None:
        """Say it if a decider sets another rate than in the record: every later metric would be another."""
        then = {
            group: rate for who, _, rates in moment.asks("SetLR") if who in self.live for group, rate in rates.items()
        }
        replies = [reply.request for reply in control.requests if reply.who in self.live]
        names = [group["name"] for group in self.rates.param_groups]
        asked = [request.by_group(names) for request in replies if isinstance(request, SetLR)]
        now = {group: rate for rates in asked for group, rate in rates.items()}
        if now != then:
            self.strayed = True
            groups = ", ".join(sorted(g for g in now.keys() | then.keys() if now.get(g) != then.get(g)))
            update = moment.step + 1 + (moment.kind is GradientsReady)
            self.note(
                f"from update {update} on the learning rate of {groups} differs from the record; the metrics behind "
                f"it are the record's"
            )

    def _prepare(self, event: Event) -> None:
        """Put time, counters, rates and the loop's own numbers where they were; an interrupt ends it here."""
        moment = self.moment = self._recorded(event)
        if moment is None:
            return
        self._reach(moment)
        self.clock.now = max(self.clock.now, moment.elapsed)
        fields = self.progress.fields
        fields[MICRO], fields[SAMPLES], fields[TOTAL] = moment.counters
        if moment.lr is not None:
            self._set_rates(moment)
        if moment.folded:
            self._report({**moment.own, **moment.reported} if moment.reported else moment.own)
        elif moment.kind is not EvalEnd:
            self._report(moment.own)
        if moment.interrupted:
            raise RecordedInterrupt

    def _reach(self, moment: Moment) -> None:
        if moment.number > self._publish:
            self._publish, self._fates = moment.number, len(self.entries)

    def _recorded(self, event: Event) -> Moment | None:
        kind = type(event)
        if kind in REACTIONS:
            place = self._key(event)
            moments = self.sitting.reactions.get(place, ())
            self._seen[place] += 1
            return moments[self._seen[place] - 1] if self._seen[place] <= len(moments) else None
        if kind is TrainBegin:
            return self.sitting.begin
        if self.as_recorded and kind in (RunFailed, TrainEnd):
            return next((t.moment for t in reversed(self.sitting.turns) if t.moment.kind is kind), None)
        return self.turn if self.turn is not None and self.turn.kind is kind else None

    def _report(self, values: Mapping[str, float]) -> None:
        if values:
            self.progress.report(values)

    def _set_rates(self, moment: Moment) -> None:
        """Rates that no handler has set are the body's own doing."""
        asked = set() if moment.folded else {group for _, _, rates in moment.asks("SetLR") for group in rates}
        if moment.kind is StepBegin:
            asked |= self.progress.fields[HELD].keys()
        groups = {group["name"]: group for group in self.rates.param_groups}
        for name, rate in (moment.lr or {}).items():
            if name not in groups:
                self.rates.param_groups.append({"name": name, "lr": rate, "params": []})
            elif name not in asked:
                groups[name]["lr"] = rate

    # -- carrying out --------------------------------------------------------------------------------------------------

    def _key(self, event: Event) -> tuple[type[Event], int]:
        return type(event), event.step if isinstance(event, CheckpointSaved) else self.progress.step

    def _has(self, event: Event) -> bool:
        """Whether the record has another one like this."""
        place = self._key(event)
        return self._seen[place] < len(self.sitting.reactions.get(place, ()))

    def evaluate(self) -> str | None:
        """Evaluate, if the record knows what came of it."""
        step = self.progress.step
        due = self.evaluation.function is not None and self.position.evaluated_at != step and not self.preempted
        if due and not self._has(EvalBegin()):
            if self.rest is not None:
                raise Cut
            self.position.evaluated_at = step
            self.note(f"an evaluation at update {step}, where none was recorded")
            return "no evaluation was recorded here"
        return super().evaluate()

    def _evaluation(self) -> Mapping[str, float]:
        step = self.progress.step
        while self._has(EvalStep()):
            event = self.sitting.reactions[EvalStep, step][self._seen[EvalStep, step]].event
            self.tell(event)
        if not self._has(EvalEnd()):
            raise self.ending() if self.rest is None or self.sitting.ended else Cut
        end = self.sitting.reactions[EvalEnd, step][self._seen[EvalEnd, step]]
        self._given_up = not end.event.completed  # type: ignore[attr-defined]  # an EvalEnd
        if not self._given_up:
            self.evaluated.append(step)
        return end.own

    def ending(self) -> BaseException:
        """What ended the recorded run."""
        last = self.sitting.turns[-1].moment
        if isinstance(last.event, TrainEnd) and last.event.status == "failed":
            return RecordedError(last.event.reason)
        return RecordedInterrupt()

    def outcome(self) -> Outcome:
        """The next save at this step is made; one that the record does not have at once."""
        found = self.next_save() or Outcome(told=AT_ONCE)
        self._tried[self.progress.step] += 1
        return found

    def next_save(self) -> Outcome | None:
        """How the next save at this step went; None if the record has no other."""
        recorded = self.sitting.saves.get(self.progress.step, ())
        return next(iter(recorded[self._tried[self.progress.step] :]), None)

    def _untimely(self) -> list[str]:
        step = self.progress.step
        return self.sitting.left_out.get(step, [])[self._left_out[step] :]

    def _no_time(self) -> str:
        """Why the record has left out a save here, if it has for want of time."""
        why = self._untimely()
        self._left_out[self.progress.step] += bool(why)
        return why[0] if why else ""

    def is_told(self, outcome: Outcome) -> bool:
        """Whether the replay has come to where this was told."""
        return outcome.told is not None and (self._publish, len(self.entries) - self._fates) >= outcome.told

    def save(self, asked: list[Asked]) -> str | None:
        """Note a checkpoint; the loop's own last save fails where it has failed."""
        recorded, own = self.next_save(), [a.who for a in asked] == ["Loop"]
        if self.record.skips and recorded and not recorded.error and not own and not any(map(self._granted, asked)):
            return self.record.skips  # the save that the record has here was made for others, or by the loop
        writing = self.saving is not None and not self.saving.done()
        self.skips = bool(self.record.skips) and not recorded
        if self.rest is not None and not (recorded or self._untimely() or (self.skips and writing)):
            raise Cut
        if own and not recorded and self.turn is not None and self.turn.name == "run_failed":
            raise self.ending()
        return super().save(asked)

    def _granted(self, asked: Asked) -> bool:
        return (asked.who, asked.event, asked.step, getattr(asked.request, "tag", "")) in self.record.granted

    def obey(self, asked: Asked) -> str | None:
        """Requests of the user's own class are obeyed where any of the class was."""
        return None if asked.kind in self._obeyed else super().obey(asked)

    def note(self, sentence: str) -> None:
        """What the record cannot tell."""
        self.unknown.setdefault(sentence)
