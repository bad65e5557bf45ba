"""Evaluation: when it comes, what it leaves as it was, and what may be wrong with it."""

import random
from collections import Counter

import numpy
import pytest
import torch
from loops import Sizeless, ask, batches, model_and_optimizer, recorded, train, weights

from eventloop import Evaluate, Loop


@pytest.fixture
def parts():
    return model_and_optimizer()


def test_how_often_a_run_evaluates_does_not_change_its_training():
    def evaluate():
        random.random(), numpy.random.rand(), torch.rand(1)
        return {"eval_loss": torch.rand(1)}

    ends = []
    for every in (1, None):
        model, optimizer = model_and_optimizer()
        random.seed(1), numpy.random.seed(1)
        noise = []
        loop = Loop(model, optimizer, max_epochs=2, evaluate=evaluate, eval_every=every)
        train(loop, model, batches(3), lambda n=noise: n.append((random.random(), numpy.random.rand(), torch.rand(1))))
        ends.append((noise, weights(model).tolist()))
    assert ends[0] == ends[1]


def test_evaluation_has_no_gradients_and_gives_every_submodule_its_own_mode_back():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.BatchNorm1d(2), torch.nn.Dropout())
    model[1].eval()  # frozen on purpose
    modes = []

    def evaluate():
        modes.append([m.training for m in model.modules()])
        assert not model[0](torch.ones(1, 2)).requires_grad
        model.train()  # as many evaluation functions do at their end
        return {"eval_loss": 1.0}

    loop = Loop(model, torch.optim.SGD(model.parameters(), lr=0.1), max_epochs=1, evaluate=evaluate)
    train(loop, model, batches(1), after=lambda: None)
    assert modes == [[False] * 4]
    assert [m.training for m in model.modules()] == [True, True, False, True]


def test_modes_come_back_when_the_evaluation_fails(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1, evaluate=lambda: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        train(loop, model, batches(1))
    assert model.training


@pytest.mark.parametrize(("every", "steps"), [("epoch", [4, 8]), (3, [3, 6, 8]), (4, [4, 8]), (100, [8]), (None, [8])])
@pytest.mark.parametrize("sized", [True, False])
def test_evaluations_come_when_they_are_due_and_once_more_at_the_end(parts, every, steps, sized):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=2, evaluate=lambda: {"a": 1.0}, eval_every=every)
    lines = recorded(loop)
    train(loop, model, batches(4) if sized else Sizeless())
    assert [step for name, step in lines if name == "eval_end"] == steps
    assert lines.names[-4:] == ["eval_begin", "eval_end", "epoch_end", "train_end"]


def test_an_evaluation_asked_for_twice_at_one_update_is_made_once(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1, evaluate=lambda: {"a": 1.0}, eval_every=2)
    ask(loop, "step_end", Evaluate(), name="one")
    ask(loop, "eval_end", Evaluate(), name="two")
    lines = recorded(loop)
    result = train(loop, model, batches(4))
    assert [step for name, step in lines if name == "eval_end"] == [1, 2, 3, 4]
    assert Counter((e.who, e.fate) for e in result.ledger) == {("one", "granted"): 4, ("two", "granted"): 4}


def test_exactly_the_evaluations_metrics_are_fresh_at_eval_end_and_epoch_end(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1, evaluate=lambda: {"eval_loss": 1.0, "top": {"k": 0.5}})
    fresh = recorded(loop, lambda event, state: set(state.metrics.fresh))
    train(loop, model, batches(1))
    told = {name: keys for name, _, keys in fresh}
    assert told["step_end"] == {"loss"}
    assert told["eval_end"] == told["epoch_end"] == {"eval_loss", "top/k"}


def test_a_bad_metric_of_an_evaluation_is_a_failure_and_the_others_stand(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1, evaluate=lambda: {"note": "abc", "eval_loss": 0.5})
    seen = []
    loop.bus.on("eval_end", lambda event, state: seen.append(dict(state.metrics)))
    loop.bus.on("handler_failed", lambda event, state: seen.append((event.subscription, event.event.name)))
    result = train(loop, model, batches(1))
    assert seen[0] == ("evaluate", "eval_end")
    assert seen[1]["eval_loss"] == 0.5
    assert "metric 'note' must be one real number, not builtins.str" in str(result.failures[0])


@pytest.mark.parametrize("metrics", [None, {}])
def test_an_empty_evaluation_is_a_warning_and_no_metric(parts, metrics, caplog):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1, evaluate=lambda: metrics)
    train(loop, model, batches(1))
    assert "the evaluation at step 1 returned no metric" in caplog.text
    assert (loop.state.evals, set(loop.state.metrics.fresh)) == (1, set())


def test_what_evaluate_returns_must_be_a_mapping(parts):
    model, optimizer = parts
    with pytest.raises(TypeError, match=r"evaluate\(\) returned float; it returns metrics as a mapping of names"):
        train(Loop(model, optimizer, max_epochs=1, evaluate=lambda: 0.5), model, batches(1))
    with pytest.raises(TypeError, match="evaluate=3 cannot be called"):
        Loop(model, optimizer, evaluate=3)


def test_mean_over_weighs_each_batch_by_its_samples(parts):
    loop = Loop(*parts)
    loader = [(torch.full((3, 1), 1.0), torch.zeros(3)), (torch.full((1, 1), 5.0), torch.zeros(1))]
    told = loop.mean_over(loader, lambda batch: {"mean": batch[0].mean(), "plain": float(batch[0].mean())})
    assert (float(told["mean"]), told["plain"]) == (2.0, 2.0)
    assert isinstance(told["mean"], torch.Tensor)  # nothing was read from a device
    with pytest.raises(ValueError, match="the loader gave no batch, so there is no mean"):
        loop.mean_over([], lambda batch: {})


@pytest.mark.parametrize(
    ("batch", "samples"),
    [
        (torch.zeros(4, 2), 4),
        ((torch.zeros(4, 2), torch.zeros(4)), 4),
        ([torch.zeros(4, 2), torch.zeros(4)], 4),
        ({"ids": torch.zeros(4, 2), "labels": torch.zeros(4)}, 4),
        (({"ids": numpy.zeros((4, 2))}, torch.zeros(4)), 4),
        (["a", "b", "c"], 3),
        (torch.tensor(1.0), 1),
        (object(), 1),
    ],
)
def test_the_samples_of_a_batch_are_counted(parts, batch, samples):
    loop = Loop(*parts, max_epochs=1)
    with loop:
        for _ in loop.batches([batch]):
            loop.step_end()
    assert loop.state.samples == samples
