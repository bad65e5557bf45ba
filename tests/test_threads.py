"""Connect and cancel from any thread; publish belongs to one thread at a time, and a second one is told so."""

import itertools
import re
import sys
import threading
from contextlib import contextmanager

import pytest

from eventloop import Bus, BusyBusError, EvalEnd, Save, StepBegin, StepEnd, TrainState

PATIENCE = 30.0  # no test waits for so long unless it fails


@contextmanager
def hasty_switching():
    """Let threads take turns hundreds of times more often than usual."""
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-5)
    try:
        yield
    finally:
        sys.setswitchinterval(interval)


class Worker(threading.Thread):
    """A thread that hands back what its work raised."""

    def __init__(self, work, name="worker"):
        super().__init__(name=name, daemon=True)
        self.work, self.error = work, None
        self.start()

    def run(self):
        try:
            self.work()
        except BaseException as error:
            self.error = error

    def done(self):
        self.join(PATIENCE)
        assert not self.is_alive(), f"{self.name} hangs"
        return self.error


class Owner:
    def receive(self, sender, event, state):
        return None


def test_threads_may_subscribe_cancel_connect_and_die_while_another_publishes(bus):
    numbers, counted, published = itertools.count(), [], 0
    bus.on(StepEnd, lambda event, state: counted.append(1), name="steady")

    def subscribe():
        with bus.on(StepEnd, lambda event, state: None, name=f"h{next(numbers)}", priority=next(numbers) % 7 - 3):
            pass

    def connect():
        owner = Owner()
        bus.signal(StepEnd).connect(owner.receive)

    def mute():
        with bus.signal(EvalEnd).muted():
            bus.signal(EvalEnd).connect(Owner().receive)

    with hasty_switching():
        works = [subscribe, connect, mute]
        workers = [Worker(lambda work=work: [work() for _ in range(400)], work.__name__) for work in works]
        while any(worker.is_alive() for worker in workers):
            bus.publish(StepEnd())
            bus.publish(EvalEnd())
            published += 1
    assert [worker.done() for worker in workers] == [None] * 3
    assert len(counted) == published
    bus.publish(StepEnd())
    assert [s.name for s in bus.order(StepEnd)] == ["steady"]


def test_a_handler_is_called_at_each_publish_until_it_is_cancelled_and_never_after(bus):
    called, failures = [], []
    with hasty_switching():
        for _ in range(200):
            handle = bus.on(StepEnd, lambda event, state: called.append(1), name="once")
            canceller = Worker(handle.cancel)
            bus.publish(StepEnd())
            failures.append(canceller.done())
            called.clear()
            bus.publish(StepEnd())
            assert called == []
    assert failures == [None] * 200


def test_one_name_is_given_to_one_of_several_threads_alone(bus):
    barrier, taken = threading.Barrier(4), []

    def claim():
        barrier.wait(PATIENCE)
        try:
            bus.on(StepEnd, lambda event, state: None, name="mine")
        except ValueError:
            taken.append(1)

    with hasty_switching():
        assert [worker.done() for worker in [Worker(claim) for _ in range(4)]] == [None] * 4
    assert len(taken) == 3
    assert len(bus.order(StepEnd)) == 1


def test_a_second_publisher_is_refused_and_both_threads_are_named(bus):
    inside, leave = threading.Event(), threading.Event()

    def block(event, state):
        inside.set()
        assert leave.wait(PATIENCE)
        return Save("first")

    bus.on(StepEnd, block)
    bus.on(EvalEnd, lambda event, state: None, name="other")
    controls = []
    trainer = Worker(lambda: controls.append(bus.publish(StepEnd())), "trainer")
    assert inside.wait(PATIENCE)
    with pytest.raises(BusyBusError) as refused:
        bus.publish(EvalEnd())
    leave.set()
    assert trainer.done() is None
    mine = threading.current_thread().name
    assert re.search(
        f"thread '{mine}' published eval_end while thread 'trainer' publishes step_end", str(refused.value)
    )
    assert "Bus of its own" in str(refused.value)
    assert controls[0].save == {"first"}


