"""What a type checker must accept; read by test_typing.py, never run."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import assert_type

from eventloop import (
    Bus,
    Callback,
    Control,
    EvalEnd,
    Evaluate,
    Event,
    Handle,
    HandlerFailed,
    Priority,
    Reply,
    Report,
    Request,
    Save,
    SetLR,
    StepBegin,
    StepEnd,
    Stop,
    TrainState,
)
from eventloop.callback import Answer
from eventloop.channel import Channel
from eventloop.testing import Recorder, assert_order, subscriptions

bus = Bus()


@dataclass(frozen=True)
class BatchDrawn(Event):
    rows: int = 0


@dataclass(frozen=True)
class Upload(Request):
    where: str = ""


def silent(event: StepEnd, state: TrainState) -> None:
    assert_type(event.skipped, bool)
    assert_type(state.step, int)
    assert_type(state.metrics["loss"], float)


def of_every_event(event: Event, state: TrainState) -> None: ...


def stops(event: EvalEnd, state: TrainState) -> Stop | None:
    return Stop("enough") if state.evals > 3 else None


def several(event: StepEnd, state: TrainState) -> tuple[Save, Evaluate]:
    return Save("best"), Evaluate()


def a_list(event: StepEnd, state: TrainState) -> list[Request]:
    return [Report(loss=1.0), Upload("bucket")]


def nested(event: StepEnd, state: TrainState) -> Control:
    return bus.publish(EvalEnd(), state)


def rates(event: StepBegin, state: TrainState) -> SetLR:
    return SetLR({group: rate / 2 for group, rate in state.lr.items()})


def own(event: BatchDrawn, state: TrainState) -> Upload:
    return Upload(str(event.rows))


# The exact event, a base of it, an event of one's own; every kind of reply.
assert_type(bus.on(StepEnd, silent), Handle)
assert_type(bus.on(StepEnd, of_every_event, priority=Priority.LOG, every=50), Handle)
assert_type(bus.on(Event, of_every_event), Handle)
bus.on(EvalEnd, stops, failure="disable", name="stops")
bus.on(StepEnd, several)
bus.on(StepEnd, a_list)
bus.on(StepEnd, nested)
bus.on(StepBegin, rates, priority=250)
bus.on(BatchDrawn, own)
bus.on(StepEnd, lambda event, state: Save(str(event.skipped)))
bus.on("step_end", silent)
bus.on(HandlerFailed, lambda event, state: print(event.subscription, event.error))


@bus.on(StepEnd, every=2)
def decorated(event: StepEnd, state: TrainState) -> None: ...


@bus.on("eval_end")
def decorated_by_name(event: EvalEnd, state: TrainState) -> Stop | None: ...


assert_type(decorated, Callable[[StepEnd, TrainState], Answer])
assert_type(decorated_by_name(EvalEnd(), TrainState()), Stop | None)


class Patient(Callback):
    """Methods keep the types of the stubs; a reply may be narrower."""

    def on_eval_end(self, event: EvalEnd, state: TrainState) -> Stop | None:
        return None

    def on_step_end(self, event: StepEnd, state: TrainState) -> Sequence[Request]:
        return ()


class Plain:
    def on_step_end(self, event: StepEnd, state: TrainState) -> None: ...


with bus.attach(Patient(), every=2) as handle:
    assert_type(handle, Handle)
bus.attach(Plain(), options={"step_end": {"every": 5}})

control = bus.publish(BatchDrawn(3), TrainState(step=1))
assert_type(control, Control)
assert_type(control.stop, Reply | None)
assert_type(control.save, frozenset[str])
assert_type(control.of(Upload), tuple[Reply, ...])
assert_type(control.apply(TrainState()), TrainState)
assert_type(bus.dispatch(StepEnd()), Control)
assert_type(control | Control(), Control)
assert_type(bus.signal(StepEnd), Channel)
bus.signal(StepEnd).connect(print, weak=False, priority=3)

assert_type(TrainState().begin_update().end_update(skipped=True).report(loss=1.0), TrainState)
assert_type(Recorder(bus).names, list[str])
assert_order(bus, StepEnd, ["silent"])
assert_type(subscriptions(max_size=3).example()[0].priority, int)
