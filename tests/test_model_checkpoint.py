"""ModelCheckpoint: when it asks, what stays, and what it finds again; judged against a few lines of plain Python."""

import itertools
import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from small_runs import DiskWatch, checkpoints, count, leftovers, on_disk

from callbacks import ModelCheckpoint
from callbacks.improvement import MissingMetricError
from eventloop import (
    Bus,
    CheckpointSaved,
    EpochEnd,
    EvalEnd,
    Evaluate,
    Loop,
    Save,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainState,
)
from eventloop.checkpoint import Checkpoints

STEPS = 9
SCORES = {1: 0.9, 2: 0.5, 3: math.nan, 4: 0.5, 5: 0.4, 6: math.inf, 7: 0.7, 8: 0.4, 9: 0.6}


def best_of(scores, k, mode="min"):
    """The k best steps: by value, of equal ones the earlier, everything that is not finite last."""

    def place(step):
        value = scores[step] if mode == "min" else -scores[step]
        return (not math.isfinite(value), value if math.isfinite(value) else 0.0, step)

    return set(sorted(scores, key=place)[:k])


def expected(asked, k, monitor, scores):
    """What is on the disk after each step of a saver that asks at the steps ``asked``, in plain Python."""
    kept, newest, disk = {}, None, {}
    for step in range(1, STEPS):
        if monitor and step in scores and (k <= 0 or step in best_of({**kept, step: scores[step]}, k)):
            kept[step], newest = scores[step], step
        elif step in asked:
            newest = step
            if not monitor or step in scores:
                kept[step] = scores.get(step, math.nan) if monitor else -step
        if k >= 0:
            kept = {s: kept[s] for s in best_of(kept, k)}
        every = {s for s in range(1, step + 1) if s in asked or s in scores}
        disk[step] = (every if k == -1 else set(kept)) | ({newest} - {None})
    return disk


@pytest.mark.parametrize("k", [-1, 0, 1, 2])
@pytest.mark.parametrize("every", [None, 1, 4])
@pytest.mark.parametrize(("monitor", "evaluate_every"), [(None, 3), ("eval_loss", 1), ("eval_loss", 2)])
def test_on_the_disk_are_the_k_best_and_the_newest_after_every_step(tmp_path, k, every, monitor, evaluate_every):
    if monitor is None and every is None:
        every = 3  # else it asks at the end of an epoch, and here there is one
    watch = DiskWatch(tmp_path)
    saver = ModelCheckpoint(monitor, save_top_k=k, every_steps=every)
    count(tmp_path, saver, watch, scores=SCORES, eval_every=evaluate_every, max_steps=STEPS)
    asked = set(range(every, STEPS, every)) if every else set()
    scores = {s: SCORES[s] for s in range(evaluate_every, STEPS, evaluate_every)} if monitor else {}
    assert {s: watch.after[s] for s in range(1, STEPS)} == expected(asked, k, monitor, scores)
    assert leftovers(tmp_path) == []


@given(
    st.lists(st.sampled_from([0.1, 0.2, 0.2, 0.3, math.nan, math.inf, -math.inf]), min_size=1, max_size=12),
    st.integers(1, 4),
    st.sampled_from(["min", "max"]),
)
def test_the_list_is_that_of_the_reference_for_any_series(series, k, mode):
    saver, kept = ModelCheckpoint("score", mode, save_top_k=k), {}
    bus, state = Bus(failure="raise"), TrainState()
    bus.attach(saver)
    bus.publish(TrainBegin(), state)
    for step, score in enumerate(series, 1):
        state = state.replace(step=step).end_evaluation({"score": score})
        asked = bool(bus.publish(EvalEnd(), state).save)
        assert asked == (step in best_of({**kept, step: score}, k, mode))
        kept = {s: {**kept, step: score}[s] for s in best_of({**kept, step: score}, k, mode)}
        if asked:
            bus.publish(CheckpointSaved(path=f"checkpoints/step-{step:08d}", step=step), state)
    finite = {s: score for s, score in kept.items() if math.isfinite(score)}
    best = next(iter(best_of(finite, 1, mode)), None)
    assert (saver.best_step, saver.best_score) == (best, finite.get(best))
    assert saver.best_path is None if best is None else saver.best_path.name == f"step-{best:08d}"


