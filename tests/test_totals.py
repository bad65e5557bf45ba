"""A value in a log row is the mean over the updates since the logger's last row, whatever other loggers do."""

import gc
import json
import math
import weakref

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from raw_runs import RawRun
from torch.utils._python_dispatch import TorchDispatchMode

import eventloop.metrics
import eventloop.totals
from eventloop import Bus, Priority, Report, StepEnd, Totals, TrainBegin, TrainState

NUMBERS = st.one_of(
    st.floats(-1e6, 1e6, width=32), st.sampled_from([math.nan, math.inf, -math.inf]), st.floats(-1e300, 1e300)
)
FORMS = st.sampled_from([float, torch.tensor, lambda x: torch.tensor([x], dtype=torch.float64)])
STEPS = st.lists(st.dictionaries(st.sampled_from("ab"), st.tuples(NUMBERS, FORMS)), min_size=1, max_size=150)


def mean(values):
    """The reference: what a row must say of these values."""
    total = math.nan if not all(map(math.isfinite, values)) else sum(values)
    return total / len(values) if math.isfinite(total) else math.nan


def expected(steps):
    keys = {key for step in steps for key in step}
    return {key: mean([float(step[key]) for step in steps if key in step]) for key in keys}


def close_to(rows):
    return [{key: pytest.approx(value, rel=1e-9, abs=1e-6, nan_ok=True) for key, value in row.items()} for row in rows]


@given(STEPS, st.integers(1, 70), st.integers(1, 70))
def test_two_loggers_of_different_intervals_are_both_exact(drawn, often, seldom):
    steps = [{key: form(number) for key, (number, form) in step.items()} for step in drawn]
    bus = Bus(failure="raise")
    totals = Totals.of(bus)
    windows = {every: totals.window() for every in {often, seldom}}
    rows = {every: [] for every in windows}
    for n, step in enumerate(steps, 1):
        bus.publish(StepEnd(), TrainState(step=n, metrics=step))
        for every, window in windows.items():
            if n % every == 0:
                rows[every].append(window.take())
    for every in windows:
        whole = [steps[i : i + every] for i in range(0, len(steps) - every + 1, every)]
        assert rows[every] == close_to(map(expected, whole))


def test_the_window_after_a_value_that_is_not_finite_or_enormous_is_clean(strict_bus):
    window, rows = Totals.of(strict_bus).window(), []
    for n, loss in enumerate([1.0, math.nan, 1e300, 3.0, 1e-3, 2e-3], 1):
        strict_bus.publish(StepEnd(), TrainState(step=n, metrics={"loss": loss}))
        if n % 2 == 0:
            rows.append(window.take()["loss"])
    assert math.isnan(rows[0])
    assert rows[1:] == [5e299, 1.5e-3]


def test_a_key_counts_only_the_updates_that_reported_it_and_is_absent_otherwise(strict_bus):
    window = Totals.of(strict_bus).window()
    for n, metrics in enumerate([{"loss": 1.0, "norm": 8.0}, {"loss": 2.0}, {}], 1):
        strict_bus.publish(StepEnd(), TrainState(step=n, metrics=metrics))
    assert window.take() == {"loss": 1.5, "norm": 8.0}
    strict_bus.publish(StepEnd(), TrainState(step=4, metrics={"norm": 1.0}))
    assert window.take() == {"norm": 1.0}


class Rates:
    gauges = ("lr/", "memory")

    def on_step_end(self, event, state):
        return Report({"lr/head": state.step / 10, "memory": torch.tensor(2.0 * state.step), "lr": 1.0 * state.step})


def test_a_gauge_is_its_last_value_and_its_prefix_ends_in_a_slash(strict_bus):
    strict_bus.attach(Rates())
    window = Totals.of(strict_bus).window()
    for n in (1, 2, 3):
        strict_bus.publish(StepEnd(), TrainState(step=n))
    assert window.take() == {"lr/head": 0.3, "memory": 6.0, "lr": 2.0}
    assert window.take() == {}


def test_values_that_are_not_fresh_are_not_counted_again():
    run = RawRun()
    window = Totals.of(run.bus).window()
    run.step(loss=1.0, norm=4.0)
    run.evaluate(eval_loss=9.0)
    run.step(loss=3.0)
    assert window.take() == {"loss": 2.0, "norm": 4.0}


def test_a_skipped_update_counts_with_what_it_reports():
    run = RawRun()
    window = Totals.of(run.bus).window()
    run.step(loss=1.0)
    run.step(skipped=True, loss=3.0)
    assert window.take() == {"loss": 2.0}


def test_it_stands_behind_every_reporter_and_before_the_loggers(strict_bus):
    seen = []
    strict_bus.on(StepEnd, lambda event, state: seen.append(window.take()), priority=Priority.LOG)
    window = Totals.of(strict_bus).window()
    strict_bus.on(StepEnd, lambda event, state: Report(norm=2.0))
    strict_bus.publish(StepEnd(), TrainState(step=1, metrics={"loss": 1.0}))
    assert seen == [{"loss": 1.0, "norm": 2.0}]


