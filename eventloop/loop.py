"""`Loop`: your loop keeps its shape and gains four calls."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

from .budget import Budget
from .bus import Bus
from .evaluation import Evaluation, batch_size, mean_over
from .events import EpochBegin, EpochEnd, GradientsReady, StepBegin, StepEnd
from .fold import Control
from .folder import Folder
from .ledger import Ledger
from .limits import Limits, whole
from .log import logger
from .parts import Optimizers, unwrap
from .progress import EPOCH, MICRO, SAMPLES, TOTAL, Groups, Progress
from .ranks import Alone
from .requests import Request
from .result import Result
from .rng import RandomStates, restore
from .run import Run
from .state import TrainState
from .window import Window

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

B = TypeVar("B")
END: Final[Any] = object()


class Loop:
    """Publishes what your training loop does, and carries out what the handlers ask.

    Use it as a context manager around `epochs` and `batches` (or `updates`) with `backward` and `update` (or your own
    update and `step_end`). break, continue, return and an exception in the body are legal: every begin that was
    published has its end, exceptions apart, and everything is closed. Without ``run_dir`` it writes no file; it prints
    nothing, installs no signal handler and starts no thread.

    Args:
        model: the module to train; wrappers (DDP, torch.compile) are looked through in checkpoints.
        optimizer: one, or a mapping of names to several; the names become those of their parameter groups.
        run_dir: where the journal, the checkpoints and the callbacks' files go.
        max_epochs: epochs to make, None for no limit.
        max_steps: updates to make, None for no limit; the first limit reached ends the run.
        min_epochs: before so many epochs a Stop is refused.
        min_steps: before so many updates a Stop is refused.
        accumulate: micro-batches an update; a short window at an epoch's end is an update of its own.
        scaler: a ``torch.amp.GradScaler``; an update that it skips advances nothing.
        clip_norm: the largest total gradient norm; the norm is reported as ``grad_norm``.
        evaluate: takes no argument, returns metrics; run in eval mode without gradients and without a trace in the
            random states.
        eval_every: "epoch", a number of updates, or None: only when asked for. Once more at the end in any case.
        callbacks: attached in this order.
        bus: your own, else a new one.
        bind: further live objects for the callbacks' ``bind``.
        handler_budget: the share of step time above which a handler is named in a warning, once; None for never.
        resume: None, "auto" (the newest whole checkpoint of ``run_dir``), a checkpoint's path or a step.
        overwrite: move another run in ``run_dir`` aside instead of refusing.

    Raises:
        ValueError: an argument is out of range; the message names it and its value.
        FileExistsError: ``run_dir`` holds another run.
        CheckpointError: the checkpoint to resume does not exist or is damaged.
    """

    def __init__(
        self,
        model: Module,
        optimizer: Optimizer | Mapping[str, Optimizer],
        *,
        run_dir: str | Path | None = None,
        max_epochs: int | None = None,
        max_steps: int | None = None,
        min_epochs: int = 0,
        min_steps: int = 0,
        accumulate: int = 1,
        scaler: Any = None,
        clip_norm: float | None = None,
        evaluate: Callable[[], Mapping[str, Any] | None] | None = None,
        eval_every: int | str | None = "epoch",
        callbacks: Iterable[object] = (),
        bus: Bus | None = None,
        bind: Mapping[str, Any] | None = None,
        handler_budget: float | None = 0.05,
        resume: int | str | Path | None = None,
        overwrite: bool = False,
    ) -> None:
        limits = Limits(max_epochs, max_steps, min_epochs, min_steps)
        whole("accumulate", accumulate, least=1)
        if clip_norm is not None and not clip_norm > 0:
            raise ValueError(f"clip_norm={clip_norm!r} must be a number above 0")
        if eval_every not in ("epoch", None):
            whole("eval_every", eval_every, least=1)
        if resume is not None and run_dir is None:
            raise ValueError(f"resume={resume!r} needs a run_dir")
        optimizers = dict(optimizer) if isinstance(optimizer, Mapping) else {"": optimizer}
        run_id = uuid.uuid4().hex[:12]
        folder = None if run_dir is None else Folder(run_dir, run_id, resume, overwrite)
        self.bus = bus if bus is not None else Bus()
        groups = Groups(optimizers)
        self._progress = Progress(groups, run_id)
        ledger = Ledger(Alone(), *([folder.journal.entry] if folder else []))
        self._run = Run(self.bus, self._progress, ledger, Evaluation(model, evaluate), limits, folder)
        self._window = Window(optimizers, groups, accumulate, scaler, clip_norm)
        self._budget = Budget(self.bus, handler_budget)
        self._random = RandomStates()
        self._model, self._eval_every = model, eval_every
        self._live = {"model": model, "optimizer": optimizer, "run_dir": run_dir and Path(run_dir), **(bind or {})}
        self._parts = {
            "model": unwrap(model),
            "optimizer": Optimizers(optimizers),
            **({} if scaler is None else {"scaler": scaler}),
            "progress": self._progress,
            "position": self._run.position,
            "ledger": ledger,
            "random": self._random,
            "bus": self.bus,
        }
        self._phase = "new"
        self._epoch_open = self._exhausted = self._last = False
        self._drawing = 0  # generators over batches or updates that are suspended in the body
        self._drawn = self._undone = self._done_here = 0
        self._updated_in_epoch = 0
        self._result: Result | None = None
        if folder is not None:
            self.bus.attach(folder.journal, name="Journal")
        for thing in callbacks:
            self.bus.attach(thing)

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> TrainState:
        """The snapshot now."""
        return self._progress.snapshot()

    @property
    def result(self) -> Result:
        """How the run ended.

        Raises:
            RuntimeError: it has not.
        """
        if self._result is None:
            raise RuntimeError("loop.result is there when the `with` block has ended")
        return self._result

    def carry_out(self, kind: type[Request], function: Callable[[Any], object]) -> None:
        """Register who obeys a request class of your own; called with the request when requests are carried out."""
        self._run.carry_out(kind, function)

    # -- generators ----------------------------------------------------------------------------------------------------

    def epochs(self) -> Iterator[int]:
        """Epoch numbers from 1 until a limit or a stop. After each: the evaluation if due, then ``epoch_end``."""
        self._begin()
        while not self._run.over() and self._another_epoch():
            self._open_epoch()
            yield self._progress.epoch
            if self._epoch_open:
                self._close_epoch()

    def batches(self, loader: Iterable[B]) -> Iterator[B]:
        """The micro-batches of one epoch. Requests are carried out between two of them, before the next is drawn.

        Raises:
            ValueError: the loader gave no batch.
            RuntimeError: the iterator is of an earlier epoch.
        """
        self._begin()
        own = not self._epoch_open
        if own:
            if self._run.over() or not self._another_epoch():
                return
            self._plan(loader)
            self._open_epoch()
        self._drop_abandoned()
        self._drawing += 1
        try:
            yield from self._draw(loader, self._progress.epoch)
        finally:
            self._drawing -= 1
        if own:
            self._close_epoch()

    def _draw(self, loader: Iterable[B], epoch: int) -> Iterator[B]:
        source, drawn = self._source(loader)
        length = len(loader) if self._progress.fields[TOTAL] is not None and hasattr(loader, "__len__") else -1
        ahead, following = self._window.accumulate > 1, END
        if ahead:
            following = next(source, END)
        self._exhausted = False
        while True:
            if self._progress.epoch != epoch or not self._epoch_open:
                raise RuntimeError(f"this iterator is of epoch {epoch}; call loop.batches(loader) again")
            if not self._window.micro and drawn != length:  # at the known end the epoch's own boundary comes
                self._boundary()
            if self._run.over() and not self._window.micro:
                return
            batch = following if ahead else next(source, END)
            if batch is END:
                break
            if ahead:
                following = next(source, END)
                self._last = following is END
            self._open_window()
            drawn = self._run.position.batch = drawn + 1
            self._drawn += 1
            self._undone += 1
            self._progress.fields[SAMPLES] += batch_size(batch)
            yield batch
        self._exhausted = True
        if not drawn:
            raise ValueError(f"the loader gave no batch in epoch {epoch} (a generator can be read once; pass a loader)")

    def updates(self) -> Iterator[int]:
        """Numbers of updates until ``max_steps`` or a stop, for scripts that draw their own batches; one epoch."""
        self._begin()
        own = not self._epoch_open
        if own:
            if self._run.over() or not self._another_epoch():
                return
            self._plan(None)
            self._open_epoch()
        self._drawing += 1
        try:
            while True:
                self._boundary()
                if self._run.over():
                    break
                self._open_window()
                yield self._progress.step + 1
        finally:
            self._drawing -= 1
        self._exhausted = True
        if own:
            self._close_epoch()

    def eval_batches(self, loader: Iterable[B]) -> Iterator[B]:
        """The batches of an evaluation, inside ``evaluate``."""
        yield from loader

    def mean_over(self, loader: Iterable[B], function: Callable[[B], Mapping[str, Any]]) -> dict[str, Any]:
        """The mean over all samples of what ``function(batch)`` returns, for use in ``evaluate``."""
        return mean_over(self.eval_batches(loader), function)

    # -- the calls -----------------------------------------------------------------------------------------------------

    def backward(self, loss: Tensor) -> None:
        """Gradients of one micro-batch, scaled for accumulation and mixed precision; the loss is noted."""
        self._open_window()
        self._window.backward(loss)
        self._progress.losses.append(loss)
        self._progress.fields[MICRO] += 1

    def update(self) -> bool:
        """Make the update if the window is full, or if this was the loader's last batch; False if it is not yet.

        Raises:
            RuntimeError: no backward came before it.
        """
        window = self._window
        if not window.micro:
            raise RuntimeError("loop.update() without loop.backward(loss): there are no gradients to use")
        if window.micro < window.accumulate and not self._last:
            return False
        norm = window.gradients()
        if norm is not None:
            self._progress.report({"grad_norm": norm})
        if self.gradients_ready().skip is not None:
            window.drop()
            self._end_update(skipped=True)
        else:
            self._end_update(skipped=not window.step())
        return True

    def gradients_ready(self) -> Control:
        """Say that the gradients are there; with an update of your own obey ``.skip`` of what it returns."""
        return self._run.tell(GradientsReady)

    def step_end(self, loss: Any = None, *, skipped: bool = False, **metrics: Any) -> None:
        """In place of `backward` and `update`, where the update is your own code.

        Batches drawn since the last call are its micro-batches. Without `batches` or `updates` around it requests are
        carried out at once, and the update opens only here, so that schedules set the rate of the next one.
        """
        self._begin()
        if not self._epoch_open:
            self._plan(None)
            self._open_epoch()
        self._open_window()
        progress = self._progress
        if loss is not None:
            progress.losses.append(loss)
        if metrics:
            progress.report(metrics)
        progress.fields[MICRO] += self._undone or 1
        self._end_update(skipped=skipped)
        if not self._drawing:
            self._boundary()

    # -- life ----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._phase != "new":
            raise RuntimeError("a Loop makes one run; build another for the next")
        self._phase = "entered"
        return self

    def _begin(self) -> None:
        if self._phase == "running":
            return
        if self._phase != "entered":
            raise RuntimeError("use the loop inside its block: `with Loop(...) as loop:`")
        self._phase = "running"
        folder = self._run.folder
        if folder is not None:
            import torch

            folder.open(torch.initial_seed(), [o for o in self.bus.objects if o[1] is not folder.journal])
        self._budget.start()
        self._run.begin(self._live, lambda: folder is not None and folder.load(self._parts))

    def _another_epoch(self) -> bool:
        resuming = self._run.position.resumed_at is not None
        return resuming or self._run.limits.another_epoch(self._progress.epoch)

    def _open_epoch(self) -> None:
        position = self._run.position
        if position.resumed_at is None:
            self._progress.fields[EPOCH] += 1
            position.batch = 0
        position.completed = False
        self._epoch_open, self._exhausted = True, False
        self._drawn = self._updated_in_epoch = 0
        self._run.tell(EpochBegin)

    def _close_epoch(self) -> None:
        run, completed = self._run, self._exhausted
        self._drop_abandoned()
        if completed and self._drawn and not self._updated_in_epoch and not run.over():
            raise RuntimeError(
                f"epoch {self._progress.epoch} drew {self._drawn} batches and made no update: call loop.backward(loss) "
                f"and loop.update(), or loop.step_end(loss=loss) after an update of your own"
            )
        run.position.epochs_done = self._progress.epoch - (not completed)
        run.settle(saves=False)
        if self._updated_in_epoch and (self._eval_every == "epoch" or self._eval_due() or run.over()):
            run.evaluate()
        run.settle(saves=False)  # a save waits, so that the checkpoint is of an epoch that has ended
        self._epoch_open, run.position.completed = False, True
        run.tell(EpochEnd, completed=completed)
        run.settle()

    def _source(self, loader: Iterable[B]) -> tuple[Iterator[B], int]:
        """The loader's iterator, wound forward to where a resumed run stands, and how many batches it has given."""
        if (set_epoch := getattr(getattr(loader, "sampler", None), "set_epoch", None)) is not None:
            set_epoch(self._progress.epoch - 1)
        self._plan(loader)
        position, skip = self._run.position, self._run.position.resumed_at
        position.resumed_at = None
        if skip is None:
            self._random.mark_epoch()
            return iter(loader), 0
        if self._random.epoch_began is not None:
            restore(self._random.epoch_began)
        source = iter(loader)
        for _ in range(skip):
            next(source, END)
        if self._random.loaded is not None:
            restore(self._random.loaded)
        logger().warning(f"wound the loader forward over {skip} batches of epoch {self._progress.epoch}")
        return source, skip

    def _plan(self, loader: object) -> None:
        if self._progress.fields[TOTAL] is None:
            self._progress.fields[TOTAL] = self._run.limits.total(loader, self._window.accumulate)

    def _boundary(self) -> None:
        """Between two turns of the body."""
        if self._eval_due():
            self._run.evaluate()
        self._run.settle()

    def _eval_due(self) -> bool:
        every = self._eval_every
        if not isinstance(every, int):
            return False
        return self._progress.step // every > max(self._run.position.evaluated_at, 0) // every

    def _open_window(self) -> None:
        if self._window.open:
            return  # between micro-batches, or the body said `continue`
        self._window.open = True
        self._window.micro = 0
        self._progress.begin_update()
        self._run.tell(StepBegin)

    def _end_update(self, *, skipped: bool) -> None:
        self._progress.end_update(skipped)
        self._window.open, self._window.micro, self._undone, self._last = False, 0, 0, False
        self._updated_in_epoch += 1
        self._done_here += not skipped
        self._run.tell(StepEnd, skipped=skipped)
        self._budget.check(self._progress.step)

    def _drop_abandoned(self) -> None:
        """End the update that a break or a stop has left open; its gradients would leak into the next."""
        if self._window.open and not self._drawing:
            self._window.drop()
            self._window.open, self._window.micro, self._undone = False, 0, 0
            self._progress.end_update(skipped=True)
            self._run.tell(StepEnd, skipped=True)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        begun, self._phase = self._phase == "running", "over"
        try:
            if error is None and begun:
                self._drawing = 0
                self._finish()
        except BaseException as late:
            error = late
            raise
        finally:
            self._result = self._run.end(error)

    def _finish(self) -> None:
        """Close what is open; then the last evaluation and the last save, each once, if anything was done here."""
        self._drop_abandoned()
        if self._epoch_open:
            self._close_epoch()
        if self._done_here:
            self._run.evaluate()
            self._run.settle()
            self._run.save_last()
