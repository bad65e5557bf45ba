"""The strategies for subscribers, metrics and learning-rate plans: right, and the awkward ones are drawn."""

import itertools
import math
from collections import Counter

from drawn import reached
from hypothesis import event, given, settings
from hypothesis import strategies as st

from callbacks import WarmupCosine
from eventloop import Bus, Priority, StepEnd, TrainState
from eventloop.testing import Crowd, FakeLoop, metric_series, metric_values, schedules, subscriptions
from eventloop.testing.crowd import BEHAVIOURS

# -- subscribers -------------------------------------------------------------------------------------------------------


def test_crowds_of_0_to_30_handlers_are_drawn_that_do_everything():
    """Planted: one list strategy alone, which hardly ever draws 30; a behaviour missing."""
    seen = Counter()

    @settings(max_examples=150, database=None)
    @given(subscriptions())
    def publish_thrice(subscribers):
        bus = Bus()
        crowd = Crowd(bus, subscribers)
        for step in range(3):
            bus.dispatch(StepEnd(), TrainState(step=step))
        acts = {subscribers[crowd.names.index(name)].does for name in crowd.calls}
        for label in (*acts, f"{len(subscribers)} handlers"):
            seen[label] += 1
            event(label)

    publish_thrice()
    assert {"0 handlers", "1 handlers", "30 handlers", *BEHAVIOURS} <= seen.keys()
    assert sum(seen[f"{n} handlers"] for n in range(20, 31)) >= 15


def test_the_awkward_crowds_are_among_those_drawn():
    """Planted: the edges of the bands left out."""
    seen = reached(
        subscriptions(),
        150,
        tie=lambda crowd: len({s.priority for s in crowd}) < len(crowd),
        edge=lambda crowd: any(s.priority == Priority.LOG - 1 for s in crowd),
        filters=lambda crowd: any("every" in s.filters and "after" in s.filters for s in crowd),
        policy=lambda crowd: any(s.failure == "disable" and s.does == "raises" for s in crowd),
        cancels=lambda crowd: any(s.does == "cancels" and s.target not in (0, i) for i, s in enumerate(crowd)),
    )
    assert min(seen.values()) >= 10, seen


@given(subscriptions(does=["silent"], failures=["raise"], filters=False, min_size=1, max_size=2))
def test_what_is_drawn_can_be_narrowed(subscribers):
    assert 1 <= len(subscribers) <= 2
    assert {(s.does, s.failure, str(s.filters)) for s in subscribers} == {("silent", "raise", "{}")}


@given(subscriptions(min_size=12, max_size=14))
def test_the_size_of_a_crowd_is_within_what_is_asked_for(subscribers):
    """Planted: the least size ignored where the greatest is above 8."""
    assert 12 <= len(subscribers) <= 14


# -- metrics -----------------------------------------------------------------------------------------------------------


@given(st.lists(metric_values(), max_size=3))
def test_every_metric_value_may_be_reported(values):
    assert len(TrainState().report({str(i): value for i, value in enumerate(values)}).metrics) == len(values)


def test_the_awkward_series_are_among_those_drawn():
    """Planted: values that are finite alone; the key never missing."""
    seen = reached(
        metric_series(),
        nan=lambda series: any(math.isnan(m.get("eval_loss", 0.0)) for m in series),
        missing=lambda series: {} in series and len(series) > 2,
        plateau=lambda series: any(m == n == o != {} for m, n, o in zip(series, series[1:], series[2:], strict=False)),
        tie_with_infinity=lambda series: {"eval_loss": 1.0} in series and {"eval_loss": -math.inf} in series,
        none=lambda series: series == [],
    )
    assert min(seen.values()) >= 1, seen


@given(metric_series("acc", st.floats(0, 1), min_size=2, max_size=5))
def test_a_series_has_the_name_values_and_length_asked_for(series):
    assert 2 <= len(series) <= 5
    assert all(set(metrics) <= {"acc"} and 0 <= metrics.get("acc", 0) <= 1 for metrics in series)


# -- schedules ---------------------------------------------------------------------------------------------------------


def of(value, group):
    return value[group] if isinstance(value, dict) else value


@given(schedules())
def test_every_plan_is_valid_in_itself_and_sittings_go_forward(plans):
    """Planted: the base changed without regard to eta_min; the total below the warmup."""
    ends = [plan.updates for plan in plans]
    assert ends == sorted(ends)
    for plan in plans:
        total = ends[-1] if plan.total_steps is None else plan.total_steps
        for group, base in plan.base.items():
            assert 0 <= of(plan.eta_min, group) <= base <= 1
            assert 0 <= of(plan.warmup_steps, group) <= total


@settings(max_examples=30)
@given(schedules(max_updates=6))
def test_a_scheduler_takes_every_plan_and_keeps_below_its_base(plans):
    """Planted: eta_min drawn up to 1, which WarmupCosine refuses where it is above the base."""
    for plan in plans:
        rates, loop = [], FakeLoop([WarmupCosine(**plan.options)], lr=plan.base, max_steps=plans[-1].updates)
        loop.bus.on(StepEnd, lambda event, state, rates=rates: rates.append(dict(state.lr)))
        loop.run()
        assert len(rates) == plans[-1].updates
        assert all(rate[group] <= base for rate in rates for group, base in plan.base.items())


def test_plans_as_users_have_them_are_among_those_drawn():
    """Planted: later sittings never change anything."""

    def changed(word):
        return lambda plans: any(getattr(a, word) != getattr(b, word) for a, b in itertools.pairwise(plans))

    seen = reached(
        schedules(),
        groups=lambda plans: len(plans[0].base) == 2,
        no_warmup=lambda plans: plans[0].warmup_steps == 0,
        warmup_by_group=lambda plans: isinstance(plans[0].warmup_steps, dict),
        nothing_but_warmup=lambda plans: plans[0].warmup_steps == plans[0].total_steps,
        eta_min_by_group=lambda plans: isinstance(plans[0].eta_min, dict),
        open_end=lambda plans: plans[0].total_steps is None,
        too_long=lambda plans: (plans[0].total_steps or 0) > plans[-1].updates,
        nothing_to_do=lambda plans: plans[-1].updates == 0,
        sittings=lambda plans: len(plans) == 3,
        new_base=changed("base"),
        new_total=changed("total_steps"),
        new_warmup=changed("warmup_steps"),
        new_eta_min=changed("eta_min"),
    )
    assert min(seen.values()) >= 3, seen
