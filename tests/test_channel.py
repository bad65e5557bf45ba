"""The signals of a bus are blinker's own: what ordinary blinker code does with them acts on the bus."""

import asyncio
import copy
import functools
import gc
import pickle
from dataclasses import dataclass

import blinker
import pytest

from eventloop import Bus, EvalEnd, Event, Save, StepBegin, StepEnd, Stop, TrainState
from eventloop.testing import assert_order


class Listener:
    """A plain blinker receiver, by method, that remembers how it was called."""

    def __init__(self, answer=None):
        self.calls, self.answer = [], answer

    def receive(self, sender, event, state):
        self.calls.append((sender, event, state))
        return self.answer


def typed(bus, name, called, **options):
    return bus.on(StepEnd, lambda event, state: called.append(name), name=name, **options)


def plain(name, called):
    def receiver(sender, **named):
        called.append(name)

    return receiver


def test_a_signal_is_a_named_signal_in_a_namespace_with_the_events_doc(bus):
    signal = bus.signal(StepEnd)
    assert isinstance(signal, blinker.NamedSignal)
    assert isinstance(bus.signals, blinker.Namespace)
    assert signal is bus.signal("step_end") is bus.signals["step_end"] is bus.signals.signal("step_end")
    assert signal.name == "step_end"
    assert signal.__doc__ == StepEnd.__doc__


def test_a_plain_receiver_gets_sender_event_and_state_and_its_request_counts(bus):
    listener = Listener(Stop("enough"))
    bus.signal(StepEnd).connect(listener.receive)
    event, state = StepEnd(skipped=True), TrainState(step=4)
    control = bus.publish(event, state)
    assert listener.calls == [(bus, event, state)]
    assert listener.calls[0][1] is event
    assert control.stop.reason == "enough"


def test_a_plain_receiver_is_isolated_like_any_other(bus):
    def bad(sender, event, state):
        raise OSError

    bus.signal(StepEnd).connect(bad)
    bus.on(StepEnd, lambda event, state: Save("behind"), name="behind")
    assert bus.publish(StepEnd()).save == {"behind"}
    assert [f.error.__class__ for f in bus.failures] == [OSError]


def test_plain_receivers_stand_in_their_place_among_typed_handlers(bus):
    called = []
    receivers = [plain(name, called) for name in ("p1", "p2")]
    typed(bus, "t1", called)
    bus.signal(StepEnd).connect(receivers[0])
    typed(bus, "t2", called)
    bus.signal(StepEnd).connect(receivers[1], priority=1)
    bus.publish(StepEnd())
    assert called == ["p2", "t1", "p1", "t2"]


def test_a_weak_receiver_lives_as_long_as_its_owner_also_when_it_has_been_called(bus):
    listener = Listener()
    calls = listener.calls
    bus.signal(StepEnd).connect(listener.receive)
    bus.publish(StepEnd())
    del listener
    assert_order(bus, StepEnd, [])
    assert not bus.hears(StepEnd)
    bus.publish(StepEnd())
    assert len(calls) == 1


def test_a_weak_lambda_is_gone_at_once_and_a_strong_one_stays(bus):
    called = []
    bus.signal(StepEnd).connect(lambda sender, event, state: called.append("weak"))
    bus.signal(StepEnd).connect(lambda sender, event, state: called.append("strong"), weak=False)
    gc.collect()
    bus.publish(StepEnd())
    assert called == ["strong"]


def test_of_two_connections_of_one_receiver_there_is_one_and_the_later_weak_flag_wins(bus):
    signal, listener = bus.signal(StepEnd), Listener()
    calls = listener.calls
    signal.connect(listener.receive)
    signal.connect(listener.receive, weak=False)
    bus.publish(StepEnd())
    assert len(calls) == 1
    del listener
    gc.collect()
    bus.publish(StepEnd())
    assert len(calls) == 2


def test_connecting_again_changes_the_priority_and_keeps_the_ticket(bus):
    called = []
    first, second = plain("first", called), plain("second", called)
    for receiver in (first, second):
        bus.signal(StepEnd).connect(receiver)
    bus.signal(StepEnd).connect(first, priority=-1)
    bus.publish(StepEnd())
    bus.signal(StepEnd).connect(first)
    bus.publish(StepEnd())
    assert called == ["second", "first", "first", "second"]


