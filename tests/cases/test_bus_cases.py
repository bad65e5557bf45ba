"""The handed BUS cases, and C85 of CTL, on the raw bus."""

import functools
import gc
import logging
import os
import subprocess
import sys

import pytest

from eventloop import (
    Callback,
    Control,
    EvalEnd,
    Evaluate,
    RunFailed,
    Save,
    StepBegin,
    StepEnd,
    Stop,
    TrainBegin,
    TrainEnd,
    TrainState,
)
from eventloop.testing import Recorder


def raw_loop(bus, limit, body=None):
    """A loop of one's own: updates until somebody asks for a stop, then closing, however it ended."""
    status, reason = "completed", ""
    state = TrainState()
    try:
        bus.publish(TrainBegin(), state)
        while state.step < limit:
            state = bus.publish(StepBegin(), state.begin_update()).apply(state.begin_update())
            if body is not None:
                body(state)
            state = state.end_update().report(loss=1.0 / (state.step + 1))
            if stop := bus.publish(StepEnd(), state).stop:
                status, reason = "stopped", str(stop)
                break
    except BaseException as error:
        status, reason = "interrupted" if isinstance(error, KeyboardInterrupt) else "failed", str(error)
        bus.dispatch(RunFailed(error), state)
        raise
    finally:
        bus.dispatch(TrainEnd(status, reason), state)
        bus.close()
    return state


# -- C27 ---------------------------------------------------------------------------------------------------------------


def three_handlers(bus, failure):
    counted = []

    def log_row(event, state):
        raise OSError("disk full")

    bus.on(StepEnd, log_row, failure=failure)
    bus.on(StepEnd, lambda event, state: counted.append(state.step), name="counter")
    bus.on(StepEnd, lambda event, state: Stop("step 4") if state.step == 4 else None, name="stopper")
    return counted


def test_c27_a_handler_that_may_fail_costs_neither_the_others_nor_the_run(bus, caplog):
    counted = three_handlers(bus, "isolate")
    with caplog.at_level(logging.ERROR, "eventloop"):
        state = raw_loop(bus, 10)
    assert (state.step, counted) == (4, [1, 2, 3, 4])
    assert "log_row failed at step_end of step 1: OSError: disk full" in caplog.text
    assert bus.failures.counts == {"log_row": 4}


def test_c27_the_next_run_on_the_same_bus_works(bus):
    counted = three_handlers(bus, "isolate")
    raw_loop(bus, 10)
    assert raw_loop(bus, 10).step == 4
    assert counted == [1, 2, 3, 4] * 2
    assert bus.failures.counts == {"log_row": 4}


def test_c27_a_handler_that_must_not_fail_reaches_the_caller_after_the_others_were_called(bus):
    counted = three_handlers(bus, "raise")
    with pytest.raises(OSError, match="disk full"):
        raw_loop(bus, 10)
    assert counted == [1]


# -- C29, the half of the raw bus --------------------------------------------------------------------------------------


class Writer(Callback):
    """Counts its begins and closes, and holds rows back until it is closed."""

    def __init__(self):
        self.begun, self.closed, self.statuses, self.rows, self.disk = 0, 0, [], [], []

    def on_train_begin(self, event, state):
        self.begun += 1

    def on_step_end(self, event, state):
        self.rows.append(state.step)

    def on_train_end(self, event, state):
        self.statuses.append(event.status)

    def close(self):
        self.closed += 1
        self.disk, self.rows = self.disk + self.rows, []


def crash_in_step_three(state):
    if state.update == 3:
        raise RuntimeError("out of memory")


def test_c29_after_a_crash_each_is_closed_once_and_the_status_is_a_failure(bus):
    writers = Writer(), Writer()
    for writer in writers:
        bus.attach(writer)
    with pytest.raises(RuntimeError, match="out of memory"):
        raw_loop(bus, 10, crash_in_step_three)
    for writer in writers:
        assert (writer.begun, writer.closed, writer.statuses, writer.disk) == (1, 1, ["failed"], [1, 2])


def test_c29_the_original_error_is_raised_unchanged_though_a_close_fails_too(bus):
    error = RuntimeError("out of memory")

    class Bad(Writer):
        def close(self):
            raise OSError("disk full")

    writer = Writer()
    bus.attach(writer)
    bus.attach(Bad())

    def crash(state):
        raise error

    with pytest.raises(RuntimeError) as caught:
        raw_loop(bus, 10, crash)
    assert caught.value is error
    assert writer.closed == 1
    assert [(f.subscription, f.event) for f in bus.failures] == [("Bad", "close")]


def test_c29_the_original_error_keeps_its_traceback_though_an_observer_of_it_fails_too(bus):
    for kind in (RunFailed, TrainEnd):
        bus.on(kind, lambda event, state: 1 / 0, name=f"bad at {kind.name}")
    with pytest.raises(RuntimeError) as caught:
        raw_loop(bus, 10, crash_in_step_three)
    assert [f.subscription for f in bus.failures] == ["bad at run_failed", "bad at train_end"]
    assert caught.traceback[-1].name == "crash_in_step_three"


@pytest.mark.parametrize(("limit", "status"), [(2, "completed"), (10, "stopped")])
def test_c29_a_run_that_ends_by_itself_is_closed_once_with_all_its_rows(bus, limit, status):
    writer = Writer()
    bus.attach(writer)
    bus.on(StepEnd, lambda event, state: Stop("enough") if state.step == 4 else None, name="stopper")
    steps = raw_loop(bus, limit).step
    assert (writer.closed, writer.statuses, writer.disk) == (1, [status], list(range(1, steps + 1)))


# -- C55 ---------------------------------------------------------------------------------------------------------------


