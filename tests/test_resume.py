"""Promise 6: an interrupted and resumed run equals the uninterrupted one bit for bit, wherever it was cut."""

import random
import shutil

import numpy
import pytest
import torch
from small_runs import (
    EVERY_UPDATE,
    Cut,
    Recipe,
    checkpoints,
    count,
    cut_at,
    identical,
    leftovers,
    on_disk,
    said,
    stop_at,
    train,
)

from callbacks import ModelCheckpoint
from eventloop import CheckpointError, Save
from eventloop.checkpoint import Checkpoint, Checkpoints
from eventloop.rows import read_rows

RECIPES = {
    "shuffled": Recipe(),
    "accumulated": Recipe(accumulate=3),
    "accumulated, noise from the global generators, a generator of its own": Recipe(3, noise=True, own_generator=True),
    "noise, a generator of its own, evaluated each 2 updates": Recipe(1, True, True, evaluate_every=2),
    "a stream of unknown length": Recipe(stream=True),
    "a stream of unknown length, accumulated": Recipe(accumulate=3, stream=True),
}


# -- bit for bit -------------------------------------------------------------------------------------------------------


def assert_ends_like(part, whole, step):
    assert identical(part.losses, whole.losses[step:])
    for what in ("model", "restored", "optimizer", "callbacks", "drawn"):
        assert identical(getattr(part, what), getattr(whole, what)), what


@pytest.mark.parametrize("name", RECIPES)
def test_cut_at_any_save_and_resumed_it_equals_the_uninterrupted_run(tmp_path, name):
    recipe = RECIPES[name]
    whole = train(recipe, None)
    assert_ends_like(
        train(recipe, tmp_path / "whole", ModelCheckpoint(**EVERY_UPDATE)), whole, 0
    )  # saves change nothing
    saved = checkpoints(tmp_path / "whole")
    assert saved.keys() == set(range(1, len(whole.losses) + 1))
    for step, checkpoint in saved.items():
        if step < len(whole.losses):
            assert_ends_like(train(recipe, tmp_path / str(step), resume=checkpoint.path, seed=99), whole, step)


@pytest.mark.parametrize("step", [1, 6, 7, 8, 13])
def test_cut_between_two_saves_it_goes_on_from_the_last_one_in_the_same_folder(tmp_path, step):
    recipe = RECIPES["noise, a generator of its own, evaluated each 2 updates"]
    saver = {"save_top_k": 1, "every_steps": 3}
    with pytest.raises(Cut):
        train(recipe, tmp_path, ModelCheckpoint(**saver), cut_at(step))
    rest = train(recipe, tmp_path, ModelCheckpoint(**saver), resume="auto", seed=99 if step > 2 else None)
    assert_ends_like(rest, train(recipe, None), step // 3 * 3)
    assert on_disk(tmp_path) == {21}


@pytest.mark.parametrize("step", [2, 7, 10])
def test_a_run_that_was_asked_to_stop_goes_on_in_the_midst_of_its_epoch(tmp_path, step):
    recipe = RECIPES["accumulated, noise from the global generators, a generator of its own"]
    limits = {"max_epochs": 4}
    whole = train(recipe, None, **limits)
    train(recipe, tmp_path, stop_at(step), **limits)
    rest = train(recipe, tmp_path, stop_at(step, rule="later"), resume="auto", seed=99, **limits)
    assert identical(rest.losses, whole.losses[step:])  # its evaluations are other ones, for a stop has a last one
    assert identical((rest.model, rest.optimizer), (whole.model, whole.optimizer))


def test_a_longer_plan_goes_on_in_the_midst_of_the_epoch_that_the_limit_cut(tmp_path):
    whole = train(Recipe(), None, max_steps=12, max_epochs=None)
    train(Recipe(), tmp_path, max_steps=9, max_epochs=None)
    rest = train(Recipe(), tmp_path, resume="auto", seed=99, max_steps=12, max_epochs=None)
    assert identical(rest.losses, whole.losses[9:])
    assert (rest.loop.result.epoch, rest.loop.result.step) == (2, 12)


def test_saved_before_the_first_batch_of_an_epoch_is_read_it_reads_the_same_order(tmp_path):
    class SaveAtEpochBegin:
        def on_epoch_begin(self, event, state):
            return Save("begin")

    recipe = RECIPES["accumulated, noise from the global generators, a generator of its own"]
    whole = train(recipe, None)
    train(recipe, tmp_path / "whole", SaveAtEpochBegin())
    for step in (3, 6):
        path = tmp_path / "whole" / "checkpoints" / f"step-{step:08d}"
        assert_ends_like(train(recipe, tmp_path / str(step), resume=path, seed=99), whole, step)


def test_the_random_states_of_python_numpy_and_torch_are_put_back(tmp_path):
    def draw():
        return random.random(), float(numpy.random.random()), float(torch.rand(())), random.gauss(0, 1)

    drawn = []

    class Draws:
        def on_step_begin(self, event, state):
            drawn.append(draw())

    count(tmp_path, Draws(), ModelCheckpoint(**EVERY_UPDATE), max_steps=6)
    draw()
    count(tmp_path, Draws(), max_steps=6, resume=3)
    assert drawn[6:] == drawn[3:6]


# -- where it goes on --------------------------------------------------------------------------------------------------


def test_auto_with_nothing_there_starts_fresh_and_says_so(tmp_path, caplog):
    loop = count(tmp_path / "new", max_steps=2, resume="auto")
    assert loop.result.step == 2
    assert any("no whole checkpoint in" in text and "starting fresh" in text for text in said(caplog))


def test_auto_starts_fresh_where_a_run_was_killed_before_its_first_checkpoint(tmp_path):
    with pytest.raises(Cut):
        count(tmp_path, cut_at(1), max_steps=3)
    assert count(tmp_path, max_steps=3, resume="auto").result.step == 3


def test_auto_starts_fresh_where_every_checkpoint_is_damaged_and_overwrites_none(tmp_path):
    count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), max_steps=2)
    for checkpoint in checkpoints(tmp_path).values():
        (checkpoint.path / "state.json").write_text("{}")
    loop = count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), max_steps=2, resume="auto")
    assert loop.result.step == 2
    assert {float(c.load()["model"]["w"]) for c in checkpoints(tmp_path).values()} == {1, 2}
    assert leftovers(tmp_path) == ["aside-1", "aside-2"]


