"""A device is made to wait only where a due handler asks for a number, once, and in one place.

On the CPU nothing waits, but reading a tensor as a number goes through the same operation, `_local_scalar_dense`.
"""

import math
import sys

import pytest
import torch
from loops import batches, model_and_optimizer, train
from torch.utils._python_dispatch import TorchDispatchMode

from callbacks import EarlyStopping, GradNormMonitor, LearningRateMonitor, NaNGuard, WarmupCosine
from eventloop import Loop, Report, metrics


class Reads(TorchDispatchMode):
    """Notes each tensor that is read as a number: at which step, and whether `fetch` did it."""

    def __init__(self, loop):
        super().__init__()
        self._loop, self.seen = loop, []

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._local_scalar_dense.default:
            self.seen.append((self._loop.state.step, self._inside_fetch()))
        return func(*args, **(kwargs or {}))

    @staticmethod
    def _inside_fetch():
        frame = sys._getframe(2)
        while frame is not None and frame.f_code.co_name != "fetch":
            frame = frame.f_back
        return frame is not None and frame.f_globals["__name__"] == "eventloop.metrics"


@pytest.fixture
def fetches(monkeypatch):
    """How many tensors each call of `fetch` read."""
    calls, fetch = [], metrics.fetch

    def counted(unread):
        unread = list(unread)
        calls.append(len(unread))
        fetch(unread)

    monkeypatch.setattr(metrics, "fetch", counted)
    return calls


def stack():
    return [
        WarmupCosine(warmup_steps=5),
        EarlyStopping("eval_loss", patience=9),
        GradNormMonitor(),
        LearningRateMonitor(),
        NaNGuard(),
    ]


def watched(loop, model, n):
    reads = Reads(loop)
    with reads:
        train(loop, model, batches(n))
    return reads.seen


@pytest.mark.parametrize("options", [{}, {"accumulate": 3}, {"clip_norm": 1.0}], ids=str)
def test_the_stack_of_callbacks_waits_for_nothing(fetches, options):
    model, optimizer = model_and_optimizer()
    loop = Loop(model, optimizer, max_epochs=2, callbacks=stack(), **options)
    loop.bus.on("step_end", lambda event, state: Report(accuracy=torch.tensor(0.5)), name="accuracy")
    assert watched(loop, model, 20) == []
    assert fetches == []
    assert loop.result.step in (14, 40)
    assert loop.result.failures == ()


def test_an_evaluation_costs_one_fetch_where_somebody_judges_it(fetches):
    model, optimizer = model_and_optimizer()
    scores = {"eval_loss": torch.tensor(1.0), "eval_accuracy": torch.tensor(0.5)}
    loop = Loop(model, optimizer, max_epochs=2, evaluate=lambda: dict(scores), callbacks=stack())
    seen = watched(loop, model, 20)
    assert {step for step, _ in seen} == {20, 40}
    assert all(inside for _, inside in seen)
    assert len(fetches) == 2


def test_a_handler_that_asks_pays_for_all_numbers_at_once_and_only_when_it_is_due(fetches):
    model, optimizer = model_and_optimizer()
    loop = Loop(model, optimizer, max_epochs=1, callbacks=stack(), clip_norm=1.0)
    told = []

    @loop.bus.on("step_end", every=10)
    def show(event, state):
        told.append((state.metrics["loss"], state.metrics["grad_norm"], state.metrics["lr/group_0"]))

    loop.bus.on("step_end", lambda event, state: state.metrics["loss"] and None, every=5, name="second")
    seen = watched(loop, model, 20)
    assert fetches == [2] * 4  # at 5, 10, 15 and 20: the loss and the norm; rates are plain floats
    assert {step for step, _ in seen} == {5, 10, 15, 20}
    assert all(inside for _, inside in seen)
    assert all(math.isfinite(value) for values in told for value in values)


def test_looking_at_what_is_fresh_printing_it_or_taking_it_raw_is_no_ask(fetches):
    model, optimizer = model_and_optimizer()
    loop = Loop(model, optimizer, max_epochs=1)
    seen = []

    @loop.bus.on("step_end")
    def look(event, state):
        seen.append((set(state.metrics.fresh), "loss" in repr(state.metrics), repr(state), state.metrics.raw("loss")))

    assert watched(loop, model, 3) == []
    assert fetches == []
    assert [(fresh, named) for fresh, named, *_ in seen] == [({"loss"}, True)] * 3