def test_what_is_reported_as_the_best_is_on_the_disk(tmp_path):
    saver = ModelCheckpoint("eval_loss", save_top_k=2)
    loop = count(tmp_path, saver, scores=SCORES, max_steps=STEPS)
    assert (saver.best_step, saver.best_score) == (5, 0.4)
    assert saver.best_path == tmp_path / "checkpoints" / "step-00000005"
    assert float(checkpoints(tmp_path)[5].load()["model"]["w"]) == 5
    best = loop.result.best
    assert (best.monitor, best.value, best.step, best.path) == ("eval_loss", 0.4, 5, str(saver.best_path))
    assert {c.step: set(c.tags) for c in checkpoints(tmp_path).values()} == {5: {"best"}, 8: {"top"}, 9: {"last"}}


def test_a_first_score_that_is_nan_is_not_called_the_best(tmp_path):
    saver = ModelCheckpoint("eval_loss", save_top_k=1)
    count(tmp_path, saver, scores={1: math.nan}, max_steps=1)
    assert (saver.best_step, saver.best_score, saver.best_path) == (None, None, None)
    assert checkpoints(tmp_path)[1].tags == ("top",)


def test_several_savers_have_each_their_own_limit(tmp_path):
    newest, best = ModelCheckpoint(save_top_k=2, every_steps=3), ModelCheckpoint("eval_loss", save_top_k=2)
    watch = DiskWatch(tmp_path)
    count(tmp_path, newest, best, watch, scores=SCORES, max_steps=STEPS)
    assert {s: watch.after[s] for s in (3, 6, 8)} == {3: {1, 2, 3}, 6: {2, 3, 5, 6}, 8: {3, 5, 6, 8}}
    asked = {c.step: dict(c.asked_by) for c in checkpoints(tmp_path).values()}
    assert asked[9] == {"ModelCheckpoint": ["step"]}
    assert asked[5] == {"ModelCheckpoint#2": ["best"]}


def test_a_users_own_save_is_kept_whatever_the_limits_are(tmp_path):
    bus = Bus()
    bus.on(StepEnd, lambda event, state: Save("mine") if state.step == 2 else None, name="me")
    count(tmp_path, ModelCheckpoint(save_top_k=1, every_steps=1), bus=bus, max_steps=6)
    assert on_disk(tmp_path) == {2, 6}
    assert checkpoints(tmp_path)[2].asked_by == {"ModelCheckpoint": ["step"], "me": ["mine"]}


# -- when --------------------------------------------------------------------------------------------------------------


def saves_of_epochs(run_dir, saver):
    """The saves, step and tags, of six epochs of two updates."""
    saves, model = [], torch.nn.Linear(1, 1)
    loop = Loop(model, torch.optim.SGD(model.parameters()), run_dir=run_dir, callbacks=[saver], max_epochs=6)
    loop.bus.on(CheckpointSaved, lambda event, state: saves.append((event.step, event.tags)), name="note")
    with loop:
        for _ in loop.epochs():
            for x in loop.batches(torch.ones(2, 1, 1)):
                loop.backward(model(x).sum())
                loop.update()
    return saves


def test_without_monitor_and_every_it_asks_at_each_epochs_end(tmp_path):
    assert [step for step, _ in saves_of_epochs(tmp_path, ModelCheckpoint(save_top_k=-1))] == [2, 4, 6, 8, 10, 12]


def test_each_n_epochs_and_each_n_steps_may_be_combined(tmp_path):
    saves = saves_of_epochs(tmp_path, ModelCheckpoint(save_top_k=-1, every_epochs=2, every_steps=3))
    assert saves == [
        (3, ("step",)), (4, ("epoch",)), (6, ("step",)), (8, ("epoch",)), (9, ("step",)), (12, ("epoch", "step"))
    ]  # fmt: skip


