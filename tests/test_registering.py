"""Subscribing checks at once, registers nothing on error, and names the culprit and what would be right."""

import functools
from dataclasses import dataclass, field

import pytest
from handlers import (
    Meter,
    awaited,
    awaited_generator,
    by_keyword,
    generator,
    good,
    too_few,
    too_many,
    untouched,
)

from eventloop import Bus, EvalEnd, Save, StepEnd, TrainState
from eventloop.testing import assert_order

# -- refusals of bus.on ------------------------------------------------------------------------------------------------

REFUSED = [
    ("step_edn", good, {}, ValueError, "no event 'step_edn'; did you mean 'step_end'"),
    ("nothing_like_it", good, {}, ValueError, "no event 'nothing_like_it'; known events: .*step_end"),
    (None, good, {}, TypeError, "None is no event: give an Event class or a name such as 'step_end'"),
    (int, good, {}, TypeError, "is no event"),
    (StepEnd(), good, {}, TypeError, "is no event"),
    (
        StepEnd,
        too_few,
        {},
        TypeError,
        r"too_few\(event\) cannot be called with two arguments; write it as \(event, state\)",
    ),
    (StepEnd, too_many, {}, TypeError, r"too_many\(event, state, metrics\) cannot be called with two arguments"),
    (StepEnd, by_keyword, {}, TypeError, r"by_keyword\(event, \*, state\) cannot be called with two arguments"),
    (StepEnd, awaited, {}, TypeError, "awaited is an async function; handlers are called, not awaited"),
    (StepEnd, awaited_generator, {}, TypeError, "awaited_generator is a generator function"),
    (StepEnd, generator, {}, TypeError, "generator is a generator function: calling it runs nothing"),
    (StepEnd, functools.partial(awaited), {}, TypeError, "awaited is an async function"),
    (StepEnd, Meter, {}, TypeError, "Meter is a class; give an instance, or a function"),
    (StepEnd, 3, {}, TypeError, r"3 cannot be called; a handler is called with \(event, state\)"),
    (StepEnd, good, {"every": 0}, ValueError, r"good: every=0 must be a whole number >= 1 \(of step\)"),
    (StepEnd, good, {"every": -5}, ValueError, "good: every=-5 must be a whole number >= 1"),
    (StepEnd, good, {"every": 2.0}, ValueError, "good: every=2.0 must be a whole number >= 1"),
    (StepEnd, good, {"every": True}, ValueError, "good: every=True must be a whole number >= 1"),
    (StepEnd, good, {"every": "5"}, ValueError, "good: every='5' must be a whole number >= 1"),
    (StepEnd, good, {"every": {"steps": 5}}, ValueError, "good: every=.*no counter 'steps'; there are update, step,"),
    (StepEnd, good, {"every": {"step": 5, "epoch": 1}}, ValueError, "good: every=.*give one counter"),
    (StepEnd, good, {"every": {}}, ValueError, "good: every=.*give one counter"),
    (StepEnd, good, {"every": {"seconds": 0}}, ValueError, "good: every=.*seconds must be a number above 0"),
    (StepEnd, good, {"every": {"seconds": float("nan")}}, ValueError, "seconds must be a number above 0"),
    (StepEnd, good, {"once": 0}, ValueError, "good: once=0 must be a whole number >= 1"),
    (StepEnd, good, {"after": -1}, ValueError, "good: after=-1 must be a whole number >= 0"),
    (StepEnd, good, {"before": 1.5}, ValueError, "good: before=1.5 must be a whole number >= 0"),
    (StepEnd, good, {"when": 3}, TypeError, "good: when=3 cannot be called"),
    (StepEnd, good, {"when": too_few}, TypeError, r"when=.*too_few\(event\) cannot be called with two arguments"),
    (StepEnd, good, {"priority": "high"}, TypeError, "good: priority='high' is no int; use .*LOG -100"),
    (StepEnd, good, {"priority": 1.5}, TypeError, "good: priority=1.5 is no int"),
    (StepEnd, good, {"priority": True}, TypeError, "good: priority=True is no int"),
    (
        StepEnd,
        good,
        {"failure": "ignore"},
        ValueError,
        "good: failure='ignore'; there are isolate, disable, stop, raise",
    ),
    (StepEnd, good, {"failure": ""}, ValueError, "good: failure=''; there are isolate, disable, stop, raise"),
    (StepEnd, good, {"disable_after": 0}, ValueError, "good: disable_after=0 must be a whole number >= 1"),
    (StepEnd, good, {"evrey": 3}, TypeError, r"good: no option \['evrey'\]; there are .*every"),
    (StepEnd, good, {"name": ""}, ValueError, "name='' is no text"),
    (StepEnd, good, {"name": 3}, ValueError, "name=3 is no text"),
]


