"""A stop that says `within`: the process will be killed, so the run is cut short, saved if that fits, and resumed."""

import logging
import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import Count, checkpoints, count, on_disk, said
from test_exact_resume import Script, assert_same, sit

from callbacks import EarlyStopping, JSONLLogger, ModelCheckpoint
from eventloop import Loop, Stop, read_metrics


def preempts(step, event="step_end", within=60.0, batch=None):
    """A callback that says at an event of a step that the process will be killed."""

    class Preempts:
        def answer(self, event, state):
            here = state.step == step and batch in (None, getattr(event, "batch", None))
            return Stop("told to", within) if here else None

    setattr(Preempts, f"on_{event}", Preempts.answer)
    return Preempts()


SCRIPTS = st.builds(
    Script,
    accumulate=st.integers(1, 3),
    eval_every=st.sampled_from(["epoch", 1, 2, 3]),
    save_every=st.integers(1, 4),
    noise=st.booleans(),
    own_generator=st.booleans(),
    scaled=st.booleans(),
)


@settings(max_examples=15)
@given(script=SCRIPTS, data=st.data())
def test_a_preempted_run_goes_on_exactly_where_it_was(tmp_path_factory, script, data):
    """Fails if an epoch whose evaluation is still owed counts as complete, or if the stop counts as a verdict."""
    whole = sit(script, tmp_path_factory.mktemp("whole"))
    steps = whole["end"][3]
    step = data.draw(st.integers(1, steps), label="step")
    event = data.draw(st.sampled_from(["step_end", "step_begin", "eval_end", "epoch_end"]), label="event")
    run_dir = tmp_path_factory.mktemp("cut")
    first = sit(script, run_dir, also=preempts(step, event))
    rest = sit(script, run_dir)
    if first["end"][0] == "preempted":
        assert first["end"][3] in (step, step + 1)
        stops = [line for line in rest["decisions"] if line[1] == "Stop"]
        assert len(stops) == 1
        rest["decisions"] = sorted(line for line in rest["decisions"] if line not in stops)
        assert_same(rest, {**whole, "decisions": sorted(whole["decisions"])})  # two saves of one step may change places


def test_it_says_preempted_saves_that_very_update_and_has_an_exit_code_of_its_own(tmp_path):
    loop = count(tmp_path, preempts(3), max_steps=9)
    result = loop.result
    assert (result.status, result.stopped_by, result.reason, result.exit_code) == (
        "preempted",
        "Preempts",
        "told to",
        75,
    )
    assert str(result).startswith("preempted after update 3 by Preempts: told to")
    assert {step: float(c.load()["model"]["w"]) for step, c in checkpoints(tmp_path).items()} == {3: 3.0}
    assert count(tmp_path, preempts(3), max_steps=9, resume="auto").result.status == "completed"


def test_no_minimum_holds_it(tmp_path):
    loop = count(tmp_path, preempts(2), max_steps=9, min_steps=5)
    assert (loop.result.status, loop.result.step, loop.result.refused) == ("preempted", 2, ())


def test_no_last_evaluation_is_made_and_the_one_that_is_due_waits_for_the_resume(tmp_path):
    scores = {2: 0.5, 4: 0.4}
    loop = count(tmp_path, preempts(2), scores=scores, eval_every=2, max_steps=4)
    assert loop.state.evals == 0
    loop = count(tmp_path, scores=scores, eval_every=2, max_steps=4, resume="auto")
    assert (loop.state.evals, loop.result.status) == (2, "completed")


def evaluated_in_batches(run_dir, *callbacks, **options):
    """Three updates, each followed by an evaluation of four batches; returns the loop and what evaluate saw."""
    model, seen = Count(), []

    def evaluate():
        seen.append([])
        for batch in loop.eval_batches([10, 20, 30, 40]):
            seen[-1].append(batch)
        return {"eval_loss": float(seen[-1][3])}  # an IndexError, should it see fewer

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loop = Loop(model, optimizer, run_dir=run_dir, evaluate=evaluate, eval_every=1, callbacks=callbacks, **options)
    with loop:
        for _ in loop.updates():
            loop.backward(model())
            loop.update()
    return loop, seen


class Ends:
    def __init__(self):
        self.completed = []

    def on_eval_end(self, event, state):
        self.completed.append((event.completed, sorted(state.metrics.fresh), state.evals))


