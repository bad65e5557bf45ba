"""Faults of saves: in what order a checkpoint is made, that it is copied, locked, and that its failure is told."""

from __future__ import annotations

from typing import Final

from .mutant import Mutant

FILES: Final = "eventloop/checkpoint/files.py"
MANIFEST: Final = "eventloop/checkpoint/manifest.py"
STORE: Final = "eventloop/checkpoint/store.py"
SERVICE: Final = "eventloop/checkpoint/service.py"
STAGING: Final = "eventloop/checkpoint/staging.py"
TENSORS: Final = "eventloop/checkpoint/tensor_file.py"
LOCK: Final = "eventloop/checkpoint/lock.py"
FOLDER: Final = "eventloop/folder.py"
RUN: Final = "eventloop/run.py"
SAVING: Final = "eventloop/saving.py"
SYNCED: Final = "test_durability.py::test_at_the_publishing_rename_everything_is_synced"
CRASHED: Final = "test_save_faults.py::test_a_crash_at_each_operation_of_a_save_leaves_the_old_or_the_new"
DAMAGED: Final = "test_damage.py::test_damage_is_named_and_the_next_older_checkpoint_is_taken"
FAILED: Final = "test_saves_in_flight.py::test_a_failure_is_told_once_by_the_policy_and_has_a_second_line"

