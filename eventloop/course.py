"""The course of a run: epochs and updates, each begin with its end, and the boundary between two turns of the body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from .budget import Budget
from .evaluation import batch_size
from .events import EpochBegin, EpochEnd, GradientsReady, StepBegin, StepEnd
from .fold import NOTHING
from .limits import sized
from .progress import EPOCH, SAMPLES, TOTAL
from .rng import RandomStates
from .run import Run
from .source import END, Reading, Source
from .window import Window

B = TypeVar("B")
STEP_BEGIN, GRADIENTS_READY = StepBegin(), GradientsReady()  # without a field, so nobody can spoil them for others


class Course:
    """What is open in this run, and how it is opened and closed.

    Args:
        run: what may be told and carried out.
        window: the gradients of the update in hand.
        eval_every: "epoch", a number of updates, or None.
        budget: looks at the handlers' share of step time.
        random: the random states that a resume puts back.
    """

    def __init__(
        self, run: Run, window: Window, eval_every: int | str | None, budget: Budget, random: RandomStates | None = None
    ) -> None:
        self.run, self.window, self.random = run, window, random or RandomStates()
        self.progress, self._source = run.progress, Source(run.position, self.random)
        self.epoch_open = False
        self.exhausted = False  # the epoch's loader has given all it has
        self.last = False  # the batch in hand is the loader's last
        self.waiting = False  # an update was asked for while its window was not full
        self.drawing: set[object] = set()  # generators over batches or updates of this epoch that the body has not left
        self.undone = 0  # batches drawn since the last update
        self.worked = False  # an epoch was opened in this sitting
        self.on_first_update: Callable[[], None] | None = None  # called once the next update has begun
        self._planned = False
        self._drawn = self._updated = 0  # of this epoch
        self._opener = ""  # "epochs", a "generator" outside of it, or a "call"
        self._fetched = False  # a generator has run in this epoch
        self._eval_every, self._budget = eval_every, budget

    def another_epoch(self) -> bool:
        """Whether one may begin, or go on where a checkpoint was made."""
        if self.run.over() and not self.run.owes_evaluation():
            return False
        resuming = self.run.position.resumed_at is not None
        return resuming or self.run.limits.another_epoch(self.progress.epoch)

    def open_epoch(self, opener: str) -> None:
        """The next epoch, or the one in which a resumed run stands."""
        if not self.worked:
            self._budget.start()
        position = self.run.position
        if position.resumed_at is None:
            self.progress.fields[EPOCH] += 1
            position.batches = []
        self._source.begin_epoch()
        position.completed = False
        self.epoch_open, self.exhausted, self.worked = True, False, True
        self._drawn = self._updated = 0
        self._opener, self._fetched = opener, False
        self.run.tell(EpochBegin())

    def leave_epoch(self) -> None:
        """`Loop.epochs` goes on: the body is done with its epoch."""
        if self.epoch_open:
            if not self._fetched:
                self._end_own_batches()
            self.close_epoch()

    def _end_own_batches(self) -> None:
        """The body, which has drawn batches of its own, has come to their end."""
        self.exhausted = self.run.stopped is None
        if self.waiting and not self.run.over():
            self.make_update()

    def close_epoch(self, *, leaving: bool = False) -> None:
        """The evaluation if it is due, then epoch_end, then what was asked for at either.

        Args:
            leaving: no epoch follows, so this one has the run's last evaluation.

        Raises:
            RuntimeError: batches were drawn and no update was made of them.
        """
        run, completed, step = self.run, self.exhausted, self.progress.step
        self.drawing.clear()  # whoever still holds a generator of this epoch holds one of an earlier epoch
        self.drop_abandoned()
        if completed and self._drawn and not self._updated and not run.over():
            raise RuntimeError(
                f"epoch {self.progress.epoch} drew {self._drawn} batches and made no update: call loop.backward(loss) "
                f"and loop.update(), or loop.step_end(loss=loss) after an update of your own"
            )
        run.settle(saves=False)
        run.position.epochs_done = self.progress.epoch - (not completed)  # min_epochs is met from its evaluation on
        last = leaving or run.over() or not run.limits.another_epoch(self.progress.epoch)
        if step and (last or self._eval_every == "epoch" or self._eval_due()):
            run.evaluate()
            completed = completed and (run.position.evaluated_at == step or not run.preempted)
        run.settle(saves=False)  # a save waits, so that the checkpoint is of an epoch that has ended
        self.epoch_open, run.position.resumed_at = False, None
        run.position.completed = completed or not (leaving or run.over())  # else a resumed run goes on in this epoch
        run.tell(EpochEnd(completed))
        run.settle()

    def plan(self, loader: object) -> None:
        """Learn from the first loader how many updates there will be; what a checkpoint tells is of another plan."""
        if not self._planned or self.progress.fields[TOTAL] is None:
            self._planned = True
            self.progress.fields[TOTAL] = self.run.limits.total(loader, self.window.accumulate)

    def boundary(self) -> None:
        """Between two turns of the body."""
        if self._eval_due():
            self.run.evaluate()
        self.run.settle()

    def _eval_due(self) -> bool:
        every = self._eval_every
        if not isinstance(every, int):
            return False
        return self.progress.step // every > max(self.run.position.evaluated_at, 0) // every

    def open_update(self) -> None:
        """The next update is in hand, unless one is."""
        if self.window.open:
            return  # between micro-batches, or the body said `continue`
        if not self.epoch_open:  # a loop of the user's own: all of it is one epoch
            self.plan(None)
            self.open_epoch("call")
        self.window.open = True
        self.window.micro = 0
        self.progress.begin_update()
        self.run.tell(STEP_BEGIN)
        if self.on_first_update is not None:
            call, self.on_first_update = self.on_first_update, None
            call()

    def make_update(self) -> None:
        """Use the window's gradients, unless a handler asks to skip the update."""
        norm = self.window.gradients()
        if norm is not None:
            self.progress.report({"grad_norm": norm})
        ready = self.run.tell(GRADIENTS_READY)
        if ready is NOTHING or ready.skip is None:
            self.end_update(skipped=not self.window.step())
        else:
            self.window.drop()
            self.end_update(skipped=True)

    def end_update(self, *, skipped: bool) -> None:
        """The update in hand is done, or was skipped. Requests are carried out here if no generator will do it."""
        self._close_update(skipped)
        self._updated += 1
        self.run.tell(StepEnd(skipped))
        self._budget.check(self.progress.step)
        if not self.drawing:
            self.boundary()

    def _close_update(self, skipped: bool) -> None:
        self.progress.end_update(skipped)
        self.window.open, self.window.micro, self.undone = False, 0, 0
        self.last = self.waiting = False

    def drop_abandoned(self) -> None:
        """End the update that a break or a stop has left open; its gradients would leak into the next."""
        if self.window.open and not self.drawing:
            self.window.drop()
            self._close_update(skipped=True)
            self.run.tell(StepEnd(skipped=True))

    def finish(self) -> None:
        """Close what is open; then the last evaluation and the last save, each once, if anything was done here."""
        if self.epoch_open:
            if self._opener == "call":
                self._end_own_batches()
            self.close_epoch(leaving=True)
        if self.worked and self.progress.step:
            self.run.evaluate()
            self.run.settle()
            self.run.save_last()
            self.run.settle()

    def one_epoch(self, draw: Callable[[], Iterator[B]], loader: object) -> Iterator[B]:
        """What ``draw`` gives, in the epoch that is open, else in one of its own."""
        if self._opener == "generator" and self.epoch_open and not self.drawing:
            self.close_epoch()  # the body broke out of it, and this is the next
        own = not self.epoch_open
        if own:
            if not self.another_epoch():
                return
            self.plan(loader)
            self.open_epoch("generator")
        self.drop_abandoned()
        self._fetched, me = True, object()
        self.drawing.add(me)
        try:
            yield from draw()
        finally:
            self.drawing.discard(me)
        if own:
            self.close_epoch()

    def number(self) -> Iterator[int]:
        """The numbers of updates; see `Loop.updates`."""
        while True:
            if not self.window.open:
                self.boundary()
                if self.run.over():
                    break
            self.open_update()
            yield self.progress.step + 1
        self.exhausted = self.run.stopped is None

    def draw(self, loader: Iterable[B]) -> Iterator[B]:
        """The batches of one loader; see `Loop.batches`."""
        self.plan(loader)
        reading = self._source.open(loader, self.progress.epoch, saves=self.run.folder is not None)
        try:
            yield from self._turns(reading, sized(loader))
        finally:
            reading.leave()

    def _turns(self, reading: Reading[B], length: int | None) -> Iterator[B]:
        epoch, self.exhausted = self.progress.epoch, reading.over
        if reading.over:  # before the checkpoint
            return
        while True:
            if self.progress.epoch != epoch or not self.epoch_open:
                raise RuntimeError(f"this iterator is of epoch {epoch}; call loop.batches(loader) again")
            if reading.drawn == length and not self.window.open:
                reading.peek()  # a length may be wrong
            if not self.window.open:
                if not reading.at_end:  # at a known end the epoch's own boundary comes
                    self.boundary()
                if self.run.over():
                    self.exhausted = reading.at_end and reading.take() is END
                    return
            had, batch = reading.drawn, reading.take()
            if batch is END:
                break
            if self.window.micro + 1 < self.window.accumulate:  # the short window at the end must know that it is one
                self.last = reading.peek() is END
            self.open_update()
            self._drawn += 1
            self.undone += 1
            self.progress.fields[SAMPLES] += batch_size(batch)
            yield batch
        if self.waiting:  # the body passed over the last batches: the short window is an update all the same
            self.make_update()
        self.exhausted = True
        if not had:
            raise ValueError(f"the loader gave no batch in epoch {epoch} (a generator can be read once; pass a loader)")
