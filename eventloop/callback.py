"""`Callback`, an optional base for objects with handlers: typed stubs, no behaviour."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from .events import (
    CheckpointSaved,
    EpochBegin,
    EpochEnd,
    EvalBegin,
    EvalEnd,
    EvalStep,
    GradientsReady,
    HandlerFailed,
    RunFailed,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainEnd,
)
from .fold import Control
from .requests import Request
from .state import TrainState

Answer = Request | Sequence[Request] | Control | None
"""What a handler may return."""


class Callback:
    """Derive from it for completion and type checks; any object with ``on_<event>`` methods will do as well.

    A stub that is not overridden is never called. What the bus looks for on an object, all of it optional:

    * ``priority`` and ``failure``: defaults of its subscriptions.
    * ``options()``: per event name the keywords of ``bus.on``, or None to leave that event out.
    * ``bind(self, *, model, ...)``: called before train_begin with the live objects that its signature names.
    * ``state_dict()`` and ``load_state_dict(state)``: plain JSON plus tensors; counters and bests, never settings.
    * ``describe()``: what it is set to, in a few words, for ``bus.explain``.
    * ``from_outside``: True if what it asks depends on signals or clocks; a replay takes it from the record.
    * ``touches_model``: True if it changes the live model, at eval_begin, eval_end or train_end.
    * ``gauges``: names it reports of which a log row wants the last value, not the mean.
    * ``close()``: called once a run, in reverse order of attachment, however the run ended.
    """

    def on_train_begin(self, event: TrainBegin, state: TrainState) -> Answer:
        """The run starts."""

    def on_epoch_begin(self, event: EpochBegin, state: TrainState) -> Answer:
        """An epoch starts."""

    def on_step_begin(self, event: StepBegin, state: TrainState) -> Answer:
        """An update opens."""

    def on_gradients_ready(self, event: GradientsReady, state: TrainState) -> Answer:
        """Gradients are unscaled and reduced."""

    def on_step_end(self, event: StepEnd, state: TrainState) -> Answer:
        """An update is finished."""

    def on_eval_begin(self, event: EvalBegin, state: TrainState) -> Answer:
        """An evaluation starts."""

    def on_eval_step(self, event: EvalStep, state: TrainState) -> Answer:
        """A batch of an evaluation has been drawn."""

    def on_eval_end(self, event: EvalEnd, state: TrainState) -> Answer:
        """An evaluation is done."""

    def on_epoch_end(self, event: EpochEnd, state: TrainState) -> Answer:
        """An epoch ends."""

    def on_checkpoint_saved(self, event: CheckpointSaved, state: TrainState) -> Answer:
        """A checkpoint is durable."""

    def on_handler_failed(self, event: HandlerFailed, state: TrainState) -> Answer:
        """A handler raised."""

    def on_run_failed(self, event: RunFailed, state: TrainState) -> Answer:
        """The loop raised."""

    def on_train_end(self, event: TrainEnd, state: TrainState) -> Answer:
        """The run is over."""


def handlers_of(thing: object) -> dict[str, Callable[..., Any]]:
    """The ``on_`` methods of an object by event name, without the stubs it left as they are."""
    found = {}
    for name in dir(thing):
        if name.startswith("on_") and callable(method := getattr(thing, name)):
            stub = getattr(Callback, name, None)
            if stub is None or getattr(method, "__func__", None) is not stub:
                found[name[3:]] = method
    return found