def test_after_a_refusal_both_threads_may_publish_in_turn(bus):
    refusals = []

    def intrude():
        try:
            bus.publish(EvalEnd())
        except BusyBusError as error:
            refusals.append(error)

    bus.on(StepEnd, lambda event, state: Worker(intrude, "intruder").done(), name="lets another in")
    bus.on(EvalEnd, lambda event, state: Save("fine"), name="fine")
    bus.publish(StepEnd())
    assert len(refusals) == 1
    assert Worker(lambda: bus.publish(EvalEnd())).done() is None
    assert bus.publish(EvalEnd()).save == {"fine"}


def intrusion(bus, errors):
    """Publish from another thread, to the end, and note what came of it."""

    def intrude(*_):
        errors.append(Worker(lambda: bus.publish(EvalEnd()), "intruder").done())

    return intrude


def test_a_second_publisher_is_refused_also_while_the_bus_finds_out_who_is_due():
    errors, watchers = [], []

    def clock():
        for watcher in watchers:
            watcher()
        return 0.0

    bus = Bus(clock=clock)
    bus.on(StepEnd, lambda event, state: None, every={"seconds": 10}, name="timed")
    bus.on(EvalEnd, lambda event, state: None, name="other")
    watchers.append(intrusion(bus, errors))
    bus.publish(StepEnd())
    assert errors
    assert {type(error) for error in errors} == {BusyBusError}


def test_a_second_publisher_is_refused_also_while_a_publish_is_nested(bus):
    errors = []
    intrude = intrusion(bus, errors)
    bus.on(StepEnd, lambda event, state: bus.publish(StepBegin()), name="publishes")
    bus.on(StepBegin, intrude, name="inside")
    bus.on(StepEnd, intrude, name="afterwards")
    bus.on(EvalEnd, lambda event, state: None, name="other")
    bus.publish(StepEnd())
    assert [type(error) for error in errors] == [BusyBusError] * 2


def test_no_two_threads_are_ever_inside_one_bus_at_once(bus):
    inside, overlaps, outcomes = [], [], []

    def guarded(event, state):
        inside.append(threading.get_ident())
        if len(set(inside)) > 1:
            overlaps.append(event.name)
        if event.name == "step_end":
            bus.publish(EvalEnd())
        inside.pop()

    bus.on(StepEnd, guarded)
    bus.on(EvalEnd, guarded)

    def publish_often():
        for _ in range(300):
            try:
                outcomes.append(bus.publish(StepEnd()).failures)
            except BusyBusError:
                outcomes.append(())

    with hasty_switching():
        assert [worker.done() for worker in [Worker(publish_often) for _ in range(2)]] == [None] * 2
    assert overlaps == []
    assert set(outcomes) == {()}
    assert len(bus.failures) == 0


def test_at_no_line_of_a_publish_can_another_thread_mix_in(bus):
    bus.on(StepEnd, lambda event, state: bus.publish(EvalEnd(), state) and None, name="publishes")
    bus.on(EvalEnd, lambda event, state: Save(state.run_id), name="saves")
    controls, errors = [], []

    def intrude():
        controls.append(bus.publish(StepEnd(), TrainState(run_id="intruder")))

    def at_each_line(frame, what, _):
        if what == "line" and "eventloop" in frame.f_code.co_filename:
            errors.append(Worker(intrude).done())
        return at_each_line

    tracer = sys.gettrace()
    sys.settrace(at_each_line)
    try:
        control = bus.publish(StepEnd(), TrainState(run_id="mine"))
    finally:
        sys.settrace(tracer)
    assert [r.request for r in control.requests] == [Save("mine")]
    assert [c.requests for c in controls if [r.request for r in c.requests] != [Save("intruder")]] == []
    assert {type(error) for error in errors} == {BusyBusError, type(None)}


def test_two_threads_with_a_bus_each_do_not_meet():
    def train(bus):
        for step in range(300):
            assert bus.publish(StepEnd(), TrainState(step=step)).save == {str(step)}

    buses = [Bus(), Bus()]
    for bus in buses:
        bus.on(StepEnd, lambda event, state: Save(str(state.step)), name="saves")
    with hasty_switching():
        assert [worker.done() for worker in [Worker(lambda bus=bus: train(bus)) for bus in buses]] == [None] * 2
