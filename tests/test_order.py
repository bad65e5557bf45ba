"""Promise 1: the order of handlers is total and deterministic, whatever the way of registering."""

import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventloop import Bus, Callback, EvalEnd, Event, Priority, Report, StepEnd, TrainState
from eventloop.testing import Crowd, MadeUpEvent, assert_order, subscriptions


def decorated(bus, name, priority, called):
    @bus.on(StepEnd, name=name, priority=priority)
    def handler(event, state):
        called.append(name)


def given_to_on(bus, name, priority, called):
    bus.on("step_end", lambda event, state: called.append(name), name=name, priority=priority)


def on_the_base_class(bus, name, priority, called):
    bus.on(Event, lambda event, state: called.append(name), name=name, priority=priority)


def attached(bus, name, priority, called):
    class Thing(Callback):
        def on_step_end(self, event, state):
            called.append(name)

        def options(self):
            return {"step_end": {"priority": priority}}

    bus.attach(Thing(), name=name)


def connected(bus, name, priority, called):
    def receiver(sender, event, state):
        called.append(name)

    receiver.__qualname__ = name
    bus.signal(StepEnd).connect(receiver, weak=False, priority=priority)


WAYS = [decorated, given_to_on, on_the_base_class, attached, connected]
MIXTURE = st.lists(st.tuples(st.sampled_from(WAYS), st.integers(-2, 2)), max_size=10)


@given(MIXTURE)
def test_priority_comes_first_then_registration_whatever_the_way_of_registering(mixture):
    bus, called = Bus(), []
    for i, (way, priority) in enumerate(mixture):
        way(bus, f"h{i}", priority, called)
    bus.publish(StepEnd())
    assert called == [f"h{i}" for i, _ in sorted(enumerate(mixture), key=lambda pair: -pair[1][1])]


@given(MIXTURE)
def test_order_send_and_explain_agree_with_what_publish_calls(mixture):
    bus, called = Bus(), []
    mixture = [(way, priority) for way, priority in mixture if way is not on_the_base_class]  # `send` knows one class
    for i, (way, priority) in enumerate(mixture):
        way(bus, f"h{i}", priority, called)
    bus.publish(StepEnd())
    published, called[:] = list(called), []
    bus.signal(StepEnd).send(bus, event=StepEnd(), state=TrainState())
    told = [line.split()[-2] for line in bus.explain(StepEnd).splitlines()[1:]]
    assert called == published == told == [s.name for s in bus.order(StepEnd)]


@given(subscriptions(does=["silent", "reports", "stops", "raises"], filters=False))
def test_what_handlers_do_does_not_change_their_order(subscribers):
    bus = Bus()
    crowd = Crowd(bus, subscribers)
    bus.dispatch(StepEnd())
    places = sorted(range(len(subscribers)), key=lambda i: (-subscribers[i].priority, i))
    assert crowd.calls == [crowd.names[i] for i in places]
    assert_order(bus, StepEnd, crowd.calls)


@given(subscriptions(does=["silent"]), st.lists(st.integers(0, 3), max_size=8))
def test_filters_leave_handlers_out_and_never_change_the_order_of_the_others(subscribers, jumps):
    bus, step = Bus(), 0
    crowd = Crowd(bus, subscribers)
    place = {name: (-s.priority, i) for i, (name, s) in enumerate(zip(crowd.names, subscribers, strict=True))}
    for jump in jumps:
        step += jump
        bus.publish(StepEnd(), TrainState(step=step))
        assert crowd.calls == sorted(crowd.calls, key=place.__getitem__)
        crowd.calls.clear()


