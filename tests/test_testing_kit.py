"""The test kit that users get: it must itself be right."""

import math
import re

import pytest
from hypothesis import Phase, find, given, settings
from hypothesis import strategies as st

from eventloop import Bus, EvalEnd, Event, Priority, Report, StepBegin, StepEnd, TrainState
from eventloop.testing import (
    Crowd,
    Deliberate,
    MadeUpEvent,
    Recorder,
    Subscriber,
    event_streams,
    metric_series,
    metric_values,
    subscriptions,
)


def drawn(strategy, wanted):
    """Whether such a value is among the first few hundred; not made smaller, which would take its time."""
    return wanted(find(strategy, wanted, settings=settings(phases=[Phase.generate], max_examples=500)))


# -- Recorder ----------------------------------------------------------------------------------------------------------


def test_a_recorder_is_a_list_of_plain_tuples(bus, recorder):
    bus.publish(StepBegin(), TrainState(step=0))
    bus.publish(StepEnd(skipped=True), TrainState(step=1))
    assert recorder == [("step_begin", 0), ("step_end", 1)]
    assert recorder.names == ["step_begin", "step_end"]
    assert repr(recorder) == "[('step_begin', 0), ('step_end', 1)]"


def test_extra_is_the_third_member_and_priority_decides_what_it_sees(bus):
    early = Recorder(bus, lambda event, state: list(state.metrics))
    late = Recorder(bus, lambda event, state: list(state.metrics), priority=Priority.LAST)
    bus.on(StepEnd, lambda event, state: Report(norm=1.0), name="norm")
    bus.publish(StepEnd(), TrainState(step=3))
    assert (early, late) == ([("step_end", 3, [])], [("step_end", 3, ["norm"])])


def test_a_recorder_hears_events_of_ones_own_and_nested_ones_behind_their_cause(bus, recorder):
    bus.on(StepEnd, lambda event, state: bus.publish(MadeUpEvent(), state) and None, name="publishes")
    bus.publish(StepEnd())
    assert recorder.names == ["step_end", "made_up_event"]


def test_an_error_of_extra_is_raised_on_any_bus_and_the_handle_ends_the_recording(bus):
    recorder = Recorder(bus, lambda event, state: event.no_such_field)
    with pytest.raises(AttributeError, match="no_such_field"):
        bus.publish(StepEnd())
    recorder.handle.cancel()
    bus.publish(StepEnd())
    assert recorder == []


# -- Crowd -------------------------------------------------------------------------------------------------------------


def test_each_behaviour_does_what_it_says(bus, recorder):
    does = ["silent", "reports", "stops", "raises", "cancels", "publishes", "registers", "silent"]
    crowd = Crowd(bus, [Subscriber(what, target=7) for what in does])
    first = bus.dispatch(StepEnd())
    assert crowd.calls == [f"step_end_{i}" for i in range(7)]
    assert dict(first.apply(TrainState()).metrics) == {"metric/step_end_1": 1.0}
    assert first.stop.reason == "step_end_2"
    assert [type(f.error) for f in first.failures] == [Deliberate]
    assert recorder.names == ["step_end", "handler_failed", "made_up_event"]
    crowd.calls.clear()
    bus.dispatch(StepEnd())
    assert crowd.calls == [f"step_end_{i}" for i in range(7)]  # it has registered again, and is the last anyway


def test_crowds_of_several_events_stand_on_one_bus(bus):
    crowds = Crowd(bus, [Subscriber()] * 2), Crowd(bus, [Subscriber()], EvalEnd)
    bus.publish(StepEnd())
    bus.publish(EvalEnd())
    assert [crowd.calls for crowd in crowds] == [["step_end_0", "step_end_1"], ["eval_end_0"]]


@given(subscriptions())
def test_every_crowd_can_be_registered_and_called(subscribers):
    bus = Bus()
    crowd = Crowd(bus, subscribers)
    for step in range(3):
        bus.dispatch(StepEnd(), TrainState(step=step))
    assert set(crowd.calls) <= set(crowd.names)


@pytest.mark.parametrize(
    "wanted",
    [
        lambda crowd: len({s.priority for s in crowd}) < len(crowd),
        lambda crowd: any(s.priority == Priority.LOG - 1 for s in crowd),
        lambda crowd: any("every" in s.filters and "after" in s.filters for s in crowd),
        lambda crowd: any(s.failure == "disable" and s.does == "raises" for s in crowd),
        lambda crowd: any(s.does == "registers" for s in crowd),
    ],
    ids=["a tie", "the edge of a band", "two filters", "a policy", "a behaviour"],
)
def test_the_awkward_crowds_are_among_those_drawn(wanted):
    assert drawn(subscriptions(), wanted)


