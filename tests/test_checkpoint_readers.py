"""Whoever reads beside a run that saves and removes gets a whole checkpoint or a clear error, and no false alarm."""

import shutil
import threading

import pytest
from killed_runs import first_saves, numbers
from small_runs import said

from eventloop import CheckpointError
from eventloop.checkpoint import Checkpoints


def test_a_reader_beside_a_run_always_finds_a_whole_one_and_is_told_of_no_damage(tmp_path, caplog):
    """Fails if a checkpoint that was removed while it was read counts as damaged, or as none at all."""
    first_saves(tmp_path)
    done, found = threading.Event(), []

    def write():
        service = Checkpoints(tmp_path, "run")
        for step in range(3, 60):
            service.keep("saver", frozenset({step}))
            service.save(step, numbers(step), {"saver": ["tag"]}, {}).result()
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    while not done.is_set():
        found.append(Checkpoints(tmp_path, "").newest())
    writer.join()
    assert len(found) > 3
    assert None not in found
    assert [c.step for c in found] == sorted(c.step for c in found)
    assert said(caplog) == []


@pytest.mark.parametrize("use", [lambda c: c.verify(), lambda c: c.load()], ids=["verify", "load"])
def test_one_that_is_gone_is_said_to_be_gone_and_not_damaged(tmp_path, use):
    checkpoint = first_saves(tmp_path).newest()
    shutil.rmtree(checkpoint.path)
    with pytest.raises(CheckpointError, match="step-00000002 has been removed while it was read"):
        use(checkpoint)
