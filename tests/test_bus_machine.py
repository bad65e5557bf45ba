"""The bus against a list: who is called, in which order, and what is asked for; and the machine that compares them."""

import math
from collections import Counter

import pytest
from drawn import run
from hypothesis import Phase, settings
from hypothesis.stateful import initialize, invariant, precondition, rule, run_state_machine_as_test

from eventloop import Callback, Control, EvalEnd, Handle, Priority, Report, StepEnd, Stop, TrainBegin
from eventloop.channel import Channel, Space
from eventloop.dispatch import Dispatcher
from eventloop.testing import BusMachine, MadeUpEvent

STEPS = settings(stateful_step_count=50, database=None, print_blob=False)


@pytest.mark.storm
def test_the_bus_against_a_list_for_a_long_time():
    random = settings(settings.get_profile("random"), stateful_step_count=50)
    run_state_machine_as_test(BusMachine, settings=random)


def test_the_bus_calls_and_answers_as_the_list_says_whatever_is_done_to_it():
    """Planted: `BREAKS`. Of what is reached, planted: no rule for several members; nobody publishes inside."""
    reached = Counter()

    class Counted(BusMachine):
        def teardown(self):
            reached.update(self.reached)
            super().teardown()

    run_state_machine_as_test(Counted, settings=settings(STEPS, max_examples=100))
    sizes = ["no handler", "1 to 9 handlers", "10 to 29 handlers", "30 handlers or more"]
    acts = ["a tie", "raising", "cancelling", "nesting", "re-registering", "adding"]
    assert [label for label in sizes + acts if not reached[label]] == []


# -- it finds what is broken -------------------------------------------------------------------------------------------


def priority_is_ignored(patch):
    connect = Channel.connect
    patch.setattr(Channel, "connect", lambda self, *args, priority=0, **more: connect(self, *args, **more))


def ties_are_reversed(patch):
    ordered = Space.slots

    def slots(self, kind):
        return sorted(ordered(self, kind), key=lambda pair: (pair[0].order[0], -pair[0].order[1]))

    patch.setattr(Space, "slots", slots)


def cancelling_waits_for_the_next_publish(patch):
    def disconnect(self, receiver, sender=None):
        self._space.invalidate()

    patch.setattr(Channel, "disconnect", disconnect)


def failures_are_no_event(patch):
    dispatch = Dispatcher.dispatch

    def deaf(self, event, state):
        return Control() if event.name == "handler_failed" else dispatch(self, event, state)

    patch.setattr(Dispatcher, "dispatch", deaf)


def requests_are_lost(patch):
    dispatch = Dispatcher.dispatch

    def forgetful(self, event, state):
        control = dispatch(self, event, state)
        return Control(control.requests[:-1], control.failures)

    patch.setattr(Dispatcher, "dispatch", forgetful)


def failures_are_swallowed(patch):
    dispatch = Dispatcher.dispatch
    patch.setattr(Dispatcher, "dispatch", lambda self, *args: Control(dispatch(self, *args).requests))


def muting_does_nothing(patch):
    patch.setattr(Channel, "is_muted", property(lambda self: False, lambda self, value: None))


def enabling_gives_another_place(patch):
    def enable(self):
        for subscription in self.subscriptions:
            subscription._ticket = None
            subscription.connect(subscription.channel)

    patch.setattr(Handle, "enable", enable)


def everybody_is_heard_whatever_the_sender(patch):
    connect = Channel.connect

    def careless(self, receiver, sender=None, weak=True, **more):
        return connect(self, receiver, weak=weak, **more)

    patch.setattr(Channel, "connect", careless)


BREAKS = [
    priority_is_ignored,
    ties_are_reversed,
    cancelling_waits_for_the_next_publish,
    failures_are_no_event,
    requests_are_lost,
    failures_are_swallowed,
    muting_does_nothing,
    enabling_gives_another_place,
    everybody_is_heard_whatever_the_sender,
]


@pytest.mark.parametrize("break_bus", BREAKS)
def test_a_broken_bus_is_found_and_the_printed_steps_fail_as_they_stand(break_bus, monkeypatch):
    """Planted: names of bundles that nothing assigns; members printed as their repr."""
    break_bus(monkeypatch)
    with pytest.raises(AssertionError) as raised:
        run_state_machine_as_test(BusMachine, settings=settings(STEPS, phases=[Phase.generate], max_examples=200))
    steps = "\n".join(raised.value.__notes__).partition("state = ")[2]
    with pytest.raises(AssertionError, match="by the list it should be"):
        run(f"state = {steps}")


# -- with callbacks of one's own ---------------------------------------------------------------------------------------


class Meddler(Callback):
    """Does what a callback may do: reports, asks for a stop, publishes, has others go."""

    priority = Priority.MEASURE

    def __init__(self, machine):
        self.machine, self.seen = machine, Counter()

    def on_step_end(self, event, state):
        self.seen[event.name] += 1
        self.machine.bus.publish(EvalEnd(), state)
        self.machine.bus.publish(MadeUpEvent(), state)
        return Report(meddled=1.0), Stop("enough")

    def on_eval_end(self, event, state):
        self.seen[event.name] += 1
        if self.machine.members.all:
            self.machine.cancel(self.machine.members.all[0])


class WithMeddler(BusMachine):
    @initialize()
    def attach_the_meddler(self):
        self.meddler = Meddler(self)
        self.bus.attach(self.meddler)
        self.bus.on(StepEnd, lambda event, state: self.bus.publish(MadeUpEvent(), state) and None, priority=-1)

    @rule()
    def begin(self):
        self.check(TrainBegin())

    @invariant()
    def it_hears_every_event_whoever_else_is_there(self):
        if not self.members.muted:
            assert self.meddler.seen["eval_end"] >= self.meddler.seen["step_end"]


