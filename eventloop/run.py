"""One run: telling the bus what happens, and carrying out what is asked. `Loop` decides when."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import wait
from typing import Any

from .bus import Bus
from .checkpoint import Saving
from .deaf import waited_in_vain
from .errors import ReplyError, told
from .evaluation import Evaluation
from .events import (
    CheckpointSaved,
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
from .progress import EVALS, Progress
from .requests import Keep, Request, Save
from .result import Result, best_of, counts, summaries_of
from .subscription import Handle
from .telling import Teller
from .verdict import still_stands, verdict


class Run(Teller):
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
        self.skips = False  # a save that may be left out is, while another is being written
        self.position = Position()
        self.saved_at: tuple[int, int] | None = None  # step and evaluations
        self.saving: Saving | None = None  # on its way to the disk, or there, and not yet told of
        self._saving_for: list[Asked] = []
        self._savers: set[str] = set()  # who has asked for a save in this run
        self._obeys: dict[type[Request], Callable[[Any], object]] = {}
        self._step_before = 0  # of the sitting
        self.evaluating = self._given_up = False
        self._deadline: float | None = None  # when the process will be killed
        self._writes: Handle | None = None  # the journal's place on the bus

    # -- carrying out (see `ledger.Acts`) ------------------------------------------------------------------------------

    def settle(self, *, saves: bool = True) -> None:
        """Tell of a save that has ended by now, and carry out what is pending."""
        if self.saving is not None and self.saving.done():
            self._landed()
        if self.ledger.pending:
            self.ledger.carry_out(self, self.progress.step, saves=saves)

    def over(self) -> bool:
        """Whether no further update may begin."""
        return self.stopped is not None or self.limits.reached(self.progress.step)

    def owes_evaluation(self) -> bool:
        """Whether the checkpoint that the run goes on from was made between its last update and its last evaluation."""
        position, step = self.position, self.progress.step
        cut_short = position.resumed_at is not None and self.evaluation.function is not None
        return cut_short and step > 0 and position.evaluated_at != step

    def stop(self, asked: Asked) -> str | None:
        """Grant a stop, unless a minimum is not met; one that comes from outside waits for none."""
        if asked.within is not None:
            self._deadline = min(self._deadline or math.inf, time.monotonic() + asked.within)
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
        return self._deadline is not None or any(asked.within is not None for asked in self.ledger.pending)

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

    def save(self, asked: list[Asked]) -> str | None:
        """Take the state for all that asked, and have it written; a failure follows the policy of those who asked."""
        if self.folder is None:
            return "the loop has no run_dir"
        if self._deadline is not None and (why := self._no_time()):
            return why
        if self.saving is not None:
            if self.skips and not self.saving.done() and all(a.request.may_skip for a in asked):  # type: ignore[attr-defined]  # Saves
                return "another save was being written"
            self.finish_saving()
        state = self.progress.snapshot()
        step, tags = state.step, self._tags(asked)
        metrics = {key: state.metrics[key] for key in state.metrics.fresh}
        try:
            self.saving, self._saving_for = self.folder.save(step, tags, metrics), asked
        except Exception as error:
            return self._save_failed(asked, step, error)
        self.saved_at = (step, state.evals)
        return self._land() if self.saving.done() else None

    def _no_time(self) -> str:
        """Why a save would not be done before the process is killed, by the slowest of the last ones; else nothing."""
        left = (self._deadline or math.inf) - time.monotonic()
        needed = self.folder.checkpoints.estimate() if self.folder is not None else None
        if needed is None or needed <= left:
            return ""
        return f"it takes about {needed:.1f} s and the process ends in {max(left, 0):.1f} s"

    def finish_saving(self) -> None:
        """Wait until the save on its way has ended, and say how.

        Raises:
            Exception: it failed, and those who asked for it have the policy ``raise``.
        """
        if self.saving is not None:
            wait([self.saving.future])
            self._landed()
            self.ledger.carry_out_keeps(self)  # by what was wanted before, it might be removed by the next one

    def _landed(self) -> None:
        """A save has ended behind the boundary at which it was asked for: that it failed is a second line."""
        asked, why = self._saving_for, None
        try:
            why = self._land()
        except Exception as error:
            why = told(error)
            raise
        finally:
            for a in asked if why is not None else ():
                self.ledger.settle_one(a, "refused", self.progress.step, why or "")

    def _land(self) -> str | None:
        saving, asked, self.saving, self._saving_for = self.saving, self._saving_for, None, []
        try:
            checkpoint = saving.result()  # type: ignore[union-attr]  # there is one
        except Exception as error:
            self.saved_at = None
            return self._save_failed(asked, saving.step, error)  # type: ignore[union-attr]  # the same
        seconds = saving.seconds  # type: ignore[union-attr]  # the same
        self.tell(CheckpointSaved(str(checkpoint.path), checkpoint.step, checkpoint.tags, seconds))
        return None

    def _tags(self, asked: list[Asked]) -> dict[str, set[str]]:
        """Who asks, under the name that stays the same when callbacks change places, and under which tags."""
        tags: dict[str, set[str]] = {}
        for a in asked:
            if isinstance(a.request, Save):
                tags.setdefault(self.bus.key_of(a.who), set()).add(a.request.tag)
        self._savers |= {a.who for a in asked} - {"Loop"}
        return tags

    def _save_failed(self, asked: list[Asked], step: int, error: Exception) -> str:
        """By the policy of those who asked; of the savers of this run, where it is the loop's own last save."""
        names = {a.who for a in asked} - {"Loop"} or self._savers
        askers = [who for name in sorted(names) if (who := self.bus.find(name)) is not None]
        state = self.progress.snapshot()
        for who in askers:
            told_so = self.bus.fail(who, CheckpointSaved(step=step), state, error)
            others = [reply for reply in told_so.requests if not isinstance(reply.request, Save)]  # it would fail again
            self.ledger.file(Control(others), HandlerFailed(who.name), state.step)
        if not askers or any(who.failure == "raise" for who in askers):
            by = ", ".join(who.name for who in askers) or "the loop"
            error.add_note(f"while saving the checkpoint of step {step}, asked for by {by}")
            raise error
        return told(error)

    def keep(self, asked: Asked) -> None:
        """Note which checkpoints a saver wants."""
        if self.folder is not None:
            wish: Keep = asked.request  # type: ignore[assignment]  # the ledger's promise
            self.folder.checkpoints.keep(self.bus.key_of(asked.who), wish.steps, make_room=wish.make_room)

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
            self.ledger.carry_out_keeps(self)
            logger().warning(f"nothing left to do after update {self.progress.step}: {self.nothing_left}")
        else:
            self.settle()

    def _why_nothing(self) -> str:
        if self.stopped is not None:
            return f"{self.stopped.who} has stopped this run"
        return f"max_steps={self.limits.max_steps}, max_epochs={self.limits.max_epochs}"

    def save_last(self) -> None:
        """The last save, if the last update or its evaluation came after the one before."""
        self.finish_saving()
        if self.folder is not None and self.saved_at != (self.progress.step, self.progress.fields[EVALS]):
            asked = Asked("Loop", Save("last", may_skip=False), "train_end", self.progress.step)
            if why := self.save([asked]):
                self.ledger.settle_one(asked, "refused", self.progress.step, why)
            self.finish_saving()
        self.settle()

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

    def _drain(self) -> Control:
        """After an error no checkpoint is told of any more; one that could not be written is."""
        if self.saving is not None:
            wait([self.saving.future])
            failed = self.saving.future.exception()
            if failed is not None:
                for who in {a.who for a in self._saving_for}:
                    self.bus.record(Failure(who, CheckpointSaved.name, self.saving.step, failed))
                logger().warning(f"the checkpoint of step {self.saving.step} was not written: {told(failed)}")
            self.saving = None
        return NOTHING

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
