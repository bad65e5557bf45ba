"""Nothing outlives its use: buses, owners, events, snapshots, frames of failed handlers."""

import gc
import logging
import tracemalloc
import weakref
from dataclasses import dataclass

import pytest
import torch

from eventloop import (
    Bus,
    Callback,
    EvalEnd,
    Event,
    Report,
    Save,
    SetLR,
    StepBegin,
    StepEnd,
    Stop,
    TrainBegin,
    TrainState,
)
from eventloop.testing import Deliberate


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """pytest keeps log records, and with them the traceback and the frames of an error."""
    monkeypatch.setattr(logging.getLogger("eventloop"), "disabled", True)


class Owner(Callback):
    def on_step_end(self, event, state):
        return Save()

    def receive(self, sender, event, state):
        return None


class Weighty:
    """Something whose life can be watched."""


def gone(reference):
    gc.collect()
    return reference() is None


def crowded_bus():
    bus = Bus()
    bus.attach(Owner(), every=2)
    bus.on(StepEnd, lambda event, state: Report(a=1.0), name="reports", when=lambda event, state: bus is not None)
    bus.on(Event, lambda event, state: bus.publish(EvalEnd()) if event.name == "step_end" else None, name="nests")
    bus.signal(StepEnd).connect(lambda sender, event, state: 1 / 0, weak=False)
    for step in range(5):
        bus.publish(StepEnd(), TrainState(step=step))
    return weakref.ref(bus)


def test_a_bus_with_everything_on_it_is_collectable():
    assert gone(crowded_bus())


def test_the_owner_of_a_handler_is_collectable_after_cancel_and_after_detach():
    bus, references = Bus(), []
    for leave in (lambda owner, handle: handle.cancel(), lambda owner, handle: bus.detach(owner)):
        owner = Owner()
        references.append(weakref.ref(owner))
        handle = bus.attach(owner)
        bus.publish(StepEnd())
        leave(owner, handle)
        del owner, handle
    bus.publish(StepEnd())
    assert [gone(reference) for reference in references] == [True, True]


def test_a_plain_weak_receiver_is_collectable_after_it_was_called_explained_and_sampled():
    bus, owner = Bus(), Owner()
    bus.signal(StepEnd).connect(owner.receive)
    for _ in range(100):
        bus.publish(StepEnd())
    bus.explain(StepEnd)
    bus.costs()
    reference = weakref.ref(owner)
    del owner
    assert gone(reference)


def test_an_event_class_is_collectable_with_the_bus_that_knew_it():
    bus = Bus()
    kind = dataclass(frozen=True, slots=True)(type("Passing", (Event,), {}))
    bus.on(kind, lambda event, state: None, name="hears")
    bus.publish(kind())
    reference = weakref.ref(kind)
    del kind, bus
    assert gone(reference)


def test_the_bus_keeps_neither_event_nor_state():
    bus, carried, known = Bus(), Weighty(), Weighty()
    event = type("Carrier", (Event,), {})()
    event.load = carried
    bus.on(type(event), lambda event, state: (Report(a=1.0), Stop()), name="replies")
    bus.on(type(event), lambda event, state: 1 / 0, name="fails")
    bus.publish(event, TrainState(run_id=known))
    references = weakref.ref(carried), weakref.ref(known)
    del event, carried, known
    assert [gone(reference) for reference in references] == [True, True]


def test_a_failing_handler_keeps_no_frame_alive():
    bus, references = Bus(), []

    def fails(event, state):
        local = Weighty()
        references.append(weakref.ref(local))
        raise Deliberate

    bus.on(StepEnd, fails)
    bus.publish(StepEnd())
    assert len(bus.failures) == 1
    assert gone(references[0])


@pytest.mark.parametrize("chain", ["cause", "context", "group"])
def test_neither_do_the_errors_behind_its_error(chain):
    bus, references = Bus(), []

    def inner():
        local = Weighty()
        references.append(weakref.ref(local))
        raise KeyError

    def fails(event, state):
        try:
            inner()
        except KeyError as error:
            if chain == "group":
                raise ExceptionGroup("several", [error]) from None
            raise Deliberate from (error if chain == "cause" else error.__cause__)

    def fails_in_context(event, state):
        try:
            inner()
        finally:
            raise Deliberate

    bus.on(StepEnd, fails_in_context if chain == "context" else fails)
    bus.publish(StepEnd())
    assert len(bus.failures) == 1
    assert gone(references[0])


def test_a_dropped_metric_lets_its_tensor_go_though_a_snapshot_is_kept():
    tensor = torch.ones(())
    reference = weakref.ref(tensor.untyped_storage())
    kept = TrainState().begin_update().report(loss=tensor)
    kept.begin_update()
    del tensor
    assert gone(reference)
    assert "loss" in kept.metrics


def test_memory_is_flat_over_a_hundred_thousand_events():
    bus = Bus()
    bus.on(StepBegin, lambda event, state: SetLR(0.1), name="schedule")
    bus.on(StepEnd, lambda event, state: Report(norm=1.0), name="norm")
    bus.on(StepEnd, lambda event, state: Save(), every=100, name="saves")
    bus.on(StepEnd, lambda event, state: 1 / 0, every=50, name="fails")
    bus.on(StepEnd, lambda event, state: bus.publish(EvalEnd(), state) and None, every=10, name="nests")
    bus.on(EvalEnd, lambda event, state: None, name="hears")
    state = TrainState(lr={"all": 1.0})
    bus.publish(TrainBegin(), state)

    def train(updates):
        nonlocal state
        for _ in range(updates):
            state = bus.publish(StepBegin(), state.begin_update()).apply(state.begin_update())
            state = state.end_update(samples=32).report(loss=0.5)
            state = bus.publish(StepEnd(), state).apply(state)

    train(50_000)  # 1,000 failures: as many as are kept
    tracemalloc.start()
    try:
        train(500)
        before, _ = tracemalloc.get_traced_memory()
        train(4_500)
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert after - before < 50_000
