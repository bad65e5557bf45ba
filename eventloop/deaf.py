"""Handlers that waited for an event which their loop never published."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from typing import Final

from .bus import Bus
from .events import (
    CheckpointSaved,
    EvalBegin,
    EvalEnd,
    EvalStep,
    Event,
    GradientsReady,
    HandlerFailed,
    RunFailed,
    StepBegin,
    StepEnd,
    TrainEnd,
)
from .subscription import Priority, Subscription
from .totals import Totals

SELDOM: Final = (Event, EvalStep, CheckpointSaved, HandlerFailed, RunFailed, TrainEnd)  # nobody misses these
TAKERS: Final = (Priority.LOG, Priority.LAST)  # loggers and the journal take what comes, and wait for nothing


def waited_in_vain(bus: Bus, told: Collection[type[Event]]) -> Iterator[str]:
    """For each event that was not ``told`` a sentence naming who waited for it, and what to do about it.

    A handler that somebody else has called, by publishing an event of the user's own, did not wait in vain.
    """
    called = {(cost.name, cost.event) for cost in bus.costs() if cost.calls}
    for kind in list(bus.signals.channels):
        if kind in told or kind in SELDOM:
            continue
        here = [s for s in bus.order(kind) if s.event is kind and s.filter is None and not _takes_what_comes(s)]
        waiting = sorted({s.name for s in here if (s.name, kind.name) not in called})
        if waiting:
            yield f"{', '.join(waiting)} waited for {kind.name}; {_advice(kind)}"


def _takes_what_comes(subscription: Subscription) -> bool:
    return subscription.priority in TAKERS or isinstance(subscription.owner, Totals)


def _advice(kind: type[Event]) -> str:
    if kind is GradientsReady:
        return "with an update of your own call loop.gradients_ready() before the optimizer's step"
    if kind in (EvalBegin, EvalEnd):
        return "the loop never evaluated: give it evaluate="
    if kind in (StepBegin, StepEnd):
        return "the loop made no update that it was told of"
    return "this loop never published it"
