"""A dispatch is a fold: reports and learning rates change the snapshot of the handlers behind."""

import pytest

from eventloop import (
    ConflictError,
    EvalEnd,
    Priority,
    ReplyError,
    Report,
    SetLR,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainState,
)

TWO_GROUPS = TrainState(lr={"body": 1.0, "head": 0.5})


def test_reports_add_up_from_handler_to_handler_and_names_stay_as_given(bus):
    seen = []
    for i in range(3):
        bus.on(
            StepEnd,
            lambda event, state, i=i: (seen.append(sorted(state.metrics)), Report({f"m/{i}": i}))[1],
            name=f"h{i}",
        )
    control = bus.publish(StepEnd(), TrainState().report(loss=1.0))
    assert seen == [["loss"], ["loss", "m/0"], ["loss", "m/0", "m/1"]]
    assert sorted(control.apply(TrainState()).metrics) == ["m/0", "m/1", "m/2"]


def test_a_second_reporter_of_one_key_fails_and_both_are_named(bus):
    bus.on(StepEnd, lambda event, state: Report(norm=1.0), name="first")
    bus.on(StepEnd, lambda event, state: Report(norm=2.0, other=3.0), name="second")
    control = bus.publish(StepEnd())
    assert dict(control.apply(TrainState()).metrics) == {"norm": 1.0, "other": 3.0}
    assert [(f.subscription, type(f.error)) for f in control.failures] == [("second", ConflictError)]
    assert str(control.failures[0].error) == "first and second both report 'norm' at one step_end: rename one"


def test_two_plain_receivers_of_one_name_are_still_two_reporters(bus):
    class Meter:
        def __init__(self, value):
            self.value = value

        def receive(self, sender, event, state):
            return Report(norm=self.value)

    meters = Meter(1.0), Meter(2.0)
    for meter in meters:
        bus.signal(StepEnd).connect(meter.receive)
    control = bus.publish(StepEnd())
    assert [type(f.error) for f in control.failures] == [ConflictError]
    assert control.apply(TrainState()).metrics["norm"] == 1.0


def test_a_plain_receiver_and_a_handler_of_its_name_are_still_two_reporters(bus):
    def norm(sender, event, state):
        return Report(norm=1.0)

    bus.signal(StepEnd).connect(norm)
    bus.publish(StepEnd())
    bus.on(StepEnd, lambda event, state: Report(norm=2.0), name="norm")
    assert [type(f.error) for f in bus.publish(StepEnd()).failures] == [ConflictError]


def test_one_handler_may_report_a_key_again_at_the_next_event(strict_bus):
    strict_bus.on(StepEnd, lambda event, state: Report(norm=state.step), name="norm")
    states = [TrainState(step=step) for step in range(3)]
    assert [strict_bus.publish(StepEnd(), s).apply(s).metrics["norm"] for s in states] == [0.0, 1.0, 2.0]


def test_a_report_may_overwrite_what_the_loop_reported(strict_bus):
    strict_bus.on(StepEnd, lambda event, state: Report(loss=state.metrics["loss"] / 2), name="half")
    state = TrainState().report(loss=4.0)
    assert strict_bus.publish(StepEnd(), state).apply(state).metrics["loss"] == 2.0


def test_nested_mappings_are_flattened_with_a_slash(strict_bus):
    strict_bus.on(StepEnd, lambda event, state: Report(lr={"body": 1, "head": {"w": 2}}), name="rates")
    assert dict(strict_bus.publish(StepEnd()).apply(TrainState()).metrics) == {"lr/body": 1.0, "lr/head/w": 2.0}


def test_a_bad_value_is_a_failure_that_names_key_and_type_and_the_other_keys_stand(bus):
    bus.on(StepEnd, lambda event, state: Report(bad="text", good=1), name="mixed")
    control = bus.publish(StepEnd())
    assert dict(control.apply(TrainState()).metrics) == {"good": 1.0}
    message = str(control.failures[0].error)
    assert all(word in message for word in ("mixed", "'bad'", "str", "one real number"))


