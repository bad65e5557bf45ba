"""One run: telling the bus what happens, and carrying out what is asked. `Loop` decides when."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from typing import Any

from .bus import Bus
from .deaf import waited_in_vain
from .errors import ReplyError
from .evaluation import Evaluation
from .events import (
    EvalBegin,
    EvalEnd,
    EvalStep,
    HandlerFailed,
    RunFailed,
    TrainBegin,
    TrainEnd,
)
from .failures import Failure
from .fold import NOTHING, Control
from .folder import Folder
from .ledger import Asked, Ledger
from .limits import Limits
from .log import logger
from .metrics import cells
from .parts import Position
from .progress import Progress
from .requests import Request
from .result import Result, best_of, counts, summaries_of
from .saving import Saver
from .subscription import Handle
from .verdict import still_stands, verdict


class Run(Saver):
    """The bus, the counters, the ledger and the run folder of one run, and what may be done with them."""

    def __init__(
        self,
        bus: Bus,
        progress: Progress,
        ledger: Ledger,
        evaluation: Evaluation,
        limits: Limits,
        folder: Folder | None,
    ) -> None:
        super().__init__(bus, progress, ledger, folder)
        self.evaluation, self.limits = evaluation, limits
        self.stopped: Asked | None = None
        self.nothing_left = ""  # why, in a run that has ended before
        self.began = False  # train_begin was published, so train_end will be
        self.position = Position()
        self._obeys: dict[type[Request], Callable[[Any], object]] = {}
        self._step_before = 0  # of the sitting
        self.evaluating = self._given_up = False
        self._writes: Handle | None = None  # the journal's place on the bus

    # -- carrying out (see `ledger.Acts`) ------------------------------------------------------------------------------

    def settle(self, *, saves: bool = True) -> None:
        """Tell of a save that has ended by now, and carry out what is pending."""
        if self.saving is not None and self.saving.done():
            self.landed()
        if self.ledger.pending:
            self.ledger.carry_out(self, self.progress.step, saves=saves)

    def over(self) -> bool:
        """Whether no further update may begin."""
        return self.stopped is not None or self.limits.reached(self.progress.step) or self._beyond()

    def _beyond(self) -> bool:
        """Whether the checkpoint that the run goes on from is of an epoch that ``max_epochs`` now leaves out."""
        return not self.limits.another_epoch(self.progress.epoch - 1)

    def owes_evaluation(self) -> bool:
        """Whether the checkpoint that the run goes on from was made between its last update and its last evaluation."""
        position, step = self.position, self.progress.step
        cut_short = position.resumed_at is not None and self.evaluation.function is not None
        return cut_short and step > 0 and position.evaluated_at != step and not self._beyond()

    def stop(self, asked: Asked) -> str | None:
        """Grant a stop, unless a minimum is not met; one that comes from outside waits for none."""
        if asked.within is not None:
            self.deadline = min(self.deadline or math.inf, time.monotonic() + asked.within)
            self.stopped = self.stopped or asked
            return None
        why = self.limits.too_early(self.progress.step, self.position.epochs_done)
        if why is None and (self.stopped is None or self.stopped.within is not None):
            self.stopped, self.position.stopped = asked, verdict(asked, self.bus, self.limits)
            self.saved_at = None  # no checkpoint tells of it yet
        return why

    @property
    def preempted(self) -> bool:
        """Whether the process will be killed: it was said by a stop, which may still be pending."""
        return self.deadline is not None or any(asked.within is not None for asked in self.ledger.pending)

    def evaluate(self) -> str | None:
        """Evaluate, at most once an update."""
        step = self.progress.step
        if self.evaluation.function is None:
            return "the loop was given no evaluate="
        if self.position.evaluated_at == step:
            return None  # granted by that evaluation
        if self.preempted:
            return "the process is about to end"
        before, self.position.evaluated_at = self.position.evaluated_at, step
        self.tell(EvalBegin())
        metrics = self._evaluate()
        if metrics is None:
            self.position.evaluated_at = before
            self.progress.forget_fresh()
            self.tell(EvalEnd(completed=False))
            return "the process is about to end"
        good, bad = cells(metrics, step)
        self.progress.end_evaluation(good)
        for sentence in bad.values():
            error = ReplyError(f"evaluate() returned: {sentence}")
            self.bus.record(Failure("evaluate", EvalEnd.name, step, error))
            self.tell(HandlerFailed("evaluate", EvalEnd(), error))
        if not good and not bad:
            logger().warning(f"the evaluation at step {step} returned no metric")
        self.tell(EvalEnd())
        return None

    def _evaluate(self) -> Mapping[str, Any] | None:
        """What the user's evaluation gives; None if it was given up, whatever it gave or raised then."""
        self.evaluating = True
        try:
            metrics = self.evaluation.run()
        except Exception:
            if not self.preempted:
                raise
            return None
        finally:
            self.evaluating = False
        return None if self._given_up else metrics

    def go_on_evaluating(self, batch: int, total: int | None) -> bool:
        """Tell of a batch of the evaluation; False if that is to end here."""
        self.tell(EvalStep(batch, total))
        self._given_up = self.preempted
        return not self._given_up

    def obey(self, asked: Asked) -> str | None:
        """Hand a user's request to the function registered for its class."""
        for kind in type(asked.request).__mro__:
            if kind in self._obeys:
                self._obeys[kind](asked.request)
                return None
        return f"nobody carries out {asked.kind}; register a function with loop.carry_out({asked.kind}, function)"

    def carry_out(self, kind: type[Request], function: Callable[[Any], object]) -> None:
        """Register who obeys a request class.

        Raises:
            TypeError: no Request class, one of the built-in ones, or nothing to call.
        """
        if not (isinstance(kind, type) and issubclass(kind, Request)) or kind.__module__ == Request.__module__:
            raise TypeError(f"carry_out takes a Request class of your own, not {kind!r}")
        if not callable(function):
            raise TypeError(f"carry_out({kind.__name__}, {function!r}): the second argument cannot be called")
        self._obeys[kind] = function

    def parts(self) -> dict[str, Any]:
        """What a checkpoint holds of the run itself."""
        return {"progress": self.progress, "position": self.position, "ledger": self.ledger, "bus": self.bus}

    # -- beginning and end ---------------------------------------------------------------------------------------------

    def join(self) -> None:
        """From here on the bus is this run's, and the journal is on it.

        Raises:
            RuntimeError: the bus is in the run of another loop.
        """
        if self.bus.run is not None:
            raise RuntimeError("this bus is in the run of another Loop, which has not ended; give each its own Bus")
        self.bus.run = self
        if self.folder is not None and self.folder.journal is not None:
            self._writes = self.bus.attach(self.folder.journal)

    @property
    def callbacks(self) -> list[tuple[str, Any]]:
        """What the user has attached, by name: all but the journal."""
        journal = None if self.folder is None else self.folder.journal
        return [(name, thing) for name, thing in self.bus.objects if thing is not journal]

    def begin(self, live: Mapping[str, Any], load: Callable[[], bool]) -> None:
        """Bind the callbacks, load a checkpoint if there is one to go on from, and say that the run begins."""
        self.bus.bind(**live)
        resumed = load()
        self.stopped = still_stands(self.position.stopped, self.bus, self.limits)
        if self.stopped is None:
            self.position.stopped = None
        self.began, self._step_before = True, self.progress.step
        at_end = self.over() or (not self.limits.another_epoch(self.progress.epoch) and self.position.completed)
        nothing_left = at_end and not self.owes_evaluation()
        control = self.tell_quietly(TrainBegin(resumed=resumed))
        control.raise_failures()
        self.nothing_left = self._why_nothing() if nothing_left else ""
        if nothing_left:  # whatever else was asked for expires: no evaluation, no save
            self.ledger.carry_out_keeps(self.keep)
            logger().warning(f"nothing left to do after update {self.progress.step}: {self.nothing_left}")
        else:
            self.settle()

    def _why_nothing(self) -> str:
        if self.stopped is not None:
            return f"{self.stopped.who} has stopped this run"
        return f"max_steps={self.limits.max_steps}, max_epochs={self.limits.max_epochs}"

    def end(self, error: BaseException | None) -> tuple[Result, Control, BaseException | None]:
        """Say that the run is over and close everything.

        Returns:
            How it ended, what train_end's handlers answered, and what interrupted the closing.
        """
        stop = self.stopped if error is None else None
        status = _status(error) if stop is None else "stopped" if stop.within is None else "preempted"
        reason = getattr(stop.request, "reason", "") if stop else _text(error)
        control = NOTHING
        interrupt: BaseException | None = None
        closing = (lambda: self.bus.close(self.progress.step)) if self.bus.run in (self, None) else (lambda: None)
        for part in (self._drain, lambda: self._say_end(error, status, reason), closing):
            try:
                control = part() or control
            except BaseException as late:  # an interrupt ends a handler, not the closing
                interrupt = interrupt or late
        if self._writes is not None:  # the next run on this bus has a journal of its own
            self._writes.cancel()
        if self.bus.run is self:
            self.bus.run = None
        if self.folder is not None:
            self.folder.close()
        self._drain()  # once more, for an interrupt may have kept it from waiting
        return self._result(status, stop.who if stop else None, reason, error), control, interrupt

    def _say_end(self, error: BaseException | None, status: str, reason: str) -> Control:
        if not self.began:
            return NOTHING
        if isinstance(error, Exception):
            self.tell_quietly(RunFailed(error))
        elif error is None and not self.preempted and self.progress.step > self._step_before:
            for sentence in waited_in_vain(self.bus, self.told):
                logger().warning(sentence)
        self.ledger.expire(self.progress.step)
        return self.tell_quietly(TrainEnd(status, reason))

    def _result(self, status: str, by: str | None, reason: str, error: BaseException | None) -> Result:
        state, failures = self.progress.snapshot(), self.bus.failures
        summaries = summaries_of(
            self.bus.objects, lambda name, error: self.bus.record(Failure(name, "summary", state.step, error))
        )
        return Result(
            status=status,
            stopped_by=by,
            reason=reason,
            step=state.step,
            epoch=state.epoch,
            total=state.total,
            best=best_of(summaries),
            failures=tuple(failures),
            failure_counts=counts(failures.counts),
            refused=tuple(self.ledger.of("refused")),
            ledger=tuple(self.ledger),
            error=error,
        )


def _text(error: BaseException | None) -> str:
    try:
        return "" if error is None else str(error)
    except Exception:  # an error that cannot be printed is no reason for another
        return type(error).__name__


def _status(error: BaseException | None) -> str:
    if error is None:
        return "completed"
    return "failed" if isinstance(error, Exception) else "interrupted"
