"""Registering checks at once, registers nothing on error, and names the culprit and what would be right."""

import functools
import re
from dataclasses import dataclass, field

import pytest

from eventloop import Bus, Callback, EvalEnd, Event, Save, StepBegin, StepEnd, TrainBegin, TrainState
from eventloop.testing import assert_order

EVENTS = [StepBegin, StepEnd, EvalEnd, TrainBegin]


def untouched(bus):
    """Whether nothing at all is registered: no handler, no object, no name."""
    for name in ("good", "Faulty", "Meter"):
        bus.on(StepEnd, lambda event, state: None, name=name).cancel()  # an error if the name is taken
    return all(bus.order(kind) == () for kind in EVENTS) and bus.objects == ()


def good(event, state):
    return None


async def awaited(event, state):
    return None


async def awaited_generator(event, state):
    yield


def generator(event, state):
    yield Save()


def too_few(event):
    return None


def too_many(event, state, metrics):
    return None


def by_keyword(event, *, state):
    return None


class Meter(Callback):
    monitor = None

    def __init__(self, monitor=None):
        self.monitor, self.steps = monitor, 0

    def on_step_end(self, event, state):
        self.steps += 1

    def on_eval_end(self, event, state):
        return Save(f"eval {state.evals}")

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def a_class_with(**methods):
    return type("Faulty", (), methods)


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


# -- attach ------------------------------------------------------------------------------------------------------------


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


# -- names -------------------------------------------------------------------------------------------------------------


def test_names_are_the_functions_own_without_the_place_where_it_was_defined(bus):
    def local(event, state):
        return None

    for handler in (local, Meter().on_step_end, functools.partial(too_many, metrics=1), lambda event, state: None):
        bus.on(StepEnd, handler)
    assert_order(bus, StepEnd, ["local", "Meter.on_step_end", "too_many", "<lambda>"])


def test_derived_names_are_made_unique_in_order_of_registration(bus):
    for _ in range(3):
        bus.on(StepEnd, lambda event, state: None)
    for _ in range(2):
        bus.attach(Meter())
    assert_order(bus, StepEnd, ["<lambda>", "<lambda>#2", "<lambda>#3", "Meter", "Meter#2"])


def test_two_equal_given_names_are_an_error_that_names_the_first_place(bus):
    bus.on(StepEnd, good, name="slack")
    with pytest.raises(
        ValueError, match=r"the name 'slack' is taken by the subscription made at test_registering.py:\d+"
    ):
        bus.on(EvalEnd, lambda event, state: None, name="slack")
    with pytest.raises(ValueError, match="the name 'slack' is taken"):
        bus.attach(Meter(), name="slack")
    assert bus.objects == ()
    assert not bus.hears(EvalEnd)


def test_states_are_stored_under_the_class_with_its_monitor_or_the_given_name(bus):
    for meter in (Meter(), Meter("loss"), Meter("loss"), Meter()):
        bus.attach(meter)
    bus.attach(Meter("loss"), name="mine")
    assert list(bus.state_dict()["callbacks"]) == ["Meter", "Meter(loss)", "Meter(loss)#2", "Meter#2", "mine"]


def test_a_given_name_is_the_key_of_the_state_also_if_another_key_looks_like_it(bus):
    bus.attach(Meter("loss"))
    with pytest.raises(ValueError, match=re.escape("'Meter(loss)' is taken")):
        bus.attach(Meter(), name="Meter(loss)")


def test_states_find_their_owners_by_key_and_say_what_they_did_not_find(bus, caplog):
    bus.attach(Meter("loss"))
    bus.attach(Meter(), name="fresh")
    report = bus.load_state_dict({"callbacks": {"Meter(loss)": {"steps": 7}, "gone": {"x": 1}}})
    assert (report.restored, report.missing, report.unknown) == (("Meter(loss)",), ("fresh",), ("gone",))
    assert bus.state_dict()["callbacks"] == {"gone": {"x": 1}, "Meter(loss)": {"steps": 7}, "fresh": {"steps": 0}}
    assert [r.getMessage() for r in caplog.records] == [
        "no owner for the state of gone; it is kept for later checkpoints",
        "no state for fresh; starting fresh",
    ]


def test_an_error_while_a_state_is_loaded_names_whose_it_was(bus):
    bus.attach(Meter())
    with pytest.raises(KeyError) as caught:
        bus.load_state_dict({"callbacks": {"Meter": {}}})
    assert caught.value.__notes__ == ["while loading the state of Meter"]


# -- events ------------------------------------------------------------------------------------------------------------


def test_an_event_of_ones_own_has_the_name_of_its_class_in_snake_case_or_the_one_it_sets():
    class BatchDrawn(Event):
        pass

    class HTTPSent(Event):
        pass

    class Named(Event):
        name = "told_otherwise"

    assert [kind.name for kind in (BatchDrawn, HTTPSent, Named)] == ["batch_drawn", "http_sent", "told_otherwise"]


def test_an_event_may_not_take_the_name_of_a_built_in_one():
    with pytest.raises(
        TypeError, match=r"StepEnd would be called 'step_end', the name of the built-in eventloop.events.StepEnd"
    ):
        type("StepEnd", (Event,), {"__module__": "mine"})


def test_an_event_class_that_was_defined_again_replaces_the_older_one(bus):
    def define():
        @dataclass(frozen=True, slots=True)
        class CellRun(Event):
            pass

        return CellRun

    define()
    newest = define()
    bus.on("cell_run", lambda event, state: Save("heard"))
    assert bus.publish(newest()).save == {"heard"}


@pytest.mark.parametrize("event", [StepEnd, "step_end", None], ids=["a class", "a name", "nothing"])
def test_publishing_what_is_no_event_is_an_error_and_not_silence(bus, event):
    bus.on(StepEnd, good)
    with pytest.raises(TypeError, match="is no event"):
        bus.publish(event)


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
