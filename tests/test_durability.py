"""Promise 7: after a kill at any moment the newest committed checkpoint is whole and verified, the logs read clean."""

import os
import random
import shutil
import subprocess
from collections import Counter
from itertools import count
from pathlib import Path

import killed_runs
import pytest
from forks import FORKS, run, start, told
from killed_runs import first_saves, names, numbers
from small_runs import checkpoints, identical, leftovers, on_disk, train

from callbacks import ModelCheckpoint
from eventloop import read_metrics
from eventloop.checkpoint import Checkpoints
from eventloop.rows import read_rows


def latest(root):
    return (root / "latest").read_text() if (root / "latest").exists() else None


# -- killed ------------------------------------------------------------------------------------------------------------


def check_after_kill(run_dir, before):
    """Everything that must hold whenever a run was killed; returns the newest step."""
    root, found = run_dir / "checkpoints", checkpoints(run_dir)
    for checkpoint in found.values():
        states = checkpoint.load()
        assert states["progress"]["step"] == checkpoint.step
    newest = Checkpoints(root, "").newest()
    assert (0 if newest is None else newest.step) == max(found, default=0) >= before
    if (name := latest(root)) is not None:
        assert (root / name).is_dir()
        assert max(found) - int(name.removeprefix("step-")) <= 1
    if (run_dir / "journal.jsonl").exists():
        assert all(row["event"] for row in read_rows(run_dir / "journal.jsonl"))
    if (run_dir / "metrics.jsonl").exists():
        steps = [row["step"] for row in read_metrics(run_dir) if row["event"] == "step_end"]
        assert steps == sorted(set(steps))
    return max(found, default=0)


def kill_again_and_again(run_dir, kills, longest):
    """Kill a run ``kills`` times, each up to ``longest`` seconds after its first step; returns the newest step."""
    moments, newest, dead = random.Random(0), 0, None
    for _ in range(kills):
        here, there = FORKS.Pipe()
        child = start(killed_runs.train_until_killed, run_dir, there)
        assert here.poll(60)
        assert here.recv() == newest + 1
        assert not [name for name in names(run_dir / "checkpoints") if name.endswith(f"-{dead}")]
        child.join(moments.uniform(0, longest))
        child.kill()
        child.join()
        assert child.exitcode == -9
        newest, dead = check_after_kill(run_dir, newest), child.pid
    return newest


def assert_goes_on_as_if_never_killed(run_dir, newest):
    limits = {"max_steps": newest + 3, "max_epochs": None}
    whole = train(killed_runs.RECIPE, None, **limits)
    rest = train(killed_runs.RECIPE, run_dir, *killed_runs.savers(), resume="auto", seed=99, **limits)
    assert identical(rest.losses, whole.losses[newest:])
    assert identical((rest.model, rest.optimizer, rest.callbacks), (whole.model, whole.optimizer, whole.callbacks))
    assert leftovers(run_dir) == []
    rows = [row for row in read_metrics(run_dir) if row["event"] == "step_end"]
    assert [row["step"] for row in rows] == list(range(1, newest + 4))
    assert [row["loss"] for row in rows] == whole.losses


def test_a_run_killed_again_and_again_loses_nothing_and_ends_as_if_it_never_was(tmp_path):
    newest = kill_again_and_again(tmp_path, kills=12, longest=0.15)
    assert newest > 12
    assert_goes_on_as_if_never_killed(tmp_path, newest)


@pytest.mark.storm
def test_a_storm_of_kills(tmp_path):
    newest = kill_again_and_again(tmp_path, kills=300, longest=0.4)
    assert_goes_on_as_if_never_killed(tmp_path, newest)


@pytest.mark.parametrize(("step", "value"), [(3, 3.0), (2, 2.5)], ids=["a new step", "the same step again"])
def test_a_crash_at_each_operation_of_a_save_leaves_the_old_or_the_new(tmp_path, step, value):
    first_saves(tmp_path / "before")
    newest = Counter()
    for operation in count(1):
        root = tmp_path / str(operation)
        shutil.copytree(tmp_path / "before", root)
        code = run(killed_runs.die_in_save, root, step, value, operation)
        newest[assert_whole(root)] += 1
        if code == 0:
            break
        assert code == 99
    assert operation > 15
    assert newest.keys() == {2.0, value}


def assert_whole(root):
    """Nothing is damaged, nothing dangles, and the next run puts the folder in order; returns the newest number."""
    service = Checkpoints(root, "run")
    for checkpoint in service.list():
        checkpoint.verify()
    newest = service.newest()
    states = newest.load()
    (value,) = {float(x) for part in ("model", "other") for t in states[part].values() for x in t}
    assert latest(root) is None or (root / latest(root)).is_dir()
    service.repair()
    service.go_on_from(newest)
    again = service.newest()
    assert (again.step, again.load()["model"]["w0"][0]) == (newest.step, value)
    assert latest(root) == again.path.name == f"step-{newest.step:08d}"
    service.save(4, numbers(4), {"saver": ["tag"]}, {}).result()
    assert sorted(names(root)) == sorted(["latest", *(c.path.name for c in service.list())])
    return value


