"""The course of a run: epochs and updates, each begin with its end, and the boundary between two turns of the body."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final, TypeVar

from .budget import Budget
from .evaluation import batch_size
from .events import EpochBegin, EpochEnd, GradientsReady, StepBegin, StepEnd
from .fold import NOTHING
from .limits import sized
from .log import logger
from .progress import EPOCH, SAMPLES, TOTAL
from .rng import RandomStates, samplers
from .run import Run
from .window import Window

B = TypeVar("B")
END: Final[Any] = object()
STEP_BEGIN, GRADIENTS_READY = StepBegin(), GradientsReady()  # without a field, so nobody can spoil them for others
UNREAD: Final[Any] = object()


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
        self.progress = run.progress
        self.epoch_open = False
        self.exhausted = False  # the epoch's loader has given all it has
        self.last = False  # the batch in hand is the loader's last
        self.waiting = False  # an update was asked for while its window was not full
        self.drawing: set[object] = set()  # generators over batches or updates of this epoch that the body has not left
        self.undone = 0  # batches drawn since the last update
        self.worked = False  # an epoch was opened in this sitting
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
            position.batch = 0
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
        run, completed = self.run, self.exhausted
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
        if self.progress.step and (last or self._eval_every == "epoch" or self._eval_due()):
            run.evaluate()
        run.settle(saves=False)  # a save waits, so that the checkpoint is of an epoch that has ended
        self.epoch_open, run.position.resumed_at = False, None
        run.position.completed = completed or not (leaving or run.over())  # else a resumed run goes on in this epoch
        run.tell(EpochEnd(completed))
        run.settle()

    def _source(self, loader: Iterable[B]) -> tuple[Iterator[B], int]:
        """The loader's iterator, wound forward to where a resumed run stands, and how many batches it has given."""
        for sampler in samplers(loader):
            if hasattr(sampler, "set_epoch"):
                sampler.set_epoch(self.progress.epoch - 1)
        self.plan(loader)
        position, skip = self.run.position, self.run.position.resumed_at
        position.resumed_at = None
        if skip is None:
            self.random.begin_epoch(loader)
            return iter(loader), 0
        with self.random.rewound(loader):
            source = iter(loader)
            passed = sum(1 for _ in zip(range(skip), source, strict=False))
        logger().warning(f"wound the loader forward over {passed} batches of epoch {self.progress.epoch}")
        if passed < skip:
            logger().warning(f"{skip} were made before the checkpoint: the loader is another one, and data is left out")
        return source, skip

    def plan(self, loader: object) -> None:
        """Learn from the first loader how many updates there will be."""
        if self.progress.fields[TOTAL] is None:
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
        epoch = self.progress.epoch
        source, drawn = self._source(loader)
        length, following = sized(loader), UNREAD
        self.exhausted = False
        while True:
            if self.progress.epoch != epoch or not self.epoch_open:
                raise RuntimeError(f"this iterator is of epoch {epoch}; call loop.batches(loader) again")
            if drawn == length and following is UNREAD and not self.window.open:
                following = next(source, END)  # a length may be wrong
            at_end = following is END
            if not self.window.open:
                if not at_end:  # at a known end the epoch's own boundary comes
                    self.boundary()
                if self.run.over():
                    self.exhausted = at_end
                    return
            batch, following = next(source, END) if following is UNREAD else following, UNREAD
            if batch is END:
                break
            if self.window.micro + 1 < self.window.accumulate:  # the short window at the end must know that it is one
                following = next(source, END)
                self.last = following is END
            self.open_update()
            drawn = self.run.position.batch = drawn + 1
            self._drawn += 1
            self.undone += 1
            self.progress.fields[SAMPLES] += batch_size(batch)
            yield batch
        if self.waiting:  # the body passed over the last batches: the short window is an update all the same
            self.make_update()
        self.exhausted = True
        if not drawn:
            raise ValueError(f"the loader gave no batch in epoch {epoch} (a generator can be read once; pass a loader)")