@pytest.mark.parametrize(("kind", "handler", "options", "error", "message"), REFUSED)
def test_on_refuses_at_once_by_name_and_registers_nothing(bus, kind, handler, options, error, message):
    with pytest.raises(error, match=message):
        bus.on(kind, handler, **options)
    assert untouched(bus)


@pytest.mark.parametrize(("kind", "handler", "options", "error", "message"), [r for r in REFUSED if callable(r[1])])
def test_the_decorator_refuses_the_same(bus, kind, handler, options, error, message):
    with pytest.raises(error, match=message):
        bus.on(kind, **options)(handler)
    assert untouched(bus)


def test_a_policy_is_checked_on_the_bus_too():
    with pytest.raises(ValueError, match="failure='loud'; there are isolate, disable, stop, raise"):
        Bus(failure="loud")


@pytest.mark.parametrize(
    "handler",
    [
        good,
        lambda *args: None,
        lambda event, state, more=None: None,
        functools.partial(too_many, metrics={}),
        functools.partial(lambda prefix, event, state: None, "p"),
        Meter().on_step_end,
        print,
    ],
)
def test_whatever_takes_two_arguments_is_a_handler(strict_bus, handler, capsys):
    strict_bus.on(StepEnd, handler)
    strict_bus.publish(StepEnd())
    assert len(strict_bus.order(StepEnd)) == 1


def test_on_is_a_decorator_that_gives_the_function_back(bus):
    @bus.on(StepEnd, every=2)
    def show(event, state):
        return Save(str(state.step))

    assert show(None, TrainState(step=7)) == Save("7")
    assert_order(bus, StepEnd, ["show"])


def test_a_policy_of_none_is_the_buss_own(strict_bus):
    handle = strict_bus.on(StepEnd, good, failure=None)
    assert handle.subscriptions[0].failure == "raise"


# -- twice -------------------------------------------------------------------------------------------------------------


def test_the_same_callable_twice_for_one_event_names_the_first_place(bus):
    bus.on(StepEnd, good)
    with pytest.raises(ValueError, match=r"good is subscribed to step_end already, at test_registering.py:\d+"):
        bus.on(StepEnd, good, priority=5)
    assert_order(bus, StepEnd, ["good"])


def test_a_bound_method_is_the_same_callable_each_time_it_is_looked_up(bus):
    meter = Meter()
    bus.on(StepEnd, meter.on_step_end)
    with pytest.raises(ValueError, match=r"Meter.on_step_end is subscribed to step_end already"):
        bus.on(StepEnd, meter.on_step_end)
    bus.on(StepEnd, Meter().on_step_end)
    assert len(bus.order(StepEnd)) == 2


def test_callables_that_are_equal_are_not_the_same(bus):
    @dataclass
    class Printer:
        prefix: str
        seen: list = field(default_factory=list)

        def __call__(self, event, state):
            self.seen.append(event.name)

    printers = Printer("a"), Printer("a")
    for printer in printers:
        bus.on(StepEnd, printer)
    bus.publish(StepEnd())
    assert [printer.seen for printer in printers] == [["step_end"], ["step_end"]]


def test_one_function_on_two_events_is_fine_and_keeps_its_name(bus):
    bus.on(StepEnd, good)
    bus.on(EvalEnd, good)
    assert_order(bus, StepEnd, ["good"])
    assert_order(bus, EvalEnd, ["good"])


def test_the_same_object_twice_names_the_first_place(bus):
    meter = Meter()
    bus.attach(meter)
    with pytest.raises(ValueError, match=r"Meter is attached already, at test_registering.py:\d+"):
        bus.attach(meter, name="again")
    assert_order(bus, StepEnd, ["Meter"])


def test_the_same_object_twice_is_refused_also_if_it_has_no_subscription(bus):
    meter = Meter()
    bus.attach(meter, options={"step_end": None, "eval_end": None})
    with pytest.raises(ValueError, match="Meter is attached already"):
        bus.attach(meter)


def test_a_method_of_an_attached_object_is_subscribed_already(bus):
    meter = Meter()
    bus.attach(meter)
    with pytest.raises(ValueError, match="Meter is subscribed to step_end already"):
        bus.on(StepEnd, meter.on_step_end)
    other = Meter()
    bus.on(StepEnd, other.on_step_end)
    with pytest.raises(ValueError, match=r"Meter.on_step_end is subscribed to step_end already"):
        bus.attach(other)


def test_after_cancelling_the_same_callable_and_name_may_come_again(bus):
    bus.on(StepEnd, good, name="mine").cancel()
    bus.on(StepEnd, good, name="mine")
    meter = Meter()
    bus.attach(meter, name="meter").cancel()
    bus.attach(meter, name="meter")
    assert_order(bus, StepEnd, ["mine", "meter"])