def test_seconds_are_those_of_the_bus_clock(tmp_path):
    now = itertools.count(0.0, 4.0)  # each look at the clock is four seconds later
    bus = Bus(clock=lambda: next(now))
    count(tmp_path, ModelCheckpoint(save_top_k=-1, every_seconds=60), bus=bus, max_steps=40)
    steps = sorted(on_disk(tmp_path) - {40})
    assert len(steps) >= 2
    gaps = {b - a for a, b in itertools.pairwise(steps)}
    assert max(gaps) - min(gaps) <= 1


def looks(saver, states, *, resumed=False, state=None):
    bus = Bus(failure="raise")
    bus.attach(saver)
    if state is not None:
        bus.load_state_dict(state)
    bus.publish(TrainBegin(resumed), states[0])
    return bus, [s.step for s in states[1:] if bus.publish(StepEnd(), s).save]


def test_steps_and_seconds_together_each_fire_by_crossing():
    states = [TrainState(step=n, elapsed=7.0 * n) for n in range(12)]
    _, asked = looks(ModelCheckpoint(every_steps=4, every_seconds=20), states)
    assert asked == [3, 4, 6, 8, 9]


def test_steps_and_seconds_together_go_on_from_the_last_look():
    states = [TrainState(step=n, elapsed=7.0 * n) for n in range(24)]
    _, whole = looks(ModelCheckpoint(every_steps=4, every_seconds=20), states)
    for cut in range(1, 23):
        first = ModelCheckpoint(every_steps=4, every_seconds=20)
        bus, before = looks(first, states[: cut + 1])
        second = ModelCheckpoint(every_steps=4, every_seconds=20)
        _, after = looks(second, states[cut:], resumed=True, state=bus.state_dict())
        assert before + after == whole


@pytest.mark.parametrize("options", [{"every_steps": 100}, {"every_steps": 100, "every_seconds": 1e6}])
def test_a_saver_that_is_new_in_a_resumed_run_counts_from_there(options):
    saver = ModelCheckpoint(**options)
    states = [TrainState(step=n, elapsed=10.0 * n) for n in range(840, 905)]
    _, asked = looks(saver, states, resumed=True, state={"callbacks": {}, "filters": {}})
    assert asked == [900]


def test_a_saver_that_is_new_in_a_resumed_run_counts_seconds_from_its_begin():
    saver = ModelCheckpoint(every_steps=1000, every_seconds=100)
    states = [TrainState(step=n, elapsed=10.0 * n - 8305) for n in range(840, 850)]
    _, asked = looks(saver, states, resumed=True, state={"callbacks": {}, "filters": {}})
    assert asked == [841]


def test_seconds_that_are_new_in_a_resumed_run_count_from_there():
    first, second = ModelCheckpoint(every_steps=100), ModelCheckpoint(every_steps=100, every_seconds=1e6)
    bus, asked = looks(first, [TrainState(step=n) for n in range(251)])
    _, more = looks(second, [TrainState(step=n) for n in range(250, 305)], resumed=True, state=bus.state_dict())
    assert (asked, more) == ([100, 200], [300])


def test_a_counter_that_went_back_fires_nothing():
    saver = ModelCheckpoint(every_steps=10, every_seconds=1e6)
    bus, _ = looks(saver, [TrainState(step=n) for n in range(25)])
    assert not bus.publish(StepEnd(), TrainState(step=12)).save
    assert bus.publish(StepEnd(), TrainState(step=20)).save


def test_an_epoch_that_was_left_early_is_not_saved_as_one():
    bus = Bus(failure="raise")
    bus.attach(ModelCheckpoint())
    state = TrainState().begin_epoch()
    assert not bus.publish(EpochEnd(completed=False), state).save
    assert bus.publish(EpochEnd(), state.begin_epoch()).save == {"epoch"}


