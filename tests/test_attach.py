"""Attaching an object: its methods, options, states, live parts, and its closing."""

import pytest
from handlers import EVENTS, Meter, a_class_with, good, untouched

from eventloop import Callback, EvalEnd, StepBegin, StepEnd, TrainBegin


async def async_method(self, event, state):
    return None


FAULTY = [
    (
        a_class_with(on_stepend=lambda self, event, state: None),
        ValueError,
        "Faulty.*on_stepend.*did you mean '(on_)?step_end'",
    ),
    (a_class_with(on_step_end=lambda self, event: None), TypeError, r"\(event\) cannot be called with two arguments"),
    (a_class_with(on_step_end=async_method), TypeError, "async_method is an async function"),
    (a_class_with(), TypeError, "Faulty has no on_<event> method, so there is nothing to attach"),
    (
        a_class_with(on_step_end=lambda self, event, state: None, priority="high"),
        TypeError,
        "Faulty: priority='high' is no int",
    ),
    (
        a_class_with(on_step_end=lambda self, event, state: None, options=lambda self: {"eval_end": {}}),
        ValueError,
        "Faulty has options for eval_end, but handlers only for step_end",
    ),
    (
        a_class_with(on_step_end=lambda self, event, state: None, options=lambda self: {"stepend": {}}),
        ValueError,
        "'stepend'; did you mean 'step_end'",
    ),
]


@pytest.mark.parametrize(("faulty", "error", "message"), FAULTY)
def test_attach_refuses_at_once_and_registers_nothing(bus, faulty, error, message):
    with pytest.raises(error, match=message):
        bus.attach(faulty())
    assert untouched(bus)


def test_attach_takes_an_object_and_no_class(bus):
    with pytest.raises(TypeError, match=r"attach takes an object: write Meter\(...\)"):
        bus.attach(Meter)
    assert untouched(bus)


def test_of_an_object_with_one_bad_method_no_method_is_registered(bus):
    faulty = a_class_with(
        on_eval_end=lambda self, event, state: None,
        on_step_end=lambda self, event, state: None,
        options=lambda self: {"step_end": {"every": 0}},
    )
    with pytest.raises(ValueError, match="Faulty: every=0"):
        bus.attach(faulty())
    assert untouched(bus)
    assert not bus.hears(EvalEnd)


def test_attach_returns_one_handle_for_all_and_detach_cancels_it(bus):
    meter = Meter()
    handle = bus.attach(meter)
    assert [s.event for s in handle.subscriptions] == [EvalEnd, StepEnd]
    bus.publish(StepEnd())
    bus.detach(meter)
    bus.publish(StepEnd())
    assert (meter.steps, bus.objects, bus.hears(EvalEnd)) == (1, (), False)
    with pytest.raises(ValueError, match="is not attached to this bus"):
        bus.detach(meter)


def test_stubs_of_callback_that_were_left_alone_are_never_called(bus):
    bus.attach(Meter())
    assert [kind.name for kind in EVENTS if bus.hears(kind) and kind is not TrainBegin] == ["step_end", "eval_end"]


def test_options_come_from_the_object_its_options_the_keywords_and_the_options_given_in_that_order(bus):
    class Layered(Callback):
        priority, failure = 1, "stop"

        def on_step_end(self, event, state):
            pass

        def on_eval_end(self, event, state):
            pass

        def on_step_begin(self, event, state):
            pass

        def options(self):
            return {"eval_end": {"priority": 2}, StepBegin: None}

    def facts(handle):
        return {s.event.name: (s.priority, s.failure) for s in handle.subscriptions}

    layered = Layered()
    with bus.attach(layered) as handle:
        assert facts(handle) == {"step_end": (1, "stop"), "eval_end": (2, "stop")}
    with bus.attach(layered, failure="raise", priority=3) as handle:
        assert facts(handle) == {"step_end": (3, "raise"), "eval_end": (3, "raise")}
    with bus.attach(layered, priority=3, options={"eval_end": {"priority": 4}, StepEnd: None}) as handle:
        assert facts(handle) == {"eval_end": (4, "stop")}


