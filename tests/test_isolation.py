"""Promise 2: a handler that raises keeps no other from being called, nor loses another's request, and is not silent."""

import logging
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from eventloop import (
    Bus,
    Event,
    HandlerFailed,
    ReplyError,
    Report,
    Save,
    SetLR,
    StepBegin,
    StepEnd,
    Stop,
    TrainBegin,
    TrainState,
)
from eventloop.testing import Crowd, Deliberate, subscriptions

NOISY = ("silent", "reports", "stops", "raises", "publishes")


def failing(event, state):
    raise OSError("disk full")


def outcome(subscribers, publishes=4):
    """Who was called at each publish, and what the others asked for."""
    bus = Bus()
    crowd = Crowd(bus, subscribers)
    controls = [bus.dispatch(StepEnd(), TrainState(step=step)) for step in range(publishes)]
    wanted = [[r for r in c.requests if subscribers[crowd.names.index(r.who)].does != "raises"] for c in controls]
    return crowd.calls, [[(r.who, type(r.request)) for r in requests] for requests in wanted]


@given(subscriptions(does=NOISY, failures=["isolate", "stop", "raise"]))
def test_the_others_are_called_and_heard_as_if_nobody_had_raised(subscribers):
    calm = [replace(s, does="silent") if s.does == "raises" else s for s in subscribers]
    assert outcome(subscribers) == outcome(calm)


@given(subscriptions(does=NOISY, filters=False))
def test_each_failure_is_in_the_control_in_the_log_of_the_bus_and_an_event(subscribers):
    bus, heard = Bus(), []
    bus.on(HandlerFailed, lambda event, state: heard.append((event.subscription, str(event.error))))
    crowd = Crowd(bus, subscribers)
    control = bus.dispatch(StepEnd(), TrainState(step=7))
    expected = [name for name in crowd.calls if subscribers[crowd.names.index(name)].does == "raises"]
    assert [f.subscription for f in control.failures] == expected
    assert [(f.subscription, f.event, f.step) for f in bus.failures] == [(name, "step_end", 7) for name in expected]
    assert heard == [(name, name) for name in expected]


@given(st.integers(0, 4), st.integers(0, 4))
def test_a_failing_handler_anywhere_loses_no_request(before, behind):
    bus = Bus()
    for i in range(before):
        bus.on(StepEnd, lambda event, state, i=i: Save(f"before {i}"), name=f"before {i}")
    bus.on(StepEnd, failing)
    bus.on(StepEnd, lambda event, state: 1 / 0, name="failing too")
    for i in range(behind):
        bus.on(StepEnd, lambda event, state, i=i: Save(f"behind {i}"), name=f"behind {i}")
    expected = {f"before {i}" for i in range(before)} | {f"behind {i}" for i in range(behind)}
    assert bus.publish(StepEnd()).save == expected


def test_a_request_replied_together_with_a_bad_one_stands(bus):
    bus.on(StepEnd, lambda event, state: (Stop("enough"), "rubbish", Save("end")), name="half good")
    control = bus.publish(StepEnd())
    assert (control.stop.reason, control.save) == ("enough", {"end"})
    assert [type(f.error) for f in control.failures] == [ReplyError]


@pytest.mark.parametrize("interruption", [KeyboardInterrupt, SystemExit, GeneratorExit])
def test_what_is_no_exception_of_a_handler_passes_at_once_and_the_bus_goes_on(bus, interruption):
    called = []

    def interrupted(event, state):
        raise interruption

    handle = bus.on(StepEnd, interrupted)
    bus.on(StepEnd, lambda event, state: called.append(1), name="behind")
    with pytest.raises(interruption):
        bus.publish(StepEnd())
    assert (called, len(bus.failures)) == ([], 0)
    handle.cancel()
    bus.publish(StepEnd())
    assert called == [1]


