"""NaNGuard: what it finds, when, and that finding it costs no sync."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils._python_dispatch import TorchDispatchMode

from callbacks import NaNGuard
from eventloop import Bus, GradientsReady, SkipUpdate, StepBegin, StepEnd, TrainBegin, TrainState
from eventloop.testing import metric_values

NAN, INF = math.nan, math.inf


class Operators(TorchDispatchMode):
    """The names of the operators that torch runs inside."""

    def __init__(self):
        super().__init__()
        self.names = []

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        self.names.append(str(function))
        return function(*args, **(kwargs or {}))


def attached(guard):
    bus = Bus(failure="raise")
    bus.attach(guard)
    return bus


def requests(bus, losses, *, resumed=False, step=0):
    """What is asked for at each update; a loss of None is not reported."""
    state, asked = TrainState(step=step), []
    bus.publish(TrainBegin(resumed), state)
    for loss in losses:
        state = state.begin_update()
        bus.publish(StepBegin(), state)
        state = state if loss is None else state.report(loss=loss)
        control = bus.publish(GradientsReady(), state)
        state = state.end_update()
        control |= bus.publish(StepEnd(), state)
        asked.append([reply.request for reply in control.requests])
    return asked


def reasons(guard, losses):
    return [[request.reason for request in one] for one in requests(attached(guard), losses)]


def tensors(values):
    return [None if value is None else torch.tensor(value, dtype=torch.float64) for value in values]


# -- stop --------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
def test_a_plain_float_is_judged_at_once(bad):
    assert reasons(NaNGuard(), [1.0, bad, 1.0]) == [[], ["loss was NaN/inf at step 2"], []]


@pytest.mark.parametrize("bad", [NAN, INF, -INF])
@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_a_tensor_is_judged_an_update_later_under_the_right_step(bad, dtype):
    losses = [torch.tensor(value, dtype=dtype) for value in (1.0, bad, 1.0, 1.0)]
    assert reasons(NaNGuard(), losses) == [[], [], ["loss was NaN/inf at step 2"], []]


def test_an_accumulated_loss_is_bad_if_one_of_its_parts_is():
    from eventloop.metrics import Cell, Metrics  # such a cell is made by the loop alone

    bus, state = attached(NaNGuard()), TrainState(step=1, update=1)
    parts = tuple(tensors([1.0, NAN]))
    bus.publish(StepEnd(), state.with_metrics(Metrics({"loss": Cell(parts, 1)})))
    assert bus.publish(StepEnd(), state.replace(step=2, update=2)).stop.reason == "loss was NaN/inf at step 1"


def test_no_sync_is_dispatched_whatever_the_losses():
    bus = attached(NaNGuard())
    losses = tensors([1.0, NAN, 1.0, INF])
    with Operators() as operators:
        asked = requests(bus, losses)
    assert [len(one) for one in asked] == [0, 0, 1, 0]
    assert any("copy_" in name for name in operators.names)
    assert not any("_local_scalar_dense" in name or "item" in name for name in operators.names)


def test_a_loss_that_is_changed_in_place_afterwards_was_judged_as_it_stood():
    loss = torch.tensor(1.0)
    bus, state = attached(NaNGuard()), TrainState(step=1, update=1)
    bus.publish(StepEnd(), state.report(loss=loss))
    loss.fill_(NAN)
    assert bus.publish(StepEnd(), state.replace(step=2, update=2)).stop is None


def test_a_loss_of_one_element_and_a_change_of_type_in_mid_run_are_fine():
    losses = [torch.tensor([1.0]), torch.tensor([[NAN]], dtype=torch.float64), torch.tensor(3), torch.tensor(INF)]
    assert reasons(NaNGuard(), [*losses, None]) == [
        [],
        [],
        ["loss was NaN/inf at step 2"],
        [],
        ["loss was NaN/inf at step 4"],
    ]


def test_patience_counts_bad_values_in_a_row():
    losses = [NAN, 1.0, NAN, INF, NAN, 1.0]
    stops = [bool(one) for one in reasons(NaNGuard(patience=3), losses)]
    assert stops == [False, False, False, False, True, False]
    assert reasons(NaNGuard(patience=3), losses)[4] == ["loss was NaN/inf 3 times in a row, the last at step 5"]


@given(st.lists(st.none() | metric_values().map(float), max_size=10), st.integers(1, 3))
def test_tensors_lead_to_the_same_stops_as_floats_one_update_later(losses, patience):
    late = reasons(NaNGuard(patience=patience), [*tensors(losses), None])
    assert late == [[], *reasons(NaNGuard(patience=patience), losses)]


@given(st.lists(metric_values().map(float), max_size=8), st.integers(0, 8), st.integers(1, 3))
def test_cut_anywhere_and_resumed_it_asks_for_the_same(losses, cut, patience):
    whole = requests(attached(NaNGuard(patience=patience)), tensors(losses))
    first, second = NaNGuard(patience=patience), NaNGuard(patience=patience)
    before = requests(attached(first), tensors(losses[:cut]))
    second.load_state_dict(first.state_dict())
    after = requests(attached(second), tensors(losses[cut:]), resumed=True, step=len(before))
    assert before + after == whole


def test_taking_the_state_changes_nothing():
    guard = NaNGuard()
    bus, state = attached(guard), TrainState(step=1, update=1)
    bus.publish(StepEnd(), state.report(loss=torch.tensor(NAN)))
    assert guard.state_dict() == guard.state_dict() == {"row": 0, "late": (1, True)}
    assert bus.publish(StepEnd(), state.replace(step=2, update=2)).stop.reason == "loss was NaN/inf at step 1"


def test_a_fresh_run_has_no_history():
    guard = NaNGuard(patience=2)
    bus = attached(guard)
    requests(bus, tensors([NAN]))
    assert requests(bus, tensors([NAN, 1.0, 1.0])) == [[], [], []]


def test_a_metric_that_is_never_there_is_said_once(caplog):
    assert reasons(NaNGuard("los"), [1.0, NAN, 1.0]) == [[], [], []]
    text = "NaNGuard: no metric 'los' at step_end of step 1; reported there: loss (did you mean 'loss'?)"
    assert [record.message for record in caplog.records] == [text]


# -- skip --------------------------------------------------------------------------------------------------------------


def test_skip_asks_to_drop_each_bad_update_before_it_is_made():
    assert requests(attached(NaNGuard(action="skip")), tensors([1.0, NAN, INF, 1.0])) == [
        [],
        [SkipUpdate("loss was NaN/inf at step 2")],
        [SkipUpdate("loss was NaN/inf at step 3")],
        [],
    ]


def test_skip_with_patience_also_stops_after_so_many_in_a_row():
    asked = reasons(NaNGuard(action="skip", patience=2), tensors([NAN, NAN, 1.0, NAN]))
    assert [len(one) for one in asked] == [1, 2, 0, 1]
    assert asked[1] == ["loss was NaN/inf at step 2", "loss was NaN/inf 2 times in a row, the last at step 2"]


def test_skip_judges_the_gradient_norm_that_was_measured_just_before():
    from callbacks import GradNormMonitor

    weight = torch.nn.Parameter(torch.zeros(2))
    weight.grad = torch.tensor([1.0, INF])
    bus = attached(NaNGuard("grad_norm", action="skip"))
    bus.attach(GradNormMonitor(every=1))
    bus.bind(model=torch.nn.ParameterList([weight]))
    assert bus.publish(GradientsReady(), TrainState(update=1)).skip.reason == "grad_norm was NaN/inf at step 1"


@pytest.mark.parametrize(("action", "heard"), [("stop", ["step_end"]), ("skip", ["gradients_ready"])])
def test_only_the_event_that_the_action_needs_is_heard(action, heard):
    bus = attached(NaNGuard(action=action))
    assert [kind.name for kind in (GradientsReady, StepEnd) if bus.order(kind)] == heard


# -- arguments and looks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"action": "raise"}, "NaNGuard: action='raise' must be 'stop' or 'skip'"),
        ({"patience": 0}, "NaNGuard: patience=0 must be a whole number >= 1"),
        ({"monitor": 3}, "NaNGuard: monitor=3 must be a name"),
    ],
)
def test_arguments_are_checked_at_construction(arguments, message):
    with pytest.raises(ValueError, match=message):
        NaNGuard(**arguments)


@pytest.mark.parametrize(
    ("guard", "told"),
    [
        (NaNGuard(), "loss NaN/inf: stop"),
        (NaNGuard(patience=3), "loss NaN/inf: stop after 3 in a row"),
        (NaNGuard(action="skip"), "loss NaN/inf: skip"),
        (NaNGuard("grad_norm", "skip", 5), "grad_norm NaN/inf: skip, stop after 5 in a row"),
    ],
)
def test_it_describes_itself(guard, told):
    assert guard.describe() == told
