"""Promise 7 on disks that are full, slow, read-only or not as trustworthy as they look."""

import os
import subprocess
import tempfile
import threading
from itertools import pairwise
from pathlib import Path

import killed_runs
import pytest
from forks import told
from gated_runs import asks, run, weights
from killed_runs import first_saves, numbers
from small_runs import checkpoints, leftovers, on_disk, train

from callbacks import JSONLLogger, ModelCheckpoint
from eventloop.checkpoint import Checkpoints
from eventloop.rows import read_rows

# -- power loss --------------------------------------------------------------------------------------------------------


class Audit:
    """Notes how much of each file and which names of each folder are synced, and what is not when it must be."""

    def __init__(self, patch):
        self.synced, self.unsynced = {}, []
        self.published = []  # the name of each folder, and how long the log of the run was by then
        self._fsync, self._rename = os.fsync, os.rename
        patch.setattr(os, "fsync", self.fsync)
        patch.setattr(os, "rename", self.rename)

    def fsync(self, descriptor):
        self._fsync(descriptor)
        path = Path(f"/proc/self/fd/{descriptor}").readlink()
        self.synced[path] = sorted(p.name for p in path.iterdir()) if path.is_dir() else path.stat().st_size

    def rename(self, source, target, **options):
        if ".tmp-" in str(source):
            self.unsynced += [p for p in source.iterdir() if self.synced.get(p) != p.stat().st_size]
            if self.synced.get(source) != sorted(p.name for p in source.iterdir()):
                self.unsynced.append(source)
            log = source.parents[1] / "metrics.jsonl"
            self.published.append((Path(target).name, log.stat().st_size if log.exists() else 0))
        self._rename(source, target, **options)


@pytest.fixture
def audit(monkeypatch):
    return Audit(monkeypatch)


@pytest.mark.parametrize("background", [False, True])
@pytest.mark.parametrize("size", [100, 70_000], ids=["below the buffers", "above the buffers"])
def test_at_the_publishing_rename_everything_is_synced(tmp_path, audit, size, background):
    """Fails if fsync comes before the flush, if a file or a folder is left out, or behind the rename."""
    root = tmp_path / "run" / "checkpoints"
    service = Checkpoints(root, "run", background=background)
    service.save(1, numbers(1, size), {}, {}).result()
    service.close()
    Checkpoints(root, "run").newest().verify()
    assert (audit.unsynced, len(audit.published)) == ([], 1)
    assert audit.synced[root] == ["latest", "step-00000001"]
    assert audit.synced[root.parent] == ["checkpoints"]
    assert "run" in audit.synced[tmp_path]


@pytest.mark.parametrize("saves", ["wait", "sync"])
def test_a_checkpoint_is_published_when_the_rows_of_its_updates_are_written(tmp_path, audit, saves):
    """Fails if the log is written behind the checkpoint: after a kill between the two a resumed run would lack rows."""
    run(tmp_path, asks({1, 2, 3}), JSONLLogger(every=1), saves=saves)
    rows = (tmp_path / "metrics.jsonl").read_bytes()
    assert [name for name, _ in audit.published] == [f"step-{step:08d}" for step in (1, 2, 3, 4)]
    for step, (_, size) in enumerate(audit.published, 1):
        assert rows[:size].count(b"step_end") >= step
    assert audit.unsynced == []


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


@pytest.mark.parametrize("make_room", [False, True])
def test_on_a_disk_for_two_the_training_goes_on_and_with_room_made_first_so_do_the_saves(small_disk, make_room):
    """Fails if a failed save leaves its half behind, or if room is made after it is needed."""
    disk, limit = small_disk
    run_dir = disk.parent / "run"
    run_dir.mkdir()
    (run_dir / "checkpoints").symlink_to(disk)
    status, counts = told(killed_runs.train_on_a_disk_for_two, run_dir, limit, make_room)
    assert (status, leftovers(run_dir)) == ("completed", [])
    if limit is not None:  # no checkpoint fits
        assert (on_disk(run_dir), counts["ModelCheckpoint"] >= 5) == (set(), True)
    elif make_room:
        assert (weights(run_dir), counts) == ({4: 4.0, 5: 5.0}, {})
    else:
        assert (weights(run_dir), counts) == (
            {1: 1.0, 2: 2.0},
            {"ModelCheckpoint": 4},
        )  # 3, 4, 5, and 5 again at the end


@pytest.mark.parametrize("saves", ["wait", "sync"])
def test_a_saver_fails_the_run_when_the_disk_is_full(tmp_path, saves):
    kind, text, notes = told(killed_runs.train_with_a_disk_full_at_step_3, tmp_path, "raise", saves)
    assert kind == "OSError"
    assert "cannot be written" in text
    assert notes == ["while saving the checkpoint of step 3, asked for by ModelCheckpoint"]
    assert (on_disk(tmp_path), leftovers(tmp_path)) == ({1, 2}, [])


@pytest.mark.parametrize("saves", ["wait", "sync"])
def test_a_saver_that_may_fail_is_reported_and_the_run_goes_on(tmp_path, saves):
    status, text, failures = told(killed_runs.train_with_a_disk_full_at_step_3, tmp_path, "isolate", saves)
    assert (status, failures) == ("completed", {"ModelCheckpoint": 1})
    assert text.startswith("completed after update 4")
    assert (on_disk(tmp_path), leftovers(tmp_path)) == ({1, 2, 4}, [])
    rows = [row for row in read_rows(tmp_path / "journal.jsonl") if row.get("request") == "Save" and row["step"] == 3]
    assert [row["fate"] for row in rows] == ["granted", "refused"][saves == "sync" :]
    row = rows[-1]
    assert row["who"] == "ModelCheckpoint"
    assert "cannot be written" in row["note"]


