"""Nobody can change a snapshot, an event or a request; counters count what is finished."""

import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventloop import (
    CheckpointSaved,
    EpochBegin,
    EpochEnd,
    EvalBegin,
    EvalEnd,
    Evaluate,
    Event,
    GradientsReady,
    HandlerFailed,
    Reply,
    Report,
    RunFailed,
    Save,
    SetLR,
    SkipUpdate,
    StepBegin,
    StepEnd,
    Stop,
    TrainBegin,
    TrainEnd,
    TrainState,
)

EVENTS = [
    TrainBegin,
    EpochBegin,
    StepBegin,
    GradientsReady,
    StepEnd,
    EvalBegin,
    EvalEnd,
    EpochEnd,
    CheckpointSaved,
    HandlerFailed,
    RunFailed,
    TrainEnd,
]
FULL = TrainState(run_id="r", epoch=2, step=7, update=8, lr={"body": 0.1}, metrics={"loss": 0.5}, total=10)


# -- immutability ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("field", TrainState._fields)
def test_no_field_of_a_snapshot_can_be_set_or_deleted(field):
    with pytest.raises(AttributeError):
        setattr(FULL, field, 1)
    with pytest.raises(AttributeError):
        delattr(FULL, field)
    assert not hasattr(FULL, "__dict__")


@pytest.mark.parametrize("mapping", ["lr", "held", "metrics"])
def test_the_mappings_of_a_snapshot_are_read_only(mapping):
    frozen = getattr(FULL, mapping)
    with pytest.raises(TypeError):
        frozen["loss"] = 2.0
    with pytest.raises(TypeError):
        del frozen["loss"]
    for method in ("pop", "update", "clear", "setdefault"):
        assert not hasattr(frozen, method)


def test_a_snapshot_does_not_change_with_the_mappings_it_was_made_from():
    lr, metrics = {"body": 1.0}, {"loss": 1.0}
    state = TrainState(lr=lr, metrics=metrics)
    replaced = state.replace(lr=lr)
    lr["body"] = metrics["loss"] = 2.0
    assert (state.lr["body"], state.metrics["loss"], replaced.lr["body"]) == (1.0, 1.0, 1.0)


def test_nothing_can_be_hung_on_a_metrics_mapping():
    with pytest.raises(AttributeError):
        FULL.metrics.note = 1
    with pytest.raises(AttributeError):
        FULL.metrics.fresh = set()


@pytest.mark.parametrize("event", [kind() for kind in EVENTS], ids=lambda event: event.name)
def test_no_event_can_be_changed_and_each_can_be_made_without_arguments(event):
    for field in (*(f.name for f in dataclasses.fields(event)), "name", "metrics"):
        with pytest.raises((AttributeError, TypeError)):
            setattr(event, field, 1)
    assert event == type(event)()


def test_the_plain_base_event_carries_nothing():
    with pytest.raises(AttributeError):
        Event().anything = 1


@pytest.mark.parametrize(
    ("request_", "field"),
    [
        (Stop("why"), "reason"),
        (Save("best"), "tag"),
        (SkipUpdate("why"), "reason"),
        (SetLR(0.1), "lr"),
        (SetLR({"a": 0.1}), "lr"),
        (Report(a=1.0), "metrics"),
        (Evaluate(), "anything"),
        (Reply("me", Stop()), "who"),
    ],
    ids=lambda value: type(value).__name__,
)
def test_no_request_can_be_changed(request_, field):
    with pytest.raises((AttributeError, TypeError)):
        setattr(request_, field, "other")


def test_the_mappings_of_requests_are_copies_and_read_only():
    rates, metrics = {"a": 0.1}, {"b": {"c": 1.0}}
    set_lr, report = SetLR(rates), Report(metrics)
    rates["a"] = 9.0
    metrics["d"] = 9.0
    assert (dict(set_lr.lr), list(report.metrics)) == ({"a": 0.1}, ["b"])
    with pytest.raises(TypeError):
        set_lr.lr["a"] = 1
    with pytest.raises(TypeError):
        report.metrics["a"] = 1


def test_a_handler_that_tries_to_change_the_state_fails_and_the_next_one_sees_it_whole(bus):
    seen = []
    bus.on(StepEnd, lambda event, state: state.metrics.pop("loss"), name="thief")
    bus.on(StepEnd, lambda event, state: setattr(event, "skipped", True), name="liar")
    bus.on(StepEnd, lambda event, state: seen.append((event.skipped, dict(state.metrics))), name="reader")
    control = bus.publish(StepEnd(), TrainState().report(loss=0.5))
    assert seen == [(False, {"loss": 0.5})]
    assert [f.subscription for f in control.failures] == ["thief", "liar"]


# -- counters ----------------------------------------------------------------------------------------------------------


@given(st.lists(st.tuples(st.booleans(), st.integers(1, 4), st.integers(1, 64)), max_size=12))
def test_counters_count_finished_updates_and_skipped_ones_apart(updates):
    state = TrainState()
    for skipped, micro, samples in updates:
        state = state.begin_update()
        assert state.update == state.step + 1
        state = state.end_update(skipped=skipped, micro=micro, samples=samples)
    done = [u for u in updates if not u[0]]
    assert (state.step, state.skipped) == (len(done), len(updates) - len(done))
    assert (state.micro, state.samples) == (sum(u[1] for u in updates), sum(u[2] for u in updates))


def test_a_state_without_arguments_is_the_one_before_a_run():
    assert TrainState() == TrainState(step=0, epoch=0, update=0, metrics={}, lr={}, world=1, total=None)
    assert (TrainState().begin_epoch().epoch, TrainState().begin_update().update) == (1, 1)


def test_end_evaluation_counts_it_and_makes_exactly_its_keys_fresh():
    state = TrainState().begin_update().end_update().report(loss=1.0).end_evaluation({"eval_loss": 2.0})
    assert (state.evals, set(state.metrics.fresh), set(state.metrics)) == (1, {"eval_loss"}, {"loss", "eval_loss"})
    again = state.end_evaluation({"other": 3.0})
    assert (again.evals, set(again.metrics.fresh)) == (2, {"other"})


def test_a_new_update_makes_nothing_fresh_and_step_of_says_how_old_a_value_is():
    state = TrainState()
    for step in range(1, 4):
        state = state.begin_update().end_update().report({"loss": float(step), **({"rare": 0.5} if step == 1 else {})})
    assert set(state.metrics.fresh) == {"loss"}
    assert (state.metrics.step_of("loss"), state.metrics.step_of("rare")) == (3, 1)
    assert (state.metrics["rare"], set(state.begin_update().metrics.fresh)) == (0.5, set())
    with pytest.raises(KeyError, match="absent"):
        state.metrics.step_of("absent")
