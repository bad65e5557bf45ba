"""Filters on seconds, over several runs on one bus, and over an interruption."""

import json

from hypothesis import given
from hypothesis import strategies as st
from noting import FILTERS, fired, noting

from eventloop import (
    Bus,
    EvalEnd,
    StepEnd,
    TrainBegin,
    TrainState,
)


class Clock:
    now = 1000.0

    def __call__(self):
        return self.now


# -- seconds -----------------------------------------------------------------------------------------------------------


def seconds(bus, clock, times):
    seen = []
    for time in times:
        clock.now = 1000.0 + time
        bus.noted.clear()
        bus.publish(StepEnd(), TrainState())
        seen += [time] * len(bus.noted)
    return seen


def test_seconds_count_from_the_begin_of_the_run():
    clock = Clock()
    bus = noting(bus=Bus(clock=clock), every={"seconds": 10})
    clock.now = 500.0
    bus.publish(TrainBegin())
    clock.now = 1000.0
    bus.publish(TrainBegin())
    assert seconds(bus, clock, [0, 9.9, 10, 11, 35, 39, 40]) == [10, 35, 40]


def test_seconds_may_be_fractions_and_go_with_other_counters():
    clock = Clock()
    bus = noting(bus=Bus(clock=clock), after={"seconds": 0.5}, every={"seconds": 0.25})
    bus.publish(TrainBegin())
    assert seconds(bus, clock, [0.2, 0.25, 0.5, 0.6, 0.75, 0.9, 1.0]) == [0.75, 1.0]


def test_seconds_go_on_over_the_sittings_of_a_run():
    clock = Clock()
    bus = noting(bus=Bus(clock=clock), every={"seconds": 100})
    bus.publish(TrainBegin(resumed=True), TrainState(elapsed=95.0))
    assert seconds(bus, clock, [1, 4, 6, 104, 106]) == [6, 106]


def test_without_a_filter_on_seconds_no_publish_reads_the_clock():
    clock, reads = Clock(), []
    bus = noting(bus=Bus(clock=lambda: reads.append(1) or clock()), every=100)
    bus.publish(StepEnd(), TrainState(step=1))
    reads.clear()
    fired(bus, range(2, 99))
    assert reads == []


# -- runs and resuming -------------------------------------------------------------------------------------------------


def test_a_new_run_counts_from_its_own_begin():
    bus = noting(every={"samples": 1000}, counter="samples")
    bus.publish(TrainBegin())
    assert fired(bus, [500, 1000, 1500], "samples") == [1000]
    bus.publish(TrainBegin())
    assert fired(bus, [1024, 1900, 2048], "samples") == [1024, 2048]


@given(FILTERS, st.lists(st.lists(st.integers(0, 12), max_size=8), min_size=2, max_size=3))
def test_each_run_on_one_bus_fires_as_on_a_fresh_bus(filters, runs):
    bus = noting(**filters)
    for values in runs:
        fresh = noting(**filters)
        bus.publish(TrainBegin())
        fresh.publish(TrainBegin())
        assert fired(bus, values) == fired(fresh, values)


RUNS = st.lists(st.tuples(st.booleans(), st.integers(0, 4)), max_size=20)


@given(FILTERS, RUNS, st.integers(0, 20))
def test_an_interrupted_and_resumed_run_fires_as_the_uninterrupted_one(filters, moves, cut):
    def noting_bus():
        return noting(
            EvalEnd, every={"step": 3}, **{word: {"step": n} for word, n in filters.items() if word != "every"}
        )

    def run(bus, moves, step):
        for evaluates, jump in moves:
            step += jump
            if evaluates:
                bus.publish(EvalEnd(), TrainState(step=step))
        return step

    whole, first, second = noting_bus(), noting_bus(), noting_bus()
    for bus in (whole, first):
        bus.publish(TrainBegin())
    run(whole, moves, 0)
    step = run(first, moves[:cut], 0)
    second.load_state_dict(json.loads(json.dumps(first.state_dict())))
    second.publish(TrainBegin(resumed=True), TrainState(step=step))
    run(second, moves[cut:], step)
    assert first.noted + second.noted == whole.noted


def test_what_was_loaded_counts_only_for_a_resumed_run():
    bus = noting(EvalEnd, every={"step": 10})
    bus.load_state_dict({"filters": {"noting/eval_end": [8]}})
    bus.publish(TrainBegin(), TrainState(step=12))
    assert fired(bus, [14], event=EvalEnd()) == []
    bus.load_state_dict({"filters": {"noting/eval_end": [8]}})
    bus.publish(TrainBegin(resumed=True), TrainState(step=12))
    assert fired(bus, [14], event=EvalEnd()) == [14]


def test_on_resume_a_new_interval_wins_over_the_stored_one():
    bus = noting(every=4)
    bus.load_state_dict({"filters": {"noting/step_end": [9]}})
    bus.publish(TrainBegin(resumed=True), TrainState(step=10))
    assert fired(bus, range(11, 18)) == [12, 16]


def test_hears_says_whether_a_publish_would_call_anybody():
    bus = noting(every=10)
    assert fired(bus, [1]) == []
    assert [bus.hears(StepEnd, TrainState(step=step)) for step in (2, 9, 10)] == [False, False, True]
    assert not bus.hears(EvalEnd)
