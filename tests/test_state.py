"""Nobody can change a snapshot, an event or a request; metrics stay where they are until somebody asks."""

import dataclasses
import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

import eventloop.metrics
from eventloop import (
    Bus,
    CheckpointSaved,
    Control,
    EpochBegin,
    EpochEnd,
    EvalBegin,
    EvalEnd,
    Evaluate,
    Event,
    GradientsReady,
    HandlerFailed,
    Priority,
    Reply,
    ReplyError,
    Report,
    RunFailed,
    Save,
    SetLR,
    SkipUpdate,
    StaleMetricError,
    StepBegin,
    StepEnd,
    Stop,
    TrainBegin,
    TrainEnd,
    TrainState,
)
from eventloop.testing import metric_values

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


class Reads(TorchDispatchMode):
    """Notes each time that a tensor's value is fetched to Python."""

    def __init__(self):
        super().__init__()
        self.count = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.count += "_local_scalar_dense" in str(func)
        return func(*args, **(kwargs or {}))


@pytest.fixture
def fetches(monkeypatch):
    """How many cells each call of the resolver was given."""
    sizes, fetch = [], eventloop.metrics.fetch

    def counted(unread):
        cells = list(unread)
        sizes.append(len(cells))
        fetch(cells)

    monkeypatch.setattr(eventloop.metrics, "fetch", counted)
    return sizes


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


# -- values ------------------------------------------------------------------------------------------------------------


@given(metric_values())
def test_a_plain_number_comes_back_as_a_float(value):
    read = TrainState().report(a=value).metrics["a"]
    assert type(read) is float
    assert read == float(value) or (math.isnan(read) and math.isnan(value))


