"""Faults that tests inject, and watching the calls of a bus."""

import threading

import pytest

from eventloop import Bus, Callback, EvalEnd, Report, StepEnd, Stop, TrainState
from eventloop.testing import Deliberate, FakeLoop, full_disk, hanging, inject, raising, slow


class Says(Callback):
    def on_step_end(self, event, state):
        return Report(said=float(state.step))

    def on_eval_end(self, event, state):
        return Stop("heard")


@pytest.fixture
def bus(clock):
    bus = Bus(clock=clock)
    bus.attach(Says())
    return bus


def test_raising_fails_the_calls_named_and_no_other(bus):
    with inject(bus, "Says", raising(at={2, 3})):
        failed = [len(bus.dispatch(StepEnd()).failures) for _ in range(4)]
    assert failed == [0, 1, 1, 0]
    assert {type(failure.error) for failure in bus.failures} == {Deliberate}


def test_the_error_raised_may_be_ones_own(bus):
    with inject(bus, "Says", raising(error=OSError(28, "no space"))):
        bus.dispatch(StepEnd())
    assert str(bus.failures[0].error) == "[Errno 28] no space"


def test_after_the_block_the_fault_is_gone(bus):
    with inject(bus, "Says", raising(at=range(1, 9))):
        bus.dispatch(StepEnd())
    assert not bus.dispatch(StepEnd()).failures


def test_slow_takes_time_of_the_virtual_clock_alone(bus, clock):
    with inject(bus, "Says", slow(clock, 2.5)):
        bus.dispatch(StepEnd())
        bus.dispatch(EvalEnd())
    assert clock() == 5.0


def test_a_hanging_handler_comes_back_when_it_is_let(bus):
    go_on = threading.Event()
    answers = []
    with inject(bus, "Says", hanging(go_on)):
        worker = threading.Thread(target=lambda: answers.append(bus.dispatch(EvalEnd())))
        worker.start()
        worker.join(0.05)
        assert worker.is_alive()
        go_on.set()
        worker.join(5)
    assert answers[0].stop.reason == "heard"


def test_one_that_is_never_let_go_is_a_failure_after_its_time(bus):
    with inject(bus, "Says", hanging(threading.Event(), timeout=0.01)):
        control = bus.dispatch(StepEnd())
    assert "Says has hung for 0.01 s" in str(control.failures[0].error)


def test_nobody_of_that_name_is_an_error_that_says_who_is_there(bus):
    with (
        pytest.raises(ValueError, match="nobody on the bus is called 'Sais'; attached: Says"),
        inject(bus, "Sais", raising()),
    ):
        pass


@pytest.mark.parametrize("at", [0, True, [1, -1], 1.5])
def test_raising_at_no_call_is_refused(at):
    with pytest.raises((ValueError, TypeError)):
        raising(at=at)


def test_a_full_disk_fails_the_write_itself_and_ends_with_the_block(tmp_path):
    path = tmp_path / "log"
    with full_disk(10), path.open("wb", buffering=0) as file:
        assert file.write(b"x" * 20) == 10
        with pytest.raises(OSError, match="File too large"):
            file.write(b"x")
    path.write_bytes(b"x" * 20)
    assert path.stat().st_size == 20


def test_a_fault_in_a_run_of_a_fake_loop_is_isolated_and_named():
    loop = FakeLoop([Says()], metrics={"loss": 1.0}, updates=3)
    with inject(loop.bus, "Says", raising(at=2)):
        result = loop.run()
    assert result.status == "completed"
    assert result.failure_counts == {"Says": 1}


def test_a_fault_at_one_event_counts_and_acts_there_alone(bus, clock):
    """Broken by a fault that is in every handler of the subscription, whatever event was named."""
    with inject(bus, "Says", raising(at=2), EvalEnd), inject(bus, "Says", slow(clock, 1.0), "step_end"):
        failed = [len(bus.dispatch(event).failures) for event in (StepEnd(), EvalEnd(), StepEnd(), EvalEnd())]
    assert failed == [0, 0, 0, 1]
    assert clock() == 2.0