# -- learning rates ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("event", [TrainBegin(), StepBegin()], ids=lambda event: event.name)
def test_set_lr_is_in_force_at_once_where_an_update_opens(strict_bus, event):
    seen = []
    strict_bus.on(type(event), lambda event, state: SetLR(0.1), priority=Priority.SCHEDULE, name="schedule")
    strict_bus.on(type(event), lambda event, state: seen.append(dict(state.lr)), name="behind")
    control = strict_bus.publish(event, TWO_GROUPS)
    assert seen == [{"body": 0.1, "head": 0.1}]
    assert control.lr == {"body": 0.1, "head": 0.1}


@pytest.mark.parametrize("event", [StepEnd(), EvalEnd()], ids=lambda event: event.name)
def test_set_lr_elsewhere_is_held_until_the_next_update_opens(strict_bus, event):
    strict_bus.on(type(event), lambda event, state: SetLR({"head": 0.1}), name="plateau")
    state = strict_bus.publish(event, TWO_GROUPS).apply(TWO_GROUPS)
    assert dict(state.lr) == {"body": 1.0, "head": 0.5}
    assert dict(state.begin_update().lr) == {"body": 1.0, "head": 0.1}


def test_a_second_writer_of_a_group_is_an_error_that_names_both_and_the_group(bus):
    bus.on(StepBegin, lambda event, state: SetLR(0.1), name="warmup")
    bus.on(EvalEnd, lambda event, state: SetLR({"head": 0.01}), name="plateau")
    bus.publish(StepBegin(), TWO_GROUPS)
    control = bus.publish(EvalEnd(), TWO_GROUPS)
    assert control.apply(TWO_GROUPS).held == {}
    assert [type(f.error) for f in control.failures] == [ConflictError]
    assert str(control.failures[0].error) == "warmup and plateau both set the learning rate of group 'head'"


def test_two_plain_receivers_of_one_name_are_still_two_writers(bus):
    class Schedule:
        def __init__(self, rate):
            self.rate = rate

        def receive(self, sender, event, state):
            return SetLR({"head": self.rate})

    schedules = Schedule(0.1), Schedule(0.2)
    for schedule in schedules:
        bus.signal(StepBegin).connect(schedule.receive)
    control = bus.publish(StepBegin(), TWO_GROUPS)
    assert [type(f.error) for f in control.failures] == [ConflictError]
    assert control.lr == {"head": 0.1}


def test_each_group_may_have_a_writer_of_its_own(strict_bus):
    strict_bus.on(StepBegin, lambda event, state: SetLR({"body": 0.1}), name="body")
    strict_bus.on(StepBegin, lambda event, state: SetLR({"head": 0.2}), name="head")
    for _ in range(2):
        assert strict_bus.publish(StepBegin(), TWO_GROUPS).lr == {"body": 0.1, "head": 0.2}


def test_a_new_run_may_have_another_writer(strict_bus):
    with strict_bus.on(StepBegin, lambda event, state: SetLR(0.1), name="first"):
        strict_bus.publish(StepBegin(), TWO_GROUPS)
    strict_bus.publish(TrainBegin())
    strict_bus.on(StepBegin, lambda event, state: SetLR(0.2), name="second")
    assert strict_bus.publish(StepBegin(), TWO_GROUPS).lr == {"body": 0.2, "head": 0.2}


def test_a_group_that_is_not_there_is_an_error_that_lists_those_that_are(bus):
    bus.on(StepBegin, lambda event, state: SetLR({"tail": 0.1, "head": 0.2}), name="schedule")
    control = bus.publish(StepBegin(), TWO_GROUPS)
    assert control.lr == {"head": 0.2}
    assert type(control.failures[0].error) is ReplyError
    assert str(control.failures[0].error) == "schedule sets the rate of 'tail'; the groups are body, head"


@pytest.mark.parametrize("rate", [-0.1, float("nan"), float("inf"), "0.1", None])
def test_a_rate_that_is_no_finite_number_from_zero_on_is_refused_where_it_is_made(rate):
    with pytest.raises(ValueError, match="finite number >= 0, not "):
        SetLR(rate)
    with pytest.raises(ValueError, match="of group 'head' must be"):
        SetLR({"head": rate})