def test_the_order_is_the_same_in_processes_with_other_hash_seeds():
    script = """
from eventloop import Bus, Event, StepEnd
bus = Bus()
for i in range(40):
    bus.on(StepEnd if i % 3 else Event, lambda event, state: None, name=f"h{i}", priority=i % 4)
    bus.signal(StepEnd).connect(lambda sender, event, state: None, weak=False, priority=i % 5)
print([s.name for s in bus.order(StepEnd)], [s.adapter.function.__code__.co_firstlineno for s in bus.order(StepEnd)])
"""
    told = set()
    for seed in ("0", "1", "4242"):
        environment = {**os.environ, "PYTHONHASHSEED": seed}
        told.add(
            subprocess.run(
                [sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True
            ).stdout
        )
    assert len(told) == 1


def test_a_handler_of_a_base_class_stands_among_the_others_by_its_own_priority(bus):
    bus.on(StepEnd, lambda event, state: None, name="low", priority=-1)
    bus.on(Event, lambda event, state: None, name="every event")
    bus.on(StepEnd, lambda event, state: None, name="high", priority=1)
    bus.on(EvalEnd, lambda event, state: None, name="another event")
    assert_order(bus, StepEnd, ["high", "every event", "low"])


def test_a_handler_of_a_kind_and_of_its_base_is_called_once_a_subscription(bus):
    called = []

    def handler(event, state):
        called.append(event.name)

    bus.on(Event, handler)
    bus.on(StepEnd, handler)
    bus.publish(StepEnd())
    assert called == ["step_end", "step_end"]


def test_a_pause_keeps_the_place_and_registering_anew_does_not(bus):
    first = bus.on(StepEnd, lambda event, state: None, name="first")
    bus.on(StepEnd, lambda event, state: None, name="second")
    first.disable()
    assert_order(bus, StepEnd, ["second"])
    first.enable()
    assert_order(bus, StepEnd, ["first", "second"])
    first.cancel()
    bus.on(StepEnd, lambda event, state: None, name="first")
    assert_order(bus, StepEnd, ["second", "first"])


def test_the_bands_have_room_between_them_and_measurements_feed_loggers():
    assert [(band.name, band.value) for band in Priority] == [
        ("FIRST", 1000),
        ("SCHEDULE", 300),
        ("MEASURE", 200),
        ("NORMAL", 0),
        ("LOG", -100),
        ("DECIDE", -200),
        ("SAVE", -300),
        ("LAST", -1000),
    ]


def test_a_report_is_seen_by_the_handlers_behind_and_by_none_in_front(bus):
    seen = {}
    bus.on(StepEnd, lambda event, state: seen.update(front=list(state.metrics)), priority=Priority.FIRST, name="front")
    bus.on(StepEnd, lambda event, state: Report(norm=2.0), priority=Priority.MEASURE, name="norm")
    bus.on(StepEnd, lambda event, state: seen.update(behind=dict(state.metrics)), priority=Priority.LOG, name="behind")
    bus.publish(StepEnd())
    assert seen == {"front": [], "behind": {"norm": 2.0}}


def test_explain_tells_place_priority_band_filters_policy_and_who_is_off(bus):
    class Careful(Callback):
        touches_model = True

        def on_eval_end(self, event, state):
            pass

        def describe(self):
            return "patience 3"

    bus.attach(Careful(), priority=Priority.DECIDE, failure="raise", every=2)
    bus.on(Event, lambda event, state: None, name="wide", priority=7, when=lambda event, state: True)
    bus.on(EvalEnd, lambda event, state: None, name="paused").disable()
    assert bus.explain(EvalEnd).splitlines() == [
        "eval_end: 2 handlers; higher priority first, ties in order of registration",
        "  1.     7            wide     when=, through Event, failure=isolate",
        "  2.  -200 DECIDE     Careful  every 2 evals, failure=raise, touches the model, patience 3",
        "   -  paused is disabled",
    ]


def test_explain_gives_a_plain_blinker_receiver_its_own_priority_and_event(bus):
    def receiver(sender, event, state):
        pass

    bus.signal(Event).connect(receiver, priority=50)
    for kind in (StepEnd, EvalEnd, MadeUpEvent):
        line = bus.explain(kind).splitlines()[1]
        assert line.split()[:2] == ["1.", "50"]
        assert "through Event" in line


def test_assert_order_names_the_first_difference_and_explains(bus):
    bus.on(StepEnd, lambda event, state: None, name="a")
    bus.on(StepEnd, lambda event, state: None, name="b", priority=5)
    assert_order(bus, "step_end", ["b", "a"])
    with pytest.raises(AssertionError, match=r"(?s)place 1 is 'b', expected 'a'\nstep_end: 2 handlers.*5 .* b "):
        assert_order(bus, StepEnd, ["a", "b"])
    with pytest.raises(AssertionError, match="place 3 is empty, expected 'c'"):
        assert_order(bus, StepEnd, ["b", "a", "c"])
