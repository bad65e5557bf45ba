"""Publishing while publishing: at once, depth first; requests reach the inner publisher and the outer one."""

import sys
from dataclasses import dataclass
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventloop import (
    Bus,
    Control,
    EvalBegin,
    EvalEnd,
    Event,
    HandlerFailed,
    PublishCycleError,
    Report,
    Save,
    StepEnd,
    Stop,
    TrainState,
)
from eventloop.testing import Deliberate


def publishing(bus, kind, returns):
    """A handler that publishes an event of this kind and, if it is to, returns the Control."""

    def handler(event, state):
        control = bus.publish(kind(), state)
        return control if returns else None

    return handler


def test_a_nested_publish_runs_at_once_before_the_handlers_behind(bus, recorder):
    order = []
    bus.on(StepEnd, lambda event, state: bus.publish(EvalEnd(), state) and None, name="publishes")
    bus.on(StepEnd, lambda event, state: order.append("behind"), name="behind")
    bus.on(EvalEnd, lambda event, state: order.append("inner"), name="inner")
    bus.publish(StepEnd(), TrainState(step=2))
    assert order == ["inner", "behind"]
    assert recorder == [("step_end", 2), ("eval_end", 2)]


def test_requests_go_to_the_inner_publisher_and_to_the_outer_one(bus):
    inner = []
    bus.on(StepEnd, lambda event, state: inner.append(bus.publish(EvalEnd(), state)), name="publishes")
    bus.on(StepEnd, lambda event, state: Save("outer"), name="outer")
    bus.on(EvalEnd, lambda event, state: (Stop("enough"), Save("inner")), name="asks")
    control = bus.publish(StepEnd())
    assert inner[0].save == {"inner"}
    assert (control.stop.who, control.save) == ("asks", {"inner", "outer"})


def test_the_requests_stand_in_the_order_in_which_they_were_made_nested_ones_too(bus):
    bus.on(StepEnd, publishing(bus, EvalEnd, False), name="publishes")
    bus.on(StepEnd, lambda event, state: Stop("later"), name="later")
    bus.on(EvalEnd, lambda event, state: Stop("earlier"), name="earlier")
    control = bus.publish(StepEnd())
    assert [r.who for r in control.requests] == ["earlier", "later"]
    assert control.stop.reason == "earlier"


@pytest.mark.parametrize("returns", [False, True], ids=["keeps", "returns"])
def test_a_nested_request_is_counted_once_whether_the_control_is_returned_or_not(bus, returns):
    bus.on(StepEnd, publishing(bus, EvalEnd, returns), name="publishes")
    bus.on(EvalEnd, lambda event, state: (Stop("enough"), Report(score=1.0)), name="asks")
    control = bus.publish(StepEnd())
    assert [(r.who, type(r.request)) for r in control.requests] == [("asks", Stop), ("asks", Report)]
    assert dict(control.apply(TrainState()).metrics) == {"score": 1.0}


def events(word, count):
    return [type(f"{word}{i}", (Event,), {}) for i in range(count)]


@given(st.lists(st.booleans(), max_size=4), st.booleans())
def test_each_request_of_a_chain_of_publishes_is_in_the_outermost_control_once(chain, fails):
    bus, kinds = Bus(), events("Link", len(chain) + 1)
    for outer, inner, returns in zip(kinds[:-1], kinds[1:], chain, strict=True):
        bus.on(outer, publishing(bus, inner, returns), name=f"{outer.name} publishes")
    for kind in kinds:
        bus.on(kind, lambda event, state: Save(event.name), name=f"{kind.name} saves")
        if fails:
            bus.on(kind, lambda event, state: 1 / 0, name=f"{kind.name} fails")
    control = bus.dispatch(kinds[0]())
    assert sorted(r.request.tag for r in control.requests) == sorted(kind.name for kind in kinds)
    assert len(control.failures) == fails * len(kinds)


