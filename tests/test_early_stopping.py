"""EarlyStopping: judged against ten lines of plain Python, at every cut point, and on a live model."""

import copy
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callbacks import EarlyStopping
from callbacks.improvement import MissingMetricError
from eventloop import Bus, EpochEnd, EvalEnd, StepEnd, Stop, TrainBegin, TrainEnd, TrainState
from eventloop.testing import metric_series

STEPS = 10  # from one evaluation to the next


def evaluate(bus, state, metrics):
    """The state after one more evaluation, and the reason of the stop that it led to."""
    state = state.replace(step=state.step + STEPS).end_evaluation(metrics)
    stop = bus.publish(EvalEnd(), state).stop
    return state, None if stop is None else stop.reason


def stops_of(stopper, series, *, resumed=False, begin_at=0):
    bus = Bus()
    bus.attach(stopper)
    state, reasons = TrainState(step=begin_at), []
    bus.publish(TrainBegin(resumed), state)
    for metrics in series:
        state, reason = evaluate(bus, state, metrics)
        reasons.append(reason)
    return reasons


def reference(series, mode, patience, min_delta, min_steps):
    """What early stopping is, in plain Python: at which evaluations it asks for a stop, and the best with its step."""
    best = best_step = None
    count, asks = 0, []
    for i, metrics in enumerate(series, 1):
        value, step = metrics.get("eval_loss"), i * STEPS
        if (
            value is not None
            and math.isfinite(value)
            and (best is None or (value < best - min_delta if mode == "min" else value > best + min_delta))
        ):
            best, best_step, count = value, step, 0
        elif value is not None and step >= min_steps:
            count += 1
        asks.append(value is not None and best_step != step and step >= min_steps and count >= patience)
    return asks, best, best_step, count


SETTINGS = st.fixed_dictionaries(
    {
        "mode": st.sampled_from(["min", "max"]),
        "patience": st.integers(1, 4),
        "min_delta": st.sampled_from([0.0, 0.25, 1.0]),
        "min_steps": st.sampled_from([0, 20, 25, 50]),
    }
)


@given(metric_series(), SETTINGS)
def test_it_asks_for_a_stop_when_and_only_when_the_reference_does(series, settings):
    stopper = EarlyStopping("eval_loss", **settings)
    asked = [reason is not None for reason in stops_of(stopper, series)]
    assert (asked, stopper.best, stopper.best_step, stopper.count) == reference(series, **settings)


@given(metric_series(), SETTINGS, st.integers(0, 12))
def test_cut_anywhere_and_resumed_it_asks_for_the_same(series, settings, cut):
    whole = stops_of(EarlyStopping("eval_loss", **settings), series)
    first, second = EarlyStopping("eval_loss", **settings), EarlyStopping("eval_loss", **settings)
    before = stops_of(first, series[:cut])
    second.load_state_dict(first.state_dict())
    assert before + stops_of(second, series[cut:], resumed=True, begin_at=len(before) * STEPS) == whole


@given(metric_series())
def test_a_fresh_run_has_no_history(series):
    used = EarlyStopping("eval_loss", patience=2)
    stops_of(used, [{"eval_loss": v} for v in (0.1, 0.2, 0.3)])
    assert stops_of(used, series) == stops_of(EarlyStopping("eval_loss", patience=2), series)


def test_limits_are_settings_the_new_ones_count_on_resume():
    first, second = EarlyStopping("eval_loss", patience=2), EarlyStopping("eval_loss", patience=4)
    stops_of(first, [{"eval_loss": v} for v in (1.0, 2.0, 2.0)])
    second.load_state_dict(first.state_dict())
    assert (second.best, second.best_step, second.count) == (1.0, 10, 2)
    stops = stops_of(second, [{"eval_loss": 2.0}] * 2, resumed=True)
    assert stops == [None, "eval_loss has not improved on 1 for 4 evaluations"]


def test_small_gains_add_up_against_the_same_reference():
    series = [{"eval_loss": v} for v in (1.0, 0.875, 0.75, 0.625)]
    assert stops_of(EarlyStopping("eval_loss", patience=3, min_delta=0.25), series) == [None] * 4


def test_the_reason_names_metric_best_and_count():
    series = [{"eval_loss": v} for v in (0.093, 0.1, 0.2, 0.3)]
    assert stops_of(EarlyStopping("eval_loss"), series)[-1] == "eval_loss has not improved on 0.093 for 3 evaluations"
    assert stops_of(EarlyStopping("eval_loss", patience=1), series)[1].endswith("for 1 evaluation")
    never = stops_of(EarlyStopping("eval_loss", patience=2), [{"eval_loss": math.nan}] * 2)
    assert never == [None, "eval_loss has not been finite for 2 evaluations"]