@given(subscriptions(does=["silent"], failures=["raise"], filters=False, min_size=1, max_size=2))
def test_what_is_drawn_can_be_narrowed(subscribers):
    assert 1 <= len(subscribers) <= 2
    assert {(s.does, s.failure, str(s.filters)) for s in subscribers} == {("silent", "raise", "{}")}


# -- metrics -----------------------------------------------------------------------------------------------------------


@given(st.lists(metric_values(), max_size=3))
def test_every_metric_value_may_be_reported(values):
    assert len(TrainState().report({str(i): value for i, value in enumerate(values)}).metrics) == len(values)


@pytest.mark.parametrize(
    "wanted",
    [
        lambda series: any(math.isnan(m.get("eval_loss", 0.0)) for m in series),
        lambda series: {} in series and len(series) > 2,
        lambda series: any(m == n == o for m, n, o in zip(series, series[1:], series[2:], strict=False)),
        lambda series: {"eval_loss": 1.0} in series and {"eval_loss": -math.inf} in series,
    ],
    ids=["nan", "missing", "plateau", "tie with infinity"],
)
def test_the_awkward_series_are_among_those_drawn(wanted):
    assert drawn(metric_series(), wanted)


@given(metric_series("acc", st.floats(0, 1), min_size=2, max_size=5))
def test_a_series_has_the_name_values_and_length_asked_for(series):
    assert 2 <= len(series) <= 5
    assert all(set(metrics) <= {"acc"} and 0 <= metrics.get("acc", 0) <= 1 for metrics in series)


# -- streams -----------------------------------------------------------------------------------------------------------

EVALUATION = "(eval_begin eval_end )?"
UPDATE = f"step_begin (gradients_ready )?step_end (checkpoint_saved )?{EVALUATION}"
WHOLE = f"train_begin (epoch_begin ({UPDATE})*{EVALUATION}epoch_end )*"


@given(event_streams())
def test_a_stream_obeys_the_order_of_life(stream):
    names = "".join(event.name + " " for event, _ in stream)
    end = stream[-1][0]
    if end.status == "failed":
        assert re.fullmatch(f"{WHOLE}(epoch_begin ({UPDATE})*(step_begin )?)?run_failed train_end ", names)
    else:
        assert re.fullmatch(f"{WHOLE}train_end ", names)


@given(event_streams())
def test_the_snapshots_of_a_stream_count_what_the_stream_has(stream):
    seen = dict.fromkeys(("step", "epoch", "evals", "skipped"), 0)
    for event, state in stream:
        seen["epoch"] += event.name == "epoch_begin"
        seen["evals"] += event.name == "eval_end"
        if event.name == "step_end":
            seen["skipped" if event.skipped else "step"] += 1
            assert set(state.metrics.fresh) <= {"loss"}
        if event.name == "eval_end":
            assert set(state.metrics.fresh) <= {"eval_loss"}
        assert {name: getattr(state, name) for name in seen} == seen


@given(event_streams())
def test_a_run_that_is_left_ends_its_epoch_as_not_completed(stream):
    ends = [event.completed for event, _ in stream if event.name == "epoch_end"]
    assert all(ends[:-1])
    if ends and not ends[-1]:
        assert stream[-1][0].status in ("stopped", "interrupted", "preempted")


@pytest.mark.parametrize(
    "wanted",
    ["skipped=True", "completed=False", "RunFailed", "CheckpointSaved", "EvalEnd", "status='completed'", "preempted"],
)
def test_every_turn_that_a_run_can_take_is_among_those_drawn(wanted):
    assert drawn(event_streams(), lambda stream: any(wanted in repr(event) for event, _ in stream))


@given(event_streams(evaluates=False, max_epochs=1, max_updates=1))
def test_a_stream_can_be_narrowed(stream):
    names = [event.name for event, _ in stream]
    assert "eval_end" not in names
    assert names.count("step_end") <= 1


@given(event_streams())
def test_every_stream_can_be_published_on_a_strict_bus(stream):
    bus = Bus(failure="raise")
    recorder = Recorder(bus)
    for event, state in stream:
        bus.publish(event, state)
    assert recorder == [(event.name, state.step) for event, state in stream]
    assert all(isinstance(event, Event) for event, _ in stream)
