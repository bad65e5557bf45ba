"""Decide when a checkpoint is written and which ones stay. The loop's checkpoint service does both."""

from __future__ import annotations

import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from eventloop import (
    Callback,
    CheckpointSaved,
    EpochEnd,
    EvalEnd,
    Event,
    HandlerFailed,
    Keep,
    Priority,
    Save,
    StepEnd,
    TrainBegin,
    TrainState,
)
from eventloop.checkpoint import Checkpoints

from .arguments import flag, name, not_negative, whole
from .improvement import Improvement, Mode, resolve_mode, say_missing
from .retention import Retention

if TYPE_CHECKING:
    from collections.abc import Mapping

    from eventloop import Bus

Asks = Save | tuple[Save, Keep]


class ModelCheckpoint(Callback):
    """Saves the best, the newest, or each n updates, epochs or seconds, and keeps what it is told to keep.

    With a ``monitor`` a score is judged at every ``eval_end`` that reports it, elsewhere only where an ``every_*`` is
    due and the value is fresh. Without any ``every_*``: at ``eval_end`` with a monitor, else at each epoch's end. What
    is saved is the state of every handler after the event.

    A checkpoint stays if any of ``save_top_k``, ``keep_last`` and ``keep_every`` wants it, and the newest always stays.
    They count and remove only checkpoints that this run wrote and this saver asked for. What a new checkpoint pushes
    out is removed when that stands, so for a while the disk holds one more. A save on its way to the disk counts as
    standing when the next score is judged; one that failed does not.

    Args:
        monitor: the metric that scores a checkpoint.
        mode: "min" or "max"; may be left out only for "loss" and names that end in "_loss" or "/loss" (then "min").
        save_top_k: with a monitor the k best stay (of equal scores the earlier), without one the k newest; 0 keeps only
            the newest, -1 all.
        every_steps: save each so many updates.
        every_epochs: save each so many epochs.
        every_seconds: save each so many seconds.
        keep_last: so many of the newest stay as well.
        keep_every: the first checkpoint at or after each multiple of so many updates stays for ever.
        make_room: for a disk that cannot hold one more: what the new checkpoint will push out is removed before it is
            written. One that is whole always stays until then: the hashes of its files are compared first. If the save
            fails, what has been removed is gone.
        strict: a missing ``monitor`` is an error instead of a warning.

    Attributes:
        best_path: the folder of the best checkpoint that stands, None before there is one.
        best_score: its score.
        best_step: its step.

    Raises:
        ValueError: an argument is out of range.
    """

    priority = Priority.SAVE
    failure = "raise"

    def __init__(
        self,
        monitor: str | None = None,
        mode: Mode | None = None,
        save_top_k: int = 1,
        every_steps: int | None = None,
        every_epochs: int | None = None,
        every_seconds: float | None = None,
        strict: bool = False,
        keep_last: int | None = None,
        keep_every: int | None = None,
        make_room: bool = False,
    ) -> None:
        if monitor is None and mode is not None:
            raise ValueError(f"ModelCheckpoint: mode={mode!r} says how a monitor is judged, and monitor=None")
        self.monitor = None if monitor is None else name(self, "monitor", monitor)
        self.mode = None if monitor is None else resolve_mode(monitor, mode, self)
        self.save_top_k = whole(self, "save_top_k", save_top_k, -1)
        self.every_steps = None if every_steps is None else whole(self, "every_steps", every_steps, 1)
        self.every_epochs = None if every_epochs is None else whole(self, "every_epochs", every_epochs, 1)
        if every_seconds is not None and not not_negative(self, "every_seconds", every_seconds):
            raise ValueError(f"ModelCheckpoint: every_seconds={every_seconds!r} must be above 0")
        self.every_seconds = every_seconds
        self.strict = flag(self, "strict", strict)
        self.keep_last = None if keep_last is None else whole(self, "keep_last", keep_last, 1)
        self.keep_every = None if keep_every is None else whole(self, "keep_every", keep_every, 1)
        self.make_room = flag(self, "make_room", make_room)
        self._mode_by_name = mode is None
        judge = None if self.mode is None else Improvement(self.mode)
        self._rules = Retention(judge, self.save_top_k, self.keep_last, self.keep_every)
        self._run_dir: Path | None = None
        self._bus: Bus | None = None
        self._looked: tuple[int, float] | None = None  # step and seconds at the last look, where both decide
        self._scores: dict[int, float | None] = {}  # of what may be found on the disk; a manifest has but fresh values
        self._forget()

    def _forget(self) -> None:
        self._kept: dict[int, float | None] = {}  # step to score, of this saver's checkpoints that stand
        self._asked: dict[int, float | None] = {}  # the same, of the saves on their way
        self._folder: Path | None = None
        self._said_missing = False

    def options(self) -> dict[str, Any]:
        """Which events it needs, and how often."""
        no_every = self.every_steps is self.every_epochs is self.every_seconds is None
        epochs = 1 if no_every and self.monitor is None else self.every_epochs
        steps: dict[str, Any] | None = None
        if self.every_steps is not None and self.every_seconds is not None:
            steps = {"when": self._due}  # a filter would ask for both at once
        elif self.every_steps is not None:
            steps = {"every": self.every_steps}
        elif self.every_seconds is not None:
            steps = {"every": {"seconds": self.every_seconds}}
        return {
            "step_end": steps,
            "epoch_end": None if epochs is None else {"every": epochs},
            "eval_end": None if self.monitor is None else {},
        }

    def _due(self, event: Event, state: TrainState) -> bool:
        step, seconds = self._looked or (max(state.step - 1, 0), state.elapsed)
        self._looked = state.step, state.elapsed
        n, t = self.every_steps or 1, self.every_seconds or 1.0
        return state.step // n > step // n or state.elapsed // t > seconds // t

    def bind(self, *, run_dir: Path | None = None, bus: Bus | None = None) -> None:
        """Learn where checkpoints lie, and under which name this saver asks for them."""
        self._run_dir, self._bus = run_dir, bus

    def on_train_begin(self, event: TrainBegin, state: TrainState) -> Keep | None:
        """A fresh run has no checkpoints; a resumed one finds its own by their manifests."""
        self._forget()
        if not event.resumed or self._looked is None:
            self._looked = state.step, state.elapsed
        if event.resumed:
            self._find(state.run_id)
        self._scores = {}
        return self._keep()

    def _find(self, run_id: str) -> None:
        """What stands is what the manifests tell."""
        if self._run_dir is None or self._bus is None:
            return
        me, root = self._bus.key_of(self._bus.name_of(self)), self._run_dir / "checkpoints"
        known, self._kept = {**self._scores, **self._kept}, {}
        for checkpoint in Checkpoints(root, run_id).list():
            if checkpoint.run_id == run_id and me in checkpoint.asked_by:
                step, score = checkpoint.step, checkpoint.metrics.get(self.monitor or "")
                self._kept[step] = known.get(step, score)
                self._folder = root

    def on_step_end(self, event: StepEnd, state: TrainState) -> Asks:
        """Each n updates or seconds."""
        return self._ask(state, "step")

    def on_epoch_end(self, event: EpochEnd, state: TrainState) -> Asks | None:
        """Each n epochs."""
        return self._ask(state, "epoch") if event.completed else None

    def on_eval_end(self, event: EvalEnd, state: TrainState) -> Asks | None:
        """A new score: saved if it is among the best."""
        if not event.completed:
            return None
        monitor = self.monitor or ""
        if monitor not in state.metrics.fresh:
            if self.strict or not self._said_missing:
                self._said_missing = True
                say_missing(self, monitor, event, state, strict=self.strict)
            return None
        coming = {} if self._run_dir is None else self._asked  # without a folder every save is refused
        ranked = self._rules.ranked({**self._kept, **coming, state.step: state.metrics[monitor]})
        if self.save_top_k > 0 and state.step not in ranked[: self.save_top_k]:
            return None
        best = ranked[0] == state.step and math.isfinite(state.metrics[monitor])
        return self._ask(state, "best" if best else "top", may_skip=False)

    def _ask(self, state: TrainState, tag: str, *, may_skip: bool = True) -> Asks:
        fresh = self.monitor is not None and self.monitor in state.metrics.fresh
        known = self._asked.get(state.step, self._kept.get(state.step))  # by an earlier event, or before a resume
        if self._run_dir is None:
            self._asked.clear()  # whatever was refused is never told of
        self._asked[state.step] = state.metrics[self.monitor or ""] if fresh else known
        if not self.make_room or self.save_top_k == -1:
            return Save(tag, may_skip and not fresh)
        self._scores = {**self._scores, **self._kept}  # if the save fails, some of these may still be there
        steps = self._prune() | {state.step}
        return Save(tag, may_skip=False), Keep(frozenset(steps), make_room=True)

    def on_checkpoint_saved(self, event: CheckpointSaved, state: TrainState) -> Keep | None:
        """It stands: from now on it counts, and what falls out of the limit may go."""
        if event.step not in self._asked:
            return None
        self._kept[event.step] = self._asked[event.step]
        self._folder = Path(event.path).parent
        # No save begins before the one ahead of it was told of: older ones were never made, and of the newer ones only
        # that of this very boundary may still begin.
        self._asked = {step: score for step, score in self._asked.items() if step > event.step and step >= state.step}
        self._scores = dict(self._kept) if self._asked else {}
        return self._keep()

    def on_handler_failed(self, event: HandlerFailed, state: TrainState) -> Keep | None:
        """A save that failed counts no more."""
        saved = event.event
        if not isinstance(saved, CheckpointSaved) or saved.path or saved.step not in self._asked:
            return None
        del self._asked[saved.step]
        if not self.make_room:
            return None
        self._find(state.run_id)  # not all that had to make room has been removed
        return self._keep()

    def _keep(self) -> Keep | None:
        steps = self._prune()
        return None if self.save_top_k == -1 else Keep(frozenset(steps))

    def _prune(self) -> set[int]:
        """Forget what the rules do not want, and return what they do; what makes room for a save is not wanted."""
        steps = self._rules.wanted({**self._kept, **self._asked} if self.make_room else self._kept)
        self._kept = {step: score for step, score in self._kept.items() if step in steps}
        return steps

    @property
    def best_step(self) -> int | None:
        """The step of the best checkpoint."""
        ranked = self._rules.ranked(self._kept)
        return ranked[0] if ranked and math.isfinite(self._kept[ranked[0]] or 0.0) else None

    @property
    def best_score(self) -> float | None:
        """Its score."""
        return None if self.best_step is None else self._kept[self.best_step]

    @property
    def best_path(self) -> Path | None:
        """Its folder."""
        if self.best_step is None or self._folder is None:
            return None
        return self._folder / f"step-{self.best_step:08d}"

    def summary(self) -> dict[str, Any]:
        """The best, for the run's result."""
        if self.monitor is None:
            return {}
        best = {"best": self.best_score, "best_step": self.best_step, "best_path": self.best_path}
        return {"monitor": self.monitor, **best}

    def state_dict(self) -> dict[str, Any]:
        """Where it looked last, and the scores. Which checkpoints stand is told by the manifests alone."""
        looked = None if self.every_steps is None or self.every_seconds is None else self._looked
        scores = {**self._kept, **self._asked}  # as if all that is on its way were there
        wanted = self._rules.wanted(scores)
        kept = {step: score for step, score in sorted(scores.items()) if step in wanted}
        return {"looked": looked, "monitor": self.monitor, "scores": kept}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        self._looked = state["looked"]
        self._scores = dict(state["scores"]) if state["monitor"] == self.monitor else {}

    def describe(self) -> str:
        """What it keeps, in words."""
        by = "" if self.monitor is None else f" by {self.monitor} {self.mode}"
        named = " (by its name)" if by and self._mode_by_name else ""
        return f"keeps {self._rules}{by}{named}" + (", and makes room first" if self.make_room else "")
