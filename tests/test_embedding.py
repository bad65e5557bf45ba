"""The raw bus in loops of one's own: what the handlers ask for reaches whoever obeys, and nothing else is needed."""

import math
from collections import Counter

import pytest
import torch
from loops import batches, loss_of, model_and_optimizer, weights

from callbacks import EarlyStopping, GradNormMonitor, LearningRateMonitor, WarmupCosine
from callbacks.schedules import warmup_cosine
from eventloop import (
    Bus,
    EpochBegin,
    EpochEnd,
    EvalBegin,
    EvalEnd,
    Evaluate,
    GradientsReady,
    Loop,
    Request,
    Save,
    SetLR,
    SkipUpdate,
    StepBegin,
    StepEnd,
    Stop,
    TrainBegin,
    TrainEnd,
    TrainState,
)
from eventloop.testing import Recorder


class Raw:
    """Four lines of a loop of one's own: publish, take the state back, write the rates, keep what was asked for."""

    def __init__(self, bus, optimizers, **state):
        self.bus, self.optimizers = bus, optimizers
        rates = {name: o.param_groups[0]["lr"] for name, o in optimizers.items()}
        self.state = TrainState(lr=rates, **state)

    def publish(self, event):
        control = self.bus.publish(event, self.state)
        self.state = control.apply(self.state)
        return control

    def begin_update(self):
        self.state = self.state.begin_update()
        control = self.publish(StepBegin())
        for name, rate in self.state.lr.items():
            self.optimizers[name].param_groups[0]["lr"] = rate
        return control


def train_raw(scores, *, epochs=10, updates=3, **state):
    """A schedule, early stopping and own obedience: the rates that were used, the stop, the bus, the weights."""
    model, optimizer = model_and_optimizer()
    bus, used, stop = Bus(failure="raise"), [], None
    bus.attach(EarlyStopping("eval_loss", patience=2))
    bus.attach(WarmupCosine(warmup_steps=2))
    bus.attach(LearningRateMonitor())
    raw = Raw(bus, {"group_0": optimizer}, total=epochs * updates, **state)
    lines = Recorder(bus, lambda event, state: dict(state.metrics), priority=-2000)
    bus.bind(model=model, optimizer=optimizer)
    raw.publish(TrainBegin())
    for score, _ in zip(scores, range(epochs), strict=False):
        raw.state = raw.state.begin_epoch()
        raw.publish(EpochBegin())
        for x in batches(updates):
            raw.begin_update()
            loss_of(model, x).backward()
            optimizer.step()
            optimizer.zero_grad()
            used.append(optimizer.param_groups[0]["lr"])
            raw.state = raw.state.end_update(samples=len(x))
            raw.publish(StepEnd())
        raw.publish(EvalBegin())
        raw.state = raw.state.end_evaluation({"eval_loss": score})
        stop = raw.publish(EvalEnd()).stop
        raw.publish(EpochEnd())
        if stop:
            break
    raw.publish(TrainEnd("stopped" if stop else "completed"))
    bus.close()
    return used, stop, raw.state, lines, model


def test_a_raw_loop_with_a_schedule_and_early_stopping_obeys_both():
    used, stop, state, lines, _ = train_raw([1.0, 0.9, 0.95, 0.9, 0.1])
    assert used == [warmup_cosine(n, 0.1, 2, 30, 0.0) for n in range(1, 13)]
    assert str(stop) == "Stop by EarlyStopping: eval_loss has not improved on 0.9 for 2 evaluations"
    assert (state.epoch, state.step, state.samples, state.evals) == (4, 12, 36, 4)
    rates = [metrics["lr/group_0"] for name, _, metrics in lines if name == "step_end"]
    assert rates == used  # measured behind the schedule, seen by whoever stands behind both


def test_a_raw_loop_and_a_loop_make_the_same_weights_with_the_same_callbacks():
    *_, theirs = train_raw([1.0, 0.9, 0.95, 0.9, 0.1])
    model, optimizer = model_and_optimizer()
    scores = iter([1.0, 0.9, 0.95, 0.9, 0.1])
    callbacks = [EarlyStopping("eval_loss", patience=2), WarmupCosine(warmup_steps=2)]
    loop = Loop(model, optimizer, max_epochs=10, evaluate=lambda: {"eval_loss": next(scores)}, callbacks=callbacks)
    with loop:
        for _ in loop.epochs():
            for x in loop.batches(batches(3)):
                loop.backward(loss_of(model, x))
                loop.update()
    assert torch.equal(weights(model), weights(theirs))
    assert (loop.result.step, loop.result.stopped_by) == (12, "EarlyStopping")


