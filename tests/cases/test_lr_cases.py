"""Learning rates as they have gone wrong elsewhere: cases C03, C19, C21, C35, C45, C63 and C71.

The rule that the cases leave open: update n of the warmup uses base * n / W (C71).
"""

import copy
from itertools import pairwise

import pytest
import torch

from callbacks import LearningRateMonitor, WarmupCosine
from eventloop import Bus, Priority, StepBegin, StepEnd, TrainBegin, TrainState


class Training:
    """A raw loop around a real optimizer: the gradient is always 1, and the rates that the bus sets are obeyed."""

    def __init__(self, *things, lr, optimizer=torch.optim.SGD):
        self.weight = torch.nn.Parameter(torch.zeros(1))
        self.optimizer = optimizer([self.weight], lr=lr)
        self.bus = Bus(failure="raise")
        for thing in things:
            self.bus.attach(thing)
        self.state = TrainState()
        self.used = []
        self.optimizer.register_step_pre_hook(lambda optimizer, *_: self.used.append(optimizer.param_groups[0]["lr"]))

    def begin(self, *, resumed=False):
        self.state = self.state.replace(lr={"group_0": self.optimizer.param_groups[0]["lr"]})
        self.state = self.bus.publish(TrainBegin(resumed), self.state).apply(self.state)

    def update(self, *, skipped=False):
        self.state = self.state.begin_update()
        self.state = self.bus.publish(StepBegin(), self.state).apply(self.state)
        self.optimizer.param_groups[0]["lr"] = self.state.lr["group_0"]
        self.weight.grad = torch.ones(1)
        if not skipped:
            self.optimizer.step()
        self.state = self.state.end_update(skipped=skipped)
        self.state = self.bus.publish(StepEnd(skipped), self.state).apply(self.state)

    def run(self, updates):
        """The rates that the optimizer used."""
        self.begin()
        for _ in range(updates):
            self.update()
        return self.used


def test_c03_past_its_end_the_cosine_stays_at_the_floor():
    used = Training(WarmupCosine(2, 6, eta_min=0.1), lr=1.0).run(11)
    assert used[2:] == pytest.approx([1.0, 0.8681980515, 0.55, 0.2318019485, *[0.1] * 5], abs=1e-9)
    assert all(a >= b for a, b in pairwise(used[2:]))


def test_c19_a_floor_above_the_peak_is_an_error_before_the_first_update():
    training = Training(WarmupCosine(0, 4, eta_min=1e-6), lr=1e-7)
    with pytest.raises(ValueError, match="eta_min=1e-06 is above the base learning rate 1e-07 of group 'group_0'"):
        training.run(4)
    assert training.used == []


UNINTERRUPTED = [
    *(0.05, 0.1, 0.1, 0.096193976626, 0.085355339059),
    *(0.069134171618, 0.05, 0.030865828382, 0.014644660941, 0.003806023374),
]


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
@pytest.mark.parametrize("order", ["bind optimizer callbacks", "optimizer bind callbacks", "optimizer callbacks bind"])
def test_c21_the_base_is_never_read_from_a_restored_optimizer(optimizer, order):
    first = Training(WarmupCosine(2, 10), lr=0.1, optimizer=optimizer)
    whole = Training(WarmupCosine(2, 10), lr=0.1, optimizer=optimizer).run(10)
    assert first.run(6) == whole[:6]
    second = Training(WarmupCosine(2, 10), lr=0.1, optimizer=optimizer)
    second.state = first.state
    steps = {
        "bind": lambda: second.bus.bind(optimizer=second.optimizer),
        "optimizer": lambda: second.optimizer.load_state_dict(copy.deepcopy(first.optimizer.state_dict())),
        "callbacks": lambda: second.bus.load_state_dict(first.bus.state_dict()),
    }
    for word in order.split():
        steps[word]()
    second.begin(resumed=True)
    for _ in range(4):
        second.update()
    assert second.used == whole[6:]
    assert whole == pytest.approx(UNINTERRUPTED, abs=1e-9)


def test_c35_a_warmup_as_long_as_the_run_divides_by_nothing():
    used = Training(WarmupCosine(10, 10), lr=0.01).run(13)
    assert used == pytest.approx([0.001 * n for n in range(1, 11)] + [0.0] * 3, abs=1e-12)
    assert max(used) == 0.01


def test_c35_a_warmup_longer_than_the_run_is_an_error_at_construction():
    with pytest.raises(ValueError, match="warmup_steps=20 is more than the 10 updates of the whole curve"):
        WarmupCosine(20, 10)


@pytest.mark.parametrize("schedule_first", [True, False])
def test_c45_a_row_holds_the_rate_that_its_update_used(schedule_first):
    schedule, monitor = WarmupCosine(4, 12), LearningRateMonitor()
    training = Training(*([schedule, monitor] if schedule_first else [monitor, schedule]), lr=1.0)
    rows = {}
    training.bus.on(
        StepEnd, lambda event, state: rows.update({state.step: state.metrics["lr/group_0"]}), priority=Priority.LOG
    )
    assert training.run(12) == [rows[step] for step in range(1, 13)]
    assert [rows[1], rows[5], rows[9], rows[12]] == pytest.approx([0.25, 1.0, 0.5, 0.0380602337], abs=1e-9)


def test_c63_a_skipped_update_moves_neither_the_schedule_nor_a_step_based_interval():
    training, attempts = Training(WarmupCosine(4, 12), lr=1.0), []
    training.bus.on(StepEnd, lambda event, state: attempts.append(state.step + state.skipped), every=4)
    training.begin()
    for attempt in range(1, 7):
        training.update(skipped=attempt <= 2)
    assert training.used == [0.25, 0.5, 0.75, 1.0]
    assert training.state.step == 4
    assert attempts == [6]


def test_c71_the_first_update_moves_the_weight_and_the_peak_is_the_base_exactly():
    training, weights = Training(WarmupCosine(4, 12), lr=1.0), []
    training.bus.on(StepEnd, lambda event, state: weights.append(training.weight.item()))
    assert training.run(12)[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert weights[:4] == [-0.25, -0.75, -1.5, -2.5]
    assert max(training.used) == 1.0