def test_a_stop_that_is_refused_is_asked_for_again_until_there_is_an_improvement():
    stops = stops_of(EarlyStopping("eval_loss", patience=1), [{"eval_loss": v} for v in (1.0, 2.0, 2.0, 0.5, 0.6)])
    assert [reason is not None for reason in stops] == [False, True, True, False, True]


def test_other_events_that_show_the_metric_are_no_verdict():
    bus, stopper = Bus(), EarlyStopping("eval_loss", patience=1)
    bus.attach(stopper)
    state, _ = evaluate(bus, TrainState(), {"eval_loss": 1.0})
    bus.publish(EpochEnd(), state)
    bus.publish(StepEnd(), state.begin_update().end_update().report(eval_loss=9.0))
    assert stopper.count == 0


def test_an_older_value_of_the_metric_is_not_judged_again():
    stopper = EarlyStopping("eval_loss", patience=1)
    assert stops_of(stopper, [{"eval_loss": 1.0}, {"acc": 0.5}, {"acc": 0.5}]) == [None] * 3
    assert stopper.count == 0


def test_a_missing_metric_is_said_once_in_a_run(caplog):
    stopper = EarlyStopping("eval_loss", patience=1)
    stops_of(stopper, [{"eval_los": 1.0}] * 3)
    stops_of(stopper, [{"eval_los": 1.0}] * 3)
    text = "EarlyStopping: no metric 'eval_loss' at eval_end of step 10; reported there: eval_los (did you mean"
    assert [record.message.startswith(text) for record in caplog.records] == [True, True]


def test_strict_makes_a_missing_metric_an_error_that_reaches_the_caller():
    with pytest.raises(MissingMetricError, match="no metric 'eval_loss' at eval_end of step 10; reported there: acc"):
        stops_of(EarlyStopping("eval_loss", strict=True), [{"acc": 0.5}])


def test_its_stop_is_in_its_name():
    bus = Bus()
    bus.attach(EarlyStopping("acc", "max", patience=1))
    bus.publish(EvalEnd(), TrainState().end_evaluation({"acc": math.nan}))
    control = bus.publish(EvalEnd(), TrainState().end_evaluation({"acc": math.nan}))
    assert control.stop == ("EarlyStopping", Stop("acc has not been finite for 2 evaluations"))


# -- restore_best ------------------------------------------------------------------------------------------------------


def network():
    import torch

    return torch.nn.Sequential(torch.nn.Linear(2, 3), torch.nn.BatchNorm1d(3))


def train(model, bus, state, values):
    """One update, which changes every parameter and buffer, before each evaluation; what each evaluation saw."""
    import torch

    seen = []
    for value in values:
        with torch.no_grad():
            for parameter in model.parameters():
                parameter.add_(1.0)
        model(torch.randn(4, 2))
        seen.append(copy.deepcopy(model.state_dict()))
        state, _ = evaluate(bus, state, {"eval_loss": value})
    return state, seen


def same(a, b):
    import torch

    return a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)


def bound(model, *, resumed=False, state=None, **settings):
    bus, stopper = Bus(), EarlyStopping("eval_loss", restore_best=True, **settings)
    bus.attach(stopper)
    if state is not None:
        stopper.load_state_dict(state)
    bus.bind(model=model)
    bus.publish(TrainBegin(resumed))
    return bus, stopper


@pytest.mark.parametrize("status", ["completed", "stopped", "interrupted", "failed"])
def test_the_best_weights_and_buffers_come_back_in_place_however_the_run_ends(status):
    model = network()
    places = [p.data_ptr() for p in model.parameters()]
    bus, _ = bound(model)
    state, seen = train(model, bus, TrainState(), [1.0, 0.5, 0.7])
    bus.publish(TrainEnd(status), state)
    assert same(model.state_dict(), seen[1])
    assert [p.data_ptr() for p in model.parameters()] == places
    assert all(p.requires_grad for p in model.parameters())


def test_the_copy_is_part_of_the_state_and_of_nobody_else():
    model, other = network(), network()
    bus, stopper = bound(model)
    state, seen = train(model, bus, TrainState(), [0.5, 0.7])
    stored = stopper.state_dict()
    train(model, bus, state, [0.1])
    resumed, _ = bound(other, resumed=True, state=stored)
    resumed.publish(TrainEnd(), train(other, resumed, state, [0.9])[0])
    assert same(other.state_dict(), seen[0])


