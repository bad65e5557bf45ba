"""Faults of the callbacks: curves, patience, the best, what is kept, what is measured."""

from __future__ import annotations

from typing import Final

from .mutant import Mutant

SCHEDULES: Final = "callbacks/schedules.py"
STOPPING: Final = "callbacks/early_stopping.py"
IMPROVEMENT: Final = "callbacks/improvement.py"
CHECKPOINT: Final = "callbacks/checkpoint.py"
KEPT: Final = "callbacks/retention.py"
GUARDS: Final = "callbacks/guards.py"
MONITORS: Final = "callbacks/monitors.py"

MUTANTS: Final = (
    Mutant(
        "the learning rate is one update late",
        SCHEDULES,
        "n = state.update",
        "n = state.step",
        ("test_schedules.py::test_the_bus_carries_the_formula_to_every_update",),
    ),
    Mutant(
        "the first update of a warmup has a rate of 0",
        SCHEDULES,
        "return base * (n / warmup)",
        "return base * ((n - 1) / warmup)",
        ("cases/test_lr_cases.py",),
    ),
    Mutant(
        "past its end the cosine climbs again",
        SCHEDULES,
        "    if n > total:",
        "    if n > total == warmup:",
        ("cases/test_lr_cases.py::test_c03_past_its_end_the_cosine_stays_at_the_floor",),
    ),
    Mutant(
        "the base is read from the optimizer that was restored",
        SCHEDULES,
        'self._bases = {group: float(base) for group, base in state["bases"].items()}',
        "self._bases = {}",
        ("cases/test_lr_cases.py",),
    ),
    Mutant(
        "a floor above the peak turns the decay into a rise",
        SCHEDULES,
        "            if eta_min > base:",
        "            if False:",
        ("cases/test_lr_cases.py::test_c19_a_floor_above_the_peak_is_an_error_before_the_first_update",),
    ),
    Mutant(
        "a second run begins with the bases of the first",
        SCHEDULES,
        "            self._bases, self._last, self._before, self._ramps = {}, (0, {}), {}, {}",
        "            pass",
        ("test_schedules.py::test_a_fresh_run_takes_its_bases_anew",),
    ),
    Mutant(
        "the way back to a new plan is forgotten at the second resume",
        SCHEDULES,
        'self._ramps = {group: Ramp(*ramp) for group, ramp in state["ramps"].items()}',
        "self._ramps = {}",
        ("test_changed_plan.py::test_a_second_resume_goes_on_to_the_last_bit",),
    ),
    Mutant(
        "a plan that should be kept is given up at the second resume",
        SCHEDULES,
        "for group, curve in (self._curves or self._before).items()}",
        "for group, curve in self._wanted.items()}",
        ("test_changed_plan.py::test_a_second_resume_goes_on_to_the_last_bit",),
    ),
    Mutant(
        "patience off by one",
        STOPPING,
        "if self.count >= self.patience:",
        "if self.count > self.patience:",
        ("test_early_stopping.py::test_it_asks_for_a_stop_when_and_only_when_the_reference_does",),
    ),
    Mutant(
        "a resume forgets the count",
        STOPPING,
        "        if not event.resumed:",
        "        if True:",
        ("cases/test_es_cases.py::test_c07_the_count_goes_on_after_a_resume",),
    ),
    Mutant(
        "a fresh run begins with the count of the last",
        STOPPING,
        "        if not event.resumed:",
        "        if False:",
        ("cases/test_es_cases.py::test_c07_nothing_of_a_run_is_left_over_in_the_next_fresh_one",),
    ),
    Mutant(
        "patience is state: the stored one wins on resume",
        STOPPING,
        '"count": self.count}\n'
        '        return state if self._weights is None else {**state, "weights": dict(self._weights)}\n'
        "\n"
        "    def load_state_dict(self, state: Mapping[str, Any]) -> None:\n",
        '"count": self.count, "patience": self.patience}\n'
        '        return state if self._weights is None else {**state, "weights": dict(self._weights)}\n'
        "\n"
        "    def load_state_dict(self, state: Mapping[str, Any]) -> None:\n"
        '        self.patience = state["patience"]\n',
        ("test_early_stopping.py::test_limits_are_settings_the_new_ones_count_on_resume",),
    ),
    Mutant(
        "small gains do not add up",
        STOPPING,
        "            self.count += 1\n",
        "            self.count += 1\n            self.best = value\n",
        ("test_early_stopping.py::test_it_asks_for_a_stop_when_and_only_when_the_reference_does",),
    ),
    Mutant(
        "an old value of the metric is judged again",
        STOPPING,
        "if self.monitor not in state.metrics.fresh:",
        "if self.monitor not in state.metrics:",
        ("test_early_stopping.py::test_it_asks_for_a_stop_when_and_only_when_the_reference_does",),
    ),
    Mutant(
        "the best weights come back only if the stopper itself has ended the run",
        STOPPING,
        "        if self._weights is None:\n            return\n",
        '        if self._weights is None or event.status != "stopped":\n            return\n',
        ("test_early_stopping.py::test_the_best_weights_and_buffers_come_back_in_place_however_the_run_ends",),
    ),
    Mutant(
        "the copy of the best weights goes on training",
        STOPPING,
        'tensor.detach().to("cpu", copy=True)',
        'tensor.detach().to("cpu")',
        ("test_early_stopping.py::test_the_best_weights_and_buffers_come_back_in_place_however_the_run_ends",),
    ),
    Mutant(
        "a change of exactly min_delta improves",
        IMPROVEMENT,
        'value < best - self.min_delta if self.mode == "min" else value > best + self.min_delta',
        'value <= best - self.min_delta if self.mode == "min" else value >= best + self.min_delta',
        ("test_improvement.py::test_an_equal_value_is_no_improvement",),
    ),
    Mutant(
        "a first value that is NaN is the best",
        IMPROVEMENT,
        "        if not math.isfinite(value):\n            return False\n",
        "        if best is not None and not math.isfinite(value):\n            return False\n",
        ("test_improvement.py::test_the_first_finite_value_improves_and_no_other_first_value_does",),
    ),
    Mutant(
        "a NaN score ranks first",
        IMPROVEMENT,
        "return True, 0.0",
        "return False, -math.inf",
        (
            "test_improvement.py::test_sorting_by_rank_key_puts_the_best_first_and_non_finite_scores_last_in_their_old_order",
        ),
    ),
    Mutant(
        "max ranks like min",
        IMPROVEMENT,
        'return False, value if self.mode == "min" else -value',
        "return False, value",
        ("test_improvement.py::test_max_is_min_of_the_negated_values",),
    ),
    Mutant(
        "of equal scores the later stays",
        KEPT,
        "key=lambda step: (keys[step], step)",
        "key=lambda step: (keys[step], -step)",
        ("test_model_checkpoint.py::test_on_the_disk_are_the_k_best_and_the_newest_after_every_step",),
    ),
    Mutant(
        "retention removes the best",
        KEPT,
        "best[: self.top_k]",
        "best[-self.top_k :]",
        ("cases/test_ck_cases.py::test_c05_the_worst_is_thrown_out_and_the_list_agrees_with_the_disk",),
    ),
    Mutant(
        "retention keeps the oldest",
        KEPT,
        "sorted(scores, reverse=True)",
        "sorted(scores)",
        ("test_model_checkpoint.py::test_on_the_disk_are_the_k_best_and_the_newest_after_every_step",),
    ),
    Mutant(
        "after a resume the list of checkpoints is empty",
        CHECKPOINT,
        "if checkpoint.run_id == run_id and me in checkpoint.asked_by:",
        "if False:",
        ("test_model_checkpoint_resumed.py::test_the_list_is_rebuilt_from_the_manifests",),
    ),
    Mutant(
        "a resumed saver takes another's checkpoints for its own",
        CHECKPOINT,
        " and me in checkpoint.asked_by:",
        ":",
        ("test_model_checkpoint_resumed.py::test_each_saver_finds_its_own_again",),
    ),
    Mutant(
        "a saver by steps and seconds looks at the remainder",
        CHECKPOINT,
        "return state.step // n > step // n or",
        "return state.step % n == 0 or",
        ("test_model_checkpoint_when.py::test_steps_beside_seconds_fire_by_crossing_whatever_the_counter_does",),
    ),
    Mutant(
        "a score that is not finite is told as the best",
        CHECKPOINT,
        "ranked and math.isfinite(self._kept[ranked[0]] or 0.0)",
        "ranked",
        ("test_model_checkpoint.py::test_the_list_is_that_of_the_reference_for_any_series",),
    ),
    Mutant(
        "a score on its way to the disk is not ranked",
        CHECKPOINT,
        "{**self._kept, **coming, state.step:",
        "{**self._kept, state.step:",
        ("test_retention.py::test_nothing_depends_on_how_late_a_save_is_told_of",),
    ),
    Mutant(
        "a saver's state knows nothing of what is on its way",
        CHECKPOINT,
        "scores = {**self._kept, **self._asked}  #",
        "scores = {**self._kept}  #",
        ("test_retention.py::test_nothing_depends_on_how_late_a_save_is_told_of",),
    ),
    Mutant(
        "a save that failed counts for ever",
        CHECKPOINT,
        "        del self._asked[saved.step]\n",
        "",
        ("test_retention.py::test_a_save_that_failed_does_not_count",),
    ),
    Mutant(
        "a milestone is told by its remainder",
        KEPT,
        "step // self.every > before // self.every",
        "step % self.every == 0",
        ("test_retention.py::test_on_the_disk_is_what_the_rules_say_after_every_update_in_every_sitting",),
    ),
    Mutant(
        "room is made though nobody asked for it",
        CHECKPOINT,
        "if not self.make_room or self.save_top_k == -1:",
        "if self.save_top_k == -1:",
        ("test_retention.py::test_what_a_save_pushes_out_goes_behind_it_unless_room_is_made_and_then_one_is_left",),
    ),
    Mutant(
        "a bad update is stopped for, and not skipped",
        GUARDS,
        "return (skip,) if stop is None else (skip, stop)",
        "return (skip,) if stop is None else (stop,)",
        ("test_guards.py::test_skip_with_patience_also_stops_after_so_many_in_a_row",),
    ),
    Mutant(
        "a guard's patience off by one",
        GUARDS,
        "self._row < self.patience",
        "self._row <= self.patience",
        ("test_guards.py::test_a_plain_float_is_judged_at_once",),
    ),
    Mutant(
        "bad values need not be in a row",
        GUARDS,
        "self._row = self._row + 1 if bad else 0",
        "self._row = self._row + 1 if bad else self._row",
        ("test_guards.py::test_a_loss_of_one_element_and_a_change_of_type_in_mid_run_are_fine",),
    ),
    Mutant(
        "a resume loses the verdict on its way",
        GUARDS,
        '"late": self._late.peek()}',
        '"late": None}',
        ("test_guards.py::test_taking_the_state_changes_nothing",),
    ),
    Mutant(
        "the gradient norm of an earlier update will do",
        MONITORS,
        'if "grad_norm" in state.metrics.fresh:',
        'if "grad_norm" in state.metrics:',
        ("test_monitors.py::test_a_norm_of_an_earlier_update_is_no_reason_not_to_measure",),
    ),
    Mutant(
        "the gradient norm makes the device wait",
        MONITORS,
        "Report(grad_norm=torch.nn.utils.get_total_norm(grads))",
        "Report(grad_norm=float(torch.nn.utils.get_total_norm(grads)))",
        ("test_monitors.py::test_nobody_waits_for_the_norm",),
    ),
)
