"""Promise 4: every begin has its end, everything is closed once, and an error comes out as it went in."""

import contextlib
import itertools
import os
import tempfile
from collections import Counter
from dataclasses import dataclass, field

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eventloop import Bus, Evaluate, Loop, Request, Save, SkipUpdate, Stop
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


class Carried(Request):
    """Somebody obeys it."""


class Orphan(Request):
    """Nobody does."""


REQUESTS = {
    "stop": lambda: Stop("asked"),
    "save": lambda: Save("asked"),
    "evaluate": Evaluate,
    "skip": lambda: SkipUpdate("asked"),
    "carried": Carried,
    "orphan": Orphan,
}
EVENTS = [
    "train_begin",
    "epoch_begin",
    "step_begin",
    "gradients_ready",
    "step_end",
    "eval_begin",
    "eval_end",
    "epoch_end",
    "checkpoint_saved",
    "handler_failed",
    "run_failed",
    "train_end",
]


class Sizeless:
    """A loader that does not know its length."""

    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        return iter(self._batches)


LOADERS = {"list": list, "sizeless": Sizeless, "generator": lambda batches: (b for b in batches)}
BODIES = ["epochs", "own update", "batches alone", "updates", "own loop", "own loop in epochs"]
ERRORS = {"raise": ZeroDivisionError, "interrupt": KeyboardInterrupt, "exit": SystemExit}


@dataclass(frozen=True)
class Plan:
    body: str
    loader: str
    batches: int
    accumulate: int
    max_epochs: int
    max_steps: int | None
    min_steps: int
    min_epochs: int
    eval_every: object
    evaluates: bool
    saves: bool
    holds: bool = False  # whether the body keeps its iterators, as a progress bar does, so that no break ends them
    asks: list = field(default_factory=list)  # (event, which time, what)
    acts: dict = field(default_factory=dict)  # by turn of the body: what it does, before or after its update


ACTS = st.tuples(st.sampled_from(["break", "continue", "return", *ERRORS]), st.sampled_from(["before", "after"]))
PLANS = st.builds(
    Plan,
    body=st.sampled_from(BODIES),
    loader=st.sampled_from(list(LOADERS)),
    batches=st.integers(1, 5),
    accumulate=st.integers(1, 4),
    max_epochs=st.sampled_from([2, 3, 1, 0]),
    max_steps=st.none() | st.integers(0, 8),
    min_steps=st.sampled_from([0, 0, 0, 3]),
    min_epochs=st.sampled_from([0, 0, 0, 1]),
    eval_every=st.sampled_from(["epoch", None, 1, 2, 3]),
    evaluates=st.booleans(),
    saves=st.sampled_from([False, False, True]),
    holds=st.booleans(),
    asks=st.lists(
        st.tuples(st.sampled_from(EVENTS), st.sampled_from([1, 2, 3, 5]), st.sampled_from([*REQUESTS, "fail"])),
        min_size=1,
        max_size=8,
    ),
    acts=st.just({}) | st.dictionaries(st.integers(0, 8), ACTS, max_size=2),
).filter(lambda p: p.min_epochs <= p.max_epochs and p.min_steps <= (5 if p.max_steps is None else p.max_steps))


class Asker:
    """Replies what the plan says, when it says so; counts and notes its own closing."""

    def __init__(self, asks, closed):
        self._closed, self.asked = closed, Counter()
        self._plan = {}
        for event, time, what in asks:
            self._plan.setdefault((event, time), []).append(what)
        self._seen = Counter()
        for event in EVENTS:
            setattr(self, f"on_{event}", lambda event, state: self._answer(event))

    def _answer(self, event):
        self._seen[event.name] += 1
        what = self._plan.pop((event.name, self._seen[event.name]), [])
        if "fail" in what:
            raise Deliberate("planned")
        self.asked.update(what)
        return tuple(REQUESTS[w]() for w in what)

    def close(self):
        self._closed.append(self)


class Run:
    """One planned run and what came of it."""

    def __init__(self, plan, folder, bus=None):
        self.plan, self.closed, self.error, self.raised = plan, [], None, None
        self.model = torch.nn.Linear(1, 1, bias=False)
        limits = {w: getattr(plan, w) for w in ("max_epochs", "max_steps", "min_epochs", "min_steps")}
        if plan.body == "updates" and plan.max_steps is None:
            limits["max_steps"] = 5
        self.askers = [Asker(plan.asks[i::2], self.closed) for i in range(2)]
        self.loop = Loop(
            self.model,
            torch.optim.SGD(self.model.parameters(), lr=0.1),
            run_dir=folder if plan.saves else None,
            **limits,
            accumulate=plan.accumulate,
            evaluate=(lambda: {"eval_loss": 1.0}) if plan.evaluates else None,
            eval_every=plan.eval_every,
            callbacks=self.askers,
            bus=bus,
        )
        self.loop.carry_out(Carried, lambda request: None)
        self.lines = Recorder(self.loop.bus, lambda event, state: event)
        self._turn, self._held = itertools.count(), []
        with contextlib.ExitStack() as caught:
            try:
                caught.enter_context(self.lines.handle)
                self._train()
            except BaseException as error:
                self.error = error

    def _train(self):
        loop, plan = self.loop, self.plan
        with loop:
            if plan.body in ("epochs", "own update", "own loop in epochs"):
                for _ in loop.epochs():
                    inner = self._batches() if plan.body == "own loop in epochs" else loop.batches(self._batches())
                    if self._turns(inner):
                        return
            elif plan.body == "batches alone":
                for _ in range(3):
                    if self._turns(loop.batches(self._batches())):
                        return
            else:
                self._turns(loop.updates() if plan.body == "updates" else range(5))

    def _batches(self):
        return LOADERS[self.plan.loader]([torch.ones(2, 1)] * self.plan.batches)

    def _turns(self, turns):
        """One epoch's turns of the body; True if it is to return."""
        if self.plan.holds:
            self._held.append(turns)
        for _ in turns:
            what, when = self.plan.acts.get(next(self._turn), (None, None))
            if when == "after":
                self._update()
            if what == "continue":
                continue
            if what == "break":
                break
            if what == "return":
                return True
            if what is not None:
                self.raised = ERRORS[what]("planned")
                raise self.raised
            if when is None:
                self._update()
            if self.plan.body.startswith("own loop") and self.loop.over:
                break
        return False

    def _update(self):
        loss = self.model(torch.ones(2, 1)).sum()
        if self.plan.body == "own update":
            self.loop.gradients_ready()
            self.loop.step_end(loss=loss)
        else:
            self.loop.backward(loss)
            self.loop.update()

    @property
    def names(self):
        return [name for name, *_ in self.lines]

    def at(self, name):
        return [step for line, step, _ in self.lines if line == name]


@contextlib.contextmanager
def carried_out(plan):
    with tempfile.TemporaryDirectory() as folder:
        yield Run(plan, f"{folder}/run")


def made_no_update(run):
    return isinstance(run.error, RuntimeError) and "made no update" in str(run.error)


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
