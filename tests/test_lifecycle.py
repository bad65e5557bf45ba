"""Promise 4: every begin has its end, everything is closed once, and an error comes out as it went in."""

import os
import tempfile
from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from planned_runs import EVENTS, PLANS, Asker, Plan, Run, carried_out, made_no_update

from eventloop import Bus, Loop
from eventloop.testing import Deliberate, Recorder


@pytest.fixture(scope="module", autouse=True)
def unsynced():
    """Hundreds of runs: whether a file outlives a power cut is shown elsewhere."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(os, "fsync", lambda descriptor: None)
        yield


OPENS = {"epoch_begin": "run", "step_begin": "epoch", "eval_begin": "run or epoch"}
CLOSES = {"epoch_end": ["epoch_begin"], "step_end": ["step_begin", "gradients_ready"], "eval_end": ["eval_begin"]}
ANYWHERE = {"handler_failed"}


def check_grammar(lines):
    """The order of life, as a stack of what is open; ``lines`` are (name, step, event)."""
    names = [name for name, *_ in lines]
    end = names.index("train_end")
    assert names[0] == "train_begin"
    assert names.count("train_begin") == names.count("train_end") == 1
    assert set(names[end + 1 :]) <= ANYWHERE
    open_, failed, interrupted = [], False, lines[end][2].status == "interrupted"
    for name in names[1:end]:
        top = open_[-1] if open_ else "run"
        assert not failed or name in ANYWHERE, f"{name} after run_failed"
        if name in OPENS:
            assert top.removesuffix("_begin") in OPENS[name].split(" or "), f"{name} inside {top}"
            open_.append(name)
        elif name in CLOSES:
            assert top in CLOSES[name], f"{name} inside {top}"
            open_.pop()
        elif name == "gradients_ready":
            assert top == "step_begin", f"{name} inside {top}"
            open_[-1] = name  # once an update
        elif name == "checkpoint_saved":
            assert top in ("run", "epoch_begin"), f"{name} inside {top}"
        elif name == "run_failed":
            failed = True
        else:
            assert name in ANYWHERE
    assert not open_ or failed or interrupted, f"{open_} never ended"


@given(PLANS)
@settings(max_examples=120)
def test_every_begin_has_its_end_in_the_order_of_life(plan):
    with carried_out(plan) as run:
        if run.names:
            check_grammar(list(run.lines))
        updates = [event.skipped for name, _, event in run.lines if name == "step_end"]
        assert updates.count(False) == run.loop.result.step == run.loop.state.step
        assert updates.count(True) == run.loop.state.skipped


@given(PLANS)
@settings(max_examples=40)
def test_an_error_comes_out_as_it_went_in_and_the_status_tells_what_happened(plan):
    with carried_out(plan) as run:
        result = run.loop.result
        if run.raised is not None:
            assert run.error is run.raised is result.error
            assert result.status == ("failed" if isinstance(run.raised, Exception) else "interrupted")
        elif run.error is not None:
            assert made_no_update(run)
            assert result.status == "failed"
        else:
            stops = [e for e in result.ledger if e.request == "Stop" and e.fate == "granted"]
            assert result.status == ("stopped" if stops else "completed")
            assert result.stopped_by == (stops[0].who if stops else None)
        if run.names:
            end = next(event for name, _, event in run.lines if name == "train_end")
            assert (end.status, end.reason) == (result.status, result.reason)
            assert run.names.count("run_failed") == (result.status == "failed")


@given(PLANS)
@settings(max_examples=40)
def test_everything_is_closed_once_in_reverse_order(plan):
    with carried_out(plan) as run:
        assert run.closed == run.askers[::-1]


@given(PLANS)
@settings(max_examples=40)
def test_an_update_is_evaluated_once_and_the_last_one_always(plan):
    with carried_out(plan) as run:
        evaluated = run.at("eval_end")
        assert len(evaluated) == len(set(evaluated))
        if not plan.evaluates:
            assert evaluated == []
        elif run.error is None and run.at("epoch_begin") and run.loop.result.step:
            assert evaluated[-1] == run.loop.result.step


@given(PLANS.filter(lambda plan: plan.saves))
@settings(max_examples=40)
def test_the_last_update_is_saved_once_after_its_evaluation(plan):
    with carried_out(plan) as run:
        tags = [event.tags for name, _, event in run.lines if name == "checkpoint_saved"]
        assert sum("last" in t for t in tags) <= 1
        if run.error is None and run.at("epoch_begin") and run.loop.result.step:
            assert run.at("checkpoint_saved")[-1] == run.loop.result.step
            if plan.evaluates:
                last = len(run.names) - run.names[::-1].index("eval_end")
                assert run.names[last:].count("checkpoint_saved") == 1
        elif run.error is not None or not run.at("epoch_begin"):
            assert not any("last" in t for t in tags)


@given(PLANS)
@settings(max_examples=40)
def test_every_request_comes_to_one_end(plan):
    with carried_out(plan) as run:
        kinds = {"stop": "Stop", "save": "Save", "evaluate": "Evaluate", "skip": "SkipUpdate"}
        asked = sum((a.asked for a in run.askers), Counter())
        totals = run.loop._run.ledger.totals
        for word, number in asked.items():
            kind = kinds.get(word, word.capitalize())
            assert sum(totals[f"{kind} {fate}"] for fate in ("granted", "refused", "expired")) == number, kind


@given(PLANS)
@settings(max_examples=40)
def test_no_update_is_begun_after_a_stop_was_granted_or_a_limit_reached(plan):
    with carried_out(plan) as run:
        limit = run.loop._run.limits.max_steps
        assert limit is None or run.loop.result.step <= limit
        stops = [e.decided for e in run.loop.result.ledger if e.request == "Stop" and e.fate == "granted"]
        if stops:
            assert run.loop.result.step == stops[0]
            assert stops[0] >= plan.min_steps


@given(PLANS)
@settings(max_examples=40)
def test_a_second_run_on_the_same_bus_starts_clean(plan):
    with carried_out(plan) as run, tempfile.TemporaryDirectory() as folder:
        for asker in run.askers:
            asker._plan.clear()
        quiet = Plan("epochs", "list", 2, 1, 2, None, 0, 0, "epoch", True, True)
        again = Run(quiet, f"{folder}/run", run.loop.bus)
        assert again.error is None
        check_grammar(list(again.lines))
        result = again.loop.result
        assert (result.status, result.step, result.failures, result.refused) == ("completed", 4, (), ())
        assert again.closed == again.askers[::-1]
        assert run.closed == [*run.askers[::-1], *run.askers[::-1]]
        assert again.at("checkpoint_saved") == [4]


def interrupted_in(place, loop, model):
    """A run with an interrupt in the loader, in ``evaluate`` or in a handler; what is left open is told."""

    def interrupt(event=None, state=None):
        raise KeyboardInterrupt

    def batches():
        yield torch.ones(1, 1)
        interrupt() if place == "loader" else None

    if place in EVENTS:
        loop.bus.on(place, interrupt)
    with loop:
        for _ in loop.epochs():
            for x in loop.batches(batches()):
                loop.backward(model(x).sum())
                loop.update()
                if place == "evaluate":
                    loop._run.evaluation.function = interrupt


@pytest.mark.parametrize("place", ["loader", "evaluate", *EVENTS[:8]])
def test_an_interrupt_anywhere_ends_the_run_as_interrupted_and_closes_everything(place):
    model, closed = torch.nn.Linear(1, 1), []
    asker = Asker([], closed)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    loop = Loop(model, optimizer, max_epochs=1, evaluate=lambda: {"a": 1.0}, callbacks=[asker])
    lines = Recorder(loop.bus, lambda event, state: event)
    with pytest.raises(KeyboardInterrupt):
        interrupted_in(place, loop, model)
    check_grammar(list(lines))
    assert (loop.result.status, closed, model.training) == ("interrupted", [asker], True)


def test_close_goes_on_when_a_handler_of_train_end_is_interrupted():
    closed = []

    class Slow:
        def on_train_end(self, event, state):
            raise KeyboardInterrupt

        def close(self):
            closed.append(self)

    slow = Slow()
    loop = Loop(torch.nn.Linear(1, 1), _optimizer(), max_epochs=1, callbacks=[slow])
    with pytest.raises(KeyboardInterrupt), loop:
        next(loop.epochs())
    assert closed == [slow]


def test_the_result_is_there_when_a_handler_of_train_end_fails_the_run():
    bus = Bus(failure="raise")

    @bus.on("train_end")
    def fails(event, state):
        raise Deliberate("too late")

    loop = Loop(torch.nn.Linear(1, 1), _optimizer(), max_epochs=0, bus=bus)
    with pytest.raises(Deliberate, match="too late"), loop:
        list(loop.epochs())
    assert [f.subscription for f in loop.result.failures] == ["fails"]


def _optimizer():
    return torch.optim.SGD(torch.nn.Linear(1, 1).parameters(), lr=0.1)