@pytest.mark.parametrize(
    ("resume", "text"),
    [
        (7, r"resume=7: there is no checkpoint .*step-00000007; steps there: 1, 2, 3"),
        ("elsewhere", r"resume='elsewhere': there is no checkpoint elsewhere; steps there: 1, 2, 3"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_an_error_that_names_those_that_are(tmp_path, resume, text):
    count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), max_steps=3)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=text):
        count(tmp_path, max_steps=4, resume=resume)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_path_that_is_no_checkpoint_is_an_error_before_anything_is_written(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match=r"folder is no checkpoint: it has no MANIFEST\.json"):
        count(tmp_path / "new", max_steps=4, resume=tmp_path / "folder")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("resume", [True, 1.0, ["auto"]])
def test_anything_else_is_no_way_to_resume(tmp_path, resume):
    with pytest.raises(TypeError, match="give None, 'auto', a checkpoint's path or a step"):
        count(tmp_path, max_steps=4, resume=resume)


def test_resume_needs_a_run_dir():
    with pytest.raises(ValueError, match="resume='auto' needs a run_dir"):
        count(None, max_steps=4, resume="auto")


def test_from_an_older_step_the_later_part_is_moved_aside_and_never_taken_again(tmp_path, caplog):
    count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), max_steps=6)
    with pytest.raises(Cut):
        count(tmp_path, ModelCheckpoint(save_top_k=0, every_steps=1), cut_at(4), max_steps=6, resume=3)
    assert on_disk(tmp_path) == {4}
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-00000004"
    assert sum("moved aside" in text for text in said(caplog)) == 3
    loop = count(tmp_path, max_steps=6, resume="auto")
    assert any(text.startswith("resumed from") and text.splitlines()[0].endswith("step 4") for text in said(caplog))
    assert loop.result.step == 6
    aside = Checkpoints(tmp_path / "checkpoints" / "aside-1", "").list()
    assert [c.step for c in aside] == [4, 5, 6]
    aside[0].verify()


def test_the_checkpoint_that_was_gone_on_from_stays_until_there_is_another(tmp_path):
    scores = {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4, 5: 0.5}
    count(tmp_path, ModelCheckpoint("eval_loss", save_top_k=2), scores=scores, max_steps=3)
    with pytest.raises(Cut):
        count(tmp_path, ModelCheckpoint("eval_loss", save_top_k=1), cut_at(3), scores=scores, max_steps=5, resume=3)
    assert on_disk(tmp_path) == {1, 3}


