"""One run at a time writes into a run folder, whoever else tries, and however its owner ends."""

import os
import signal

import pytest
import torch
from forks import FORKS, start
from gated_runs import asks, run, wait_until
from killed_runs import hold, hold_and_fork
from small_runs import Count, on_disk

from eventloop import CheckpointError, Loop
from eventloop.checkpoint.lock import RunLock


@pytest.fixture
def owner(tmp_path):
    """Another process that is in the midst of a run there, and its number."""
    here, there = FORKS.Pipe()
    child = start(hold, tmp_path / "run", there)
    assert here.recv() == 1
    yield child
    child.kill()
    child.join()


@pytest.mark.parametrize("how", [{"resume": "auto"}, {"overwrite": True}, {"resume": 1}], ids=str)
def test_a_second_process_is_refused_with_the_owners_number_and_changes_nothing(tmp_path, owner, how):
    """Fails if there is no lock: two runs would write one journal and number their saves alike."""
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=rf"run is in use by process {owner.pid}: .* name another run_dir"):
        run(tmp_path / "run", **how)
    assert sorted(tmp_path.rglob("*")) == before


def test_the_folder_is_free_at_once_when_the_owner_is_killed(tmp_path, owner):
    owner.kill()
    owner.join()
    loop, _ = run(tmp_path / "run", resume="auto", max_steps=3)
    assert (loop.result.status, on_disk(tmp_path / "run")) == ("completed", {1, 3})


def test_a_second_run_of_the_same_process_is_refused_and_the_first_goes_on(tmp_path):
    def second():
        with pytest.raises(CheckpointError, match=f"in use by process {os.getpid()}"):
            run(tmp_path, resume="auto")

    loop, _ = run(tmp_path, asks({1}), at={2: second})
    assert (loop.result.status, on_disk(tmp_path)) == ("completed", {1, 4})
    assert run(tmp_path, resume="auto", max_steps=5)[0].result.step == 5  # and then it is free


def test_a_run_that_fails_in_its_beginning_leaves_the_folder_free(tmp_path):
    class Fails:
        failure = "raise"

        def on_train_begin(self, event, state):
            raise RuntimeError("mine")

    with pytest.raises(RuntimeError, match="mine"):
        run(tmp_path, Fails())
    RunLock(tmp_path).release()


def test_a_loop_that_is_never_entered_holds_nothing(tmp_path):
    model = Count()
    Loop(model, torch.optim.SGD(model.parameters(), lr=1.0), run_dir=tmp_path, max_steps=1)
    loop, _ = run(tmp_path)
    assert loop.result.status == "completed"


def test_a_forked_worker_that_outlives_its_parent_does_not_hold_the_folder(tmp_path):
    """Fails if a child keeps what it has inherited; the fork falls into a save that is on its way."""
    here, there = FORKS.Pipe()
    child = start(hold_and_fork, tmp_path, there)
    worker = here.recv()
    try:
        wait_until(lambda: on_disk(tmp_path) == {2})  # the parent's save has gone on
        with pytest.raises(CheckpointError, match=f"in use by process {child.pid}"):
            RunLock(tmp_path)
        child.kill()
        child.join()
        os.kill(worker, 0)
        RunLock(tmp_path).release()
    finally:
        os.kill(worker, signal.SIGKILL)
