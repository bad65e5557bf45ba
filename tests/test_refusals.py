"""What a loop, a bus and a request refuse, and what they say of themselves."""

import logging

import pytest
import torch

from eventloop import (
    Bus,
    CheckpointError,
    Control,
    EvalEnd,
    Evaluate,
    GradientsReady,
    Loop,
    Report,
    Save,
    SetLR,
    StepBegin,
    StepEnd,
    TrainBegin,
)
from eventloop.deaf import waited_in_vain
from eventloop.evaluation import Evaluation
from eventloop.optimizers import Optimizers
from eventloop.testing import FakeLoop


def parts():
    model = torch.nn.Linear(1, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


@pytest.mark.parametrize(
    ("change", "error", "message"),
    [
        ({"model": "net"}, TypeError, r"model is a str, not a torch.nn.Module: Loop\(model, optimizer\)"),
        ({"optimizer": 0.1}, TypeError, "optimizer is a float, not an optimizer"),
        ({"optimizer": {"g": 0.1}}, TypeError, r"optimizer\['g'\] is a float, not an optimizer"),
        ({"bus": "bus"}, TypeError, "bus='bus' is no Bus; give an instance"),
        ({"callbacks": 3}, TypeError, r"callbacks=3: give a list, callbacks=\[...\]"),
        ({"bind": {"model": 1}}, ValueError, "the loop itself gives callbacks bus, model, optimizer, run_dir"),
        ({"evaluate": 3}, TypeError, "evaluate=3 cannot be called; it takes no argument"),
        ({"evaluate": lambda model: {}}, TypeError, "evaluate takes no argument, but this one: missing a required"),
    ],
)
def test_a_loop_names_the_argument_that_it_cannot_use(change, error, message):
    model, optimizer = parts()
    given = {"model": model, "optimizer": optimizer, **change}
    with pytest.raises(error, match=message):
        Loop(given.pop("model"), given.pop("optimizer"), **given)


def test_a_loop_without_an_evaluation_has_none_to_run():
    assert Evaluation(parts()[0], None).run() == {}


def test_an_evaluation_that_returns_no_mapping_fails_by_its_type():
    with pytest.raises(TypeError, match=r"evaluate\(\) returned float; it returns metrics as a mapping"):
        Evaluation(parts()[0], lambda: 1.0).run()


@pytest.mark.parametrize("tag", ["", 3])
def test_a_save_has_a_text_for_its_tag(tag):
    with pytest.raises(ValueError, match="Save: tag="):
        Save(tag)


def test_a_report_takes_a_mapping():
    with pytest.raises(TypeError, match="Report takes a mapping of names to numbers, not 3"):
        Report(3)


def test_equal_rates_are_equal_requests():
    assert len({SetLR(0.1), SetLR(0.1), SetLR({"a": 1.0}), SetLR({"a": 1.0}), SetLR(0.2)}) == 3


def test_a_control_adds_up_with_controls_alone():
    with pytest.raises(TypeError):
        Control() | 3


def test_the_rates_of_a_control_leave_out_what_is_none(bus):
    bus.on(StepBegin, lambda event, state: (Report(a=1.0), SetLR(0.5)), name="both")
    assert dict(bus.publish(StepBegin()).lr) == {"group_0": 0.5}


def test_a_reply_that_cannot_even_be_looked_at_is_that_handlers_failure(bus):
    class Odd(Report):
        @property
        def metrics(self):
            raise RuntimeError("out of reach")

    bus.on(StepEnd, lambda event, state: Odd.__new__(Odd), name="odd")
    bus.on(StepEnd, lambda event, state: Evaluate(), name="even")
    control = bus.dispatch(StepEnd())
    assert control.evaluate
    assert "out of reach" in str(control.failures[0].error)


def test_a_bus_and_its_handles_say_what_they_are(bus):
    handle = bus.on(StepEnd, lambda event, state: None, name="watcher")
    assert repr(bus) == "<Bus of watcher>"
    assert repr(handle) == "Handle(<watcher on step_end, active>)"
    assert repr(bus.explain(StepEnd)) == str(bus.explain(StepEnd))
    handle.cancel()
    assert repr(bus) == "<Bus of nobody>"


def test_who_is_not_attached_has_no_name(bus):
    with pytest.raises(ValueError, match=r"<object object at .*> is not attached to this bus"):
        bus.name_of(object())


class Describes:
    touches_model = True

    def on_step_end(self, event, state):
        pass

    def describe(self):
        raise ValueError("no words")


def test_explain_says_who_touches_the_model_and_never_fails_itself(bus):
    bus.attach(Describes())
    assert "touches the model, describe() failed: ValueError: no words" in str(bus.explain(StepEnd))


def test_explain_tells_of_a_pause_a_condition_and_a_base_class(bus):
    bus.on("event", lambda event, state: None, name="hears all", when=lambda event, state: True)
    paused = bus.on(StepEnd, lambda event, state: None, name="rests")
    paused.disable()
    text = str(bus.explain(StepEnd))
    assert "when=, through Event" in text
    assert "rests is disabled" in text


class StateFails:
    def on_step_end(self, event, state):
        pass

    def state_dict(self):
        raise RuntimeError("no state today")


def test_a_state_that_cannot_be_taken_follows_the_policy_and_names_the_object():
    strict, lenient = Bus(failure="raise"), Bus()
    for bus in (strict, lenient):
        bus.attach(StateFails())
    with pytest.raises(RuntimeError, match="no state today") as raised:
        strict.state_dict()
    assert raised.value.__notes__ == ["while taking the state of StateFails"]
    assert lenient.state_dict()["callbacks"] == {}
    assert lenient.failures.counts == {"StateFails": 1}


def test_a_failed_registration_leaves_the_name_of_a_known_function_alone(bus):
    def hears(event, state):
        pass

    bus.on(StepEnd, hears)
    with pytest.raises(ValueError, match="every=0"):
        bus.on(EvalEnd, hears, every=0)
    bus.on(StepEnd, lambda event, state: None)
    assert bus.order(StepEnd)[0].name == "hears"
    assert bus.on(EvalEnd, hears).subscriptions[0].name == "hears"


@pytest.mark.parametrize(
    ("kind", "advice"),
    [
        (GradientsReady, "with an update of your own call loop.gradients_ready"),
        (StepBegin, "the loop made no update that it was told of"),
        (EvalEnd, "the loop never evaluated: give it evaluate="),
    ],
)
def test_who_waited_in_vain_is_told_why(kind, advice):
    bus = Bus()
    bus.on(kind, lambda event, state: None, name="waits")
    (sentence,) = waited_in_vain(bus, {TrainBegin})
    assert sentence.startswith(f"waits waited for {kind.name}; {advice}")


def test_a_checkpoint_of_another_kind_of_optimizer_is_refused():
    model, optimizer = parts()
    state = Optimizers({"": optimizer}).state_dict()
    with pytest.raises(CheckpointError, match="holds the state of a SGD, the optimizer is a Adam"):
        Optimizers({"": torch.optim.Adam(model.parameters())}).load_state_dict(state)


def test_refusals_stand_in_the_sentence_of_the_result(caplog):
    caplog.set_level(logging.CRITICAL, logger="eventloop")

    class Asks:
        def on_step_end(self, event, state):
            return Evaluate()

    result = FakeLoop([Asks()], updates=2).run()
    assert str(result).endswith("refused: Evaluate by Asks (the loop was given no evaluate=)")
