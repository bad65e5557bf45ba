"""Metrics and learning rates in a `Loop`."""

import numpy
import pytest
import torch
from loops import ask, batches, loss_of, model_and_optimizer, recorded, train, weights

from callbacks import WarmupCosine
from callbacks.schedules import warmup_cosine
from eventloop import ConflictError, Loop, ReplyError, SetLR


@pytest.fixture
def parts():
    return model_and_optimizer()


def test_the_loss_of_an_update_is_the_mean_of_its_micro_losses(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1, accumulate=2)
    losses, seen = [], []
    loop.bus.on("step_end", lambda event, state: seen.append(state.metrics["loss"]))
    with loop:
        for x in loop.batches(batches(3)):
            loss = loss_of(model, x)
            losses.append(loss.item())
            loop.backward(loss)
            loop.update()
    assert seen == [(losses[0] + losses[1]) / 2, losses[2]]


def test_an_own_update_reports_metrics_of_all_kinds_and_a_bad_one_is_named(parts):
    loop = Loop(*parts)
    seen = []
    loop.bus.on("step_end", lambda event, state: seen.append(dict(state.metrics)))
    with loop:
        loop.step_end(loss=numpy.float32(0.5), acc=torch.tensor([0.25]), top={"k": True})
        with pytest.raises(ReplyError, match=r"metric 'words' must be one real number, not builtins.str"):
            loop.step_end(words="many")
    assert seen[:1] == [{"loss": 0.5, "acc": 0.25, "top/k": 1.0}]


def test_a_rate_set_at_step_end_is_held_until_the_next_step_begin(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    ask(loop, "step_end", SetLR(0.5), once=1, name="plateau")
    used = []
    rates = recorded(loop, lambda event, state: state.lr["group_0"])
    train(loop, model, batches(3), after=lambda: used.append(optimizer.param_groups[0]["lr"]))
    assert [rate for name, _, rate in rates if name in ("step_begin", "step_end")] == [0.1, 0.1, 0.5, 0.5, 0.5, 0.5]
    assert used == [0.1, 0.5, 0.5]


@pytest.mark.parametrize("event", ["train_begin", "step_begin"])
def test_a_rate_set_at_train_begin_or_step_begin_is_that_of_the_update(parts, event):
    model, optimizer = parts
    before = weights(model)
    loop = Loop(model, optimizer, max_steps=1)
    ask(loop, event, SetLR({"group_0": 0.0}))
    train(loop, model, batches(1))
    assert torch.equal(weights(model), before)
    assert dict(loop.state.lr) == {"group_0": 0.0}


def test_a_second_writer_of_a_group_is_named_with_the_first_at_whatever_event(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    ask(loop, "step_begin", SetLR(0.2), name="schedule")
    ask(loop, "step_end", SetLR(0.3), name="meddler", failure="raise")
    with pytest.raises(ConflictError, match="schedule and meddler both set the learning rate of group 'group_0'"):
        train(loop, model, batches(2))


def test_a_rate_that_the_script_sets_by_hand_is_seen_from_the_next_step_begin(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    rates = recorded(loop, lambda event, state: state.lr["group_0"])

    def halve():
        optimizer.param_groups[0]["lr"] /= 2

    train(loop, model, batches(3), after=halve)
    assert [rate for name, _, rate in rates if name == "step_end"] == [0.1, 0.05, 0.025]


def test_a_tensor_rate_is_filled_in_place_and_told_as_a_float():
    rate = torch.tensor(0.1)
    model = torch.nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=rate)
    loop = Loop(model, optimizer, max_epochs=1)
    ask(loop, "step_begin", SetLR(0.25))
    train(loop, model, batches(2))
    assert optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == 0.25
    assert type(loop.state.lr["group_0"]) is float


def test_a_group_added_in_mid_run_is_named_by_its_index_and_can_be_set(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    ask(loop, "step_begin", SetLR({"group_1": 0.75}), when=lambda event, state: "group_1" in state.lr)
    head = torch.nn.Parameter(torch.ones(1))

    def add():
        if len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": [head], "lr": 0.5})

    train(loop, model, batches(3), after=add)
    assert dict(loop.state.lr) == {"group_0": 0.1, "group_1": 0.75}
    assert optimizer.param_groups[1]["lr"] == 0.75


def test_the_groups_of_an_optimizer_that_loads_a_state_in_mid_run_are_still_the_ones_that_are_set(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    ask(loop, "step_begin", SetLR(0.5))
    train(loop, model, batches(3), after=lambda: optimizer.load_state_dict(optimizer.state_dict()))
    assert optimizer.param_groups[0]["lr"] == 0.5


def test_two_groups_of_one_name_are_an_error():
    groups = [{"params": [torch.nn.Parameter(torch.ones(1))], "name": "head"} for _ in range(2)]
    with pytest.raises(ValueError, match="two parameter groups are called 'head'; give each its own 'name'"):
        Loop(torch.nn.Linear(1, 1), torch.optim.SGD(groups, lr=0.1))


def test_a_group_added_in_mid_run_is_scheduled_from_then_on_with_its_own_rate_as_base(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_steps=4, callbacks=[WarmupCosine(warmup_steps=2)])
    used = []

    def note_and_add():
        used.append([group["lr"] for group in optimizer.param_groups])
        if len(optimizer.param_groups) == 1:
            optimizer.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "lr": 0.5})

    train(loop, model, batches(9), after=note_and_add)
    assert used[0] == [warmup_cosine(1, 0.1, 2, 4, 0.0)]
    assert used[1:] == [[warmup_cosine(n, base, 2, 4, 0.0) for base in (0.1, 0.5)] for n in (2, 3, 4)]
