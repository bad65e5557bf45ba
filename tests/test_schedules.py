"""WarmupCosine: the curve, where it comes from, and what a resume does to it."""

import math
from itertools import pairwise
from typing import NamedTuple

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from callbacks import CosineAnnealingWithWarmup, WarmupCosine
from callbacks.schedules import warmup_cosine
from eventloop import Bus, SetLR, StepBegin, TrainBegin, TrainState


class Curve(NamedTuple):
    base: float
    warmup: int
    total: int
    eta_min: float

    def rates(self, updates):
        return [warmup_cosine(n, *self) for n in range(1, updates + 1)]


@st.composite
def curves(draw):
    base, warmup = draw(st.floats(1e-6, 10)), draw(st.integers(0, 40))
    return Curve(base, warmup, max(warmup + draw(st.integers(0, 100)), 1), base * draw(st.floats(0, 1)))


class Optimizer:
    """Stands for an optimizer where only its parameter groups are looked at."""

    def __init__(self, *groups):
        self.param_groups = list(groups)


def begun(schedule, *, resumed=False, optimizer=None, **state):
    bus = Bus()
    bus.attach(schedule)
    if optimizer is not None:
        bus.bind(optimizer=optimizer)
    state = TrainState(**{"lr": {"group_0": 1.0}, **state})
    return bus, bus.publish(TrainBegin(resumed), state).apply(state)


def advance(bus, state, updates):
    """The rates by group that each of the next updates uses."""
    used = []
    for _ in range(updates):
        state = state.begin_update()
        state = bus.publish(StepBegin(), state).apply(state)
        used.append(dict(state.lr))
        state = state.end_update()
    return used, state


def rates_of(schedule, updates, **state):
    return [lr["group_0"] for lr in advance(*begun(schedule, **state), updates)[0]]


# -- the formula -------------------------------------------------------------------------------------------------------


@given(curves())
def test_the_rate_stays_between_the_floor_and_the_base(curve):
    rates = curve.rates(curve.total + 20)
    assert all(0 < rate <= curve.base for rate in rates[: curve.warmup])
    assert all(curve.eta_min <= rate <= curve.base for rate in rates[curve.warmup :])


@given(curves())
def test_the_warmup_is_linear_up_to_the_base_exactly(curve):
    rates = curve.rates(curve.warmup)
    assert rates == pytest.approx([curve.base * n / curve.warmup for n in range(1, curve.warmup + 1)], rel=1e-12)
    assert curve.warmup == 0 or rates[-1] == curve.base


@given(curves())
def test_it_never_rises_after_the_peak_and_stays_at_the_floor_after_the_end(curve):
    rates = curve.rates(curve.total + 20)
    assert all(a >= b for a, b in pairwise(rates[max(curve.warmup - 1, 0) :]))
    assert set(rates[curve.total :]) == {curve.eta_min}


@given(curves())
def test_it_is_continuous_no_step_is_larger_than_the_steepest_of_its_slopes(curve):
    length = curve.total - curve.warmup
    slopes = [curve.base / curve.warmup] if curve.warmup else []
    slopes.append((curve.base - curve.eta_min) * (math.pi / 2 / length if length else 1.0))
    rates = curve.rates(curve.total + 20)
    rounding = 4 * math.ulp(curve.base)
    assert all(abs(a - b) <= max(slopes) * (1 + 1e-9) + rounding for a, b in pairwise(rates))


@given(curves())
def test_the_decay_is_the_closed_form_of_cosine_annealing(curve):
    length = max(curve.total - curve.warmup, 1)
    closed = [
        curve.eta_min + (curve.base - curve.eta_min) * (1 + math.cos(math.pi * t / length)) / 2 for t in range(length)
    ]
    decay = curve.rates(curve.total)[curve.warmup :]
    assert decay == pytest.approx(closed[: len(decay)], rel=1e-12)


@settings(max_examples=10)
@given(curves())
def test_the_decay_is_what_torch_computes(curve):
    import torch

    optimizer = torch.optim.SGD([torch.zeros(1, requires_grad=True)], lr=curve.base)
    length = max(curve.total - curve.warmup, 1)
    scheduler = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, length, curve.eta_min)
    for rate in curve.rates(curve.total)[curve.warmup :]:
        assert rate == pytest.approx(optimizer.param_groups[0]["lr"], rel=1e-6)
        optimizer.step()
        scheduler.step()


def test_without_a_warmup_the_first_update_uses_the_base():
    assert Curve(0.3, 0, 4, 0.0).rates(1) == [0.3]


# -- on the bus --------------------------------------------------------------------------------------------------------


@given(curves())
def test_the_bus_carries_the_formula_to_every_update(curve):
    schedule = WarmupCosine(curve.warmup, curve.total, curve.eta_min)
    updates = min(curve.total + 2, 30)
    assert rates_of(schedule, updates, lr={"group_0": curve.base}) == curve.rates(updates)


