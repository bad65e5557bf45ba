"""Faults of checkpoints: what is on the disk after a kill, what is removed, what comes back."""

from __future__ import annotations

from typing import Final

from .mutant import Mutant

CODEC: Final = "eventloop/checkpoint/codec.py"
MANIFEST: Final = "eventloop/checkpoint/manifest.py"
STORE: Final = "eventloop/checkpoint/store.py"
SERVICE: Final = "eventloop/checkpoint/service.py"
LAYOUT: Final = "eventloop/checkpoint/layout.py"
RETENTION: Final = "eventloop/checkpoint/retention.py"
PARTS: Final = "eventloop/parts.py"
OPTIMIZERS: Final = "eventloop/optimizers.py"
MODEL: Final = "eventloop/model.py"
FOLDER: Final = "eventloop/folder.py"
START: Final = "eventloop/start.py"
SAVING: Final = "eventloop/saving.py"
JOURNAL: Final = "eventloop/journal.py"
DAMAGED: Final = "test_damage.py::test_damage_is_named_and_the_next_older_checkpoint_is_taken"

MUTANTS: Final = (
    Mutant(
        "weights that share memory come back apart",
        LAYOUT,
        "        if first is not name:",
        "        if False:",
        ("test_codec.py::test_tied_tensors_are_stored_once_and_come_back_tied",),
    ),
    Mutant(
        "a tuple comes back as a list",
        CODEC,
        "return tuple(unpack(part, tensors) for part in item)",
        "return [unpack(part, tensors) for part in item]",
        ("test_codec.py::test_a_state_comes_back_as_it_was",),
    ),
    Mutant(
        "hashes are not compared",
        MANIFEST,
        'return "" if sha256(file, progress) == digest else f"{name} does not match its hash"',
        'return ""',
        (DAMAGED,),
    ),
    Mutant(
        "a manifest that was changed is believed",
        MANIFEST,
        'if data.pop("sha256") != _seal(data):',
        'if data.pop("sha256") is None:',
        (DAMAGED,),
    ),
    Mutant(
        "a failed save leaves its half behind",
        SERVICE,
        "            shutil.rmtree(temporary, ignore_errors=True)\n            raise",
        "            raise",
        ("test_durability.py::test_a_saver_fails_the_run_when_the_disk_is_full",),
    ),
    Mutant(
        "resume takes the newest though it is damaged",
        STORE,
        "                checkpoint.verify()",
        "                pass",
        (DAMAGED,),
    ),
    Mutant(
        "the newest is removed",
        RETENTION,
        "self._of_nobody(checkpoints[:-1])",
        "self._of_nobody(checkpoints)",
        ("test_damage.py::test_neither_the_newest_nor_what_the_hint_names_is_ever_removed",),
    ),
    Mutant(
        "checkpoints of another run are removed",
        SERVICE,
        "mine = [c for c in self.list() if c.run_id == self.run_id]",
        "mine = self.list()",
        ("test_damage.py::test_of_another_run_nothing_is_removed_or_overwritten",),
    ),
    Mutant(
        "room is made at the cost of the last that is whole",
        RETENTION,
        "next((c for c in reversed(going) if whole(c)), None)",
        "next(reversed(going), None)",
        ("test_retention.py::test_room_is_never_made_at_the_cost_of_the_last_that_is_whole",),
    ),
    Mutant(
        "the loop does not say that room is to be made",
        SAVING,
        "make_room=wish.make_room",
        "make_room=False",
        ("test_retention.py::test_a_run_that_makes_room_never_has_more_than_it_keeps_and_one",),
    ),
    Mutant(
        "a save begins before it is known what its forerunner's savers want",
        SAVING,
        "            self.landed()\n            self.ledger.carry_out_keeps(self.keep)",
        "            self.landed()",
        ("test_retention.py::test_saves_in_the_background_keep_what_saves_at_once_keep",),
    ),
    Mutant(
        "a checkpoint goes when one of its savers does not want it",
        RETENTION,
        "wanted = frozenset().union(*self._wanted.values())",
        "wanted = frozenset.intersection(*self._wanted.values())",
        ("test_damage.py::test_a_checkpoint_goes_when_no_saver_wants_it",),
    ),
    Mutant(
        "a user's own save is removed by a saver's limit",
        RETENTION,
        " if all(who in self._wanted for who in c.asked_by)]",
        "]",
        ("test_model_checkpoint.py::test_a_users_own_save_is_kept_whatever_the_limits_are",),
    ),
    Mutant(
        "a second save of a step forgets the first one's score",
        SERVICE,
        "metrics = {**forerunner.metrics, **metrics}",
        "pass",
        ("test_damage.py::test_a_step_saved_again_keeps_who_asked_and_every_score",),
    ),
    Mutant(
        "checkpoints of the part that was lost stay in the way",
        STORE,
        "            self._set_aside(*later)",
        "            pass",
        ("test_resume.py::test_from_an_older_step_the_later_part_is_moved_aside_and_never_taken_again",),
    ),
    Mutant(
        "the checkpoint's weight decay wins over the script's",
        OPTIMIZERS,
        "                group.update(mine)\n",
        "",
        ("test_resumed_state.py::test_settings_of_the_script_win_and_each_difference_is_said",),
    ),
    Mutant(
        "moments go by the place of their parameter",
        OPTIMIZERS,
        "own = names.get(id(parameter)) or [_place(i, j)]",
        "own = [_place(i, j)]",
        ("test_named_states.py::test_the_state_of_a_parameter_that_is_gone_or_new_is_named_and_moves_to_no_other",),
    ),
    Mutant(
        "only the outermost wrappers are looked through",
        MODEL,
        "        if (attribute := _wraps(module)) is not None:",
        "        if not plain and (attribute := _wraps(module)) is not None:",
        ("test_named_states.py::test_names_are_plain_also_where_a_part_of_the_model_is_wrapped",),
    ),
    Mutant(
        "what fits is copied before it is known that something does not",
        MODEL,
        "        if problems := self.problems(state, strict=strict):",
        "        if False:",
        ("test_named_states.py::test_a_model_that_does_not_fit_is_left_as_it_was",),
    ),
    Mutant(
        "the model is filled before the states that users' code must take",
        FOLDER,
        '_FAILS_FIRST: Final = "bus"',
        '_FAILS_FIRST: Final = "random"',
        ("test_resume_report.py::test_a_callback_that_cannot_take_its_state_leaves_the_model_as_it_was",),
    ),
    Mutant(
        "a run that must not differ is refused only when its folder was opened",
        START,
        "        folder.compare(parts, choices.on_mismatch)\n",
        "        pass\n",
        ("test_resume_report.py::test_on_mismatch_error_lists_everything_before_anything_is_written_or_loaded",),
    ),
    Mutant(
        "settings are read when an object may have changed them",
        START,
        "        settings.note()",
        "        pass",
        ("test_resume_report.py::test_a_setting_that_an_object_fills_in_by_itself_is_no_difference",),
    ),
    Mutant(
        "a resume forgets in which epoch's middle it stands",
        PARTS,
        "self.resumed_at = None if self.completed else sum(n or 0 for n in self.batches)",
        "self.resumed_at = None",
        ("test_resumed_data.py::test_a_generator_inside_a_batch_sampler_is_part_of_the_state",),
    ),
    Mutant(
        "the journal says of every epoch that it was completed",
        JOURNAL,
        '"completed": event.completed',
        '"completed": True',
        ("test_run_folder.py::test_the_journal_tells_an_epoch_that_was_left_from_one_that_was_completed",),
    ),
)