def test_a_raw_loop_that_resumes_counts_on():
    used, *_ = train_raw([1.0], epochs=2, step=3, update=3, epoch=1)
    assert used == [warmup_cosine(n, 0.1, 2, 6, 0.0) for n in (4, 5, 6)]


def test_a_gan_sets_each_optimizers_rate_and_skips_when_it_is_told_to():
    (g, og), (d, od) = model_and_optimizer(lr=0.1), model_and_optimizer(lr=0.4, seed=3)
    bus = Bus(failure="raise")
    bus.on(StepBegin, lambda event, state: SetLR({"d": 0.4 / state.update}), name="cool")
    bus.on(GradientsReady, lambda event, state: SkipUpdate("ahead") if state.update == 3 else None, name="referee")
    raw, used, skips = Raw(bus, {"g": og, "d": od}), [], []
    raw.publish(TrainBegin())
    for attempt, x in enumerate(batches(4), 1):
        raw.begin_update()
        used.append((og.param_groups[0]["lr"], od.param_groups[0]["lr"]))
        before = weights(d)
        (loss_of(d, x) - loss_of(g, x).detach()).backward()
        skip = raw.publish(GradientsReady()).skip
        if skip is None:
            od.step()
        od.zero_grad()
        skips.append(skip and skip.reason)
        assert torch.equal(weights(d), before) == (attempt > 2)
        raw.state = raw.state.end_update(skipped=skip is not None)
        raw.publish(StepEnd(skipped=skip is not None))
    assert used == [(0.1, 0.4), (0.1, 0.2), (0.1, pytest.approx(0.4 / 3)), (0.1, pytest.approx(0.4 / 3))]
    assert skips == [None, None, "ahead", "ahead"]
    assert (raw.state.step, raw.state.skipped) == (2, 2)


def test_while_true_evaluates_and_ends_when_a_handler_says_so():
    model, optimizer = model_and_optimizer()
    bus, asked, norms = Bus(failure="raise"), Counter(), []
    bus.attach(GradNormMonitor(every=2))
    bus.on(StepEnd, lambda event, state: (Evaluate(), Save("interval")), every=4, name="interval")
    bus.on(EvalEnd, lambda event, state: Stop("good enough") if state.metrics["eval_loss"] < 0.4 else None)
    bus.on(StepEnd, lambda event, state: norms.append(state.metrics.get("grad_norm")), every=2)
    bus.bind(model=model)
    raw = Raw(bus, {"group_0": optimizer})
    raw.publish(TrainBegin())
    while True:
        raw.begin_update()
        for x in batches(2):
            (loss_of(model, x) / 2).backward()
        raw.publish(GradientsReady())
        optimizer.step()
        optimizer.zero_grad()
        raw.state = raw.state.end_update(micro=2)
        control = raw.publish(StepEnd())
        if control.evaluate:
            raw.state = raw.state.end_evaluation({"eval_loss": 4 / raw.state.step})
            control |= raw.publish(EvalEnd())
        asked.update(control.save)
        if control.stop:
            break
    assert (raw.state.step, raw.state.micro, raw.state.evals) == (12, 24, 3)
    assert asked == {"interval": 3}
    assert control.stop.reason == "good enough"
    assert len(norms) == 6
    assert all(math.isfinite(norm) and norm > 0 for norm in norms)


class Upload(Request):
    """A request of the user's own, in a loop of the user's own."""


def test_a_raw_loop_reads_its_own_requests_from_the_control():
    bus = Bus()
    bus.on(StepEnd, lambda event, state: [Upload(), Stop("a")], name="uploader")
    bus.on(StepEnd, lambda event, state: Stop("b"), name="stopper")
    control = bus.publish(StepEnd())
    assert [(reply.who, type(reply.request)) for reply in control.requests] == [
        ("uploader", Upload),
        ("uploader", Stop),
        ("stopper", Stop),
    ]
    assert [reply.who for reply in control.of(Upload)] == ["uploader"]
    assert control.stop.reason == "a"