def test_connecting_again_in_the_middle_of_a_dispatch_does_not_silence(bus):
    called = []
    behind = plain("behind", called)
    bus.on(StepEnd, lambda event, state: bus.signal(StepEnd).connect(behind) and None, name="connects", priority=1)
    bus.signal(StepEnd).connect(behind)
    bus.publish(StepEnd())
    assert called == ["behind"]


def test_sender_filters_hold_for_publish_and_for_send(bus):
    called = []
    receivers = {name: plain(name, called) for name in ("any", "mine", "other")}
    signal = bus.signal(StepEnd)
    signal.connect(receivers["any"])
    signal.connect(receivers["mine"], sender=bus)
    signal.connect(receivers["other"], sender="another bus")
    bus.publish(StepEnd())
    assert called == ["any", "mine"]
    called.clear()
    signal.send("another bus", event=StepEnd(), state=TrainState())
    assert called == ["any", "other"]


def test_send_calls_typed_handlers_too_in_the_same_order_and_returns_their_answers(bus):
    called = []
    low, high = plain("low", called), plain("high", called)
    bus.signal(StepEnd).connect(low, priority=-1)
    bus.on(StepEnd, lambda event, state: (called.append("typed"), Save("typed"))[1], name="typed")
    bus.signal(StepEnd).connect(high, priority=1)
    answers = bus.signal(StepEnd).send(bus, event=StepEnd(), state=TrainState())
    assert called == ["high", "typed", "low"]
    assert [answer for _, answer in answers] == [None, Save("typed"), None]


def test_send_isolates_nobody_as_blinker_promises(bus):
    bus.on(StepEnd, lambda event, state: 1 / 0, name="bad")
    with pytest.raises(ZeroDivisionError):
        bus.signal(StepEnd).send(bus, event=StepEnd(), state=TrainState())


def test_connect_via_holds_strongly_and_filters_by_sender(bus):
    called = []

    @bus.signal(StepEnd).connect_via(bus)
    def mine(sender, event, state):
        called.append("mine")

    @bus.signal(StepEnd).connect_via("another")
    def others(sender, event, state):
        called.append("others")

    del mine, others
    gc.collect()
    bus.publish(StepEnd())
    assert called == ["mine"]


def test_connected_to_connects_for_the_block_alone(bus):
    called = []
    with bus.signal(StepEnd).connected_to(plain("inside", called)):
        bus.publish(StepEnd())
    bus.publish(StepEnd())
    assert called == ["inside"]


def test_muted_silences_typed_and_plain_handlers_of_this_event_alone(bus):
    called = []
    receiver = plain("plain", called)
    typed(bus, "typed", called)
    bus.signal(StepEnd).connect(receiver)
    bus.on(Event, lambda event, state: called.append("every event"), name="every event")
    with bus.signal(StepEnd).muted():
        bus.publish(StepEnd())
        assert bus.signal(StepEnd).send(bus, event=StepEnd(), state=TrainState()) == []
    assert called == ["every event"]
    bus.publish(StepEnd())
    assert called[1:] == ["typed", "plain", "every event"]


def test_receiver_connected_and_disconnected_tell_of_typed_and_plain_receivers(bus):
    signal, told = bus.signal(StepEnd), []
    signal.receiver_connected.connect(lambda signal, **_: told.append("connected"), weak=False)
    signal.receiver_disconnected.connect(lambda signal, **_: told.append("disconnected"), weak=False)
    handle = typed(bus, "typed", [])
    with signal.connected_to(plain("plain", [])):
        pass
    handle.cancel()
    assert told == ["connected", "connected", "disconnected", "disconnected"]


def test_a_listener_that_forbids_a_connection_leaves_nothing_registered(bus):
    def forbid(signal, **_):
        raise PermissionError("closed")

    with bus.signal(StepEnd).receiver_connected.connected_to(forbid), pytest.raises(PermissionError):
        typed(bus, "late", [])
    assert_order(bus, StepEnd, [])
    typed(bus, "late", [])
    assert_order(bus, StepEnd, ["late"])


def test_receivers_for_and_has_receivers_for_agree_with_publish(bus):
    called = []
    receiver = plain("plain", called)
    signal = bus.signal(StepEnd)
    assert not signal.has_receivers_for(bus)
    signal.connect(receiver)
    handle = typed(bus, "typed", called, priority=1)
    assert signal.has_receivers_for(bus)
    assert len(list(signal.receivers_for(bus))) == 2
    assert list(signal.receivers_for(bus))[1] is receiver
    handle.cancel()
    assert list(signal.receivers_for(bus)) == [receiver]


