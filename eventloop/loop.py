"""`Loop`: your loop keeps its shape and gains four calls."""

from __future__ import annotations

import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Self, TypeVar

from .budget import Budget
from .bus import Bus
from .checkpoint import SAVES, Saves
from .checks import check_choice, check_folder, check_numbers, check_parts
from .course import Course
from .evaluation import Evaluation, mean_over
from .events import Event, GradientsReady
from .fold import Control
from .folder import Folder
from .full_journal import FullJournal, is_full
from .journal import JOURNAL
from .ledger import Ledger
from .limits import Limits, sized
from .progress import MICRO, Groups, Progress
from .ranks import Alone
from .requests import Request
from .result import Result
from .resume import Resumed
from .run import Run
from .start import Choices, parts_of, start
from .state import TrainState, checked_cells
from .window import Window

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

B = TypeVar("B")


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
        on_mismatch: what a checkpoint's missing or unknown states and changed settings lead to: "report" (`resumed`
            and the log have them) or "error", before anything is loaded or written.
        init_from: weights to begin with, and nothing else, from a checkpoint, a run folder or a ``.safetensors`` file;
            ignored where ``resume="auto"`` finds a checkpoint.
        overwrite: move another run in ``run_dir`` aside instead of refusing.
        saves: how checkpoints are written. "wait": in a thread, while the training goes on, one at a time, and the next
            save waits for the one on its way; "skip": it is left out and counted instead, if those who asked for it
            allow that (a best is never left out); "sync": the training waits for each.
        journal: "short": lifecycle, requests and failures; "full": every publish, for `read_stream` and replay.

    Raises:
        ValueError: an argument is out of range; the message names it and its value.
        FileExistsError: ``run_dir`` holds another run.
        CheckpointError: the checkpoint to resume does not exist or is damaged, or nothing is at ``init_from``.
    """

    _phase = "new"  # entered, running, over
    _choices = Choices()
    _result: Result | None = None
    _process: int | None = None  # in which the run has begun

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
        on_mismatch: Literal["report", "error"] = "report",
        init_from: str | Path | None = None,
        overwrite: bool = False,
        saves: Saves = "wait",
        journal: str = "short",
    ) -> None:
        limits = Limits(max_epochs, max_steps, min_epochs, min_steps)
        check_numbers(accumulate, clip_norm, eval_every)
        check_folder(run_dir, resume, overwrite)
        optimizers = dict(optimizer) if isinstance(optimizer, Mapping) else {"": optimizer}
        check_parts(model, optimizers, bus, callbacks, bind)
        self._choices = Choices.checked(on_mismatch, init_from, resume)
        run_id = uuid.uuid4().hex[:12]
        background = check_choice("saves", saves, SAVES) != "sync"
        folder = None if run_dir is None else Folder(run_dir, run_id, resume, overwrite, background=background)
        own = {**vars(limits), "eval_every": eval_every, "accumulate": accumulate}
        if is_full(journal, run_dir) and folder is not None:
            folder.journal = FullJournal(folder.path / JOURNAL, {**own, "evaluate": evaluate is not None})
        self.bus = bus if bus is not None else Bus()
        self._progress = Progress(Groups(optimizers), run_id)
        self._run = Run(self.bus, self._progress, Ledger(Alone()), Evaluation(model, evaluate), limits, folder)
        self._run.skips = saves == "skip"
        self._window = Window(optimizers, self._progress.groups, accumulate, scaler, clip_norm)
        self._course = Course(self._run, self._window, eval_every, Budget(self.bus, handler_budget))
        self._live = {**(bind or {}), "model": model, "optimizer": optimizer, "run_dir": run_dir and Path(run_dir)}
        own["clip_norm"] = clip_norm
        self._parts = parts_of(model, optimizers, scaler, self._run, self._course, own)
        self._attach(list(callbacks))

    def _attach(self, things: list[object]) -> None:
        for i, thing in enumerate(things):
            try:
                self.bus.attach(thing)
            except BaseException:
                for earlier in things[:i]:
                    self.bus.detach(earlier)
                raise

    # -- looking -------------------------------------------------------------------------------------------------------

    @property
    def state(self) -> TrainState:
        """The snapshot now."""
        return self._progress.snapshot()

    @property
    def over(self) -> bool:
        """Whether no further update may begin: a limit is reached or a stop was granted; the generators end by it."""
        return self._run.over()

    @property
    def result(self) -> Result:
        """How the run ended.

        Raises:
            RuntimeError: it has not.
        """
        if self._result is None:
            raise RuntimeError("loop.result is there when the `with` block has ended")
        return self._result

    @property
    def resumed(self) -> Resumed | None:
        """What came back from the checkpoint that this run goes on from, and what differs; None in a fresh run."""
        folder = self._run.folder
        if folder is None or folder.resumed is None:
            return None
        return replace(folder.resumed, loader="; ".join(self._run.position.restored))

    def publish(self, event: Event) -> Control:
        """Publish an event of your own from the loop's body: reports reach ``loop.state``, requests are carried out.

        Raises:
            Exception: a handler under the policy ``raise`` failed.
        """
        self._begin()
        return self._run.publish(event)

    def carry_out(self, kind: type[Request], function: Callable[[Any], object]) -> None:
        """Register who obeys a request class of your own; called with the request when requests are carried out."""
        self._run.carry_out(kind, function)

    # -- generators ----------------------------------------------------------------------------------------------------

    def epochs(self) -> Iterator[int]:
        """Epoch numbers from 1 until a limit or a stop. After each: the evaluation if due, then ``epoch_end``."""
        self._begin()
        course = self._course
        if course.epoch_open:  # the body broke out of an earlier one, and goes on here
            course.close_epoch()
        while course.another_epoch():
            course.open_epoch("epochs")
            yield self._progress.epoch
            course.leave_epoch()

    def batches(self, loader: Iterable[B]) -> Iterator[B]:
        """The micro-batches of one epoch. Requests are carried out between two of them, before the next is drawn.

        Outside `epochs` it is one epoch by itself.

        Raises:
            ValueError: the loader gave no batch.
            RuntimeError: the iterator is of an earlier epoch.
        """
        self._begin()
        return self._course.one_epoch(lambda: self._course.draw(loader), loader)

    def updates(self) -> Iterator[int]:
        """Numbers of updates until ``max_steps`` or a stop, for scripts that draw their own batches; one epoch."""
        self._begin()
        return self._course.one_epoch(self._course.number, None)

    def eval_batches(self, loader: Iterable[B]) -> Iterator[B]:
        """The batches of an evaluation, inside ``evaluate``, with an ``eval_step`` for each.

        They end early if the run has to end within seconds; what ``evaluate`` makes of that is thrown away.
        """
        total = sized(loader)
        for number, batch in enumerate(loader, 1):
            if self._run.evaluating and not self._run.go_on_evaluating(number, total):
                return
            yield batch

    def mean_over(self, loader: Iterable[B], function: Callable[[B], Mapping[str, Any]]) -> dict[str, Any]:
        """The mean over all samples of what ``function(batch)`` returns, for use in ``evaluate``."""
        return mean_over(self.eval_batches(loader), function)

    # -- the calls -----------------------------------------------------------------------------------------------------

    def backward(self, loss: Tensor) -> None:
        """Gradients of one micro-batch, scaled for accumulation and mixed precision; the loss is noted."""
        self._begin()
        self._course.open_update()
        self._window.backward(loss)
        self._progress.losses.append(loss)
        self._progress.fields[MICRO] += 1

    def update(self) -> bool:
        """Make the update if the window is full, or if this was the loader's last batch; False if it is not yet.

        Raises:
            RuntimeError: no backward came before it.
        """
        window, course = self._window, self._course
        if not window.micro:
            raise RuntimeError("loop.update() without loop.backward(loss): there are no gradients to use")
        if window.micro < window.accumulate and not course.last:
            course.waiting = True
            return False
        course.make_update()
        return True

    def gradients_ready(self) -> Control:
        """Say that the gradients are there; with an update of your own obey ``.skip`` of what it returns."""
        self._begin()
        self._course.open_update()
        return self._run.tell(GradientsReady())

    def step_end(self, loss: Any = None, *, skipped: bool = False, **metrics: Any) -> None:
        """In place of `backward` and `update`, where the update is your own code.

        Batches drawn since the last call are its micro-batches. Without `batches` or `updates` around it requests are
        carried out at once: look at `over`. The update opens only here, so that schedules set the rate of the next one.
        """
        self._begin()
        course, progress = self._course, self._progress
        course.open_update()
        if loss is not None:
            progress.losses.append(checked_cells({"loss": loss}, progress.step)["loss"].value)
        if metrics:
            progress.report(metrics)
        if not self._window.micro:  # else `backward` has counted them
            progress.fields[MICRO] += course.undone or 1
        course.end_update(skipped=skipped)

    # -- life ----------------------------------------------------------------------------------------------------------

    def __enter__(self) -> Self:
        if self._phase != "new":
            raise RuntimeError("a Loop makes one run; build another for the next")
        self._phase = "entered"
        return self

    def _begin(self) -> None:
        if self._run.evaluating:
            raise RuntimeError("this is the evaluation: draw its batches with loop.eval_batches(loader)")
        if self._phase == "running":
            return
        if self._phase != "entered":
            raise RuntimeError("use the loop inside its block: `with Loop(...) as loop:`")
        self._phase, self._process = "running", os.getpid()
        start(self._run, self._course, self._live, self._parts, self._choices)

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if self._process not in (None, os.getpid()):
            return  # this is a forked child: the run is its parent's, which ends it
        begun, self._phase = self._phase == "running", "over"
        late: BaseException | None = None
        try:
            if error is None and begun:
                self._course.finish()
        except BaseException as failed:
            late = failed
        self._result, control, interrupt = self._run.end(error or late)
        if error is not None:
            return  # the loop's own error is raised again, unchanged
        if late is not None or interrupt is not None:
            raise late or interrupt  # type: ignore[misc]  # one of them is there
        control.raise_failures()