def test_an_interrupted_dispatch_leaves_no_request_to_the_next_one(bus):
    def interrupted(event, state):
        bus.publish(StepBegin())
        raise KeyboardInterrupt

    bus.on(StepBegin, lambda event, state: Stop("asked in the interrupted dispatch"), name="asks")
    handle = bus.on(StepEnd, interrupted)
    with pytest.raises(KeyboardInterrupt):
        bus.publish(StepEnd())
    handle.cancel()
    bus.on(StepEnd, lambda event, state: None, name="silent")
    assert bus.publish(StepEnd()).requests == ()


def test_stop_iteration_is_a_failure_like_any_other(bus):
    bus.on(StepEnd, lambda event, state: next(iter(())), name="exhausted")
    bus.on(StepEnd, lambda event, state: Save("behind"), name="behind")
    control = bus.publish(StepEnd())
    assert [type(f.error) for f in control.failures] == [StopIteration]
    assert control.save == {"behind"}


def test_an_error_of_when_is_the_handlers_failure(bus):
    called = []
    bus.on(StepEnd, lambda event, state: called.append(1), name="picky", when=lambda event, state: state.nothing)
    assert [f.subscription for f in bus.publish(StepEnd()).failures] == ["picky"]
    assert called == []


# -- policies ----------------------------------------------------------------------------------------------------------


def test_raise_calls_everybody_then_raises_the_first_error_itself_with_the_rest_as_notes(bus):
    first, called = OSError("first"), []

    def raises_first(event, state):
        raise first

    bus.on(StepEnd, lambda event, state: Save("kept"), name="saver")
    bus.on(StepEnd, failing, name="isolated", failure="isolate")
    bus.on(StepEnd, raises_first, failure="raise")
    bus.on(StepEnd, lambda event, state: 1 / 0, name="second", failure="raise")
    bus.on(StepEnd, lambda event, state: called.append(1), name="behind")
    with pytest.raises(OSError, match="first") as caught:
        bus.publish(StepEnd(), TrainState(step=3))
    assert caught.value is first
    assert called == [1]
    notes = "\n".join(first.__notes__)
    assert "isolated failed at step_end of step 3: OSError: disk full" in notes
    assert "second failed at step_end of step 3" in notes
    assert "not carried out: Save by saver" in notes


def test_dispatch_does_not_raise_and_leaves_the_failures_in_the_control(strict_bus):
    strict_bus.on(StepEnd, failing)
    control = strict_bus.dispatch(StepEnd())
    assert [(f.subscription, f.policy) for f in control.failures] == [("failing", "raise")]


def test_disable_leaves_out_the_handler_after_three_failures_and_says_so(bus):
    bus.on(StepEnd, failing, failure="disable")
    bus.on(StepEnd, lambda event, state: Save("behind"), name="behind")
    controls = [bus.publish(StepEnd()) for _ in range(5)]
    assert [len(c.failures) for c in controls] == [1, 1, 1, 0, 0]
    assert all(c.save for c in controls)
    assert "switched off after 3 failures" in str(bus.failures[-1])
    assert "failing is switched off" in bus.explain(StepEnd)


@pytest.mark.parametrize("event", [StepEnd(), TrainBegin()], ids=["step_end", "train_begin"])
def test_a_new_run_calls_the_handlers_that_were_switched_off_in_the_last(bus, event):
    called = []

    def fragile(event, state):
        called.append(event.name)
        raise OSError

    bus.on(type(event), fragile, failure="disable", disable_after=1)
    for _ in range(3):
        bus.publish(TrainBegin())
        if not isinstance(event, TrainBegin):
            bus.publish(event)
    assert called == [event.name] * 3


def test_disable_switches_off_a_plain_blinker_receiver_too():
    bus, called = Bus(failure="disable"), []

    def receiver(sender, event, state):
        called.append(1)
        raise OSError

    bus.signal(StepEnd).connect(receiver)
    for _ in range(5):
        bus.publish(StepEnd())
    assert called == [1, 1, 1]


def test_a_new_run_forgives_a_plain_receiver_too():
    bus, called = Bus(failure="disable"), []

    def receiver(sender, event, state):
        called.append(1)
        raise OSError

    bus.signal(StepEnd).connect(receiver)
    for publishes in (2, 2, 5, 5):
        bus.publish(TrainBegin())
        for _ in range(publishes):
            bus.publish(StepEnd())
    assert len(called) == 2 + 2 + 3 + 3


