"""Faults of the run: accumulation, evaluation, requests and their fate, the end."""

from __future__ import annotations

from typing import Final

from .mutant import Mutant

LEDGER: Final = "eventloop/ledger.py"
LIMITS: Final = "eventloop/limits.py"
RUN: Final = "eventloop/run.py"
COURSE: Final = "eventloop/course.py"
LOOP: Final = "eventloop/loop.py"
SOURCE: Final = "eventloop/source.py"
LOADERS: Final = "eventloop/loaders.py"
DATA: Final = "eventloop/data.py"
WINDOW: Final = "eventloop/window.py"
EVALUATION: Final = "eventloop/evaluation.py"
VERDICT: Final = "eventloop/verdict.py"
RESULT: Final = "eventloop/result.py"

MUTANTS: Final = (
    Mutant(
        "an entry of the ledger does not reach the journal",
        LEDGER,
        "        self.written(entry)",
        "        pass",
        ("test_run_folder.py::test_every_request_stands_in_the_journal_with_its_fate",),
    ),
    Mutant(
        "a save that waits for the epoch's end is lost",
        LEDGER,
        "self.pending, self._open = kept, []",
        "self.pending, self._open = [], []",
        ("test_ledger.py::test_saves_wait_where_an_epochs_end_is_still_to_come",),
    ),
    Mutant(
        "requests are lost when carrying one out fails",
        LEDGER,
        "self._open += asked",
        "pass",
        ("test_ledger.py::test_no_request_is_lost_when_carrying_one_out_fails",),
    ),
    Mutant(
        "saved before what the evaluation asks for is done",
        LEDGER,
        "if kept and saves and not self.pending:",
        "if kept and saves:",
        ("test_ledger.py::test_what_is_asked_for_at_the_evaluation_is_carried_out_at_the_same_boundary",),
    ),
    Mutant(
        "one asker's refusal hides another's",
        LEDGER,
        "said = (asked.who, asked.kind, note)",
        "said = (asked.kind, note)",
        ("test_ledger.py::test_what_comes_of_requests_does_not_depend_on_the_order_of_the_handlers",),
    ),
    Mutant(
        "requests of an epoch that was left are granted",
        LEDGER,
        "isinstance(event, EpochEnd) and not event.completed",
        "False",
        ("test_ledger.py::test_who_may_ask_what",),
    ),
    Mutant(
        "the ledger grows without bound",
        LEDGER,
        "deque[Entry] = deque(maxlen=KEPT)",
        "deque[Entry] = deque()",
        ("test_ledger.py::test_the_last_1000_are_kept_and_the_totals_of_all",),
    ),
    Mutant(
        "what is open at the end is forgotten instead of expired",
        LEDGER,
        'self.settle_one(asked, "expired", step, "the run was over")',
        "pass",
        ("test_ledger.py::test_what_is_open_when_the_run_is_over_has_expired",),
    ),
    Mutant(
        "min_steps off by one",
        LIMITS,
        "if step < self.min_steps:",
        "if step <= self.min_steps:",
        ("test_limits.py::test_a_stop_at_train_begin_leaves_nothing_to_do",),
    ),
    Mutant(
        "max_steps off by one",
        LIMITS,
        "step >= self.max_steps",
        "step > self.max_steps",
        ("test_limits.py::test_with_a_limit_of_0_nothing_is_evaluated_saved_or_begun",),
    ),
    Mutant(
        "the plan leaves out the short window of each epoch",
        LIMITS,
        "self.max_epochs * -(-length // accumulate)",
        "self.max_epochs * (length // accumulate)",
        ("test_loop.py::test_the_counters_count_updates_micro_batches_samples_and_epochs",),
    ),
    Mutant(
        "an update is evaluated twice",
        RUN,
        "if self.position.evaluated_at == step:",
        "if False:",
        ("test_evaluation.py::test_evaluation_has_no_gradients_and_gives_every_submodule_its_own_mode_back",),
    ),
    Mutant(
        "the last stop is named as the one that ended the run",
        RUN,
        "if why is None and (self.stopped is None or self.stopped.within is not None):",
        "if why is None:",
        ("test_limits.py::test_of_several_stops_the_first_is_the_one_that_ended_the_run",),
    ),
    Mutant(
        "a stop after the save of its step is in no checkpoint",
        RUN,
        "            self.saved_at = None  # no checkpoint tells of it yet",
        "            pass",
        ("test_nothing_left.py::test_a_stop_that_came_after_the_save_of_its_step_is_in_a_checkpoint_too",),
    ),
    Mutant(
        "the last save is made twice",
        "eventloop/saving.py",
        "if self.folder is not None and self.saved_at != (self.progress.step, self.progress.fields[EVALS]):",
        "if self.folder is not None:",
        ("cases/test_loop_cases.py::test_c43_the_last_update_is_judged_and_saved_once",),
    ),
    Mutant(
        "the last save is left out though an evaluation came after it",
        "eventloop/saving.py",
        "self.saved_at != (self.progress.step, self.progress.fields[EVALS]):",
        "(self.saved_at or (None,))[0] != self.progress.step:",
        ("test_own_updates.py::test_a_save_before_the_last_evaluation_of_its_update_is_not_the_last_save",),
    ),
    Mutant(
        "SkipUpdate is ignored",
        COURSE,
        "if ready is NOTHING or ready.skip is None:",
        "if True:",
        ("test_window.py::test_gradients_are_unscaled_at_gradients_ready_and_a_skip_leaves_the_scale_as_it_is",),
    ),
    Mutant(
        "gradients of an abandoned update leak into the next",
        COURSE,
        "            self.window.drop()\n            self._close_update(skipped=True)",
        "            self._close_update(skipped=True)",
        ("test_loop.py::test_a_break_in_mid_window_ends_the_update_as_skipped_and_drops_its_gradients",),
    ),
    Mutant(
        "the sampler is told the epoch from 1",
        LOADERS,
        "part.set_epoch(epoch - 1)",
        "part.set_epoch(epoch)",
        ("test_loop.py::test_the_sampler_is_told_the_epoch_from_0",),
    ),
    Mutant(
        "a resumed epoch begins with its first batch again",
        SOURCE,
        "passed = sum(1 for _ in zip(range(drawn), source, strict=False))",
        "passed = drawn",
        ("test_resumed_data.py::test_a_generator_inside_a_batch_sampler_is_part_of_the_state",),
    ),
    Mutant(
        "a checkpoint knows of the batch that was read ahead",
        SOURCE,
        "return self._stands() if self._ahead is UNREAD or dropped else self._before",
        "return self._stands()",
        ("test_resumed_data.py::test_the_rest_of_the_data_is_what_the_uncut_run_had_whatever_the_loader_and_the_cut",),
    ),
    Mutant(
        "a loader's own state is not given back to it",
        SOURCE,
        "        loader.load_state_dict(state)\n        return iter(loader)",
        "        return iter(loader)",
        ("test_resumed_data.py::test_the_rest_of_the_data_is_what_the_uncut_run_had_whatever_the_loader_and_the_cut",),
    ),
    Mutant(
        "a loader that says its end again gives an epoch without a batch",
        SOURCE,
        "self._ended.append(loader)",
        "pass",
        ("test_resumed_data.py::test_on_both_sides_of_an_epochs_edge_no_sample_is_lost_or_repeated",),
    ),
    Mutant(
        "the first loader of an epoch is read again when the second was cut",
        SOURCE,
        "elif (drawn := self._due[place]) is None:",
        "elif (drawn := self._due[place] or 0) is None:",
        ("test_resumed_data.py::test_an_epoch_over_two_loaders_goes_on_in_the_one_that_was_cut",),
    ),
    Mutant(
        "a loader that was left is gone back to",
        SOURCE,
        "                position.batches[earlier] = None",
        "                pass",
        ("test_resumed_data.py::test_a_loader_that_the_body_has_left_for_the_next_one_is_not_gone_back_to",),
    ),
    Mutant(
        "a sampler that can skip is not asked to",
        SOURCE,
        "if (found := _skippable(loader)) is not None:",
        "if (found := None) is not None:",
        ("test_resumed_data.py::test_a_sampler_that_can_skip_is_told_to_and_nothing_is_read_in_vain",),
    ),
    Mutant(
        "an iterator is wound like a loader",
        SOURCE,
        'if hasattr(loader, "__next__") and iter(loader) is loader:',
        "if False:",
        ("test_resumed_data.py::test_an_iterator_in_mid_epoch_is_a_warning_and_goes_on_from_where_it_stands",),
    ),
    Mutant(
        "the epoch has no part in what a dataset draws",
        DATA,
        "_number(self.seed, int(self._epoch), _plain(index))",
        "_number(self.seed, 0, _plain(index))",
        ("test_seeded_data.py::test_a_sample_is_a_function_of_seed_epoch_and_index",),
    ),
    Mutant(
        "workers that live on keep their first epoch",
        DATA,
        "self._epoch.fill_(epoch)",
        "self._epoch = torch.tensor(epoch)",
        ("test_seeded_data.py::test_workers_see_the_epoch_and_give_what_the_main_process_gives",),
    ),
    Mutant(
        "a dataset's batch method reads past the seeds",
        DATA,
        'if name == "dataset" or name.startswith("__"):',
        'if name == "dataset":',
        ("test_seeded_data.py::test_the_batch_method_of_the_wrapped_dataset_does_not_bypass_the_seeds",),
    ),
    Mutant(
        "what a sample drew moves the random states of the run",
        DATA,
        "        torch.set_rng_state(before[1])",
        "        pass",
        ("test_seeded_data.py::test_the_random_states_are_as_before_even_when_a_sample_fails",),
    ),
    Mutant(
        "a sampler skips in every epoch",
        DATA,
        "first, self._skip = self._skip, 0",
        "first = self._skip",
        ("test_seeded_data.py::test_the_order_is_a_permutation_of_seed_and_epoch_and_a_skip_leaves_out_its_beginning",),
    ),
    Mutant(
        "a checkpoint of an epoch's end makes the run repeat that epoch",
        COURSE,
        "run.position.completed = completed or not (leaving or run.over())",
        "run.position.completed = False",
        ("cases/test_resume_cases.py::test_c17_a_checkpoint_of_an_epochs_end_does_not_repeat_the_epoch",),
    ),
    Mutant(
        "a run that had come to its end goes on in its last epoch",
        COURSE,
        "run.position.completed = completed or not",
        "run.position.completed = not",
        ("test_nothing_left.py::test_with_a_higher_limit_the_next_epoch_begins_where_the_last_had_come_to_its_end",),
    ),
    Mutant(
        "a short window is lost when the body passes over the last batches",
        COURSE,
        "if self.waiting:  # the body passed over",
        "if False:  # the body passed over",
        ("test_window.py::test_batches_passed_over_at_the_end_do_not_lose_a_short_window",),
    ),
    Mutant(
        "evaluations by remainder, at 0 too",
        COURSE,
        "return self.progress.step // every > max(self.run.position.evaluated_at, 0) // every",
        "return self.progress.step % every == 0",
        ("test_evaluation.py::test_evaluations_come_when_they_are_due_and_once_more_at_the_end",),
    ),
    Mutant(
        "an epoch that was left says that it is complete",
        COURSE,
        "run.tell(EpochEnd(completed))",
        "run.tell(EpochEnd(True))",
        ("test_loop.py::test_a_break_in_mid_window_ends_the_update_as_skipped_and_drops_its_gradients",),
    ),
    Mutant(
        "a failure at the end of the run is swallowed",
        LOOP,
        "        control.raise_failures()",
        "        pass",
        ("test_lifecycle.py::test_the_result_is_there_when_a_handler_of_train_end_fails_the_run",),
    ),
    Mutant(
        "a short window counts less than a full one",
        WINDOW,
        "short = 0 < self.micro < self.accumulate",
        "short = False",
        ("test_window.py::test_the_weights_are_those_of_a_hand_written_loop_to_the_last_bit",),
    ),
    Mutant(
        "an accumulated loss is added up instead of averaged",
        WINDOW,
        "loss = loss / self.accumulate",
        "pass",
        ("test_window.py::test_the_weights_are_those_of_a_hand_written_loop_to_the_last_bit",),
    ),
    Mutant(
        "gradients are not cleared behind an update",
        WINDOW,
        "optimizer.zero_grad(set_to_none=True)",
        "pass",
        ("test_window.py::test_the_weights_are_those_of_a_hand_written_loop_to_the_last_bit",),
    ),
    Mutant(
        "an update that the scaler skips is counted",
        WINDOW,
        "done = self._scaler.get_scale() >= before",
        "pass",
        ("test_window.py::test_an_update_that_the_scaler_skips_advances_nothing_but_skipped",),
    ),
    Mutant(
        "gradients are clipped while they are scaled",
        WINDOW,
        "self._scaler.unscale_(optimizer)",
        "pass",
        ("test_window.py::test_with_a_scaler_the_weights_are_those_of_torchs_own_recipe",),
    ),
    Mutant(
        "how often a run evaluates changes its random numbers",
        EVALUATION,
        "with evaluating(self._model), torch.no_grad(), untouched():",
        "with evaluating(self._model), torch.no_grad():",
        ("test_evaluation.py::test_how_often_a_run_evaluates_does_not_change_its_training",),
    ),
    Mutant(
        "an evaluation puts frozen layers into train mode",
        EVALUATION,
        "module.training = training",
        "module.training = True",
        ("test_evaluation.py::test_evaluation_has_no_gradients_and_gives_every_submodule_its_own_mode_back",),
    ),
    Mutant(
        "a run that a failure has stopped counts as finished",
        VERDICT,
        'if who is not None and who.failure == "stop" and bus.failures.counts[who.name]:',
        "if False:",
        ("test_durability.py::test_a_saver_whose_failure_stops_the_run_stops_it_and_the_next_run_goes_on",),
    ),
    Mutant(
        "a stop stands though its setting is another now",
        VERDICT,
        'if known is None or known["terms"] != _terms(known["who"], bus, limits):',
        "if known is None:",
        ("test_nothing_left.py",),
    ),
    Mutant(
        "the best of the last callback instead of the first",
        RESULT,
        "        if best is None:",
        "        if True:",
        ("test_loop_speaks.py::test_the_best_is_that_of_the_first_who_watches_with_the_path_that_another_knows",),
    ),
)
