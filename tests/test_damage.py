"""Damage is found, named and passed over; nothing is unpickled; what is removed is what this run has written."""

import json
import os
import shutil
from collections import Counter

import killed_runs
import pytest
import torch
from forks import run
from killed_runs import first_saves, names, numbers
from small_runs import Recipe, identical, leftovers, on_disk, train

from callbacks import ModelCheckpoint
from eventloop import CheckpointError
from eventloop.checkpoint import Checkpoint, Checkpoints


def edit(path, change):
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def flip(path, place=-7):
    data = bytearray(path.read_bytes())
    data[place] ^= 1
    path.write_bytes(data)


FILES = ("model.safetensors", "state.safetensors", "state.json")
DAMAGE = {
    **{f"{name}: a bit": (lambda c, name=name: flip(c / name), f"{name} does not match its hash") for name in FILES},
    **{f"{name}: cut": (lambda c, name=name: os.truncate(c / name, 20), f"{name} has 20 bytes") for name in FILES},
    **{f"{name}: gone": (lambda c, name=name: (c / name).unlink(), f"{name} is missing") for name in FILES},
    **{f"{name}: empty": (lambda c, name=name: os.truncate(c / name, 0), f"{name} has 0 bytes") for name in FILES},
    **{
        f"{name}: a bit of the header": (lambda c, name=name: flip(c / name, 20), f"{name} does not match its hash")
        for name in FILES[:2]
    },
    "manifest: of another checkpoint": (
        lambda c: shutil.copy(c.with_name("step-00000001") / "MANIFEST.json", c),
        "holds step 1, so it is not where it belongs",
    ),
    "all but the manifest is empty": (
        lambda c: [os.truncate(c / name, 0) for name in FILES],
        "model.safetensors has 0 bytes",
    ),
    "manifest: cut": (lambda c: os.truncate(c / "MANIFEST.json", 40), "cannot be read"),
    "manifest: empty": (lambda c: os.truncate(c / "MANIFEST.json", 0), "cannot be read"),
    "manifest: gone": (lambda c: (c / "MANIFEST.json").unlink(), "has no MANIFEST.json"),
    "manifest: no object": (lambda c: (c / "MANIFEST.json").write_text("[1]"), "cannot be read"),
    "manifest: a score": (
        lambda c: edit(c / "MANIFEST.json", lambda m: m["metrics"].update(eval_loss=0.0)),
        "does not match its own hash",
    ),
    "manifest: no files": (
        lambda c: edit(c / "MANIFEST.json", lambda m: m["files"].clear()),
        "does not match its own hash",
    ),
    "manifest: later format": (lambda c: edit(c / "MANIFEST.json", lambda m: m.update(format=3)), "has format 3"),
    "no folder": (lambda c: (shutil.rmtree(c), c.write_text("")), "cannot be read"),
}


@pytest.fixture(scope="module")
def two_steps(tmp_path_factory):
    run_dir = tmp_path_factory.mktemp("two")
    train(Recipe(), run_dir, ModelCheckpoint(save_top_k=-1, every_steps=1), max_steps=2, max_epochs=None)
    return run_dir


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_named_and_the_next_older_checkpoint_is_taken(two_steps, tmp_path, how, caplog):
    damage, text = DAMAGE[how]
    run_dir = tmp_path / "run"
    shutil.copytree(two_steps, run_dir)
    damage(run_dir / "checkpoints" / "step-00000002")
    with pytest.raises(CheckpointError, match="step-00000002"):
        train(Recipe(), run_dir, resume=2, max_steps=3, max_epochs=None)
    caplog.clear()
    rest = train(Recipe(), run_dir, resume="auto", max_steps=3, max_epochs=None)
    assert len(rest.losses) == 2
    said = [record.getMessage() for record in caplog.records if "step-00000002" in record.getMessage()]
    assert any(text in message for message in said), said


def test_stray_folders_are_named_once_and_left_alone(two_steps, tmp_path, caplog):
    run_dir = tmp_path / "run"
    shutil.copytree(two_steps, run_dir)
    root = run_dir / "checkpoints"
    (root / "step-99").mkdir()
    shutil.copytree(root / "step-00000001", root / "step-00000098")
    saver = ModelCheckpoint(save_top_k=2, every_steps=1)
    train(Recipe(), run_dir, saver, resume="auto", max_steps=6, max_epochs=None)
    said = Counter(record.getMessage() for record in caplog.records if "ignored" in record.getMessage())
    assert on_disk(run_dir) == {5, 6}
    assert leftovers(run_dir) == ["step-00000098", "step-99"]
    assert said == {  # once by the run folder and once by the saver, not at every save
        f"ignored: {root / 'step-99'} is no checkpoint: it has no MANIFEST.json": 2,
        f"ignored: {root / 'step-00000098'} holds step 1, so it is not where it belongs": 2,
    }