def test_c55_a_publish_works_on_a_snapshot_and_a_removed_handler_is_not_called_any_more(bus):
    called = []

    def h1(event, state):
        called.append("h1")
        handles["h1"].cancel()
        handles["h3"].cancel()
        bus.on(StepEnd, lambda event, state: called.append("h4"), name="h4")

    handles = {"h1": bus.on(StepEnd, h1)}
    handles["h2"] = bus.on(StepEnd, lambda event, state: (called.append("h2"), Save("h2"))[1], name="h2")
    handles["h3"] = bus.on(StepEnd, lambda event, state: called.append("h3"), name="h3")
    first = bus.publish(StepEnd())
    assert (called, first.save, first.failures) == (["h1", "h2"], {"h2"}, ())
    called.clear()
    bus.publish(StepEnd())
    assert called == ["h2", "h4"]


# -- C57 ---------------------------------------------------------------------------------------------------------------


def test_c57_handlers_that_nobody_else_holds_are_called(bus):
    called = []

    class Holder:
        def method(self, event, state):
            called.append("method")

    class CallableObject:
        def __call__(self, event, state):
            called.append("object")

    bus.on(StepEnd, lambda event, state: called.append("lambda"))
    bus.on(StepEnd, functools.partial(lambda word, event, state: called.append(word), "partial"))
    bus.on(StepEnd, Holder().method)
    bus.on(StepEnd, CallableObject())
    gc.collect()
    for _ in range(3):
        bus.publish(StepEnd())
    assert called == ["lambda", "partial", "method", "object"] * 3


# -- C59 ---------------------------------------------------------------------------------------------------------------


def test_c59_a_handler_cannot_change_the_metrics_that_the_next_one_sees(bus):
    given, seen = {"loss": 0.5, "acc": 0.9}, []

    def pops(event, state):
        state.metrics.pop("loss")

    def adds(event, state):
        state.metrics["x"] = 1.0

    for handler in (pops, adds):
        bus.on(EvalEnd, handler)
    bus.on(EvalEnd, lambda event, state: seen.append(dict(state.metrics)), name="logs")
    control = bus.publish(EvalEnd(), TrainState().end_evaluation(given))
    assert seen == [{"loss": 0.5, "acc": 0.9}]
    assert given == {"loss": 0.5, "acc": 0.9}
    assert [(f.subscription, type(f.error)) for f in control.failures] == [
        ("pops", AttributeError),
        ("adds", TypeError),
    ]


# -- C77 ---------------------------------------------------------------------------------------------------------------


C77 = """
from eventloop import Bus, StepEnd
bus, called = Bus(), []
def register(name, priority):
    return bus.on(StepEnd, lambda event, state: called.append(name), name=name, priority=priority)
a = register("A", 0)
for name, priority in [("B", 10), ("C", 0), ("D", 10)]:
    register(name, priority)
rounds = []
for _ in range(100):
    called.clear()
    bus.publish(StepEnd())
    rounds.append("".join(called))
a.cancel()
register("A", 0)
called.clear()
bus.publish(StepEnd())
"""


def test_c77_higher_priority_first_then_order_of_registration():
    space = {}
    exec(C77, space)
    assert set(space["rounds"]) == {"BDAC"}
    assert "".join(space["called"]) == "BDCA"


@pytest.mark.parametrize("seed", ["1", "77"])
def test_c77_the_same_in_a_new_process_with_another_hash_seed(seed):
    environment = {**os.environ, "PYTHONHASHSEED": seed}
    script = C77 + "print(sorted(set(rounds)), ''.join(called))"
    run = subprocess.run([sys.executable, "-c", script], env=environment, capture_output=True, text=True, check=True)
    assert run.stdout == "['BDAC'] BDCA\n"


# -- C85 ---------------------------------------------------------------------------------------------------------------


def stopper(patience):
    """Early stopping in four lines, by the rule of the cases."""
    best, count = float("inf"), 0

    def stop(event, state):
        nonlocal best, count
        value = state.metrics["eval_loss"]
        best, count = (value, 0) if value < best else (best, count + 1)
        return Stop(f"no improvement in {count}") if count >= patience else None

    return stop


@pytest.mark.parametrize("order", [("A", "B"), ("B", "A")])
def test_c85_a_stop_stands_whatever_the_others_reply_and_in_both_orders(bus, order):
    patience = {"A": 1, "B": 5}
    for name in order:
        bus.on(EvalEnd, stopper(patience[name]), name=name)
    bus.on(EvalEnd, lambda event, state: None, name="silent")
    bus.on(EvalEnd, lambda event, state: Control(), name="empty")
    bus.on(EvalEnd, lambda event, state: (Save("also"), Evaluate()), name="asks too")
    state, controls = TrainState(), []
    for value in (1.0, 1.1):
        state = state.end_evaluation({"eval_loss": value})
        controls.append(bus.publish(EvalEnd(), state))
    assert controls[0].stop is None
    assert (controls[1].stop.who, controls[1].stop.reason) == ("A", "no improvement in 1")
    assert (controls[1].save, controls[1].evaluate) == ({"also"}, True)


def test_c85_the_stop_ends_the_run_after_evaluation_two(bus):
    def evaluates(event, state):
        value = 1.0 + state.step / 10  # never better than at first
        return bus.publish(EvalEnd(), state.end_evaluation({"eval_loss": value}))

    recorder = Recorder(bus, lambda event, state: getattr(event, "reason", ""))
    bus.on(StepEnd, evaluates)
    bus.on(EvalEnd, stopper(1), name="A")
    bus.on(EvalEnd, stopper(5), name="B")
    assert raw_loop(bus, 10).step == 2
    assert recorder[-1] == ("train_end", 2, "Stop by A: no improvement in 1")
