"""ModelCheckpoint in a run that is resumed: its list is that of the manifests, its limit is a setting."""

from small_runs import SCORES, checkpoints, count, on_disk

from callbacks import ModelCheckpoint
from eventloop import Bus, Evaluate, StepBegin, StepEnd
from eventloop.checkpoint import Checkpoints

STEPS = 9


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
    count(tmp_path, ModelCheckpoint("eval_loss", save_top_k=1), scores=SCORES, max_steps=6, resume="auto")
    assert on_disk(tmp_path) == {5, 6}


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