def test_the_newest_is_told_by_its_number_not_by_the_clock(tmp_path):
    service = first_saves(tmp_path)
    os.utime(tmp_path / "step-00000002", (1, 1))
    assert service.newest().step == 2


def test_nothing_is_unpickled_on_the_way_back(two_steps, tmp_path):
    run_dir = tmp_path / "run"
    shutil.copytree(two_steps, run_dir)
    assert run(killed_runs.resume_without_pickle, run_dir) == 0


# -- what is left when a save goes wrong in the process itself ---------------------------------------------------------


class Unsavable(killed_runs.Numbers):
    def __init__(self, error):
        self.error = error

    def state_dict(self):
        if self.error is not None:
            raise self.error
        return {"callback": lambda: None}


@pytest.mark.parametrize("error", [RuntimeError("no"), KeyboardInterrupt(), None], ids=["error", "interrupt", "lambda"])
def test_a_part_that_cannot_be_saved_leaves_nothing_behind(tmp_path, error):
    service = first_saves(tmp_path)
    with pytest.raises((TypeError if error is None else type(error)), match=None if error else r"^mine\.callback is a"):
        service.save(3, {**numbers(3), "mine": Unsavable(error)}, {}, {}).result()
    assert sorted(names(tmp_path)) == ["latest", "step-00000001", "step-00000002"]
    assert service.newest().step == 2


def test_of_another_run_nothing_is_removed_or_overwritten(tmp_path, caplog):
    other = Checkpoints(tmp_path, "other")
    for step in (1, 3, 5):
        other.save(step, numbers(step), {"saver": ["tag"]}, {}).result()
    mine = Checkpoints(tmp_path, "mine")
    mine.keep("saver", frozenset())
    for step in (2, 3, 4):
        mine.save(step, numbers(10 + step), {"saver": ["tag"]}, {}).result()
    assert {(c.step, c.run_id) for c in mine.list()} == {(1, "other"), (4, "mine"), (5, "other")}
    aside = Checkpoint.read(tmp_path / "aside-1" / "step-00000003")
    assert (aside.run_id, float(aside.load()["model"]["w0"][0])) == ("other", 3)
    assert "moved aside" in caplog.text


def test_a_checkpoint_goes_when_no_saver_wants_it(tmp_path):
    service = Checkpoints(tmp_path, "run")
    service.keep("a", frozenset({1, 2}))
    service.keep("b", frozenset({2}))
    for step, askers in {1: ["a", "b"], 2: ["a", "b"], 3: ["b"], 4: ["b", "c"], 5: ["a"], 6: ["a"]}.items():
        service.save(step, numbers(step), {who: ["tag"] for who in askers}, {}).result()
    assert [c.step for c in service.list()] == [1, 2, 4, 6]  # 4: c has never said what it wants; 6 is the newest
    service.keep("a", frozenset())
    assert [c.step for c in service.list()] == [2, 4, 6]


@pytest.mark.parametrize("hint", ["step-00000001", "", None], ids=["one behind", "empty", "gone"])
def test_neither_the_newest_nor_what_the_hint_names_is_ever_removed(tmp_path, hint):
    service = first_saves(tmp_path)
    (tmp_path / "latest").unlink() if hint is None else (tmp_path / "latest").write_text(hint)
    service.keep("saver", frozenset())
    assert [c.step for c in service.list()] == ([1, 2] if hint else [2])


def test_a_step_saved_again_keeps_who_asked_and_every_score(tmp_path):
    service = Checkpoints(tmp_path, "run")
    service.save(1, numbers(1), {"a": ["step"], "b": ["best"]}, {"loss": 0.5, "eval_loss": float("nan")}).result()
    again = service.save(1, numbers(1.5), {"Loop": ["last"], "a": ["top"]}, {"eval_loss": 0.25}).result()
    assert again.asked_by == {"a": ["step", "top"], "b": ["best"], "Loop": ["last"]}
    assert again.metrics == {"loss": 0.5, "eval_loss": 0.25}
    assert again.tags == ("best", "last", "step", "top")
    assert float(again.load()["model"]["w0"][0]) == 1.5
    assert sorted(names(tmp_path)) == ["latest", "step-00000001"]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf"), 0.5])
def test_a_score_of_any_kind_is_read_back(tmp_path, value):
    read = Checkpoints(tmp_path, "run").save(1, numbers(1), {}, {"eval_loss": value}).result()
    assert identical(read.metrics, {"eval_loss": value})
    assert torch.isfinite(read.load()["model"]["w0"]).all()
