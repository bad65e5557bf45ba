"""A crash, a full disk and a disk error at each single operation of a save: the old checkpoint stands, or the new."""

import errno
import shutil
from collections import Counter
from itertools import count

import killed_runs
import pytest
from disk_faults import CRASHED, Disk, broken_at, full_from
from forks import run
from killed_runs import SCENES, first_saves, names, numbers

from eventloop.checkpoint import Checkpoints

FILES = ("state.json", "state.safetensors", "model.safetensors", "MANIFEST.json", ".tmp-")


def latest(root):
    return (root / "latest").read_text() if (root / "latest").exists() else None


@pytest.fixture(params=SCENES)
def scene(request, tmp_path):
    """The name of a way to save, and a function that makes the folder before that save anew under a number."""
    SCENES[request.param].before(tmp_path / "before")

    def anew(n):
        shutil.copytree(tmp_path / "before", tmp_path / f"root-{n}")
        return tmp_path / f"root-{n}"

    return request.param, anew


def value_of(checkpoint):
    """The one number that all its tensors are filled with."""
    states = checkpoint.load()
    (value,) = {float(x) for part in ("model", "other") for tensor in states[part].values() for x in tensor.unique()}
    return value


def sound_value(root):
    """Nothing that is listed is damaged, nothing dangles; returns the newest checkpoint's number."""
    service = Checkpoints(root, "run")
    for checkpoint in service.list():
        checkpoint.verify()
    assert latest(root) is None or (root / latest(root)).is_dir()
    return value_of(service.newest())


def assert_put_in_order(root, value):
    """The next start removes the rubbish and takes the newest, and the save after it is one like any other."""
    service = Checkpoints(root, "run")
    newest = service.newest()
    service.repair()
    service.go_on_from(newest)
    again = service.newest()
    assert (again.step, value_of(again)) == (newest.step, value)
    assert latest(root) == again.path.name == f"step-{newest.step:08d}"
    service.save(4, numbers(4), {"saver": ["tag"]}, {}).result()
    assert sorted(names(root)) == sorted(["latest", *(c.path.name for c in service.list())])
    assert service.newest().step == 4


def test_a_crash_at_each_operation_of_a_save_leaves_the_old_or_the_new(scene):
    """Fails if the rename comes before the manifest, or `latest` names what is not there yet."""
    name, anew = scene
    newest = Counter()
    for operation in count(1):
        root = anew(operation)
        code = run(killed_runs.die_in_save, root, name, operation)
        value = sound_value(root)
        assert_put_in_order(root, value)
        newest[value] += 1
        if code == 0:
            break
        assert code == CRASHED
    assert operation > 20
    assert newest.keys() == {2.0, SCENES[name].value}


def fail_in_save(root, name, fault):
    """Save with a fault of the disk; returns the operations that were done and the error, if one was raised."""
    with pytest.MonkeyPatch.context() as patch:
        disk, failed = Disk(fault, patch), None
        try:
            SCENES[name].save(root)
        except OSError as error:
            failed = error
        return disk.done, failed


@pytest.mark.parametrize(("fault", "code"), [(full_from, errno.ENOSPC), (broken_at, errno.EIO)], ids=["full", "broken"])
def test_an_error_at_each_operation_of_a_save_is_told_or_does_no_harm(scene, fault, code):
    """Fails if an error of the disk is swallowed, or does not say at which file."""
    name, anew = scene
    done, error = fail_in_save(anew(0), name, broken_at(-1))
    assert (error, len(done) > 20) == (None, True)
    for operation in range(1, len(done) + 1):
        root = anew(operation)
        _, error = fail_in_save(root, name, fault(operation))
        value = sound_value(root)
        assert value in (2.0, SCENES[name].value)
        assert error is not None or value == SCENES[name].value  # a save that went well is there
        if error is not None:
            assert error.errno == code
            assert any(file in str(error) for file in (*FILES, root.name)), error
        SCENES[name].save(root)  # tried again at once, without a new start
        assert sound_value(root) == SCENES[name].value
        assert_put_in_order(root, SCENES[name].value)


def test_nothing_is_removed_before_the_new_one_is_durable(tmp_path, monkeypatch):
    """Fails if what is not wanted goes before the commit, or before the commit is synced."""
    service = first_saves(tmp_path)
    service.keep("saver", frozenset({3}))
    done = []
    Disk(lambda number, name, path: done.append((name, getattr(path, "name", ""))), monkeypatch)
    service.save(3, numbers(3), {"saver": ["tag"]}, {}).result()
    (commit,) = [i for i, (name, file) in enumerate(done) if name == "rename" and file.startswith(".tmp-")]
    (removal,) = [i for i, (name, file) in enumerate(done) if name == "rename" and file == "step-00000002"]
    assert done[commit + 1] == ("fsync", "")
    assert removal > commit + 1
    assert [c.step for c in service.list()] == [3]


@pytest.mark.parametrize("hint", [None, "step-00000001", "step-00000009", ""])
def test_the_next_start_lets_the_hint_name_the_newest(tmp_path, hint):
    """Fails if a hint that a kill has left behind, or that names nothing, is believed."""
    service = first_saves(tmp_path)
    (tmp_path / "latest").unlink() if hint is None else (tmp_path / "latest").write_text(hint)
    service.repair()
    assert latest(tmp_path) == "step-00000002"