def test_a_score_counts_at_an_epochs_end_only_if_it_is_fresh():
    bus, saver = Bus(failure="raise"), ModelCheckpoint("eval_loss", save_top_k=2, every_epochs=1)
    bus.attach(saver)
    state = TrainState(step=3, epoch=1).end_evaluation({"eval_loss": 0.5})
    bus.publish(EvalEnd(), state)
    bus.publish(CheckpointSaved("checkpoints/step-00000003", 3), state)
    state = state.begin_update().end_update().replace(epoch=2)
    assert bus.publish(EpochEnd(), state).save == {"epoch"}  # the score is of step 3
    bus.publish(CheckpointSaved("checkpoints/step-00000004", 4), state)
    assert (saver.best_step, saver.best_score) == (3, 0.5)


def test_a_score_is_kept_though_an_evaluation_comes_between_it_and_the_save():
    bus, saver = Bus(failure="raise"), ModelCheckpoint("loss", save_top_k=2, every_steps=1, every_epochs=1)
    bus.attach(saver)
    state = TrainState(epoch=1).begin_update().end_update().report(loss=0.5)
    assert bus.publish(StepEnd(), state).save == {"step"}
    state = state.end_evaluation({"eval_acc": 0.9})
    assert bus.publish(EpochEnd(), state).save == {"epoch"}
    bus.publish(CheckpointSaved("checkpoints/step-00000001", 1), state)
    assert (saver.best_step, saver.best_score) == (1, 0.5)


# -- refused and failed ------------------------------------------------------------------------------------------------


def test_without_a_run_dir_every_save_is_refused_and_the_result_says_so():
    saver = ModelCheckpoint("eval_loss")
    loop = count(None, saver, scores=SCORES, max_steps=5)
    assert {entry.note for entry in loop.result.refused} == {"the loop has no run_dir"}
    assert (loop.result.status, saver.best_path) == ("completed", None)


def test_a_save_that_was_refused_does_not_count(tmp_path):
    saver = ModelCheckpoint("eval_loss", save_top_k=1)
    bus, state = Bus(failure="raise"), TrainState()
    bus.attach(saver)
    bus.publish(TrainBegin(), state)
    state = state.replace(step=1).end_evaluation({"eval_loss": 0.1})
    assert bus.publish(EvalEnd(), state).save
    state = state.replace(step=2).end_evaluation({"eval_loss": 0.2})
    assert bus.publish(EvalEnd(), state).save == {"best"}  # nothing stands yet, so this is the best


def test_a_checkpoint_that_others_asked_for_is_not_this_savers():
    bus, saver = Bus(failure="raise"), ModelCheckpoint(save_top_k=2, every_steps=10)
    bus.attach(saver)
    for step in range(1, 12):
        bus.publish(StepEnd(), TrainState(step=step))
        bus.publish(CheckpointSaved(f"checkpoints/step-{step:08d}", step), TrainState(step=step))
    assert not bus.publish(CheckpointSaved("checkpoints/step-00000012", 12), TrainState(step=12)).requests
    assert list(saver._kept) == [10]


# -- resumed -----------------------------------------------------------------------------------------------------------


def test_the_list_is_rebuilt_from_the_manifests(tmp_path):
    limits = {"scores": SCORES, "max_steps": 5}
    count(tmp_path, ModelCheckpoint("eval_loss", save_top_k=2), **limits)
    again = ModelCheckpoint("eval_loss", save_top_k=2)
    count(tmp_path, again, resume="auto", **limits)
    assert (again.best_step, again.best_score) == (5, 0.4)
    assert again.best_path == tmp_path / "checkpoints" / "step-00000005"
    assert on_disk(tmp_path) == {2, 5}


def test_the_list_is_rebuilt_with_the_scores_that_were_judged(tmp_path):
    options = {"scores": SCORES, "eval_every": 2, "max_steps": 4}
    first = ModelCheckpoint("loss", save_top_k=2, every_steps=2)  # the loss of step n is -(n - 1)
    count(tmp_path, first, **options)
    assert (first.best_step, first.best_score) == (4, -3.0)
    assert "loss" not in checkpoints(tmp_path)[4].metrics  # fresh was what the evaluation had reported
    again = ModelCheckpoint("loss", save_top_k=2, every_steps=2)
    count(tmp_path, again, resume="auto", **options)
    assert (again.best_step, again.best_score) == (4, -3.0)