def test_each_group_has_its_own_base_warmup_and_floor():
    schedule = WarmupCosine({"body": 2, "head": 0}, 10, {"body": 0.0, "head": 0.5})
    used, _ = advance(*begun(schedule, lr={"body": 0.1, "head": 2.0}), 12)
    assert [lr["body"] for lr in used] == Curve(0.1, 2, 10, 0.0).rates(12)
    assert [lr["head"] for lr in used] == Curve(2.0, 0, 10, 0.5).rates(12)


def test_a_skipped_update_is_tried_again_at_the_same_rate():
    bus, state = begun(WarmupCosine(4, 12))
    for _ in range(2):
        state = state.begin_update()
        state = bus.publish(StepBegin(), state).apply(state)
        state = state.end_update(skipped=True)
    assert [lr["group_0"] for lr in advance(bus, state, 3)[0]] == [0.25, 0.5, 0.75]


def test_without_total_steps_the_plan_is_the_length_and_a_longer_plan_is_followed():
    bus, state = begun(WarmupCosine(2), total=6)
    first, state = advance(bus, state, 4)
    later, _ = advance(bus, state.replace(total=20), 4)
    assert [lr["group_0"] for lr in first] == Curve(1.0, 2, 6, 0.0).rates(4)
    assert [lr["group_0"] for lr in later] == Curve(1.0, 2, 20, 0.0).rates(8)[4:]


def test_total_steps_beyond_the_plan_leave_a_tail_of_the_curve_unused():
    assert rates_of(WarmupCosine(0, 40), 10, total=10) == Curve(1.0, 0, 40, 0.0).rates(10)


def test_an_unknown_length_is_an_error_at_the_first_update_also_within_the_warmup():
    bus, state = begun(WarmupCosine(5))
    with pytest.raises(ValueError, match=r"total_steps=None, and the length of the run is not known .* give total"):
        bus.publish(StepBegin(), state.begin_update())


def test_a_warmup_longer_than_the_plan_is_an_error_as_soon_as_the_plan_is_known():
    with pytest.raises(ValueError, match="warmup_steps=20 is more than the 10 updates"):
        WarmupCosine(20, 10)
    bus, state = begun(WarmupCosine(20), total=10)
    with pytest.raises(ValueError, match="warmup_steps=20 is more than the 10 updates"):
        bus.publish(StepBegin(), state.begin_update())


def test_a_floor_above_the_base_is_an_error_at_train_begin_that_names_group_and_numbers():
    with pytest.raises(ValueError, match=r"eta_min=0\.01 is above the base learning rate 0\.001 of group 'body'"):
        begun(WarmupCosine(0, 4, 0.01), lr={"head": 0.1, "body": 0.001})


def test_a_mapping_that_leaves_out_a_group_is_an_error_that_names_it():
    with pytest.raises(ValueError, match="eta_min has no value for group 'head', only for body, hade"):
        begun(WarmupCosine(0, 4, {"body": 0.0, "hade": 0.0}), lr={"head": 0.1, "body": 0.1})


def test_a_state_without_groups_is_an_error_that_says_how_to_begin():
    bus, state = begun(WarmupCosine(0, 4), lr={})
    with pytest.raises(ValueError, match=r"state\.lr names no group: begin with TrainState\(lr="):
        bus.publish(StepBegin(), state.begin_update())


def test_a_group_added_in_mid_run_is_scheduled_from_then_on_with_its_own_rate_as_base():
    bus, state = begun(WarmupCosine(2, 10))
    _, state = advance(bus, state, 4)
    used, _ = advance(bus, state.with_lr({"group_1": 0.3}), 2)
    assert [lr["group_1"] for lr in used] == Curve(0.3, 2, 10, 0.0).rates(6)[4:]
    assert [lr["group_0"] for lr in used] == Curve(1.0, 2, 10, 0.0).rates(6)[4:]


def test_attached_in_mid_run_it_needs_no_train_begin():
    bus = Bus()
    bus.attach(WarmupCosine(2, 10))
    used, _ = advance(bus, TrainState(lr={"group_0": 0.5}, step=4), 2)
    assert [lr["group_0"] for lr in used] == Curve(0.5, 2, 10, 0.0).rates(6)[4:]


def test_a_fresh_run_takes_its_bases_anew():
    schedule = WarmupCosine(0, 4)
    bus, state = begun(schedule)
    advance(bus, state, 4)
    state = TrainState(lr={"group_0": 0.2})
    bus.publish(TrainBegin(), state)
    assert advance(bus, state, 1)[0] == [{"group_0": 0.2}]


# -- resume ------------------------------------------------------------------------------------------------------------


@given(curves(), st.integers(0, 30))
def test_cut_anywhere_and_resumed_the_later_rates_are_the_same(curve, cut):
    def schedule():
        return WarmupCosine(curve.warmup, curve.total, curve.eta_min)

    first, again = schedule(), schedule()
    bus, state = begun(first, lr={"group_0": curve.base})
    _, state = advance(bus, state, cut)
    again.load_state_dict(first.state_dict())
    optimizer = Optimizer({"lr": curve.base})
    resumed = begun(again, resumed=True, optimizer=optimizer, lr=state.lr, step=cut)
    assert advance(*resumed, 10)[0] == advance(bus, state, 10)[0]


