"""The bus against a plain list sorted by (-priority, ticket): who is called, in which order, and what is asked for."""

import logging

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, rule, run_state_machine_as_test

from eventloop import Bus, EvalEnd, Event, HandlerFailed, Save, StepEnd
from eventloop.testing import Deliberate

KINDS = st.sampled_from([Event, StepEnd, EvalEnd])
PRIORITIES = st.integers(-2, 2)
ACTS = st.sampled_from(["silent", "saves", "raises", "publishes", "adds"])


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    """pytest keeps log records, and with the traceback of an error the owner of the method that raised it."""
    monkeypatch.setattr(logging.getLogger("eventloop"), "disabled", True)


class Entry:
    """A subscription: its place in the model, and what holds it on the bus."""

    def __init__(self, ticket, kind, priority, act, victim=None):
        self.label, self.ticket, self.kind, self.priority = f"h{ticket}", ticket, kind, priority
        self.act, self.victim = act, victim
        self.on, self.stays = True, 0
        self.handle = self.receiver = self.owner = None

    def leave(self):
        self.on = False
        self.stays += 1  # whoever comes back in the middle of a dispatch waits for the next


class Owner:
    """Holds the bound method that is connected weakly."""

    def __init__(self, handler):
        self.handler = handler

    def receive(self, sender, event, state):
        return self.handler(event, state)


class BusAgainstList(RuleBasedStateMachine):
    subscribed, connected, weak = Bundle("subscribed"), Bundle("connected"), Bundle("weak")

    def __init__(self):
        super().__init__()
        self.bus = Bus()
        self.entries, self.muted = [], set()
        self.called, self.added = [], []

    # -- the model -----------------------------------------------------------------------------------------------------

    def enter(self, kind, priority, act, victim=None):
        entry = Entry(len(self.entries), kind, priority, act, victim)
        self.entries.append(entry)
        return entry

    def expect(self, kind):
        """Who is called, as (label, kind), and the labels of those that ask for a save."""
        heard = [e for e in self.entries if e.on and issubclass(kind, e.kind) and e.kind not in self.muted]
        heard.sort(key=lambda e: (-e.priority, e.ticket))
        called, saves = [], []
        for entry, stays in [(e, e.stays) for e in heard]:
            if entry.stays == stays:
                called.append((entry.label, kind))
                saves += [entry.label] if entry.act == "saves" else []
                for inner in self.follow(entry, kind):
                    called += inner[0]
                    saves += inner[1]
        return called, saves

    def follow(self, entry, kind):
        """What comes of an entry's act: the outcome of the publishes inside this one."""
        if entry.act == "cancels":
            entry.victim.leave()
        elif entry.act == "adds":
            self.added.append(self.enter(entry.kind, entry.priority, "saves"))
        elif entry.act == "publishes" and kind is StepEnd:
            yield self.expect(EvalEnd)
        elif entry.act == "raises" and kind is not HandlerFailed:
            yield self.expect(HandlerFailed)

    # -- the bus -------------------------------------------------------------------------------------------------------

    def handler(self, entry):
        def handler(event, state):
            self.called.append((entry.label, type(event)))
            if entry.act == "raises":
                raise Deliberate(entry.label)
            if entry.act == "cancels":
                entry.victim.handle.cancel()
            elif entry.act == "adds":
                self.put(self.added.pop(0))
            elif entry.act == "publishes" and type(event) is StepEnd:
                self.bus.publish(EvalEnd(), state)
            return Save(entry.label) if entry.act == "saves" else None

        return handler

    def put(self, entry):
        handler = self.handler(entry)
        entry.handle = self.bus.on(entry.kind, handler, name=entry.label, priority=entry.priority)
        return entry

    @rule(target=subscribed, kind=KINDS, priority=PRIORITIES, act=ACTS)
    def subscribe(self, kind, priority, act):
        return self.put(self.enter(kind, priority, act))

    @rule(target=subscribed, kind=KINDS, priority=PRIORITIES, victim=subscribed)
    def subscribe_one_that_cancels_another(self, kind, priority, victim):
        return self.put(self.enter(kind, priority, "cancels", victim))

    @rule(entry=subscribed)
    def cancel(self, entry):
        entry.leave()
        entry.handle.cancel()

    @rule(entry=subscribed)
    def disable(self, entry):
        entry.leave()
        entry.handle.disable()

    @rule(entry=subscribed)
    def enable(self, entry):
        if entry.handle.subscriptions[0].state == "cancelled":
            with pytest.raises(ValueError, match="was cancelled"):
                entry.handle.enable()
        else:
            entry.on = True
            entry.handle.enable()

    @rule(target=connected, kind=KINDS, priority=PRIORITIES, act=ACTS)
    def connect(self, kind, priority, act):
        entry = self.enter(kind, priority, act)
        handler = self.handler(entry)
        entry.receiver = lambda sender, event, state: handler(event, state)
        self.bus.signal(kind).connect(entry.receiver, weak=False, priority=priority)
        return entry

    @rule(entry=connected, priority=PRIORITIES)
    def connect_again_with_another_priority(self, entry, priority):
        entry.priority = priority
        self.bus.signal(entry.kind).connect(entry.receiver, weak=False, priority=priority)

    @rule(entry=consumes(connected))
    def disconnect(self, entry):
        entry.leave()
        self.bus.signal(entry.kind).disconnect(entry.receiver)

    @rule(target=weak, kind=KINDS, priority=PRIORITIES, act=ACTS)
    def connect_weakly(self, kind, priority, act):
        entry = self.enter(kind, priority, act)
        entry.owner = Owner(self.handler(entry))
        self.bus.signal(kind).connect(entry.owner.receive, priority=priority)
        return entry

    @rule(entry=consumes(weak))
    def drop_the_only_reference(self, entry):
        entry.leave()
        entry.owner = None

    @rule(kind=KINDS)
    def connect_for_another_sender(self, kind):
        self.bus.signal(kind).connect(lambda *_, **__: self.called.append("stranger"), sender="other", weak=False)

    @rule(kind=KINDS, muted=st.booleans())
    def mute(self, kind, muted):
        (self.muted.add if muted else self.muted.discard)(kind)
        self.bus.signal(kind).is_muted = muted

    @rule(kind=st.sampled_from([StepEnd, EvalEnd]))
    def publish(self, kind):
        self.called.clear()
        called, saves = self.expect(kind)
        control = self.bus.publish(kind())
        assert self.called == called
        assert sorted(reply.request.tag for reply in control.requests) == sorted(saves)

    @rule(kind=st.sampled_from([StepEnd, EvalEnd]))
    def hears(self, kind):
        if any(e.on and issubclass(kind, e.kind) and e.kind not in self.muted for e in self.entries):
            assert self.bus.hears(kind)


TestBusAgainstList = BusAgainstList.TestCase
TestBusAgainstList.settings = settings(stateful_step_count=50)


@pytest.mark.storm
def test_the_bus_against_a_list_for_a_long_time():
    random = settings(settings.get_profile("random"), stateful_step_count=50)
    run_state_machine_as_test(BusAgainstList, settings=random)