def test_requests_asked_for_before_the_publishing_handler_raised_are_kept(bus):
    def publishes_and_raises(event, state):
        bus.publish(EvalEnd(), state)
        raise Deliberate

    bus.on(StepEnd, publishes_and_raises)
    bus.on(EvalEnd, lambda event, state: Save("inner"), name="asks")
    control = bus.publish(StepEnd())
    assert control.save == {"inner"}
    assert [f.subscription for f in control.failures] == ["publishes_and_raises"]


def test_what_is_asked_for_at_handler_failed_is_merged_into_the_dispatch_that_failed(bus):
    bus.on(StepEnd, lambda event, state: 1 / 0, name="bad")
    bus.on(HandlerFailed, lambda event, state: Stop(f"{event.subscription} failed"), name="strict watcher")
    control = bus.publish(StepEnd())
    assert [(r.who, r.reason) for r in control.requests] == [("strict watcher", "bad failed")]


def test_the_state_of_an_inner_report_reaches_the_outer_control(bus):
    bus.on(StepEnd, publishing(bus, EvalEnd, False), name="publishes")
    bus.on(EvalEnd, lambda event, state: Report(score=3.0), name="reports")
    state = TrainState(step=1)
    assert bus.publish(StepEnd(), state).apply(state).metrics["score"] == 3.0


def test_a_returned_control_shows_its_reports_to_the_handlers_behind(bus):
    seen = []
    bus.on(StepEnd, publishing(bus, EvalEnd, True), name="publishes", priority=1)
    bus.on(StepEnd, lambda event, state: seen.append(dict(state.metrics)), name="behind")
    bus.on(EvalEnd, lambda event, state: Report(score=3.0), name="reports")
    bus.publish(StepEnd())
    assert seen == [{"score": 3.0}]


def test_the_controls_of_two_nested_publishes_may_be_returned_as_one(bus):
    def publishes_both(event, state):
        return bus.publish(EvalBegin(), state) | bus.publish(EvalEnd(), state)

    bus.on(StepEnd, publishes_both)
    for kind in (EvalBegin, EvalEnd):
        bus.on(kind, lambda event, state: (Save(event.name), Report({event.name: 1.0})), name=kind.name)
        bus.on(kind, lambda event, state: 1 / 0, name=f"{kind.name} fails")
    control = bus.publish(StepEnd())
    assert [r.request.tag for r in control.of(Save)] == ["eval_begin", "eval_end"]
    assert [f.subscription for f in control.failures] == ["eval_begin fails", "eval_end fails"]


def test_a_control_made_by_hand_may_be_returned(bus):
    bus.on(StepEnd, lambda event, state: Control(), name="empty")
    assert bus.publish(StepEnd()).requests == ()
    assert len(bus.failures) == 0


def test_under_raise_the_inner_error_reaches_the_inner_publisher(strict_bus):
    caught = []

    def publishes(event, state):
        try:
            strict_bus.publish(EvalEnd(), state)
        except Deliberate as error:
            caught.append(error)

    strict_bus.on(StepEnd, publishes)
    error = Deliberate("inner")

    def bad(event, state):
        raise error

    strict_bus.on(EvalEnd, bad)
    strict_bus.dispatch(StepEnd())
    assert caught == [error]


def test_a_handler_subscribed_in_a_dispatch_hears_a_nested_publish_and_not_this_one(bus):
    called = []

    def subscribes(event, state):
        handle.cancel()
        bus.on(StepEnd, lambda event, state: called.append("new"), name="new")
        bus.publish(StepEnd(), state)
        called.append("outer goes on")

    handle = bus.on(StepEnd, subscribes)
    bus.publish(StepEnd())
    assert called == ["new", "outer goes on"]


def test_publishing_on_another_bus_from_a_handler_is_a_publish_of_its_own(bus):
    other = Bus()
    other.on(StepEnd, lambda event, state: Stop("theirs"), name="theirs")
    bus.on(StepEnd, lambda event, state: other.publish(event, state) and None, name="forwards")
    assert bus.publish(StepEnd()).requests == ()