def test_a_handler_that_changes_a_tensor_afterwards_does_not_change_the_row(strict_bus):
    window, loss = Totals.of(strict_bus).window(), torch.tensor(1.0)
    strict_bus.publish(StepEnd(), TrainState(step=1, metrics={"loss": loss}))
    loss.fill_(100.0)
    assert window.take() == {"loss": 1.0}


def test_the_mean_of_half_precision_and_of_large_integers_is_exact():
    run = RawRun()
    window = Totals.of(run.bus).window()
    for _ in range(70):
        run.step(half=torch.tensor(60000.0, dtype=torch.float16), count=torch.tensor(2**40 + 1))
    assert window.take() == {"half": 60000.0 - 60000 % 32, "count": 2**40 + 1}


class Asks(TorchDispatchMode):
    """Counts numbers asked of tensors, inside and outside of the one function that may ask."""

    def __init__(self, monkeypatch):
        super().__init__()
        self.inside, self.calls, self.outside = False, 0, 0
        for module in (eventloop.metrics, eventloop.totals):
            monkeypatch.setattr(module, "fetch", self.counted(module.fetch))

    def counted(self, fetch):
        def call(unread):
            self.calls, self.inside = self.calls + 1, True
            try:
                fetch(unread)
            finally:
                self.inside = False

        return call

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if "_local_scalar_dense" in str(func) and not self.inside:
            self.outside += 1
        return func(*args, **(kwargs or {}))


def test_nothing_is_asked_of_a_tensor_before_a_row_is_due_and_then_once_for_all_loggers(monkeypatch):
    run = RawRun()
    totals = Totals.of(run.bus)
    windows = [totals.window(), totals.window()]
    with Asks(monkeypatch) as asks:
        run.steps(1, 200, loss=torch.tensor, norm=lambda n: torch.tensor(2.0 * n))
        assert (asks.calls, asks.outside) == (0, 0)
        assert [w.take() for w in windows] == [{"loss": 100.5, "norm": 201.0}] * 2
        assert (asks.calls, asks.outside) == (1, 0)


def test_a_window_that_is_never_read_keeps_few_tensors():
    run = RawRun()
    totals = Totals.of(run.bus)
    never, often = totals.window(), totals.window()
    for n in range(1, 3001):
        run.step(loss=torch.tensor(float(n)))
        if n % 2 == 0:
            often.take()
    gc.collect()
    assert sum(issubclass(type(o), torch.Tensor) for o in gc.get_objects()) < 700
    assert never.take() == {"loss": 1500.5}


def test_many_folded_parts_are_joined_without_asking_and_stay_exact(monkeypatch):
    monkeypatch.setattr(eventloop.totals, "MANY", 4)
    run = RawRun()
    window = Totals.of(run.bus).window()
    with Asks(monkeypatch) as asks:
        run.steps(1, 64 * 20, loss=torch.tensor, norm=lambda n: torch.tensor(0.5))
        assert asks.calls == asks.outside == 0
    assert window.take() == {"loss": (64 * 20 + 1) / 2, "norm": 0.5}


@given(STEPS, st.integers(0, 150))
def test_a_window_saved_as_json_and_loaded_elsewhere_goes_on_exactly(drawn, cut):
    steps = [{key: form(number) for key, (number, form) in step.items()} for step in drawn]
    window = None
    for part in (steps[:cut], steps[cut:]):
        bus = Bus(failure="raise")
        saved = None if window is None else json.loads(json.dumps(window.state_dict()))
        window = Totals.of(bus).window(saved)
        for n, step in enumerate(part, 1):
            bus.publish(StepEnd(), TrainState(step=n, metrics=step))
    assert [window.take()] == close_to([expected(steps)])


def test_one_bus_has_one_and_dies_with_it():
    bus = Bus()
    totals = Totals.of(bus)
    assert Totals.of(bus) is totals
    assert Totals.of(Bus()) is not totals
    gone = weakref.ref(totals)
    del bus, totals
    gc.collect()
    assert gone() is None


def test_a_second_run_on_the_bus_looks_for_gauges_again():
    run = RawRun()
    window = Totals.of(run.bus).window()
    run.steps(1, 2, **{"lr/head": float})
    assert window.take() == {"lr/head": 1.5}
    run.bus.attach(Rates())
    run.bus.publish(TrainBegin())
    run.steps(3, 4)
    assert window.take()["lr/head"] == 0.4


def test_news_are_the_fresh_names_that_no_update_and_no_evaluation_has_shown():
    run, told = RawRun(), []
    totals = Totals.of(run.bus)
    run.step(loss=1.0)
    run.bus.on("epoch_end", lambda event, state: told.append(totals.news(state)))
    run.end_epoch(train_acc=0.5)
    run.step(loss=1.0)
    run.evaluate(eval_loss=1.0)
    run.end_epoch()
    assert told == [["train_acc"], []]