def test_a_saver_whose_failure_stops_the_run_stops_it_and_the_next_run_goes_on(tmp_path):
    status, text, failures = told(killed_runs.train_with_a_disk_full_at_step_3, tmp_path, "stop", "sync")
    assert (status, failures) == ("stopped", {"ModelCheckpoint": 1})
    assert text.startswith("stopped after update 3 by ModelCheckpoint: ")
    assert "failed: OSError: " in text
    assert (on_disk(tmp_path), leftovers(tmp_path)) == ({1, 2, 3}, [])  # the last save of the run found room
    saver = ModelCheckpoint(save_top_k=-1, every_steps=1)
    saver.failure = "stop"
    rest = train(killed_runs.RECIPE, tmp_path, saver, resume="auto", max_steps=4, max_epochs=None)
    assert len(rest.losses) == 1  # a failure is no verdict on the run


# -- a disk that is read-only, slow, or late ---------------------------------------------------------------------------


def test_a_folder_that_is_read_only_fails_the_saves_and_not_the_training():
    """Root may write anywhere, so the child that trains is nobody."""
    with tempfile.TemporaryDirectory() as folder:  # one that nobody may enter, unlike those of the tests
        Path(folder).chmod(0o755)
        status, kinds, texts = told(killed_runs.train_as_nobody, Path(folder) / "run")
    assert (status, kinds) == ("completed", ["PermissionError", "PermissionError"])  # of update 2, and of the last one
    assert all("checkpoints" in text for text in texts)


class SlowDisk:
    """Each fsync takes 50 ms more; notes who waits for it, and how many saves are on their way meanwhile."""

    def __init__(self, run_dir, patch):
        self.root, self._fsync = run_dir / "checkpoints", os.fsync
        self.waited, self.on_their_way = set(), 0
        patch.setattr(os, "fsync", self.fsync)

    def fsync(self, descriptor):
        if self.root in Path(f"/proc/self/fd/{descriptor}").readlink().parents:
            self.waited.add(threading.current_thread().name.rpartition("_")[0])
            self.on_their_way = max(self.on_their_way, len({*self.root.glob(".tmp-*")}))
            threading.Event().wait(0.05)
        self._fsync(descriptor)


@pytest.mark.parametrize("saves", ["skip", "wait"])
def test_on_a_slow_disk_one_save_is_on_its_way_and_the_training_thread_syncs_nothing(tmp_path, monkeypatch, saves):
    """Fails if two saves are written at once, or if the training thread does any of the writing."""
    disk, steps = SlowDisk(tmp_path, monkeypatch), {1, 2, 3}
    loop, lines = run(tmp_path, asks(steps), saves=saves, max_steps=5)
    assert (disk.waited, disk.on_their_way) == ({"eventloop-checkpoint"}, 1)
    saved = [line[1] for line in lines if line[0] == "saved"]
    assert all(a < b for a, b in pairwise(saved))
    assert weights(tmp_path) == {step: float(step) for step in saved}
    skipped = loop._run.ledger.totals["Save refused"]
    assert (len(saved) + skipped, saved[-1]) == (len(steps | {5}), 5)
    assert skipped == {"skip": 2, "wait": 0}[saves]


def test_by_a_clock_that_goes_back_the_newest_is_still_the_newest(tmp_path, monkeypatch):
    """Fails if checkpoints are sorted by time, of the file or of the manifest."""
    service = first_saves(tmp_path)
    os.utime(tmp_path / "step-00000001", (2e9, 2e9))
    monkeypatch.setattr("time.time", lambda: 1.0)
    service.keep("saver", frozenset({3}))
    service.save(3, numbers(3), {"saver": ["tag"]}, {}).result()
    assert [(c.step, c.time) for c in service.list()] == [(3, 1.0)]
    assert (service.newest().step, service.latest()) == (3, "step-00000003")


# -- a state that cannot be taken --------------------------------------------------------------------------------------


def test_without_memory_for_the_copy_the_save_fails_and_the_training_and_later_saves_go_on(tmp_path):
    """Fails if the error of the copy ends the run, or leaves the memory half made."""
    status, failures, steps = told(killed_runs.train_without_memory_at_step_2, tmp_path)
    ((who, text),) = failures
    assert (status, who, steps) == ("completed", "Asks", {1, 3, 4})
    assert text.startswith("RuntimeError: ")
    assert "memory" in text
    assert weights(tmp_path) == {1: 1.0, 3: 3.0, 4: 4.0}


class Remembers:
    """What it keeps cannot be written after update 2; NaN and infinity can."""

    def __init__(self):
        self.step = 0

    def on_step_end(self, event, state):
        self.step = state.step

    def state_dict(self):
        return {"best": float("inf"), "last": float("nan"), "how": print if self.step == 2 else None}

    def load_state_dict(self, state):
        pass


def test_a_state_that_cannot_be_saved_is_the_savers_failure_and_the_next_save_works(tmp_path):
    loop, _ = run(tmp_path, asks({1, 2, 3}), Remembers())
    (failure,) = loop.result.failures
    assert (failure.subscription, type(failure.error)) == ("Asks", TypeError)
    assert "Remembers" in str(failure.error)
    assert (set(weights(tmp_path)), leftovers(tmp_path)) == ({1, 3, 4}, [])
    stored = checkpoints(tmp_path)[3].load()["bus"]["callbacks"]["Remembers"]
    assert "inf" in str(stored)
    assert "nan" in str(stored)