def test_a_disconnect_acts_in_the_dispatch_that_is_running(bus):
    called = []
    behind = plain("behind", called)
    bus.on(StepEnd, lambda event, state: bus.signal(StepEnd).disconnect(behind), name="disconnects", priority=1)
    bus.signal(StepEnd).connect(behind)
    bus.publish(StepEnd())
    assert called == []


def test_disconnecting_from_one_sender_leaves_the_others(bus):
    called = []
    receiver = plain("plain", called)
    signal = bus.signal(StepEnd)
    signal.connect(receiver, sender=bus)
    signal.connect(receiver, sender="another")
    signal.disconnect(receiver, sender="another")
    bus.publish(StepEnd())
    signal.disconnect(receiver, sender=bus)
    bus.publish(StepEnd())
    assert called == ["plain"]


def test_disconnecting_what_is_not_connected_is_harmless(bus):
    bus.signal(StepEnd).disconnect(plain("never connected", []))
    assert not bus.hears(StepEnd)


def test_many_dead_receivers_leave_nothing_behind(bus):
    signal = bus.signal(StepEnd)
    for _ in range(500):
        signal.connect(Listener().receive)
    bus.publish(StepEnd())
    assert bus.order(StepEnd) == ()
    assert not signal.receivers
    assert list(signal.receivers_for(bus)) == []


@pytest.mark.parametrize("act", [copy.copy, copy.deepcopy, pickle.dumps], ids=lambda act: act.__name__)
@pytest.mark.parametrize(
    "part", [lambda b: b, lambda b: b.signal(StepEnd), lambda b: b.signals], ids=["bus", "signal", "signals"]
)
def test_a_live_bus_and_its_signals_refuse_to_be_copied_or_pickled(bus, part, act):
    with pytest.raises(TypeError, match="cannot be copied or pickled; build a new"):
        act(part(bus))


def test_two_event_classes_of_one_name_are_two_signals(bus):
    def define():
        @dataclass(frozen=True)
        class Tick(Event):
            pass

        return Tick

    first = define()
    second = type("Tick", (Event,), {"__module__": "another_module"})
    called = []
    bus.on(first, lambda event, state: called.append("first"), name="a")
    bus.on(second, lambda event, state: called.append("second"), name="b")
    bus.publish(second())
    assert called == ["second"]
    assert (bus.signal(first).name, bus.signal(second).name) == ("tick", "tick#2")
    with pytest.raises(ValueError, match=r"2 events are called 'tick'.*subscribe by class"):
        bus.on("tick", lambda event, state: None)


def test_a_base_class_and_its_subclass_are_merged_by_publish(bus):
    called = []
    base, own = plain("every event", called), plain("step_end", called)
    bus.signal(StepEnd).connect(own)
    bus.signal(Event).connect(base, priority=1)
    bus.publish(StepEnd())
    bus.publish(EvalEnd())
    assert called == ["every event", "step_end", "every event"]


def test_coroutine_functions_are_refused_also_as_plain_receivers(bus):
    async def later(sender, event, state):
        await asyncio.sleep(0)

    with pytest.raises(TypeError, match="coroutine function; handlers are called, not awaited"):
        bus.signal(StepEnd).connect(later)
    with pytest.raises(TypeError, match="coroutine function"):
        bus.signal(StepEnd).connect(functools.partial(later), weak=False)
    assert_order(bus, StepEnd, [])


def test_two_buses_do_not_hear_each_other(bus):
    other, called = Bus(), []
    typed(bus, "mine", called)
    typed(other, "theirs", called)
    bus.publish(StepEnd())
    assert called == ["mine"]
    assert bus.signal(StepEnd) is not other.signal(StepEnd)


def test_a_signal_of_an_unknown_event_is_refused_by_name(bus):
    with pytest.raises(ValueError, match="no event 'step_edn'; did you mean 'step_end'"):
        bus.signals.signal("step_edn")
    with pytest.raises(ValueError, match="did you mean 'step_begin'"):
        bus.signal("step_begn")
    assert "step_edn" not in bus.signals
    assert bus.signal(StepBegin).name == "step_begin"