@pytest.mark.parametrize(
    ("value", "number"),
    [
        (True, 1.0),
        (3, 3.0),
        (Fraction(1, 4), 0.25),
        (np.float32(1.5), 1.5),
        (np.float16(1.5), 1.5),
        (np.int64(-2), -2.0),
        (np.bool_(True), 1.0),
        (np.array(2.5), 2.5),
        (np.array([[2.5]]), 2.5),
        (torch.tensor(0.5), 0.5),
        (torch.tensor([0.5]), 0.5),
        (torch.tensor([[3]]), 3.0),
        (torch.tensor(True), 1.0),
        (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
        (torch.tensor(0.5, requires_grad=True), 0.5),
    ],
    ids=lambda value: f"{type(value).__module__}.{type(value).__name__}",
)
def test_one_real_number_of_any_kind_is_a_metric(value, number):
    read = TrainState().report(a=value).metrics["a"]
    assert (type(read), read) == (float, number)


@pytest.mark.parametrize(
    "value",
    [
        "0.5",
        None,
        [1.0],
        (1.0,),
        1j,
        np.array([1.0, 2.0]),
        np.array("x"),
        torch.ones(2),
        torch.tensor(1j),
        object(),
        10**400,
    ],
    ids=lambda value: type(value).__name__,
)
def test_anything_else_is_refused_by_key_and_type(value):
    with pytest.raises(ReplyError, match=f"metric 'a/b' must be one real number, not .*{type(value).__name__}"):
        TrainState().report({"a": {"b": value}})


def test_a_metrics_name_is_a_text():
    with pytest.raises(ReplyError, match="metric name 3 is no text"):
        TrainState().report({3: 1.0})


# -- laziness ----------------------------------------------------------------------------------------------------------


def test_no_tensor_is_read_before_somebody_asks_and_then_all_unread_ones_at_once(fetches):
    with Reads() as reads:
        state = TrainState().begin_update().end_update().report(loss=torch.tensor(1.0), acc=torch.tensor(0.5), lr=0.1)
        assert (len(state.metrics), "loss" in state.metrics, list(state.metrics)) == (3, True, ["loss", "acc", "lr"])
        assert (fetches, reads.count) == ([], 0)
        assert state.metrics["loss"] == 1.0
        assert (fetches, reads.count) == ([2], 2)
        assert (state.metrics["acc"], state.metrics["loss"], state.metrics["lr"]) == (0.5, 1.0, 0.1)
        assert (fetches, reads.count) == ([2], 2)


def test_who_is_not_due_costs_no_read_and_all_who_are_share_one(fetches):
    bus = Bus()
    for name in ("console", "tensorboard"):
        bus.on(StepEnd, lambda event, state: float(state.metrics["loss"]) and None, every=5, name=name)
    with Reads() as reads:
        for step in range(1, 11):
            state = TrainState(step=step).report(loss=torch.tensor(1.0), norm=torch.tensor(2.0))
            bus.publish(StepEnd(), state)
    assert (fetches, reads.count) == ([2, 2], 4)


def test_a_value_read_through_one_snapshot_is_read_for_all_that_share_it(fetches):
    before = TrainState().report(loss=torch.tensor(1.0))
    behind = before.report(norm=2.0)
    assert (behind.metrics["loss"], before.metrics["loss"], fetches) == (1.0, 1.0, [1])


def test_no_repr_of_snapshots_events_requests_and_control_reads_a_value(fetches):
    bus = Bus()
    bus.on(StepEnd, lambda event, state: (Report(norm=torch.tensor(1.0)), SetLR(0.1), 3), name="reports")
    with Reads() as reads:
        state = TrainState(lr={"a": 1.0}).report(loss=torch.tensor(1.0))
        control = bus.publish(StepEnd(), state)
        failed = HandlerFailed("x", StepEnd(), ValueError("y"))
        texts = [
            repr(thing) for thing in (state, state.metrics, control, control.apply(state), failed, *control.requests)
        ]
        texts += [str(control.requests[0]), str(bus.explain(StepEnd)), repr(bus.failures)]
    assert (fetches, reads.count) == ([], 0)
    assert "loss" in texts[0]
    assert "norm" in texts[3]


def test_no_dispatch_step_reads_a_value_though_handlers_report_tensors(fetches):
    bus = Bus()
    bus.on(StepEnd, lambda event, state: Report(norm=torch.tensor(1.0)), priority=Priority.MEASURE, name="norm")
    bus.on(StepEnd, lambda event, state: len(state.metrics) and None, name="counts")
    state = TrainState()
    with Reads() as reads:
        for _ in range(5):
            state = bus.publish(StepBegin(), state.begin_update()).apply(state.begin_update())
            state = state.end_update().report(loss=torch.tensor(1.0))
            state = bus.publish(StepEnd(), state).apply(state)
    assert (fetches, reads.count) == ([], 0)


def test_a_reported_tensor_is_detached_and_not_copied():
    loss = torch.ones((), requires_grad=True) * 2
    raw = TrainState().report(loss=loss).metrics
    loss.data.add_(1)
    assert raw["loss"] == 3.0
    assert raw.raw("loss") == 3.0


def test_raw_does_not_ask_and_gives_no_alias(fetches):
    with Reads() as reads:
        metrics = TrainState().report(loss=torch.tensor([0.5], requires_grad=True), lr=0.1).metrics
        raw = metrics.raw("loss")
        assert (fetches, reads.count) == ([], 0)
    assert isinstance(raw, torch.Tensor)
    assert not raw.requires_grad
    raw.zero_()
    assert metrics["loss"] == 0.5
    assert (metrics.raw("loss"), metrics.raw("lr")) == (0.5, 0.1)


def test_at_the_next_update_what_was_read_stays_and_the_rest_is_dropped():
    state = TrainState().begin_update().end_update().report(read=torch.tensor(1.0))
    assert state.metrics["read"] == 1.0
    state = state.report(unread=torch.tensor(2.0))
    later = state.begin_update()
    assert (dict(later.metrics), later.metrics.step_of("read")) == ({"read": 1.0}, 1)
    with pytest.raises(StaleMetricError, match="unread of step 1 was not read before the next step_begin and is gone"):
        state.metrics["unread"]
    with pytest.raises(StaleMetricError, match=r"read state.metrics\['unread'\] inside the handler"):
        state.metrics.raw("unread")


def test_an_evaluation_in_between_does_not_keep_the_updates_tensors_alive():
    state = TrainState().begin_update().end_update().report(loss=torch.tensor(1.0))
    evaluated = state.end_evaluation({"eval_loss": torch.tensor(2.0)})
    assert dict(evaluated.metrics) == {"loss": 1.0, "eval_loss": 2.0}
    unread = state.end_evaluation({"eval_loss": torch.tensor(2.0)}).begin_update()
    assert dict(unread.metrics) == {"loss": 1.0}


def test_the_mean_of_micro_losses_is_taken_only_when_asked(fetches):
    cell = eventloop.metrics.Cell((torch.tensor(1.0), torch.tensor(2.0), 6.0), 1)
    metrics = eventloop.metrics.Metrics({"loss": cell})
    with Reads() as reads:
        assert metrics.raw("loss").dtype == torch.float64
        assert (fetches, reads.count) == ([], 0)
    assert metrics.raw("loss") == 3.0
    assert (metrics["loss"], fetches) == (3.0, [1])


# -- control -----------------------------------------------------------------------------------------------------------


def test_a_control_tells_who_asked_for_what_in_its_repr():
    control = Control([Reply("saver", Save("best")), Reply("stopper", Stop("enough"))])
    assert repr(control) == (
        "Control([Reply(who='saver', request=Save(tag='best')), Reply(who='stopper', request=Stop(reason='enough'))])"
    )
