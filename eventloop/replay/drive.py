"""Drives a `Stage` through the turns of its record, as long as nobody decides otherwise than in the record."""

from __future__ import annotations

import contextlib
import logging
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

from ..bus import Bus
from ..events import (
    EpochBegin,
    EpochEnd,
    Event,
    GradientsReady,
    RunFailed,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainEnd,
)
from ..failures import Failure
from ..requests import Stop
from .cast import Cast, live_parts
from .moments import RecordedEvent, RecordedInterrupt
from .record import Record, Sitting
from .rest import carry_out_rest, close_up_to_its_end, lost, unsettled
from .stage import Cut, Stage, Time
from .turns import Turn

MARK: Final = object()  # in place of a generator: boundaries come when the record says so


class Drive:
    """One replay.

    Attributes:
        stage: the run.
        deciders: the live callbacks, by name.
        ended: how: "recorded" as in the record, "sooner", or "open": it would have gone on where the record ends.
    """

    def __init__(self, record: Record, cast: Cast, changes: Mapping[str, Mapping[str, Any]]) -> None:
        clock = Time()
        self.record = record
        self.bus = Bus(clock=clock)
        self.stage = Stage(record, self.bus, clock)
        self.deciders = dict(zip((role.name for role in cast.roles), cast.enter(self.stage, changes), strict=True))
        self.stage.live = frozenset(self.deciders)
        self.ended = "open"
        self.result: Any = None

    def run(self) -> None:
        """Make it.

        Raises:
            ValueError: a decider does not let the run begin.
        """
        stage = self.stage
        with _quiet():
            error: BaseException | None = None
            try:
                stage.join()
                stage.begin(live_parts(self.deciders.values(), stage.rates), lambda: False)
                self._sittings()
                if self.ended != "open":
                    stage.course.finish()
            except (Exception, RecordedInterrupt) as raised:
                error, self.ended = raised, "recorded" if self._failed_there() else "sooner"
            if not stage.began:
                raise ValueError(f"the run cannot begin so: {error}") from error
            stage.as_recorded = self.ended == "recorded"
            if self.ended == "open":
                self.bus.close(stage.progress.step)
                return
            self.result, _, _ = stage.end(error)

    def failures(self) -> tuple[Failure, ...]:
        """Failures of the deciders that the record does not have."""
        known = Counter(self.record.failures)
        mine = [f for f in self.bus.failures if f.subscription in self.deciders]
        news = []
        for failure in mine:
            place = failure.subscription, failure.event, failure.step
            if not known[place]:
                news.append(failure)
            known[place] -= 1
        return tuple(news)

    def _failed_there(self) -> bool:
        """Whether the recorded run has failed at this turn too."""
        turns = [turn.moment for turn in self.stage.sitting.turns]
        ending = [moment for moment in turns if moment.kind in (RunFailed, TrainEnd)]
        before = turns[-len(ending) - 1 :] if ending else []
        return self.stage.turn is None or self.stage.turn in before

    def _sittings(self) -> None:
        for sitting in self.record.sittings:
            last = sitting is self.record.sittings[-1]
            self.stage.vote.cut = (unsettled if last else lost)(self.stage, sitting)
            if sitting is not self.record.sittings[0]:
                self._resume(sitting)
            with contextlib.suppress(Cut):
                for turn in sitting.turns:
                    if not self._do(turn):
                        return
                if not sitting.ended:
                    carry_out_rest(self.stage, sitting, open_ended=last)
            if not (last and sitting.ended) and self._stopped_anew():
                self.ended = "sooner"
                return
        self.ended = "recorded" if self.record.ended else "open"

    def _stopped_anew(self) -> bool:
        """Whether a stop was granted that the record knows nothing of."""
        stopped = self.stage.stopped
        granted = {(e.who, e.decided) for e in self.record.ledger if (e.request, e.fate) == ("Stop", "granted")}
        return stopped is not None and (stopped.who, self.stage.progress.step) not in granted

    def _resume(self, sitting: Sitting) -> None:
        """The next process goes on; the deciders, whose memory is whole, hear nothing of it."""
        stage = self.stage
        stage.next_sitting(sitting)
        if sitting.reactions or any(turn.moment.kind is EpochBegin for turn in sitting.turns):  # it has gone on
            stage.stopped = stage.position.stopped = None
        stage.moment = sitting.begin
        for control in sitting.begin.replies:
            if control is not None:
                state = stage.progress.snapshot()
                stage.progress.adopt(control, state)
                stage.ledger.file(control, TrainBegin(resumed=True), max(state.step, state.update))
        if stage.over() or (stage.position.completed and not stage.limits.another_epoch(stage.progress.epoch)):
            stage.keep_pending()
        else:
            stage.settle()

    # -- turns ---------------------------------------------------------------------------------------------------------

    def _do(self, turn: Turn) -> bool:
        """Make one turn; False if the run has ended before it."""
        act = _ACTS.get(turn.moment.kind, Drive._published)
        return act(self, turn)

    def _before(self, turn: Turn) -> bool:
        """The boundary before a turn; False if nobody may go on behind it."""
        if turn.boundary:
            self.stage.course.boundary()
        return turn.over or not self.stage.over()

    def _epoch_begin(self, turn: Turn) -> bool:
        course = self.stage.course
        if self.stage.over() and not turn.over:
            self.ended = "sooner"
            return False
        self.stage.turn = turn.moment
        course.open_epoch("epochs")
        course.drawing.add(MARK)
        self.stage.position.resumed_at = None
        return True

    def _step_begin(self, turn: Turn) -> bool:
        if not self._before(turn):
            self._leave()
            return False
        self.stage.turn = turn.moment
        self.stage.course.open_update()
        return True

    def _leave(self) -> None:
        """A stop has come between two updates."""
        self.stage.course.exhausted = False
        self.ended = "sooner"
        self.stage.turn = None
        self.stage.course.close_epoch()

    def _gradients_ready(self, turn: Turn) -> bool:
        stage = self.stage
        stage.turn = turn.moment
        ready = stage.tell(turn.moment.event)
        asked = {who for who, *_ in turn.moment.asks("SkipUpdate")}
        now = {reply.who for reply in ready.requests if type(reply.request).__name__ == "SkipUpdate"}
        for who in sorted(now - asked):
            stage.note(f"update {turn.moment.step + 1} if it is skipped, as {who} asks: it was made")
        for who in sorted(asked - now):
            stage.note(f"update {turn.moment.step + 1} if it is made: it was skipped, as {who} asked")
        return True

    def _step_end(self, turn: Turn) -> bool:
        self.stage.turn = turn.moment
        self.stage.course.end_update(skipped=turn.moment.event.skipped)  # type: ignore[attr-defined]  # a StepEnd
        return True

    def _epoch_end(self, turn: Turn) -> bool:
        course = self.stage.course
        if not self._before(turn):
            self._leave()
            return False
        completed = turn.moment.event.completed  # type: ignore[attr-defined]  # an EpochEnd
        if turn.over and not completed and not self.stage.over() and not self._stopping():
            return False  # it was left because of a stop that is none here
        course.exhausted = completed
        self.stage.turn = turn.moment
        course.close_epoch(leaving=turn.leaving)
        return True

    def _stopping(self) -> bool:
        return any(isinstance(asked.request, Stop) for asked in self.stage.ledger.pending)

    def _published(self, turn: Turn) -> bool:
        """An event that the body has published."""
        if not self._before(turn):
            self._leave()
            return False
        self.stage.turn = turn.moment
        self.stage.publish(turn.moment.event)
        return True

    def _run_failed(self, turn: Turn) -> bool:
        self.stage.turn = turn.moment
        if turn.finishing:
            self.stage.course.finish()
        if not self._before_the_end(turn):
            return False
        raise turn.moment.event.error  # type: ignore[attr-defined]  # a RunFailed

    def _train_end(self, turn: Turn) -> bool:
        stage, status = self.stage, turn.moment.event.status  # type: ignore[attr-defined]  # a TrainEnd
        if status == "interrupted":
            if not self._before_the_end(turn):
                return False
            stage.turn = turn.moment
            raise RecordedInterrupt
        ended_so = stage.over() or turn.finishing or not stage.limits.another_epoch(stage.progress.epoch)
        if status in ("stopped", "preempted") and not ended_so:
            return False  # somebody had stopped it, and nobody does here
        stage.turn = turn.moment
        return True

    def _before_the_end(self, turn: Turn) -> bool:
        """The boundary before an error; False if a stop has kept the run from it."""
        if turn.closing:
            close_up_to_its_end(self.stage, turn.closing)
        if turn.boundary and self.stage.course.epoch_open:
            self.stage.course.boundary()
            if self.stage.over() and not turn.over:
                step = self.stage.progress.step
                self.stage.note(f"whether the stop of update {step} or the error that came there was first")
                self._leave()
                return False
        return True


_ACTS: Final[Mapping[type[Event], Callable[[Drive, Turn], bool]]] = {
    EpochBegin: Drive._epoch_begin,
    StepBegin: Drive._step_begin,
    GradientsReady: Drive._gradients_ready,
    StepEnd: Drive._step_end,
    EpochEnd: Drive._epoch_end,
    RunFailed: Drive._run_failed,
    TrainEnd: Drive._train_end,
    RecordedEvent: Drive._published,
}


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """What handlers say in a replay was said in the run."""
    log = logging.getLogger("eventloop")
    was, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = was