def test_at_the_publishing_rename_everything_is_synced(tmp_path, monkeypatch):
    synced, unsynced = {}, []
    real_fsync, real_rename = os.fsync, os.rename

    def fsync(descriptor):
        real_fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        synced[path] = sorted(p.name for p in path.iterdir()) if path.is_dir() else path.stat().st_size

    def rename(source, target, **options):
        if ".tmp-" in str(source):
            unsynced.extend(p for p in source.iterdir() if synced.get(p) != p.stat().st_size)
            if synced.get(source) != sorted(p.name for p in source.iterdir()):
                unsynced.append(source)
        real_rename(source, target, **options)

    monkeypatch.setattr(os, "fsync", fsync)
    monkeypatch.setattr(os, "rename", rename)
    root = tmp_path / "run" / "checkpoints"
    Checkpoints(root, "run").save(1, numbers(1), {}, {}).result()
    assert unsynced == []
    assert synced[root] == ["latest", "step-00000001"]
    assert synced[root.parent] == ["checkpoints"]
    assert "run" in synced[tmp_path]


# -- a disk that is full -----------------------------------------------------------------------------------------------


def mounted(folder):
    """Whether a disk of 3 MB could be mounted there: as root, outside of most containers."""
    return not subprocess.run(
        ["mount", "-t", "tmpfs", "-o", "size=3m", "tmpfs", folder], capture_output=True
    ).returncode


@pytest.fixture
def small_disk(tmp_path):
    disk = tmp_path / "disk"
    disk.mkdir()
    limit = None if mounted(disk) else 300_000  # bytes a file may have, where a whole disk cannot be had
    yield disk, limit
    if limit is None:
        subprocess.run(["umount", disk], check=True)


@pytest.mark.parametrize("limit", [300_000, None], ids=["the first file", "the whole disk"])
def test_a_full_disk_is_a_clear_error_and_leaves_what_was_there(small_disk, limit):
    disk, fallback = small_disk
    root = disk / "checkpoints"
    first_saves(root)
    kind, text, left = told(killed_runs.save_on_a_full_disk, root, limit or fallback)
    assert kind == "OSError"
    assert "model.safetensors cannot be written" in text
    assert "File too large" in text or "No space left on device" in text
    assert left == ["latest", "step-00000001", "step-00000002"]
    service = Checkpoints(root, "run")
    assert service.newest().load()["other"]["w3"][0] == 2
    service.save(3, numbers(3), {"saver": ["tag"]}, {}).result()
    assert service.newest().step == 3


def test_a_saver_fails_the_run_when_the_disk_is_full(tmp_path):
    kind, text, notes = told(killed_runs.train_with_a_disk_full_at_step_3, tmp_path, "raise")
    assert kind == "OSError"
    assert "cannot be written" in text
    assert notes == ["while saving the checkpoint of step 3, asked for by ModelCheckpoint"]
    assert (on_disk(tmp_path), leftovers(tmp_path)) == ({1, 2}, [])


def test_a_saver_that_may_fail_is_reported_and_the_run_goes_on(tmp_path):
    status, text, failures = told(killed_runs.train_with_a_disk_full_at_step_3, tmp_path, "isolate")
    assert (status, failures) == ("completed", {"ModelCheckpoint": 1})
    assert text.startswith("completed after update 4")
    assert (on_disk(tmp_path), leftovers(tmp_path)) == ({1, 2, 4}, [])
    (row,) = [row for row in read_rows(tmp_path / "journal.jsonl") if row.get("fate") == "refused"]
    assert (row["who"], row["request"], row["step"]) == ("ModelCheckpoint", "Save", 3)
    assert "cannot be written" in row["note"]


def test_a_saver_whose_failure_stops_the_run_stops_it_and_the_next_run_goes_on(tmp_path):
    status, text, failures = told(killed_runs.train_with_a_disk_full_at_step_3, tmp_path, "stop")
    assert (status, failures) == ("stopped", {"ModelCheckpoint": 1})
    assert text.startswith("stopped after update 3 by ModelCheckpoint: ")
    assert "failed: OSError: " in text
    assert (on_disk(tmp_path), leftovers(tmp_path)) == ({1, 2, 3}, [])  # the last save of the run found room
    saver = ModelCheckpoint(save_top_k=-1, every_steps=1)
    saver.failure = "stop"
    rest = train(killed_runs.RECIPE, tmp_path, saver, resume="auto", max_steps=4, max_epochs=None)
    assert len(rest.losses) == 1  # a failure is no verdict on the run
