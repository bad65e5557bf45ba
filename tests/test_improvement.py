"""What counts as better, shared by every decider on a metric."""

import logging
import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from callbacks.improvement import Improvement, MissingMetricError, resolve_mode, say_missing
from eventloop import EvalEnd, TrainState
from eventloop.testing import metric_values

MODES = st.sampled_from(["min", "max"])


class Decider:
    pass


@given(metric_values(), metric_values(), st.floats(0, 10))
def test_max_is_min_of_the_negated_values(value, best, min_delta):
    low, high = Improvement("min", min_delta), Improvement("max", min_delta)
    assert low.better(value, best) == high.better(-value, -best)
    assert low.rank_key(value) == high.rank_key(-value)


@given(metric_values(), MODES)
def test_the_first_finite_value_improves_and_no_other_first_value_does(value, mode):
    assert Improvement(mode).better(value, None) == math.isfinite(value)


@given(st.floats(allow_nan=False, allow_infinity=False), MODES)
def test_an_equal_value_is_no_improvement(value, mode):
    assert not Improvement(mode).better(value, value)


@pytest.mark.parametrize(("mode", "value"), [("min", 0.75), ("max", 1.25)])
def test_a_change_of_exactly_min_delta_is_no_improvement_and_a_larger_one_is(mode, value):
    rule = Improvement(mode, min_delta=0.25)
    assert not rule.better(value, 1.0)
    assert rule.better(value - 0.01 if mode == "min" else value + 0.01, 1.0)


@given(st.lists(metric_values(), min_size=1, max_size=8), MODES)
def test_sorting_by_rank_key_puts_the_best_first_and_non_finite_scores_last_in_their_old_order(scores, mode):
    ranked = sorted(enumerate(scores), key=lambda pair: Improvement(mode).rank_key(pair[1]))
    finite = [(i, s) for i, s in ranked if math.isfinite(s)]
    assert finite == sorted(finite, key=lambda pair: pair[1] if mode == "min" else -pair[1])
    assert [i for i, _ in ranked[len(finite) :]] == [i for i, s in enumerate(scores) if not math.isfinite(s)]


@pytest.mark.parametrize("monitor", ["loss", "eval_loss", "val/loss"])
def test_a_mode_may_be_left_out_for_a_loss(monitor):
    assert resolve_mode(monitor, None, Decider()) == "min"


@pytest.mark.parametrize("monitor", ["acc", "lossy", "my.loss", "gloss", "Loss", "eval_loss_ratio"])
def test_a_mode_is_not_guessed_for_any_other_name(monitor):
    with pytest.raises(ValueError, match=f"Decider: mode=None, and '{monitor}' does not say .* give mode='min' or"):
        resolve_mode(monitor, None, Decider())


def test_the_mode_that_is_given_counts_whatever_the_name():
    assert resolve_mode("eval_loss", "max", Decider()) == "max"
    with pytest.raises(ValueError, match="Decider: mode='auto' must be 'min' or 'max'"):
        resolve_mode("eval_loss", "auto", Decider())


@pytest.mark.parametrize(
    ("reported", "said"),
    [
        ({"f1": 0.5, "eval_loss": 0.4}, "no metric 'eval_f1' at eval_end of step 7; reported there: eval_loss, f1"),
        ({"eval_f2": 0.5}, "reported there: eval_f2 (did you mean 'eval_f2'?)"),
        ({}, "nothing was reported there"),
    ],
)
def test_a_missing_metric_is_named_with_what_is_there(caplog, reported, said):
    say_missing(Decider(), "eval_f1", EvalEnd(), TrainState(step=7).end_evaluation(reported))
    assert said in caplog.text
    assert caplog.records[0].levelno == logging.WARNING


def test_a_metric_that_is_there_but_old_is_said_to_be_old(caplog):
    state = TrainState(step=3, metrics={"loss": 1.0}).replace(step=7).end_evaluation({"acc": 0.5})
    say_missing(Decider(), "loss", EvalEnd(), state)
    assert "'loss' is known from step 3, but only fresh values are judged" in caplog.text


def test_strictness_makes_it_a_key_error_that_reads_as_a_sentence():
    with pytest.raises(MissingMetricError) as caught:
        say_missing(Decider(), "acc", EvalEnd(), TrainState(step=2), strict=True)
    assert isinstance(caught.value, KeyError)
    assert str(caught.value) == "Decider: no metric 'acc' at eval_end of step 2; nothing was reported there"


def test_other_ranks_than_the_first_do_not_miss_it(caplog):
    say_missing(Decider(), "acc", EvalEnd(), TrainState(rank=1, world=2), strict=True)
    assert caplog.records == []