def test_an_evaluation_is_given_up_at_the_next_batch_and_made_again_after_the_resume(tmp_path):
    """Fails if what the user's evaluate makes of fewer batches counts as an evaluation."""
    handlers = [EarlyStopping("eval_loss"), ModelCheckpoint("eval_loss"), JSONLLogger(every=1)]
    ends = Ends()
    loop, seen = evaluated_in_batches(tmp_path, *handlers, ends, preempts(2, "eval_step", batch=3), max_steps=3)
    assert (loop.result.status, loop.result.step, loop.result.failures) == ("preempted", 2, ())
    assert seen == [[10, 20, 30, 40], [10, 20]]
    assert ends.completed == [(True, ["eval_loss"], 1), (False, [], 1)]
    handlers = [EarlyStopping("eval_loss"), ModelCheckpoint("eval_loss"), JSONLLogger(every=1)]
    loop, seen = evaluated_in_batches(tmp_path, *handlers, max_steps=3, resume="auto")
    assert seen == [[10, 20, 30, 40]] * 2
    assert handlers[0].count == 2
    rows = [row["step"] for row in read_metrics(tmp_path) if row["event"] == "eval_end"]
    assert rows == [1, 2, 3]


def test_without_the_stop_a_batch_more_changes_nothing(tmp_path):
    heard = []

    class Hears:
        def on_eval_step(self, event, state):
            heard.append((event.batch, event.total))

    loop, _ = evaluated_in_batches(None, Hears(), max_steps=1)
    assert heard == [(1, 4), (2, 4), (3, 4), (4, 4)]
    assert loop.state.metrics["eval_loss"] == 40.0


def test_a_save_that_does_not_fit_is_left_out_and_said(tmp_path, caplog):
    """Fails if the estimate is not looked at: the process would be killed in the midst of a save."""
    saver = ModelCheckpoint(every_steps=1, save_top_k=-1)
    with caplog.at_level(logging.WARNING, "eventloop"):
        loop = count(tmp_path, saver, preempts(3, within=0.0), max_steps=9, saves="sync")
    assert loop.result.status == "preempted"
    assert on_disk(tmp_path) == {1, 2}
    assert "refused: Save by ModelCheckpoint (it takes about " in str(loop.result)
    assert str(loop.result).endswith("s; the newest is that of step 2)")
    assert any(text.startswith("the checkpoint of step 3 is left out: it takes about ") for text in said(caplog))
    assert count(tmp_path, saver, max_steps=9, resume="auto").result.step == 9


def test_a_stop_of_the_runs_own_that_came_first_stays_the_verdict(tmp_path):
    scores = {1: 0.5, 2: 0.6, 3: 0.7, 4: 0.8}
    stopper = EarlyStopping("eval_loss", patience=1)
    loop = count(tmp_path, stopper, preempts(2, "epoch_end"), scores=scores, max_steps=4)
    assert (loop.result.status, loop.result.stopped_by) == ("stopped", "EarlyStopping")
    again = count(tmp_path, EarlyStopping("eval_loss", patience=1), scores=scores, max_steps=4, resume="auto")
    assert (again.result.status, again.result.step) == ("stopped", 2)


@pytest.mark.parametrize("within", [-1.0, math.nan, math.inf, "soon", True])
def test_an_impossible_time_is_refused_with_its_value(within):
    with pytest.raises(ValueError, match=r"Stop: within=.* must be seconds >= 0, or None"):
        Stop("now", within)


@pytest.mark.parametrize("first", [True, False])
def test_a_stop_of_the_runs_own_at_the_same_evaluation_is_the_verdict_in_either_order(tmp_path, first):
    """Fails if the first stop of a boundary is the only one: the resumed run would train on."""
    scores = {1: 0.5, 2: 0.6, 3: 0.4}
    handlers = [preempts(2, "eval_end"), EarlyStopping("eval_loss", patience=1)]
    handlers[0].priority = 1 if first else -999
    assert count(tmp_path, *handlers, scores=scores, max_steps=3).result.status == "stopped"
    again = count(tmp_path, EarlyStopping("eval_loss", patience=1), scores=scores, max_steps=3, resume="auto")
    assert (again.result.status, again.result.step) == ("stopped", 2)
