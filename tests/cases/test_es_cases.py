"""Early stopping as it has failed elsewhere: cases C01, C07, C31, C51, C53 and C81."""

import math

import pytest
import torch

from callbacks import EarlyStopping
from eventloop import Bus, EpochEnd, EvalEnd, TrainBegin, TrainEnd, TrainState


class Evaluations:
    """A run that is nothing but evaluations, one a step."""

    def __init__(self, stopper):
        self.bus, self.state = Bus(), TrainState()
        self.bus.attach(stopper)

    def begin(self, *, resumed=False):
        self.state = self.state if resumed else TrainState()
        self.bus.publish(TrainBegin(resumed), self.state)

    def evaluate(self, metrics):
        """Whether a stop is asked for."""
        self.state = self.state.begin_update().end_update().end_evaluation(metrics)
        return self.bus.publish(EvalEnd(), self.state).stop is not None

    def run(self, losses):
        """The evaluations at which a stop is asked for, from 1."""
        self.begin()
        return [i for i, loss in enumerate(losses, 1) if self.evaluate({"eval_loss": loss})]


@pytest.mark.parametrize("first", [math.nan, math.inf, -math.inf])
def test_c01_a_first_value_that_is_not_finite_is_not_the_best(first):
    stopper = EarlyStopping("eval_loss", patience=2)
    assert Evaluations(stopper).run([first, 1.0, 0.9, 0.95, 0.97]) == [5]
    assert (stopper.best, stopper.best_step) == (0.9, 3)


def test_c07_the_count_goes_on_after_a_resume():
    first, second = EarlyStopping("eval_loss", patience=3), EarlyStopping("eval_loss", patience=3)
    run_a, run_b = Evaluations(first), Evaluations(second)
    assert run_a.run([1.0, 1.1, 1.2]) == []
    run_b.bus.load_state_dict(run_a.bus.state_dict())
    run_b.begin(resumed=True)
    assert run_b.evaluate({"eval_loss": 1.3})
    assert second.best == 1.0


def test_c07_nothing_of_a_run_is_left_over_in_the_next_fresh_one():
    stopper = EarlyStopping("eval_loss", patience=3)
    runs = Evaluations(stopper)
    assert runs.run([0.2, 0.3, 0.4, 0.5]) == [4]
    assert runs.run([0.9, 0.8, 0.7, 0.75, 0.8, 0.85]) == [6]
    assert (stopper.best, stopper.best_step) == (0.7, 3)


@pytest.mark.parametrize(
    ("restore_best", "losses", "weight"),
    [
        (True, [1.0, 0.5, 0.6, 0.7], 2.0),
        (False, [1.0, 0.5, 0.6, 0.7], 4.0),
        (True, [1.0, 0.9, 0.8, 0.7], 4.0),
        (False, [1.0, 0.9, 0.8, 0.7], 4.0),
    ],
)
def test_c31_the_best_weights_come_back_though_the_run_ends_by_its_limit(restore_best, losses, weight):
    model = torch.nn.Linear(1, 1, bias=False)
    run = Evaluations(EarlyStopping("eval_loss", patience=10, restore_best=restore_best))
    run.bus.bind(model=model, optimizer=None, run_dir=None)
    run.begin()
    for epoch, loss in enumerate(losses, 1):
        torch.nn.init.constant_(model.weight, float(epoch))
        assert not run.evaluate({"eval_loss": loss})
    run.bus.publish(TrainEnd("completed"), run.state)
    assert model.weight.item() == weight


def test_c51_an_evaluation_that_is_seen_at_two_events_is_one_verdict():
    run = Evaluations(EarlyStopping("eval_loss", patience=2))
    run.begin()
    asked = []
    for loss in [1.0, 1.1, 0.9, 1.0, 1.05]:
        asked.append(run.evaluate({"eval_loss": loss}))
        assert run.bus.publish(EpochEnd(), run.state).stop is None  # which shows the same metrics
    assert asked == [False, False, False, False, True]


def test_c53_a_missing_metric_is_said_and_is_no_verdict(caplog):
    stopper = EarlyStopping("eval_f1", "max", patience=1)
    run = Evaluations(stopper)
    run.begin()
    assert [run.evaluate({"eval_loss": 0.4, "f1": 0.5}) for _ in range(3)] == [False] * 3
    assert stopper.count == 0
    assert [record.message for record in caplog.records] == [
        "EarlyStopping: no metric 'eval_f1' at eval_end of step 1; reported there: eval_loss, f1"
    ]
    assert [run.evaluate({"eval_f1": 0.5}), run.evaluate({"eval_f1": 0.4})] == [False, True]


def test_c53_in_strict_mode_it_is_an_error_at_the_first_evaluation():
    run = Evaluations(EarlyStopping("eval_f1", "max", patience=1, strict=True))
    run.begin()
    with pytest.raises(KeyError, match="no metric 'eval_f1' at eval_end of step 1; reported there: eval_loss, f1"):
        run.evaluate({"eval_loss": 0.4, "f1": 0.5})


def test_c53_an_evaluation_without_any_metrics_is_no_error():
    run = Evaluations(EarlyStopping("eval_f1", "max", patience=1))
    run.begin()
    assert not run.evaluate({})
    assert not run.bus.publish(EvalEnd()).failures


@pytest.mark.parametrize(("min_delta", "losses", "best"), [(0.25, [1.0, 0.75, 0.75], 1.0), (0.0, [1.0, 1.0, 1.0], 1.0)])
def test_c81_a_change_of_exactly_min_delta_is_no_improvement(min_delta, losses, best):
    stopper = EarlyStopping("eval_loss", "min", patience=2, min_delta=min_delta)
    assert Evaluations(stopper).run(losses) == [3]
    assert stopper.best == best