def test_without_a_best_the_weights_stay_as_they_are():
    model = network()
    bus, _ = bound(model)
    state, seen = train(model, bus, TrainState(), [math.nan, math.inf])
    bus.publish(TrainEnd(), state)
    assert same(model.state_dict(), seen[1])


def test_switched_on_for_a_resume_it_says_that_the_best_so_far_cannot_come_back(caplog):
    model = network()
    bus, _ = bound(model, resumed=True, state={"best": 0.5, "best_step": 40, "count": 1})
    assert "restore_best was off when the best eval_loss was measured (0.5 at step 40)" in caplog.text
    state, seen = train(model, bus, TrainState(step=50), [0.7])
    bus.publish(TrainEnd(), state)
    assert same(model.state_dict(), seen[0])


def test_a_model_that_has_lost_a_parameter_is_an_error_and_is_left_alone():
    model = network()
    bus, _ = bound(model)
    state, seen = train(model, bus, TrainState(), [0.5, 0.7])
    del model[1]
    with pytest.raises(KeyError, match=r"the model no longer has 1\.bias, .* its weights stay as they are"):
        bus.publish(TrainEnd(), state)
    assert same(model.state_dict(), {key: seen[1][key] for key in ("0.weight", "0.bias")})


def test_without_a_model_it_says_what_to_do():
    bus = Bus()
    bus.attach(EarlyStopping("eval_loss", restore_best=True))
    with pytest.raises(ValueError, match=r"restore_best=True needs the model: call bus\.bind\(model=\.\.\.\) first"):
        bus.publish(TrainBegin())


def test_only_with_it_does_the_stopper_touch_the_model_or_hear_the_end():
    plain, restoring = EarlyStopping("eval_loss"), EarlyStopping("eval_loss", restore_best=True)
    bus = Bus()
    for stopper in (plain, restoring):
        bus.attach(stopper)
    assert [plain.touches_model, restoring.touches_model] == [False, True]
    assert [s.name for s in bus.order(TrainEnd)] == ["EarlyStopping#2"]


# -- arguments and looks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"monitor": "acc"}, "EarlyStopping: mode=None, and 'acc' does not say"),
        ({"monitor": ""}, "EarlyStopping: monitor='' must be a name"),
        ({"mode": "auto"}, "EarlyStopping: mode='auto' must be 'min' or 'max'"),
        ({"patience": 0}, "EarlyStopping: patience=0 must be a whole number >= 1"),
        ({"patience": 2.0}, r"EarlyStopping: patience=2\.0 must be a whole number >= 1"),
        ({"patience": True}, "EarlyStopping: patience=True must be a whole number >= 1"),
        ({"min_delta": -0.1}, r"EarlyStopping: min_delta=-0\.1 must be a finite number >= 0"),
        ({"min_delta": math.inf}, "EarlyStopping: min_delta=inf must be a finite number >= 0"),
        ({"min_delta": "1e-4"}, "EarlyStopping: min_delta='1e-4' must be a finite number >= 0"),
        ({"min_steps": -1}, "EarlyStopping: min_steps=-1 must be a whole number >= 0"),
        ({"restore_best": 1}, "EarlyStopping: restore_best=1 must be True or False"),
        ({"strict": "no"}, "EarlyStopping: strict='no' must be True or False"),
    ],
)
def test_arguments_are_checked_at_construction(arguments, message):
    with pytest.raises(ValueError, match=message):
        EarlyStopping(**{"monitor": "eval_loss", **arguments})


def test_explain_says_its_band_its_rule_and_where_the_mode_comes_from():
    bus = Bus()
    bus.attach(EarlyStopping("eval_loss", patience=5, min_delta=0.01))
    bus.attach(EarlyStopping("acc", "max", restore_best=True))
    first, second = bus.explain(EvalEnd).splitlines()[1:]
    assert "-200 DECIDE" in first
    assert first.endswith("failure=raise, eval_loss min (by its name), patience 5, min_delta 0.01")
    assert second.endswith("failure=raise, touches the model, acc max, patience 3, restore_best")


def test_the_summary_is_what_a_run_tells_of_its_best():
    stopper = EarlyStopping("eval_loss")
    stops_of(stopper, [{"eval_loss": v} for v in (1.0, 0.5, 0.7)])
    assert stopper.summary() == {"monitor": "eval_loss", "best": 0.5, "best_step": 20}
