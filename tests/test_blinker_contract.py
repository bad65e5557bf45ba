"""What we rely on in blinker that it does not document, or that is surprising: an upgrade must fail here, loudly."""

import gc
import inspect
import os
import subprocess
import sys

import blinker
import pytest


class Traced(blinker.NamedSignal):
    """Notes which public members blinker's own ones go through."""

    def __init__(self):
        self.trace = []
        super().__init__("traced")

    def connect(self, *args, **named):
        self.trace.append("connect")
        return super().connect(*args, **named)

    def disconnect(self, *args, **named):
        self.trace.append("disconnect")
        return super().disconnect(*args, **named)

    def receivers_for(self, sender):
        self.trace.append("receivers_for")
        return super().receivers_for(sender)

    @property
    def is_muted(self):
        return "muted" in self.trace

    @is_muted.setter
    def is_muted(self, value):
        self.trace.append("muted" if value else "unmuted")


def receiver(sender, **named):
    return named


def test_connect_via_and_connected_to_go_through_connect_and_disconnect():
    signal = Traced()
    signal.connect_via(None)(receiver)
    with signal.connected_to(receiver):
        pass
    assert signal.trace[1:] == ["connect", "connect", "disconnect"]


def test_send_goes_through_receivers_for():
    signal = Traced()
    signal.connect(receiver)
    assert signal.send(None, a=1) == [(receiver, {"a": 1})]
    assert signal.trace[1:] == ["connect", "receivers_for"]


def test_the_constructor_assigns_is_muted_and_muted_assigns_it_twice():
    signal = Traced()
    assert signal.trace == ["unmuted"]
    with signal.muted():
        pass
    assert signal.trace == ["unmuted", "muted", "unmuted"]


def test_a_muted_signal_sends_nothing_and_muted_does_not_nest():
    signal = blinker.Signal()
    signal.connect(receiver)
    with signal.muted():
        assert signal.send() == []
        with signal.muted():
            pass
        assert signal.send() == [(receiver, {})]


def test_one_callable_is_one_connection_and_the_later_weak_flag_wins():
    signal, called = blinker.Signal(), []
    signal.connect(lambda sender: called.append(1), weak=False)
    held = next(iter(signal.receivers.values()))
    signal.connect(held)
    del held
    gc.collect()
    signal.send()
    assert called == []


def test_connected_to_ends_a_permanent_connection_of_the_same_receiver():
    signal = blinker.Signal()
    signal.connect(receiver)
    with signal.connected_to(receiver):
        pass
    assert signal.send() == []


def test_disconnecting_from_one_sender_keeps_the_receiver_in_the_map():
    signal = blinker.Signal()
    signal.connect(receiver, sender="a")
    signal.disconnect(receiver, sender="a")
    assert signal.receivers
    assert signal.send("a") == []


def test_receiver_connected_is_sent_inside_connect():
    signal, told = blinker.Signal(), []
    signal.receiver_connected.connect(lambda signal, receiver, **_: told.append(receiver), weak=False)
    signal.connect(receiver)
    assert told == [receiver]


def test_a_weak_receiver_that_died_is_not_called_and_not_told_of():
    signal, told = blinker.Signal(), []
    signal.receiver_disconnected.connect(lambda signal, **_: told.append("disconnected"), weak=False)
    signal.connect(lambda sender: told.append("called"))
    gc.collect()
    assert (signal.send(), told, dict(signal.receivers)) == ([], [], {})


def test_the_first_error_ends_a_send():
    signal, called = blinker.Signal(), []
    signal.connect(lambda sender: called.append(1) or 1 / 0, weak=False)
    signal.connect(lambda sender: called.append(2) or 1 / 0, weak=False)
    with pytest.raises(ZeroDivisionError):
        signal.send()
    assert len(called) == 1


def test_the_order_of_send_is_a_sets_order():
    script = """
import blinker
signal = blinker.Signal()
keep = [lambda sender, i=i: i for i in range(200)]
for receiver in reversed(keep):
    signal.connect(receiver)
print([answer for _, answer in signal.send()] == list(reversed(range(200))))
"""
    environment = {**os.environ, "PYTHONHASHSEED": "1"}
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "False\n"
    assert blinker.Signal.set_class is set


def test_a_namespace_is_a_dict_that_makes_each_signal_once():
    space = blinker.Namespace()
    assert isinstance(space, dict)
    assert space.signal("a") is space.signal("a") is space["a"]


def test_the_public_signatures_are_those_that_we_override():
    assert str(inspect.signature(blinker.Signal.disconnect)).startswith("(self, receiver")
    assert list(inspect.signature(blinker.Signal.connect).parameters) == ["self", "receiver", "sender", "weak"]
    assert list(inspect.signature(blinker.Signal.receivers_for).parameters) == ["self", "sender"]
    assert list(inspect.signature(blinker.NamedSignal.__init__).parameters) == ["self", "name", "doc"]
    assert list(inspect.signature(blinker.Namespace.signal).parameters) == ["self", "name", "doc"]
