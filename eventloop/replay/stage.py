"""The run of a replay: the real bus, counters and ledger, whose numbers and whose other handlers are the record's."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any

from ..budget import Budget
from ..bus import Bus
from ..checkpoint import Saving
from ..course import Course
from ..events import (
    CheckpointSaved,
    EpochEnd,
    EvalBegin,
    EvalEnd,
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
from ..scripted import NoFolder, Rates, ScriptedEvaluation, ScriptedWindow, Standing, Still
from ..telling import Teller
from .moments import Moment, RecordedError, RecordedInterrupt, Row
from .record import REACTIONS, Record, Sitting


class Time:
    """The clock: it stands where the record stands."""

    now = 0.0

    def __call__(self) -> float:
        """Seconds since the run began."""
        return self.now


class Cut(Exception):  # noqa: N818  # no error: the history goes on in another process
    """Here the process ended whose work was lost."""


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
        self._seen: Counter[tuple[type[Event], int]] = Counter()
        self._tried: Counter[int] = Counter()
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
            _RecordedFolder(self),
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
        entries, totals = self.ledger.entries, self.ledger.totals
        self.ledger = Ledger(self.vote)
        self.ledger.entries, self.ledger.totals, self.ledger.written = entries, totals, self.entries.append
        loop = sitting.loop
        self.evaluation = ScriptedEvaluation(self._evaluation if loop["evaluate"] else None)
        self.window = ScriptedWindow(self.progress.groups, loop["accumulate"])
        self.course = Course(self, self.window, loop["eval_every"], Budget(self.bus, None), Still())
        self.saved_at, self.progress.in_hand = None, False
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
        if self.rest and self.rest[-1]["event"] == event.name and not self.has(type(event)):
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

    def _recorded(self, event: Event) -> Moment | None:
        kind = type(event)
        if kind in REACTIONS:
            place = kind, self.progress.step
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

    def has(self, kind: type[Event]) -> bool:
        """Whether the record has another one of this class at this step."""
        place = kind, self.progress.step
        return self._seen[place] < len(self.sitting.reactions.get(place, ()))

    def evaluate(self) -> str | None:
        """Evaluate, if the record knows what came of it."""
        step = self.progress.step
        if self.evaluation.function is not None and self.position.evaluated_at != step and not self.has(EvalBegin):
            if self.rest is not None:
                raise Cut
            self.position.evaluated_at = step
            self.note(f"an evaluation at update {step}, where none was recorded")
            return "no evaluation was recorded here"
        return super().evaluate()

    def _evaluation(self) -> Mapping[str, float]:
        step = self.progress.step
        if not self.has(EvalEnd):
            raise self.ending() if self.rest is None or self.sitting.ended else Cut
        self.evaluated.append(step)
        return self.sitting.reactions[EvalEnd, step][self._seen[EvalEnd, step]].own

    def ending(self) -> BaseException:
        """What ended the recorded run."""
        last = self.sitting.turns[-1].moment
        if isinstance(last.event, TrainEnd) and last.event.status == "failed":
            return RecordedError(last.event.reason)
        return RecordedInterrupt()

    def save_failed(self, step: int) -> Exception | None:
        """How the next save at this step failed."""
        outcomes = self.sitting.saves.get(step, [])
        n = self._tried[step]
        self._tried[step] += 1
        text = outcomes[n] if n < len(outcomes) else None
        return None if text is None else error_of(text)

    def save(self, asked: list[Asked]) -> str | None:
        """Note a checkpoint; the loop's own last save fails where it has failed."""
        step = self.progress.step
        failing = self._tried[step] < len(self.sitting.saves.get(step, ()))
        if self.rest is not None and not (failing or self.has(CheckpointSaved)):
            raise Cut
        fails = self.turn is not None and self.turn.name == "run_failed" and not self.has(CheckpointSaved)
        if fails and [a.who for a in asked] == ["Loop"]:
            raise self.ending()
        return super().save(asked)

    def obey(self, asked: Asked) -> str | None:
        """Requests of the user's own class are obeyed where any of the class was."""
        return None if asked.kind in self._obeyed else super().obey(asked)

    def note(self, sentence: str) -> None:
        """What the record cannot tell."""
        self.unknown.setdefault(sentence)


class _RecordedFolder(NoFolder):
    """The checkpoints of the replay, none of which is written."""

    def __init__(self, stage: Stage) -> None:
        super().__init__(Standing("replay"))
        self._stage = stage

    def save(self, step: int, asked_by: Mapping[str, Any], metrics: Mapping[str, float]) -> Saving:
        error = self._stage.save_failed(step)
        if error is not None:
            raise error
        return super().save(step, asked_by, metrics)


def error_of(text: str) -> Exception:
    """An error of which the text is known, so that it tells itself as it did."""
    name, colon, rest = text.partition(": ")
    kind: type[Exception] = type(name, (RecordedError,), {}) if colon and name.isidentifier() else RecordedError
    return kind(rest if colon else text)