MUTANTS: Final = (
    Mutant(
        "weights are not synced before the rename",
        TENSORS,
        "        os.fsync(file.fileno())",
        "        pass",
        (SYNCED,),
    ),
    Mutant(
        "fsync before the buffer is flushed",
        FILES,
        "        file.flush()\n        os.fsync(file.fileno())",
        "        os.fsync(file.fileno())\n        file.flush()",
        (SYNCED,),
    ),
    Mutant(
        "a new folder is not synced as an entry of its parent",
        FILES,
        "        sync(path.parent)",
        "        pass",
        (SYNCED,),
    ),
    Mutant(
        "the commit comes before the manifest",
        SERVICE,
        "        write_manifest(temporary, self.run_id, taken.step, asked, metrics, files)\n"
        "        self.commit(temporary, taken.step, forerunner)\n",
        "        self.commit(temporary, taken.step, forerunner)\n"
        "        write_manifest(self._place(taken.step), self.run_id, taken.step, asked, metrics, files)\n",
        (CRASHED,),
    ),
    Mutant(
        "the manifest is not synced before the commit",
        MANIFEST,
        "    sync(folder)",
        "    pass",
        (SYNCED,),
    ),
    Mutant(
        "the commit is not synced",
        STORE,
        "        folder.rename(place)  # the commit\n        sync(self.root)",
        "        folder.rename(place)",
        ("test_save_faults.py::test_nothing_is_removed_before_the_new_one_is_durable",),
    ),
    Mutant(
        "latest names a checkpoint that is not there yet",
        STORE,
        "        folder.rename(place)  # the commit\n",
        "        self.point_latest(step)\n        folder.rename(place)\n",
        (CRASHED,),
    ),
    Mutant(
        "the forerunner of a step goes before its successor is there",
        STORE,
        "            place.rename(spare)",
        "            self.trash(place)",
        (CRASHED,),
    ),
    Mutant(
        "what is not wanted goes before the new one is committed",
        SERVICE,
        "        saving = Saving(step, self._submit(lambda: self._write(taken)))\n"
        "        self._later(self._remove_unwanted)\n",
        "        self._later(self._remove_unwanted)\n"
        "        saving = Saving(step, self._submit(lambda: self._write(taken)))\n",
        ("test_save_faults.py::test_nothing_is_removed_before_the_new_one_is_durable",),
    ),
    Mutant(
        "a start does not put the hint right",
        STORE,
        "        if standing and self.latest() != standing[-1].path.name:  # killed between the two renames\n",
        "        if False:\n",
        ("test_save_faults.py::test_the_next_start_lets_the_hint_name_the_newest",),
    ),
    Mutant(
        "a start leaves the rubbish of a killed run",
        STORE,
        'for pattern in (".tmp-*", ".trash-*", ".latest-*"):',
        'for pattern in (".trash-*", ".latest-*"):',
        (CRASHED,),
    ),
    Mutant(
        "a folder that cannot be synced is not named",
        FILES,
        "    with named(path):\n        descriptor",
        "    with contextlib.nullcontext():\n        descriptor",
        ("test_save_faults.py::test_an_error_at_each_operation_of_a_save_is_told_or_does_no_harm",),
    ),
    Mutant(
        "the hash leaves out the header",
        TENSORS,
        "        return path.stat().st_size, _digest(parts)",
        "        return path.stat().st_size, _digest(parts[1:])",
        (DAMAGED,),
    ),
    Mutant(
        "a big file's hash is of the first portion alone",
        TENSORS,
        "pool.submit(_digest, parts)",
        "pool.submit(_digest, parts[:1])",
        (SYNCED,),
    ),
    Mutant(
        "the tensors are copied when they are written",
        STAGING,
        "                torch._foreach_copy_(self._views, sources, non_blocking=True)",
        "                copy = lambda late: [view.copy_(s) for view, s in zip(self._views, sources)]\n"
        "                self._copied.append(type('Late', (), {'synchronize': copy})())",
        ("test_async_saves.py::test_training_goes_on_while_a_checkpoint_is_written_and_it_holds_its_own_moment",),
    ),
    Mutant(
        "two runs may have one folder",
        LOCK,
        "    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)",
        "    fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)",
        ("test_two_writers.py::test_a_second_run_of_the_same_process_is_refused_and_the_first_goes_on",),
    ),
    Mutant(
        "a forked child keeps the lock",
        LOCK,
        "os.register_at_fork(after_in_child=_leave_to_parent)",
        "os.register_at_fork(after_in_child=list)",
        ("test_two_writers.py::test_a_forked_worker_that_outlives_its_parent_does_not_hold_the_folder",),
    ),
    Mutant(
        "a folder that is moved aside is not looked at first",
        FOLDER,
        "            used = RunLock(self.path)\n",
        "            used = RunLock(self.path.parent)\n",
        ("test_two_writers.py::test_a_second_process_is_refused_with_the_owners_number_and_changes_nothing",),
    ),
    Mutant(
        "a save begins while another is written",
        SAVING,
        "            self.finish_saving()\n        state = self.progress.snapshot()",
        "        state = self.progress.snapshot()",
        ("test_async_saves.py::test_the_next_save_waits_for_the_one_on_its_way_and_hears_of_it_first",),
    ),
    Mutant(
        "a failure in the background has no second line",
        SAVING,
        'self.ledger.settle_one(a, "refused", self.progress.step, why or "")',
        "pass",
        (FAILED,),
    ),
    Mutant(
        "a failure in the background is dropped",
        SAVING,
        "            return self._save_failed(asked, saving.step, error)",
        "            return None",
        (FAILED,),
    ),
    Mutant(
        "what could not be written counts as saved",
        SAVING,
        "            self.saved_at = None\n            return self._save_failed",
        "            return self._save_failed",
        ("test_saves_in_flight.py::test_a_last_save_that_fails_is_tried_again",),
    ),
    Mutant(
        "a failure is dropped when an error ends the run",
        SAVING,
        "            if failed is not None:",
        "            if False:",
        ("test_saves_in_flight.py::test_it_is_not_dropped_either_when_the_run_ends_by_an_error_meanwhile",),
    ),
    Mutant(
        "a failure is dropped when the wait for it is interrupted",
        RUN,
        "        self._drain()  # once more",
        "        pass  # once more",
        ("test_saves_in_flight.py::test_it_is_not_dropped_either_when_ctrl_c_is_pressed_again_in_the_wait_for_it",),
    ),
    Mutant(
        "the log is not written before the checkpoint is committed",
        SERVICE,
        "                persist()\n",
        "                pass\n",
        ("test_durability.py::test_a_checkpoint_is_published_when_the_rows_of_its_updates_are_written",),
    ),
    Mutant(
        "the newest is the one that was written last by the clock",
        STORE,
        "return [found[step] for step in sorted(found)]",
        "return sorted(found.values(), key=lambda c: c.time)",
        ("test_durability.py::test_by_a_clock_that_goes_back_the_newest_is_still_the_newest",),
    ),
    Mutant(
        "a state that cannot be taken ends the run",
        SAVING,
        "            return self._save_failed(asked, step, error)",
        "            raise",
        (
            "test_durability.py::test_without_memory_for_the_copy_the_save_fails_and_the_training_and_later_saves_go_on",
            "test_durability.py::test_a_state_that_cannot_be_saved_is_the_savers_failure_and_the_next_save_works",
        ),
    ),
)
