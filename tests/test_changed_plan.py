"""WarmupCosine after a resume whose plan is another one: followed, kept, or warmed up to again."""

import json
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callbacks import WarmupCosine
from eventloop import Bus, StepBegin, TrainBegin, TrainState


def sitting(schedule, state, updates, before=None, total=None):
    """The rates of some updates, and what a checkpoint has of the schedule behind them."""
    if before is not None:
        schedule.load_state_dict(json.loads(json.dumps(before)))
    bus, used = Bus(), []
    bus.attach(schedule)
    state = state._replace(total=total) if total is not None else state
    state = bus.publish(TrainBegin(before is not None), state).apply(state)
    for _ in range(updates):
        state = state.begin_update()
        state = bus.publish(StepBegin(), state).apply(state)
        used.append(state.lr["group_0"])
        state = state.end_update()
    return used, state, schedule.state_dict()


FRESH = TrainState(lr={"group_0": 1.0})


def cosine(n, warmup, total, base=1.0, floor=0.0):
    """The curve, by the textbook and not by the library."""
    if n <= warmup:
        return base * n / warmup
    if n > total:
        return floor
    return floor + (base - floor) * 0.5 * (1.0 + math.cos(math.pi * (n - 1 - warmup) / (total - warmup)))


def after(on_change, updates=8, cut=6, **changed):
    """The rates behind a resume at ``cut`` of a plan of 2 and 10 updates that is now another."""
    _, state, saved = sitting(WarmupCosine(2, 10), FRESH, cut)
    settings = {"warmup_steps": 2, "total_steps": 10, **changed}
    used, _, told = sitting(WarmupCosine(**settings, on_change=on_change), state, updates, saved)
    return used, told


def test_follow_is_the_new_curve_at_once():
    """Fails if the old plan counts in any way."""
    used, _ = after("follow", total_steps=20)
    assert used == pytest.approx([cosine(n, 2, 20) for n in range(7, 15)], rel=1e-12)
    assert used[0] == pytest.approx(0.883022221559, rel=1e-11)  # 0.5 (1 + cos 40 degrees)


@pytest.mark.parametrize("changed", [{"total_steps": 20}, {"eta_min": 0.4}, {"warmup_steps": 5, "total_steps": 30}])
def test_keep_is_the_old_curve_to_its_end_and_then_its_floor(changed):
    """Fails if one of total, warmup and floor is taken from the new settings."""
    used, _ = after("keep", **changed)
    assert used == pytest.approx([cosine(n, 2, 10) for n in range(7, 15)], rel=1e-12)
    assert used[:2] == pytest.approx([0.5, 0.308658283817], rel=1e-11)
    assert used[4:] == [0, 0, 0, 0]


def test_rewarm_is_a_straight_line_from_the_rate_in_use_to_the_new_curve():
    """Fails if the line begins at 0, ends elsewhere than on the curve, or is not straight."""
    used, _ = after("rewarm", warmup_steps=4, total_steps=20)
    start, end = cosine(6, 2, 10), cosine(10, 4, 20)
    assert (start, end) == pytest.approx((0.691341716183, 0.777785116510), rel=1e-11)
    assert used[:4] == pytest.approx([start + (end - start) * k / 4 for k in (1, 2, 3, 4)], rel=1e-12)
    assert used[3:] == pytest.approx([cosine(n, 4, 20) for n in range(10, 15)], rel=1e-12)


def test_rewarm_without_a_warmup_follows_at_once():
    assert after("rewarm", warmup_steps=0, total_steps=20)[0] == after("follow", warmup_steps=0, total_steps=20)[0]


@pytest.mark.parametrize("on_change", ["follow", "keep", "rewarm"])
def test_a_resume_of_the_same_plan_changes_nothing(on_change, caplog):
    """Fails if any resume counts as a change of plan."""
    assert after(on_change)[0] == pytest.approx([cosine(n, 2, 10) for n in range(7, 15)], rel=1e-12)
    assert caplog.records == []


@given(
    st.sampled_from(["follow", "keep", "rewarm"]),
    st.tuples(st.integers(0, 6), st.integers(6, 25), st.sampled_from([0.0, 0.25])),
    st.integers(1, 9),
    st.integers(1, 9),
)
def test_a_second_resume_goes_on_to_the_last_bit(on_change, plan, first, second):
    """Fails if the state leaves out the kept curve, the line or the update that it began behind."""
    warmup, total, floor = plan
    _, state, saved = sitting(WarmupCosine(2, 10), FRESH, first)

    def again():
        return WarmupCosine(warmup, total, floor, on_change=on_change)

    whole, _, _ = sitting(again(), state, second + 12, saved)
    before, middle, told = sitting(again(), state, second, saved)
    rest, _, _ = sitting(again(), middle, 12, told)
    assert [*before, *rest] == whole


def test_saved_before_its_first_update_a_resumed_run_still_knows_the_old_plan():
    """Fails if the curves of the checkpoint are lost where no update lies between two resumes."""
    _, state, saved = sitting(WarmupCosine(2, 10), FRESH, 6)
    _, state, saved = sitting(WarmupCosine(2, 20, on_change="keep"), state, 0, saved)
    used, _, _ = sitting(WarmupCosine(2, 20, on_change="keep"), state, 1, saved)
    assert used == pytest.approx([0.5])


def test_without_total_steps_the_plan_that_is_kept_is_the_length_the_run_had():
    _, state, saved = sitting(WarmupCosine(2), FRESH, 6, total=10)
    used, _, _ = sitting(WarmupCosine(2, on_change="keep"), state, 6, saved, total=30)
    assert used == pytest.approx([cosine(n, 2, 10) for n in range(7, 13)], rel=1e-12)


def test_a_group_that_the_old_plan_did_not_have_goes_by_the_settings():
    """Fails if a group added at the resume is without a curve, or takes over that of another."""
    _, state, saved = sitting(WarmupCosine(2, 10), FRESH, 6)
    schedule = WarmupCosine(2, 20, on_change="keep")
    schedule.load_state_dict(saved)
    bus = Bus()
    bus.attach(schedule)
    state = state._replace(lr={**state.lr, "new": 0.5})
    state = bus.publish(TrainBegin(True), state).apply(state).begin_update()
    state = bus.publish(StepBegin(), state).apply(state)
    assert dict(state.lr) == pytest.approx({"group_0": 0.5, "new": 0.5 * cosine(7, 2, 20)})


@pytest.mark.parametrize(
    ("on_change", "words"),
    [
        ("follow", "update 6 had 0.691342 in group 'group_0' and would now have 0.933013"),
        (
            "keep",
            "group 'group_0' keeps that of the checkpoint (base 1, eta_min 0, warmup 2, total 10), not the one set",
        ),
        ("rewarm", "group 'group_0' goes from 0.691342 in a straight line to 0.821394 at update 8"),
    ],
)
def test_what_came_of_a_change_is_said_once(on_change, words, caplog):
    after(on_change, total_steps=20)
    (record,) = caplog.records
    assert words in record.getMessage()


def test_it_tells_what_the_plan_before_had_for_the_next_update():
    saved = sitting(WarmupCosine(2, 10), FRESH, 6)[2]
    schedule = WarmupCosine(2, 20)
    assert schedule.planned_before(7) == {}
    schedule.load_state_dict(saved)
    assert schedule.planned_before(7) == pytest.approx({"group_0": 0.5})


def test_another_word_for_a_change_is_refused():
    with pytest.raises(ValueError, match="on_change='restart' must be 'follow' or 'keep' or 'rewarm'"):
        WarmupCosine(2, 10, on_change="restart")