TestWithMeddler = WithMeddler.TestCase
TestWithMeddler.settings = settings(STEPS, max_examples=30)


class Fragile(Callback):
    """Planted: it takes for granted that an evaluation comes after an update."""

    def on_step_end(self, event, state):
        self.last = state.step

    def on_eval_end(self, event, state):
        return Report(updates_since=state.step - self.last)


class WithFragile(BusMachine):
    @rule()
    @precondition(lambda self: not self.bus.objects)
    def attach_mine(self):
        self.bus.attach(Fragile())


def test_an_error_of_ones_own_callback_fails_the_machine_and_its_steps_run_as_they_are_printed():
    """Planted: see `Fragile`; rules whose arguments were event classes, which print with the name of their module."""
    with pytest.raises(AttributeError, match="'last'") as raised:
        run_state_machine_as_test(WithFragile, settings=settings(STEPS, phases=[Phase.generate, Phase.shrink]))
    lines = [line for note in raised.value.__notes__ for line in note.splitlines()]
    steps = lines[lines.index("state = WithFragile()") :]
    assert steps[1:] == ["state.attach_mine()", "state.publish_eval_end(value=None)", "state.teardown()"]
    with pytest.raises(AttributeError, match="'last'"):
        run("\n".join(steps), WithFragile=WithFragile)


class Least(Callback):
    """Keeps the least loss, and what it was called with."""

    def __init__(self, name):
        self.name, self.least, self.seen, self.steps = name, math.inf, Counter(), []

    def on_step_end(self, event, state):
        self.steps.append((state.epoch, state.step, state.update, state.micro, state.samples))
        if self.name not in state.metrics.fresh:
            self.seen["missing"] += 1
            return
        loss = state.metrics[self.name]
        self.seen["NaN" if math.isnan(loss) else "inf" if math.isinf(loss) else "finite"] += 1
        self.least = min(self.least, loss)

    def on_eval_end(self, event, state):
        self.seen["an evaluation's" if state.metrics.fresh == {"score"} else "none"] += 1


def test_a_callback_of_ones_own_is_called_with_odd_numbers_missing_ones_and_finite_ones():
    """Broken by publishes that report nothing."""
    seen = Counter()

    class WithLeast(BusMachine):
        step_metric, eval_metric = "cost", "score"

        @initialize()
        def attach_mine(self):
            self.mine = Least("cost")
            self.bus.attach(self.mine)

        def teardown(self):
            seen.update(self.mine.seen)
            assert all(line == (1, *line[1:2] * 4) for line in self.mine.steps)
            super().teardown()

    run_state_machine_as_test(WithLeast, settings=settings(STEPS, max_examples=30))
    assert {"NaN", "inf", "missing", "finite", "an evaluation's", "none"} == {*seen}


def test_what_a_callback_reports_stays_in_the_snapshot_as_in_a_run():
    """Broken by a machine whose next snapshot is made of the one before the dispatch."""
    machine = WithMeddler()
    machine.attach_the_meddler()
    machine.publish_step_end(value=0.5)
    machine.publish_eval_end()
    machine.teardown()
    assert dict(machine.state.metrics) == {"loss": 0.5, "meddled": 1.0}


def test_the_list_says_what_differs_and_where():
    machine = BusMachine()
    for priority in (0, 1):
        machine.subscribe(kind="step_end", priority=priority, does="silent")
    machine.members.all[0].priority = 2
    with pytest.raises(AssertionError, match="at step_end the bus called") as raised:
        machine.publish_step_end()
    machine.teardown()
    assert "the first difference is at 0" in str(raised.value)


def test_a_weak_member_that_has_raised_dies_with_its_only_reference(caplog):
    """Planted: its log record is kept, as pytest does, and the traceback in it keeps the member."""
    machine = BusMachine()
    member = machine.connect_weakly(kind="step_end", priority=0, does="raises")
    machine.publish_step_end()
    machine.drop_the_only_reference(member)
    machine.publish_step_end()
    machine.teardown()
    assert (machine.members.called, caplog.records) == ([], [])


def unknown(machine):
    """Two who are no members: one publishes an event of its own, the other has a member join just then."""
    machine.bus.on(StepEnd, lambda event, state: machine.bus.publish(MadeUpEvent(), state) and None, priority=9)
    join = {"kind": "event", "priority": 2, "does": "silent"}
    machine.bus.on(MadeUpEvent, lambda event, state: machine.subscribe(**join) and None, priority=9, name="joins")


def test_whoever_joins_at_an_event_that_no_member_published_need_not_be_called_at_once():
    """Planted: everybody expected who is in the list when the first member is called."""
    machine = BusMachine()
    unknown(machine)
    machine.subscribe(kind="event", priority=0, does="silent")
    machine.publish_step_end()
    machine.publish_eval_end()
    machine.teardown()
    assert [name for name, _ in machine.members.called] == ["member_1", "member_0"]


def test_the_order_is_compared_at_an_event_that_no_member_published_too():
    machine = BusMachine()
    unknown(machine)
    for priority in (0, 1):
        machine.subscribe(kind="event", priority=priority, does="silent")
    machine.mute(kind="step_end", muted=False)
    machine.members.all[0].priority = 3
    with pytest.raises(AssertionError, match=r"\('member_0', 'made_up_event'\)"):
        machine.publish_step_end()
    machine.teardown()
