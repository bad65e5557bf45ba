"""Faults of snapshots, metrics, totals and counters: numbers that are stale, counted twice or lost."""

from __future__ import annotations

from typing import Final

from .mutant import Mutant

STATE: Final = "eventloop/state.py"
METRICS: Final = "eventloop/metrics.py"
TOTALS: Final = "eventloop/totals.py"
PROGRESS: Final = "eventloop/progress.py"

MUTANTS: Final = (
    Mutant(
        "the last update's metrics stay fresh",
        STATE,
        "fields[_METRICS] = fields[_METRICS].aged()",
        "pass",
        ("test_state.py::test_a_new_update_makes_nothing_fresh_and_step_of_says_how_old_a_value_is",),
    ),
    Mutant(
        "a held rate never comes into force",
        STATE,
        "        if fields[_HELD]:",
        "        if False:",
        ("test_fold.py::test_set_lr_elsewhere_is_held_until_the_next_update_opens",),
    ),
    Mutant(
        "a skipped update is counted as one",
        STATE,
        "fields[_SKIPPED if skipped else _STEP] += 1",
        "fields[_STEP] += 1",
        ("test_state.py::test_counters_count_finished_updates_and_skipped_ones_apart",),
    ),
    Mutant(
        "the update's metrics pass for the evaluation's",
        METRICS,
        "return Metrics(cells, {**self._old, **self._now}, live=True)",
        "return Metrics({**self._now, **cells}, self._old, live=True)",
        ("test_state.py::test_end_evaluation_counts_it_and_makes_exactly_its_keys_fresh",),
    ),
    Mutant(
        "tensors that nobody read are kept",
        METRICS,
        "            cell.value = DROPPED",
        "            kept[key] = cell",
        ("test_metrics.py::test_at_the_next_update_what_was_read_stays_and_the_rest_is_dropped",),
    ),
    Mutant(
        "a reported loss keeps its graph alive",
        METRICS,
        "(value.detach() if value.requires_grad else value)",
        "value",
        ("test_metrics.py::test_one_real_number_of_any_kind_is_a_metric",),
    ),
    Mutant(
        "a handler gets the very tensor that the others will read",
        METRICS,
        "return value.clone()",
        "return value",
        ("test_metrics.py::test_raw_does_not_ask_and_gives_no_alias",),
    ),
    Mutant(
        "each number is fetched from the device by itself",
        METRICS,
        "fetch([c for group in (self._now, self._old) for c in group.values() if _unread(c)])",
        "fetch([cell])",
        ("test_metrics.py::test_no_tensor_is_read_before_somebody_asks_and_then_all_unread_ones_at_once",),
    ),
    Mutant(
        "an accumulated loss is that of its last micro-batch",
        METRICS,
        "sum(parts) / len(parts)",
        "parts[-1]",
        ("test_metrics.py::test_the_mean_of_micro_losses_is_taken_only_when_asked",),
    ),
    Mutant(
        "values that are not fresh are averaged in again",
        TOTALS,
        "fresh = self._seen = metrics.fresh",
        "fresh = self._seen = metrics.keys()",
        ("test_totals.py::test_values_that_are_not_fresh_are_not_counted_again",),
    ),
    Mutant(
        "a mean over a window with an infinite value is infinite, not NaN",
        TOTALS,
        "total / count if math.isfinite(total) else math.nan for",
        "total / count for",
        ("test_totals.py::test_two_loggers_of_different_intervals_are_both_exact",),
    ),
    Mutant(
        "a window is not emptied by its row",
        TOTALS,
        "self._sums, self._gauges = {}, {}",
        "self._gauges = {}",
        ("test_totals.py::test_two_loggers_of_different_intervals_are_both_exact",),
    ),
    Mutant(
        "the mean over the updates divides by the updates that were silent too",
        TOTALS,
        "mine[1] += number",
        "mine[1] = max(mine[1] + number, *(count for _, count in sums.values()))",
        ("test_totals.py::test_two_loggers_of_different_intervals_are_both_exact",),
    ),
    Mutant(
        "learning rates are averaged",
        TOTALS,
        'if key == name or (name.endswith("/") and key.startswith(name)):',
        "if key == name:",
        ("test_totals.py::test_a_gauge_is_its_last_value_and_its_prefix_ends_in_a_slash",),
    ),
    Mutant(
        "a skipped update of the loop is counted as one",
        PROGRESS,
        "self.fields[SKIPPED if skipped else STEP] += 1",
        "self.fields[STEP] += 1",
        ("test_window.py::test_an_update_that_the_scaler_skips_advances_nothing_but_skipped",),
    ),
    Mutant(
        "the run's time begins anew on resume",
        PROGRESS,
        'self._elapsed_before, self._since = state["elapsed"], self._clock()',
        "self._elapsed_before, self._since = 0.0, self._clock()",
        ("test_resumed_state.py::test_the_time_of_a_run_goes_on_over_its_sittings",),
    ),
    Mutant(
        "a rate that was asked for is forgotten by a resume",
        PROGRESS,
        'self.fields[HELD] = MappingProxyType(dict(state["held"]))',
        "self.fields[HELD] = NO_LR",
        ("test_resumed_state.py::test_a_rate_that_waits_for_the_next_update_is_in_force_after_a_resume_too",),
    ),
    Mutant(
        "a learning rate held in a tensor is replaced by a number",
        PROGRESS,
        'group["lr"].fill_(rate)',
        'group["lr"] = rate',
        ("test_loop_numbers.py::test_a_tensor_rate_is_filled_in_place_and_told_as_a_float",),
    ),
)