@pytest.mark.parametrize(
    ("optimizer", "base"),
    [
        (None, 1.0),  # never bound: what is stored counts
        (Optimizer({"lr": 1.0}), 1.0),
        (Optimizer({"lr": 0.5}), 0.5),  # the script has another base now
        (Optimizer({"lr": 0.5, "initial_lr": 1.0}), 1.0),  # torch's own note of the base
        ({"g": Optimizer({"lr": 0.5})}, 0.5),
    ],
)
def test_on_resume_the_stored_base_counts_unless_the_script_has_another(optimizer, base):
    first, again = WarmupCosine(0, 8), WarmupCosine(0, 8)
    _, state = advance(*begun(first), 5)  # after which the optimizer holds 0.5
    again.load_state_dict(first.state_dict())
    resumed = begun(again, resumed=True, optimizer=optimizer, lr={"group_0": state.lr["group_0"] * base}, step=5)
    assert advance(*resumed, 3)[0] == [{"group_0": rate} for rate in Curve(base, 0, 8, 0.0).rates(8)[5:]]


def test_a_decayed_rate_of_an_optimizer_restored_before_it_was_bound_is_no_base():
    first, again = WarmupCosine(2, 10), WarmupCosine(2, 10)
    _, state = advance(*begun(first), 6)
    again.load_state_dict(first.state_dict())
    resumed = begun(again, resumed=True, optimizer=Optimizer({"lr": state.lr["group_0"]}), lr=state.lr, step=6)
    assert [lr["group_0"] for lr in advance(*resumed, 4)[0]] == Curve(1.0, 2, 10, 0.0).rates(10)[6:]


def test_settings_are_no_state_the_new_plan_is_followed_and_the_jump_is_said_once(caplog):
    first, again = WarmupCosine(2, 10), WarmupCosine(2, 20)
    _, state = advance(*begun(first), 6)
    again.load_state_dict(first.state_dict())
    used, _ = advance(*begun(again, resumed=True, lr=state.lr, step=6), 4)
    assert [lr["group_0"] for lr in used] == Curve(1.0, 2, 20, 0.0).rates(10)[6:]
    assert [record.message for record in caplog.records] == [
        "WarmupCosine: another curve than before the resume: update 6 had 0.691342 in group 'group_0' and would now "
        "have 0.933013 (base 1, eta_min 0, warmup 2, total 20); the present settings count"
    ]


def test_a_resume_on_the_same_curve_says_nothing(caplog):
    first, again = WarmupCosine(2, 10), WarmupCosine(2, 10)
    _, state = advance(*begun(first), 6)
    again.load_state_dict(first.state_dict())
    advance(*begun(again, resumed=True, lr=state.lr, step=6), 4)
    assert caplog.records == []


# -- arguments and looks -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"warmup_steps": -1}, "WarmupCosine: warmup_steps=-1 must be a whole number >= 0"),
        ({"warmup_steps": 0.1}, r"WarmupCosine: warmup_steps=0\.1 must be a whole number >= 0"),
        ({"warmup_steps": True}, "WarmupCosine: warmup_steps=True must be a whole number >= 0"),
        ({"warmup_steps": {"a": 1.5}}, r"WarmupCosine: warmup_steps\['a'\]=1\.5 must be a whole number >= 0"),
        ({"warmup_steps": 0, "total_steps": 0}, "WarmupCosine: total_steps=0 must be a whole number >= 1"),
        ({"warmup_steps": 0, "eta_min": -1e-9}, "WarmupCosine: eta_min=-1e-09 must be a finite number >= 0"),
        ({"warmup_steps": 0, "eta_min": math.nan}, "WarmupCosine: eta_min=nan must be a finite number >= 0"),
        ({"warmup_steps": 0, "eta_min": "1e-6"}, "WarmupCosine: eta_min='1e-6' must be a finite number >= 0"),
        ({"warmup_steps": {"a": 9, "b": 1}, "total_steps": 5}, "warmup_steps=9 is more than the 5 updates"),
    ],
)
def test_arguments_are_checked_at_construction(arguments, message):
    with pytest.raises(ValueError, match=message):
        WarmupCosine(**arguments)


def test_it_stands_in_the_schedule_band_raises_and_explains_itself():
    bus = Bus()
    bus.attach(CosineAnnealingWithWarmup(5, eta_min=0.01))
    line = bus.explain(StepBegin).splitlines()[1]
    assert "300 SCHEDULE   WarmupCosine" in line
    assert "failure=raise, linear warmup over 5 updates, cosine to 0.01 at the end of the plan" in line


def test_its_reply_names_every_group():
    schedule = WarmupCosine(0, 4)
    _, state = begun(schedule, lr={"a": 1.0, "b": 2.0})
    assert schedule.on_step_begin(StepBegin(), state.begin_update()) == SetLR({"a": 1.0, "b": 2.0})
