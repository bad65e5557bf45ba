"""Checkpoints as they have been lost elsewhere: cases C05, C09, C15, C37, C39 and C41.

A limit is on top of the newest checkpoint: what a case expects after a step is read when the next step begins, before
the run's own last save.
"""

import math
import resource

import killed_runs
import pytest
from forks import run
from small_runs import DiskWatch, checkpoints, count, leftovers, on_disk

from callbacks import EarlyStopping, ModelCheckpoint
from eventloop.checkpoint import Checkpoints


@pytest.mark.parametrize(
    ("mode", "scores"), [("min", [0.9, 0.8, 0.7, 0.85]), ("max", [0.1, 0.2, 0.3, 0.15])], ids=["min", "max"]
)
def test_c05_the_worst_is_thrown_out_and_the_list_agrees_with_the_disk(tmp_path, mode, scores):
    saver, watch, listed = ModelCheckpoint("eval_loss", mode, save_top_k=2), DiskWatch(tmp_path), {}

    class Lists:
        def on_step_begin(self, event, state):
            listed[state.step] = saver.best_step, saver.best_score

    scores = dict(enumerate([*scores, math.nan], 1))
    count(tmp_path, saver, watch, Lists(), scores=scores, max_steps=5)
    assert watch.after == {0: set(), 1: {1}, 2: {1, 2}, 3: {2, 3}, 4: {2, 3}}
    assert listed == {0: (None, None), 1: (1, scores[1]), 2: (2, scores[2]), 3: (3, scores[3]), 4: (3, scores[3])}
    assert {step: float(c.load()["model"]["w"]) for step, c in checkpoints(tmp_path).items()} == {2: 2, 3: 3, 5: 5}


def test_c09_a_score_that_is_nan_is_the_first_to_go(tmp_path):
    saver, watch = ModelCheckpoint("eval_loss", save_top_k=2), DiskWatch(tmp_path)
    scores = {10: math.nan, 20: 0.9, 30: 0.8, 40: 0.7, 50: math.nan, 51: math.nan}
    count(tmp_path, saver, watch, scores=scores, eval_every=10, max_steps=51)
    assert [watch.after[step] for step in (10, 20, 30, 40, 50)] == [{10}, {10, 20}, {20, 30}, {30, 40}, {30, 40}]
    assert (saver.best_step, saver.best_score) == (40, 0.7)


@pytest.mark.parametrize("saver_first", [True, False])
def test_c15_a_checkpoint_holds_the_state_after_its_evaluation(tmp_path, saver_first):
    handlers = [ModelCheckpoint("eval_loss", save_top_k=-1), EarlyStopping("eval_loss", patience=3)]
    count(tmp_path, *(handlers if saver_first else handlers[::-1]), scores={1: 1.0, 2: 1.1}, max_steps=2)
    states = checkpoints(tmp_path)[2].load()["bus"]["callbacks"]
    assert states["EarlyStopping(eval_loss)"] == {"best": 1.0, "best_step": 1, "count": 1}


def test_c37_after_a_resume_the_list_is_that_of_the_whole_run(tmp_path):
    scores = {1: 0.5, 2: 0.4, 3: 0.3, 4: 0.35, 5: 0.2, 6: 0.45, 7: 9.0}
    count(tmp_path, ModelCheckpoint("eval_loss", save_top_k=3), scores=scores, max_steps=3)
    watch = DiskWatch(tmp_path)
    saver = ModelCheckpoint("eval_loss", save_top_k=3)
    loop = count(tmp_path, saver, watch, scores=scores, max_steps=7, resume="auto")
    assert watch.after == {3: {1, 2, 3}, 4: {2, 3, 4}, 5: {3, 4, 5}, 6: {3, 4, 5}}
    asked = [entry.step for entry in loop.result.ledger if entry.who == "ModelCheckpoint" and entry.request == "Save"]
    assert asked == [1, 2, 3, 4, 5]


def test_c37_a_worse_model_never_takes_the_place_of_the_best(tmp_path):
    scores = {1: 0.3, 2: 0.58, 3: 0.29, 4: 9.0}
    count(tmp_path, ModelCheckpoint("eval_loss", save_top_k=1), scores=scores, max_steps=1)
    watch = DiskWatch(tmp_path)
    count(tmp_path, ModelCheckpoint("eval_loss", save_top_k=1), watch, scores=scores, max_steps=4, resume="auto")
    assert watch.after == {1: {1}, 2: {1}, 3: {3}}


def test_c39_the_newest_rotate_and_the_best_comes_on_top(tmp_path):
    scores = {100: 0.5, 200: 0.3, 300: 0.6, 400: 0.7, 500: 0.8}
    newest, best = ModelCheckpoint(save_top_k=3, every_steps=100), ModelCheckpoint("eval_loss", save_top_k=1)
    watch = DiskWatch(tmp_path)
    count(tmp_path, newest, best, watch, scores=scores, eval_every=100, max_steps=500)
    assert [watch.after[step] for step in (100, 200, 300, 400)] == [{100}, {100, 200}, {100, 200, 300}, {200, 300, 400}]
    assert on_disk(tmp_path) == {200, 300, 400, 500}
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-00000500"
    assert best.best_path.name == "step-00000200"


def save_ten(root):
    service = Checkpoints(root, "run")
    service.save(10, killed_runs.numbers(10), {"saver": ["tag"]}, {}).result()
    return service


def assert_ten_is_there_and_thirty_works(service):
    assert [c.step for c in service.list()] == [10]
    assert service.newest().load()["other"]["w0"].tolist() == [10] * 100
    service.keep("saver", frozenset({10, 30}))
    service.save(30, killed_runs.numbers(30), {"saver": ["tag"]}, {}).result()
    assert [c.step for c in service.list()] == [10, 30]


def test_c41_a_write_that_stops_half_way_leaves_the_checkpoint_before(tmp_path):
    service = save_ten(tmp_path)
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, hard))
    try:
        with pytest.raises(OSError, match=r"model\.safetensors cannot be written: .*File too large"):
            service.save(20, killed_runs.numbers(20, 50_000), {"saver": ["tag"]}, {}).result()
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["latest", "step-00000010"]
    assert_ten_is_there_and_thirty_works(service)


@pytest.mark.parametrize("operation", [2, 4, 6, 8])
def test_c41_a_process_that_dies_in_the_write_leaves_the_checkpoint_before(tmp_path, operation):
    root = tmp_path / "checkpoints"
    service = save_ten(root)
    assert run(killed_runs.die_in_save, root, killed_runs.Scene(20, 20.0), operation) == 99
    assert [name for name in leftovers(tmp_path) if name.startswith(".tmp-00000020-")]
    assert_ten_is_there_and_thirty_works(service)  # what is left over is not listed and does not count
    service.repair()
    assert leftovers(tmp_path) == []