@pytest.mark.parametrize("answer", [Report(a="x", b=[1], c=None, d=1.0), SetLR({"a": 1, "b": 1, "c": 1}), (1, 2, 3)])
def test_one_call_is_one_failure_however_many_faults_its_reply_has(bus, answer):
    handle = bus.on(StepEnd, lambda event, state: answer, name="sloppy", failure="disable")
    control = bus.publish(StepEnd(), TrainState(lr={"body": 1.0}))
    assert len(control.failures) == 1
    assert handle.subscriptions[0].state == "active"
    faults = {"Report": "abc", "SetLR": "abc", "tuple": "123"}[type(answer).__name__]
    assert all(fault in str(control.failures[0].error) for fault in faults)


def test_stop_asks_for_the_end_of_the_run_in_the_handlers_name(bus):
    bus.on(StepEnd, failing, name="uploader", failure="stop")
    stop = bus.publish(StepEnd()).stop
    assert (stop.who, stop.reason) == ("uploader", "it failed: OSError: disk full")


def test_a_strict_bus_raises_unless_the_subscription_says_otherwise(strict_bus):
    strict_bus.on(StepEnd, failing, failure="isolate")
    strict_bus.publish(StepEnd())
    strict_bus.on(StepBegin, failing)
    with pytest.raises(OSError, match="disk full"):
        strict_bus.publish(StepBegin())


# -- never silent ------------------------------------------------------------------------------------------------------


def test_a_raw_bus_writes_one_log_record_with_traceback_however_often_the_handler_fails(bus, caplog):
    bus.on(StepEnd, failing)
    with caplog.at_level(logging.ERROR, "eventloop"):
        for step in range(5):
            bus.publish(StepEnd(), TrainState(step=step))
    assert [r.getMessage() for r in caplog.records] == ["failing failed at step_end of step 0: OSError: disk full"]
    assert 'raise OSError("disk full")' in caplog.text
    assert bus.failures.counts == {"failing": 5}


def test_a_handler_of_handler_failed_that_fails_is_recorded_and_not_published_again(bus):
    heard = []

    def bad_reporter(event, state):
        heard.append(event.subscription)
        raise Deliberate

    bus.on(HandlerFailed, bad_reporter)
    bus.on(StepEnd, failing)
    bus.publish(StepEnd())
    assert heard == ["failing"]
    assert sorted(f.subscription for f in bus.failures) == ["bad_reporter", "failing"]


def test_a_handler_of_every_event_that_always_fails_is_called_once_an_event_and_once_for_its_failure(bus):
    heard = []

    def hopeless(event, state):
        heard.append(event.name)
        raise Deliberate

    bus.on(Event, hopeless)
    bus.publish(StepEnd())
    assert heard == ["step_end", "handler_failed"]


def test_the_bus_keeps_the_last_thousand_failures_and_counts_all(bus):
    bus.on(StepEnd, failing)
    for step in range(1100):
        bus.publish(StepEnd(), TrainState(step=step))
    assert (len(bus.failures), bus.failures.total, bus.failures[-1].step) == (1000, 1100, 1099)


def test_a_new_run_forgets_the_failures_of_the_last(bus):
    bus.on(StepEnd, failing)
    bus.publish(StepEnd())
    bus.publish(TrainBegin())
    assert (list(bus.failures), bus.failures.total) == ([], 0)


def test_an_event_that_a_handler_has_forced_open_spoils_no_other_update(fake_loop, bus):
    """Fails if the loop publishes one and the same StepEnd at each update."""
    seen = []
    bus.on(StepEnd, lambda event, state: seen.append(event.skipped), name="first", priority=1)
    bus.on(StepEnd, lambda event, state: object.__setattr__(event, "skipped", not event.skipped), name="forces")
    fake_loop(metrics={"loss": [1.0, 1.0, 1.0, 1.0]}, skipped={2, 4}, max_epochs=1).run()
    assert seen == [False, True, False, True]