def test_two_buses_that_publish_on_each_other_go_on_in_their_own_tables(bus):
    other, called = Bus(), []
    bus.on(StepEnd, lambda event, state: other.publish(EvalBegin(), state), name="there")
    other.on(EvalBegin, lambda event, state: bus.publish(EvalEnd(), state), name="back")
    bus.on(EvalEnd, lambda event, state: called.append(1) or Save("inner"), name="inner")
    assert bus.publish(StepEnd()).save == {"inner"}
    assert called == [1]


# -- circles -----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Ping(Event):
    pass


@dataclass(frozen=True)
class Pong(Event):
    pass


@pytest.mark.parametrize(
    ("links", "named"),
    [
        ([StepEnd], {"step_end > step_end"}),
        ([StepEnd, Ping], {"step_end > ping > step_end", "ping > step_end > ping"}),
        (
            [StepEnd, Ping, Pong],
            {"step_end > ping > pong > step_end", "ping > pong > step_end > ping", "pong > step_end > ping > pong"},
        ),
    ],
    ids=["one", "two", "three"],
)
def test_a_runaway_circle_is_one_failure_that_names_its_events(bus, links, named):
    for outer, inner in zip(links, [*links[1:], links[0]], strict=True):
        bus.on(outer, publishing(bus, inner, False), name=f"on {outer.name}")
    control = bus.publish(StepEnd())
    assert [type(f.error) for f in control.failures] == [PublishCycleError]
    assert str(control.failures[0].error).removeprefix("handlers publish in a circle: ") in named


def test_after_a_circle_the_bus_goes_on(bus):
    with bus.on(StepEnd, publishing(bus, StepEnd, False), name="circle"):
        bus.publish(StepEnd())
    bus.on(StepEnd, lambda event, state: Save("fine"), name="fine")
    assert bus.publish(StepEnd()).requests == bus.publish(StepEnd()).requests
    assert bus.publish(StepEnd()).save == {"fine"}


def test_a_circle_is_raised_by_a_strict_bus(strict_bus):
    strict_bus.on(StepEnd, publishing(strict_bus, StepEnd, False), name="circle")
    with pytest.raises(PublishCycleError, match="step_end > step_end"):
        strict_bus.publish(StepEnd())


def test_a_circle_is_found_early_also_where_the_stack_may_grow_very_deep(bus):
    called, limit = [], sys.getrecursionlimit()

    def circles(event, state):
        called.append(1)
        bus.publish(StepEnd(), state)

    bus.on(StepEnd, circles)
    sys.setrecursionlimit(5000)
    try:
        control = bus.publish(StepEnd())
    finally:
        sys.setrecursionlimit(limit)
    assert [type(f.error) for f in control.failures] == [PublishCycleError]
    assert len(called) < 500


def test_a_circle_through_handler_failed_is_a_failure_too_and_disturbs_nobody(bus):
    bus.on(StepEnd, lambda event, state: 1 / 0, name="fails")
    bus.on(StepEnd, lambda event, state: Save("behind"), name="behind")
    bus.on(HandlerFailed, lambda event, state: bus.publish(StepEnd(), state), name="tries again")
    control = bus.publish(StepEnd())
    assert "behind" in control.save
    assert PublishCycleError in [type(f.error) for f in control.failures]


@pytest.mark.parametrize("depth", [0, 3, 10])
def test_a_handlers_own_deep_recursion_is_no_circle_of_events(bus, depth):
    kinds = [StepEnd, *events("Depth", depth)]
    for outer, inner in pairwise(kinds):
        bus.on(outer, publishing(bus, inner, False), name=f"on {outer.name}")

    def recursive(event, state):
        return recursive(event, state)

    bus.on(kinds[-1], recursive)
    control = bus.publish(StepEnd())
    assert [(f.subscription, type(f.error)) for f in control.failures] == [(recursive.__name__, RecursionError)]


def test_a_deep_chain_that_ends_is_no_circle(bus):
    depth = sys.getrecursionlimit() // 40

    def counts_down(event, state):
        return bus.publish(StepEnd(), state.replace(step=state.step - 1)) if state.step else Save("bottom")

    bus.on(StepEnd, counts_down)
    control = bus.publish(StepEnd(), TrainState(step=depth))
    assert control.save == {"bottom"}
    assert len(bus.failures) == 0