def test_scores_of_another_monitor_under_the_same_name_are_not_taken(tmp_path):
    options = {"scores": SCORES, "eval_every": 2, "max_steps": 4}
    for monitor, resume in (("loss", None), ("eval_loss", "auto")):
        saver, bus = ModelCheckpoint(monitor, save_top_k=2, every_steps=2), Bus()
        bus.attach(saver, name="saver")
        count(tmp_path, bus=bus, resume=resume, **options)
    assert (saver.best_step, saver.best_score) == (2, 0.5)


def test_each_saver_finds_its_own_again(tmp_path):
    scores = {1: 0.9, 2: 0.1, 3: 0.2, 4: 0.9, 5: 0.9, 6: 0.9, 7: 0.9, 8: 0.9, 9: 0.9}

    def savers():
        return ModelCheckpoint(save_top_k=2, every_steps=4), ModelCheckpoint("eval_loss", save_top_k=2)

    count(tmp_path, *savers(), scores=scores, max_steps=9)
    assert on_disk(tmp_path) == {2, 3, 4, 8, 9}
    count(tmp_path, *savers(), scores=scores, max_steps=9, resume="auto")
    assert on_disk(tmp_path) == {2, 3, 4, 8, 9}


def test_the_limit_is_a_setting_and_the_new_one_counts_on_resume(tmp_path):
    count(tmp_path, ModelCheckpoint("eval_loss", save_top_k=4), scores=SCORES, max_steps=5)
    assert on_disk(tmp_path) == {1, 2, 4, 5}
    count(tmp_path, ModelCheckpoint("eval_loss", save_top_k=1), scores=SCORES, max_steps=5, resume="auto")
    assert on_disk(tmp_path) == {5}


def test_all_stay_with_minus_one_also_what_a_resumed_run_left_behind(tmp_path):
    saver = {"save_top_k": -1, "every_steps": 1}
    count(tmp_path, ModelCheckpoint(**saver), max_steps=4)
    count(tmp_path, ModelCheckpoint(**saver), max_steps=3, resume=2)
    assert on_disk(tmp_path) == {1, 2, 3}
    aside = Checkpoints(tmp_path / "checkpoints" / "aside-1", "").list()
    assert [c.step for c in aside] == [3, 4]


def test_all_stay_with_minus_one_though_the_saver_is_another_object_since_mid_run(tmp_path):
    first, second = (ModelCheckpoint(save_top_k=-1, every_steps=1) for _ in range(2))
    bus = Bus()
    bus.attach(first)

    @bus.on(StepBegin)
    def swap(event, state):
        if state.step == 3:
            bus.detach(first)
            bus.attach(second)

    count(tmp_path, bus=bus, max_steps=5)
    assert on_disk(tmp_path) == {1, 2, 3, 4, 5}


def test_resumed_by_path_from_another_folder_that_folder_neither_protects_nor_blocks(tmp_path):
    old, new = tmp_path / "old", tmp_path / "new"
    count(old, ModelCheckpoint("eval_loss", save_top_k=2), scores=SCORES, max_steps=5)
    before = on_disk(old)
    saver = ModelCheckpoint("eval_loss", save_top_k=2)
    count(new, saver, scores=SCORES, max_steps=STEPS, resume=old / "checkpoints" / "step-00000005")
    assert (saver.best_step, saver.best_score) == (8, 0.4)  # 0.4 of step 5 lies elsewhere
    assert on_disk(new) == {8, 9}
    assert on_disk(old) == before
    assert len({c.run_id for c in [*checkpoints(old).values(), *checkpoints(new).values()]}) == 1


def test_a_moved_run_finds_its_best(tmp_path):
    count(tmp_path / "here", ModelCheckpoint("eval_loss"), scores=SCORES, max_steps=3)
    (tmp_path / "here").rename(tmp_path / "there")
    saver = ModelCheckpoint("eval_loss")
    count(tmp_path / "there", saver, scores=SCORES, max_steps=4, resume="auto")
    assert saver.best_path == tmp_path / "there" / "checkpoints" / "step-00000002"
    assert saver.best_path.is_dir()


