"""ModelCheckpoint: when it asks, what stays, and what it finds again; judged against a few lines of plain Python."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import SCORES, DiskWatch, checkpoints, count, leftovers, on_disk

from callbacks import ModelCheckpoint
from callbacks.improvement import MissingMetricError
from eventloop import (
    Bus,
    CheckpointSaved,
    EvalEnd,
    Save,
    StepEnd,
    TrainBegin,
    TrainState,
)

STEPS = 9


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
    assert asked[5] == {"ModelCheckpoint(eval_loss)": ["best"]}


def test_a_users_own_save_is_kept_whatever_the_limits_are(tmp_path):
    bus = Bus()
    bus.on(StepEnd, lambda event, state: Save("mine") if state.step == 2 else None, name="me")
    count(tmp_path, ModelCheckpoint(save_top_k=1, every_steps=1), bus=bus, max_steps=6)
    assert on_disk(tmp_path) == {2, 6}
    assert checkpoints(tmp_path)[2].asked_by == {"ModelCheckpoint": ["step"], "me": ["mine"]}


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
        ({"keep_last": 0}, r"keep_last=0 must be a whole number >= 1"),
        ({"keep_last": 2.0}, r"keep_last=2\.0"),
        ({"keep_every": 0}, r"keep_every=0 must be a whole number >= 1"),
        ({"make_room": "yes"}, r"make_room='yes' must be True or False"),
    ],
)
def test_arguments_are_checked_at_construction(options, text):
    with pytest.raises(ValueError, match=f"ModelCheckpoint: .*{text}"):
        ModelCheckpoint(**options)


def test_it_says_what_it_keeps():
    assert ModelCheckpoint().describe() == "keeps 1 and the newest"
    assert ModelCheckpoint("loss", save_top_k=-1).describe() == "keeps all by loss min (by its name)"
    assert ModelCheckpoint("acc", "max", save_top_k=0).describe() == "keeps the newest by acc max"
    saver = ModelCheckpoint("acc", "max", save_top_k=2, keep_last=3, keep_every=1000, make_room=True)
    text = "keeps 2, the last 3, one each 1000 updates and the newest by acc max, and makes room first"
    assert saver.describe() == text
