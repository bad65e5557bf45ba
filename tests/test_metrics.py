"""Metrics are single real numbers that stay where they are until somebody asks."""

import math
from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from torch.utils._python_dispatch import TorchDispatchMode

import eventloop.metrics
from eventloop import (
    Bus,
    HandlerFailed,
    Priority,
    ReplyError,
    Report,
    SetLR,
    StaleMetricError,
    StepBegin,
    StepEnd,
    TrainState,
)
from eventloop.testing import metric_values


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