def test_one_object_in_two_runs_keeps_nothing_of_the_first(tmp_path):
    saver = ModelCheckpoint("eval_loss", save_top_k=2)
    count(tmp_path / "a", saver, scores=SCORES, max_steps=5)
    count(tmp_path / "b", saver, scores={1: 7.0}, max_steps=1)
    assert (saver.best_step, saver.best_score) == (1, 7.0)
    assert saver.best_path.parent.parent == tmp_path / "b"
    assert on_disk(tmp_path / "a") == {2, 5}


def test_the_last_save_of_the_run_does_not_take_a_checkpoint_from_its_saver(tmp_path):
    bus = Bus()
    bus.on(StepEnd, lambda event, state: Evaluate() if state.step == 4 else None, name="late", priority=-900)
    count(tmp_path, ModelCheckpoint(save_top_k=2, every_steps=2), bus=bus, max_steps=4)
    count(tmp_path, saver := ModelCheckpoint(save_top_k=2, every_steps=2), max_steps=7, resume="auto")
    assert "ModelCheckpoint" in checkpoints(tmp_path)[4].asked_by
    assert on_disk(tmp_path) == {4, 6, 7}
    assert saver.best_step is None


# -- metrics that are not there, arguments -----------------------------------------------------------------------------


def test_a_missing_metric_is_said_once_and_is_no_verdict(caplog):
    bus, state = Bus(failure="raise"), TrainState(step=5)
    bus.attach(ModelCheckpoint("eval_loss"))
    for _ in range(2):
        state = state.end_evaluation({"eval_los": 0.5, "acc": 0.5})
        assert not bus.publish(EvalEnd(), state).save
    (record,) = caplog.records
    assert "no metric 'eval_loss' at eval_end of step 5" in record.getMessage()
    assert "acc, eval_los" in record.getMessage()


def test_a_missing_metric_is_an_error_if_strict():
    bus = Bus(failure="raise")
    bus.attach(ModelCheckpoint("eval_loss", strict=True))
    with pytest.raises(MissingMetricError, match="no metric 'eval_loss'"):
        bus.publish(EvalEnd(), TrainState().end_evaluation({"acc": 0.5}))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"save_top_k": -2}, r"save_top_k=-2 must be a whole number >= -1"),
        ({"save_top_k": 1.0}, r"save_top_k=1\.0"),
        ({"save_top_k": True}, r"save_top_k=True"),
        ({"every_steps": 0}, r"every_steps=0 must be a whole number >= 1"),
        ({"every_epochs": 0}, r"every_epochs=0"),
        ({"every_seconds": 0}, r"every_seconds=0 must be above 0"),
        ({"every_seconds": -1}, r"every_seconds=-1"),
        ({"every_seconds": math.inf}, r"every_seconds=inf"),
        ({"monitor": "acc"}, r"mode=None, and 'acc' does not say"),
        ({"monitor": "acc", "mode": "most"}, r"mode='most' must be 'min' or 'max'"),
        ({"monitor": 5, "mode": "min"}, r"monitor=5 must be a name"),
        ({"monitor": ""}, r"monitor='' must be a name"),
        ({"mode": "min"}, r"mode='min' says how a monitor is judged, and monitor=None"),
        ({"strict": 1}, r"strict=1 must be True or False"),
    ],
)
def test_arguments_are_checked_at_construction(options, text):
    with pytest.raises(ValueError, match=f"ModelCheckpoint: .*{text}"):
        ModelCheckpoint(**options)


def test_it_says_what_it_keeps():
    assert ModelCheckpoint().describe() == "keeps 1 and the newest"
    assert ModelCheckpoint("loss", save_top_k=-1).describe() == "keeps all by loss min (by its name)"
    assert ModelCheckpoint("acc", "max", save_top_k=0).describe() == "keeps the newest by acc max"
