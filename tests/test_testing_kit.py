"""The test kit that users get: it must itself be right."""

import pytest
from hypothesis import given

from eventloop import Bus, EvalEnd, Priority, Report, StepBegin, StepEnd, TrainState
from eventloop.testing import Crowd, Deliberate, MadeUpEvent, Recorder, Subscriber, subscriptions

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