def test_an_event_that_there_is_not_or_that_is_not_heard_holds_no_fault(bus):
    with pytest.raises(ValueError, match="there is no event 'stepend'; did you mean 'step_end'"):
        inject(bus, "Says", raising(), "stepend").__enter__()
    with pytest.raises(ValueError, match="Says does not hear train_begin; it hears eval_end, step_end"):
        inject(bus, "Says", raising(), "train_begin").__enter__()


@pytest.mark.parametrize("fault", [5, raising, slow])
def test_what_is_no_fault_is_refused_with_the_right_form(bus, fault):
    with pytest.raises(TypeError, match=r"inject: fault=.*: give one such as raising\(at=2\), or a function of"):
        inject(bus, "Says", fault).__enter__()
    with pytest.raises(TypeError, match=r"inject\(bus\): .* is no Bus; of a loop give loop\.bus"):
        inject(FakeLoop(), "Says", raising()).__enter__()


def test_a_deliberate_failure_is_logged_without_its_traceback_and_another_with_it(bus, caplog):
    with inject(bus, "Says", raising()):
        bus.dispatch(StepEnd())
    bus.attach(Says(), name="Other")
    with inject(bus, "Other", raising(error=OSError("gone"))):
        bus.dispatch(EvalEnd())
    assert [bool(record.exc_info) for record in caplog.records] == [False, True]
    assert "Says at call 1" in caplog.records[0].message


@pytest.mark.parametrize("size", [-1, 1.5, True])
def test_a_disk_of_no_size_is_refused(size):
    with pytest.raises(ValueError, match="must be a whole number >= 0"):
        full_disk(size).__enter__()


# -- watching ----------------------------------------------------------------------------------------------------------


def test_a_watcher_sees_who_was_given_what_and_what_came_back(bus):
    seen = []

    def around(who, call, event, state):
        answer = call(event, state)
        seen.append((who.name, event.name, state.step, answer))
        return answer

    with bus.watch(around):
        bus.publish(EvalEnd(), TrainState(step=7))
    bus.publish(EvalEnd())
    assert seen == [("Says", "eval_end", 7, Stop("heard"))]


def test_a_watcher_may_change_what_a_handler_gets_and_what_it_answers(bus):
    def around(who, call, event, state):
        return call(event, state.replace(step=state.step + 100))

    with bus.watch(around):
        control = bus.publish(StepEnd(), TrainState(step=1))
    assert control.apply(TrainState()).metrics["said"] == 101.0


def test_watchers_stand_around_each_other_the_last_outermost(bus):
    order = []

    def named(name):
        return lambda who, call, event, state: (order.append(name), call(event, state))[1]

    with bus.watch(named("inner")), bus.watch(named("outer")):
        bus.publish(StepEnd())
    assert order == ["outer", "inner"]


def test_a_handler_cancelled_under_a_watcher_is_silent_at_once(bus):
    calls = []
    late = bus.on(StepEnd, lambda event, state: calls.append("late"), priority=-5, name="late")
    bus.on(StepEnd, lambda event, state: late.cancel(), priority=5, name="cancels")
    with bus.watch(lambda who, call, event, state: call(event, state)):
        bus.publish(StepEnd())
    assert calls == []
    assert [who.name for who in bus.order(StepEnd)] == ["cancels", "Says"]


def test_filters_and_costs_work_under_a_watcher(bus):
    calls = []
    bus.on(StepEnd, lambda event, state: calls.append(state.step), every=2, name="each second")
    with bus.watch(lambda who, call, event, state: call(event, state)):
        for step in range(1, 7):
            bus.publish(StepEnd(), TrainState(step=step))
    assert calls == [2, 4, 6]
    assert {cost.name: cost.calls for cost in bus.costs()}["each second"] == 3
