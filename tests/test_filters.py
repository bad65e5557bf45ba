"""Filters fire by crossing, on any counter, whatever the steps in which it moves."""

from dataclasses import dataclass
from typing import ClassVar

import pytest
from hypothesis import given
from hypothesis import strategies as st
from noting import FILTERS, fired, noting

from eventloop import (
    Bus,
    Callback,
    EpochBegin,
    EpochEnd,
    EvalBegin,
    EvalEnd,
    Event,
    GradientsReady,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainState,
)

COUNTERS = ["update", "step", "epoch", "micro", "samples", "evals", "skipped"]


# -- every -------------------------------------------------------------------------------------------------------------


@given(st.integers(1, 7), st.lists(st.integers(-4, 15), min_size=1, max_size=30))
def test_every_fires_exactly_where_a_multiple_was_crossed_since_the_last_look(n, jumps):
    values, now = [], 0
    for jump in jumps:
        now = max(now + jump, 0)
        values.append(now)
    before = [max(values[0] - 1, 0), *values[:-1]]
    expected = [now for now, then in zip(values, before, strict=True) if now // n > then // n]
    assert fired(noting(every=n), values) == expected


@given(st.integers(1, 50), st.integers(1, 40), st.integers(1, 60))
def test_over_a_run_every_n_fires_as_often_as_n_fits_whatever_the_batch_size(n, batch, updates):
    bus = noting(every={"samples": n}, counter="samples")
    bus.publish(TrainBegin())
    seen = fired(bus, [batch * i for i in range(1, updates + 1)], "samples")
    assert len(seen) == len({batch * i // n for i in range(1, updates + 1)} - {0})


def test_every_ten_fires_at_ten_twenty_thirty_and_not_at_zero():
    assert fired(noting(every=10), range(36)) == [10, 20, 30]


def test_every_one_fires_each_time_the_counter_moves_and_not_at_zero():
    assert fired(noting(every=1), [0, 0, 1, 2, 2, 4]) == [1, 2, 4]


def test_a_counter_that_jumps_over_several_multiples_fires_once():
    assert fired(noting(every=10), [5, 47, 49, 50]) == [47, 50]


def test_a_counter_that_went_back_fires_nothing_and_counts_from_there():
    assert fired(noting(every=10), [9, 10, 25, 12, 19, 3, 9, 10, 20]) == [10, 25, 10, 20]


def test_a_counter_that_stands_still_fires_once():
    assert fired(noting(every=5), [4, 5, 5, 5, 6]) == [5]


def test_a_handler_that_comes_late_counts_from_its_first_look():
    bus = Bus()
    for step in range(1, 19):
        bus.publish(StepEnd(), TrainState(step=step))
    noting(every=10, bus=bus)
    assert fired(bus, range(19, 32)) == [20, 30]


@pytest.mark.parametrize(
    ("kind", "counter"),
    [
        (StepBegin, "update"),
        (GradientsReady, "update"),
        (StepEnd, "step"),
        (EpochBegin, "epoch"),
        (EpochEnd, "epoch"),
        (EvalBegin, "evals"),
        (EvalEnd, "evals"),
        (TrainBegin, "step"),
    ],
)
def test_a_bare_every_counts_the_events_own_counter(kind, counter):
    assert kind.counter == counter
    if kind is not TrainBegin:  # which sets where counting begins
        assert fired(noting(kind, counter, every=2), range(6), counter, kind()) == [2, 4]


def test_an_event_of_ones_own_says_what_a_bare_every_counts():
    @dataclass(frozen=True)
    class BatchDrawn(Event):
        counter: ClassVar[str] = "micro"

    assert fired(noting(BatchDrawn, "micro", every=3), range(8), "micro", BatchDrawn()) == [3, 6]


@pytest.mark.parametrize("counter", COUNTERS)
def test_any_counter_can_be_named(counter):
    assert fired(noting(counter=counter, every={counter: 4}), range(10), counter) == [4, 8]


def test_a_skipped_update_that_is_tried_again_fires_once():
    bus, state, seen = Bus(), TrainState(), []
    bus.on(StepBegin, lambda event, state: seen.append(("begin", state.update)), every=2, name="begin")
    bus.on(StepEnd, lambda event, state: seen.append(("end", state.step)), every=2, name="end")
    for skipped in (False, True, True, False, False):
        state = state.begin_update()
        bus.publish(StepBegin(), state)
        state = state.end_update(skipped=skipped)
        bus.publish(StepEnd(skipped=skipped), state)
    assert seen == [("begin", 2), ("end", 2)]


# -- after, before, once, when -----------------------------------------------------------------------------------------


def test_after_holds_above_before_holds_below_and_once_holds_once():
    assert fired(noting(after=3), [1, 3, 4, 9, 2, 5]) == [4, 9, 5]
    assert fired(noting(before=3), [1, 3, 4, 2, 0]) == [1, 2, 0]
    assert fired(noting(once=3), [1, 2, 3, 4, 9]) == [3]
    assert fired(noting(once=3), [1, 7, 8]) == [7]


def test_filters_together_must_all_hold():
    assert fired(noting(every=2, after=4, before=9), range(14)) == [6, 8]
    assert fired(noting(every=2, after={"epoch": 1}), range(9)) == []


def test_a_crossing_is_used_up_while_another_filter_forbids_it():
    assert fired(noting(every=10, after=20), [9, 10, 19, 20, 21, 29, 30]) == [30]


def test_when_is_asked_only_where_the_filters_hold_and_decides_then():
    asked = []

    def even(event, state):
        asked.append(state.step)
        return state.step % 20 == 0

    assert fired(noting(every=10, when=even), range(45)) == [20, 40]
    assert asked == [10, 20, 30, 40]


def holds(filters, then, now):
    """The rules of all four words, written down once more."""
    every, after, before, once = (filters.get(word) for word in ("every", "after", "before", "once"))
    return (
        (every is None or now // every > then // every)
        and (after is None or now > after)
        and (before is None or now < before)
        and (once is None or then < once <= now)
    )


@given(st.lists(FILTERS, min_size=1, max_size=5), st.lists(st.tuples(st.booleans(), st.integers(0, 9)), max_size=25))
def test_many_filters_on_one_event_and_on_its_base_do_not_disturb_each_other(several, looks):
    bus, called = Bus(), []
    for i, filters in enumerate(several):
        bus.on(StepEnd, lambda event, state, i=i: called.append(i), name=f"h{i}", **filters)
    bus.on(Event, lambda event, state: called.append("base"), name="base", every=2)
    then = base = None
    for is_step_end, now in looks:
        called.clear()
        bus.publish(StepEnd() if is_step_end else EvalEnd(), TrainState(step=now))
        base, base_then = now, max(now - 1, 0) if base is None else base
        expected = ["base"] if now // 2 > base_then // 2 else []
        if is_step_end:
            then, last = now, max(now - 1, 0) if then is None else then
            expected = [i for i, filters in enumerate(several) if holds(filters, last, now)] + expected
        assert called == expected


@given(st.lists(st.tuples(FILTERS, st.sampled_from(["step", "samples", "epoch"])), min_size=1, max_size=4), st.data())
def test_filters_on_several_counters_fire_as_each_alone(several, data):
    def named(filters, counter):
        return {word: {counter: n} for word, n in filters.items()}

    crowd, called = Bus(), []
    alone = []
    for i, (filters, counter) in enumerate(several):
        crowd.on(StepEnd, lambda event, state, i=i: called.append(i), name=f"h{i}", **named(filters, counter))
        alone.append(noting(**named(filters, counter)))
    for _ in range(data.draw(st.integers(0, 12))):
        called.clear()
        state = TrainState(**{c: data.draw(st.integers(0, 9)) for c in ("step", "samples", "epoch")})
        crowd.publish(StepEnd(), state)
        for bus in alone:
            bus.noted.clear()
            bus.publish(StepEnd(), state)
        assert called == [i for i, bus in enumerate(alone) if bus.noted]


def test_a_filter_belongs_to_one_event_of_an_object():
    class Both(Callback):
        def __init__(self):
            self.seen = []

        def on_step_end(self, event, state):
            self.seen.append(("step", state.step))

        def on_eval_end(self, event, state):
            self.seen.append(("evals", state.evals))

        def options(self):
            return {"step_end": {"every": 2}}

    bus, both = Bus(), Both()
    bus.attach(both)
    for i in range(1, 4):
        bus.publish(StepEnd(), TrainState(step=i))
        bus.publish(EvalEnd(), TrainState(evals=i))
    assert both.seen == [("evals", 1), ("step", 2), ("evals", 2), ("evals", 3)]