def test_a_handle_cancels_at_the_end_of_its_block_and_twice_is_harmless(bus):
    with bus.on(StepEnd, good) as handle:
        assert bus.hears(StepEnd)
    assert not bus.hears(StepEnd)
    handle.cancel()
    with pytest.raises(ValueError, match="good was cancelled; subscribe it again"):
        handle.enable()


# -- bind and close ----------------------------------------------------------------------------------------------------


class Bound(Meter):
    def __init__(self, log):
        super().__init__()
        self.log = log

    def bind(self, *, model, bus, extra="default"):
        self.log.append((model, bus, extra))

    def close(self):
        self.log.append("closed")


def test_bind_hands_over_what_the_signature_names_once_a_run(bus):
    log = []
    bus.attach(Bound(log))
    bus.bind(model="m", optimizer="o")
    bus.bind(model="m", optimizer="o")
    assert log == [("m", bus, "default")]


def test_bind_may_take_whatever_else_there_is(bus):
    class Greedy(Meter):
        def bind(self, *, model, **rest):
            self.got = model, rest

    greedy = Greedy()
    bus.attach(greedy)
    bus.bind(model="m", optimizer="o")
    assert greedy.got[0] == "m"


def test_bind_that_asks_for_what_is_not_there_is_an_error_that_lists_what_is(bus):
    bus.attach(Bound([]))
    with pytest.raises(TypeError, match=r"Bound.bind asks for 'model'; there are bus, optimizer"):
        bus.bind(optimizer="o")


def test_attached_in_mid_run_it_is_bound_and_gets_the_next_event_and_no_train_begin(bus):
    log = []

    class Late(Bound):
        def on_train_begin(self, event, state):
            self.log.append("train_begin")

    bus.bind(model="m")
    bus.publish(TrainBegin())
    late = Late(log)
    bus.attach(late)
    bus.publish(StepEnd())
    assert (log, late.steps) == ([("m", bus, "default")], 1)


def test_a_bind_that_fails_in_mid_run_registers_nothing(bus):
    bus.bind(optimizer="o")
    bus.publish(TrainBegin())
    with pytest.raises(TypeError, match="asks for 'model'"):
        bus.attach(Bound([]))
    assert untouched(bus)


def test_close_runs_in_reverse_order_and_once_however_often_it_is_asked_for(bus):
    log = []
    for name in ("a", "b", "c"):
        thing = Bound([])
        thing.close = lambda name=name: log.append(name)
        bus.attach(thing, name=name)
    bus.publish(TrainBegin())
    bus.close()
    bus.close()
    assert log == ["c", "b", "a"]


def test_an_object_attached_in_a_run_that_was_never_bound_is_closed_too(bus):
    first, late = [], []
    bus.attach(Bound(first))
    bus.publish(TrainBegin())
    bus.attach(Bound(late))
    bus.close()
    assert (first, late) == (["closed"], ["closed"])


def test_a_detached_object_that_was_started_is_closed_at_the_end(bus):
    log = []
    bound = Bound(log)
    bus.attach(bound)
    bus.publish(TrainBegin())
    bus.detach(bound)
    bus.close()
    assert log == ["closed"]


def test_each_run_is_closed_once(bus):
    log = []
    bus.attach(Bound(log))
    for _ in range(2):
        bus.publish(TrainBegin())
        bus.close()
    assert log == ["closed", "closed"]


def test_an_error_in_a_close_is_a_failure_and_keeps_no_other_from_closing(bus, caplog):
    log = []
    bus.attach(Bound(log))
    faulty = Bound([])
    faulty.close = lambda: 1 / 0
    bus.attach(faulty, name="faulty")
    bus.publish(TrainBegin())
    bus.close()
    assert log == ["closed"]
    assert [(f.subscription, f.event, type(f.error)) for f in bus.failures] == [("faulty", "close", ZeroDivisionError)]
    assert "faulty failed at close" in caplog.text