def test_the_hint_is_put_right_when_a_run_goes_on(tmp_path):
    count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), max_steps=3)
    (tmp_path / "checkpoints" / "latest").write_text("step-00000002")  # killed between two renames
    with pytest.raises(Cut):
        count(tmp_path, ModelCheckpoint(save_top_k=0, every_steps=9), cut_at(3), max_steps=9, resume="auto")
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-00000003"
    assert on_disk(tmp_path) == {3}


@pytest.mark.parametrize("resume", ["auto", 3])
def test_a_step_that_was_being_saved_again_is_resumed_from_its_forerunner(tmp_path, resume):
    count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), max_steps=3)
    root = tmp_path / "checkpoints"
    (root / "latest").unlink()
    (root / "step-00000003").rename(root / "step-00000003.replaced")  # killed before the new one took its place
    assert count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), max_steps=4, resume=resume).result.step == 4
    assert (on_disk(tmp_path), leftovers(tmp_path)) == ({1, 2, 3, 4}, [])


def test_a_path_into_the_runs_own_folder_may_be_written_in_any_way(tmp_path, monkeypatch):
    count(tmp_path / "run", ModelCheckpoint(**EVERY_UPDATE), max_steps=3)
    monkeypatch.chdir(tmp_path)
    own = checkpoints(tmp_path / "run")[3].run_id
    loop = count(tmp_path / "run", max_steps=4, resume="run/../run/checkpoints/step-00000003")
    assert loop.state.run_id == checkpoints(tmp_path / "run")[4].run_id == own


def test_from_another_folder_that_folder_is_left_as_it_is(tmp_path):
    count(tmp_path / "old", ModelCheckpoint(**EVERY_UPDATE), max_steps=3)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "old").rglob("*")}
    path = tmp_path / "old" / "checkpoints" / "step-00000002"
    loop = count(tmp_path / "new", ModelCheckpoint(save_top_k=1, every_steps=1), max_steps=5, resume=path)
    assert (loop.result.step, on_disk(tmp_path / "new")) == (5, {5})
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "old").rglob("*")} == before


def test_from_another_folder_into_a_used_one_is_refused_or_moves_it_aside(tmp_path):
    count(tmp_path / "old", ModelCheckpoint(**EVERY_UPDATE), max_steps=3)
    count(tmp_path / "used", max_steps=1)
    path = tmp_path / "old" / "checkpoints" / "step-00000002"
    with pytest.raises(FileExistsError, match="holds another run"):
        count(tmp_path / "used", max_steps=4, resume=path)
    loop = count(tmp_path / "used", max_steps=4, resume=path, overwrite=True)
    assert (loop.result.step, on_disk(tmp_path / "used"), on_disk(tmp_path / "used.old-1")) == (4, {4}, {1})


def test_a_moved_run_resumes(tmp_path):
    count(tmp_path / "here", ModelCheckpoint(**EVERY_UPDATE), max_steps=2)
    (tmp_path / "here").rename(tmp_path / "there")
    assert count(tmp_path / "there", max_steps=4, resume="auto").result.step == 4


def test_the_journal_tells_of_both_sittings(tmp_path):
    with pytest.raises(Cut):
        count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), cut_at(2), max_steps=4)
    count(tmp_path, max_steps=4, resume="auto")
    rows = list(read_rows(tmp_path / "journal.jsonl"))
    assert [(row["resumed"], row["step"]) for row in rows if row["event"] == "train_begin"] == [(False, 0), (True, 2)]
    assert [row["status"] for row in rows if row["event"] == "train_end"] == ["interrupted", "completed"]
    assert len({row["run_id"] for row in rows if row["event"] == "train_begin"}) == 1


def test_a_copy_of_a_checkpoint_is_a_checkpoint(tmp_path):
    count(tmp_path / "run", ModelCheckpoint(**EVERY_UPDATE), max_steps=3)
    shutil.copytree(tmp_path / "run" / "checkpoints" / "step-00000002", tmp_path / "good")
    assert Checkpoint.read(tmp_path / "good").step == 2
    assert count(tmp_path / "new", max_steps=4, resume=tmp_path / "good").result.step == 4
