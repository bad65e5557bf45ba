"""How long a run is, and the arguments that say so."""

import pytest
from loops import ask, batches, model_and_optimizer, recorded, train

from callbacks import EarlyStopping
from eventloop import Loop, Stop


@pytest.fixture
def parts():
    return model_and_optimizer()


@pytest.mark.parametrize("limit", [{"max_epochs": 0}, {"max_steps": 0}])
def test_with_a_limit_of_0_nothing_is_evaluated_saved_or_begun(parts, limit, tmp_path):
    model, optimizer = parts
    loop = Loop(model, optimizer, run_dir=tmp_path / "run", evaluate=lambda: {"a": 1.0}, **limit)
    lines = recorded(loop)
    train(loop, model, batches(2))
    assert lines.names == ["train_begin", "train_end"]
    assert not (tmp_path / "run" / "checkpoints").exists()


def test_a_stop_at_train_begin_leaves_nothing_to_do(parts, tmp_path):
    model, optimizer = parts
    loop = Loop(model, optimizer, run_dir=tmp_path / "run", max_epochs=1, evaluate=lambda: {"a": 1.0})
    ask(loop, "train_begin", Stop("not today"), name="doubter")
    lines = recorded(loop)
    result = train(loop, model, batches(2))
    assert lines.names == ["train_begin", "train_end"]
    assert str(result) == "stopped after update 0 by doubter: not today"


@pytest.mark.parametrize(("limits", "steps"), [((2, 3), 3), ((1, 9), 4), ((None, 6), 6), ((2, None), 8)])
def test_the_first_limit_reached_ends_the_run(parts, limits, steps):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=limits[0], max_steps=limits[1])
    assert train(loop, model, batches(4)).step == steps


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"max_epochs": -1}, "max_epochs=-1 must be a whole number >= 0 or None"),
        ({"max_steps": 2.0}, "max_steps=2.0 must be a whole number >= 0 or None"),
        ({"max_steps": True}, "max_steps=True must be a whole number >= 0 or None"),
        ({"min_steps": None}, "min_steps=None must be a whole number >= 0"),
        ({"min_epochs": 3, "max_epochs": 2}, "min_epochs=3 is above max_epochs=2"),
        ({"accumulate": 0}, "accumulate=0 must be a whole number >= 1"),
        ({"clip_norm": 0.0}, "clip_norm=0.0 must be a number above 0"),
        ({"clip_norm": "1"}, "clip_norm='1' must be a number above 0"),
        ({"clip_norm": float("nan")}, "clip_norm=nan must be a number above 0"),
        ({"eval_every": 0}, "eval_every=0 must be a whole number >= 1"),
        ({"eval_every": "step"}, "eval_every='step' must be 'epoch', None or a whole number of updates >= 1"),
        ({"handler_budget": 5}, "handler_budget=5 must be a share between 0 and 1, or None"),
        ({"resume": "auto"}, "resume='auto' needs a run_dir"),
    ],
)
def test_arguments_are_checked_at_once(parts, arguments, message):
    with pytest.raises(ValueError, match="^" + message.replace("(", r"\(")):
        Loop(*parts, **arguments)


def test_a_stop_before_min_steps_is_refused_and_must_be_asked_for_again(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1, min_steps=3)
    ask(loop, "step_end", Stop("bored"), name="bored")
    result = train(loop, model, batches(5))
    assert (result.step, result.status) == (3, "stopped")
    assert [str(e) for e in result.refused] == [
        "Stop by bored (bored) at step_end of step 1 refused: before min_steps=3"
    ]


def test_min_epochs_is_met_from_the_evaluation_of_that_epoch_on(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=5, min_epochs=2, evaluate=lambda: {"a": 1.0})
    fates = []
    loop.bus.on("eval_end", lambda event, state: Stop("judged"), name="judge")
    loop.bus.on("step_end", lambda event, state: Stop("early"), name="early")
    result = train(loop, model, batches(2))
    fates = [(e.who, e.step, e.fate) for e in result.ledger]
    assert fates == [("early", 1, "refused"), ("judge", 2, "refused"), ("judge", 4, "granted")]
    assert (result.step, result.stopped_by) == (4, "judge")


def test_a_stop_asked_for_at_step_begin_lets_that_update_be_done(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    ask(loop, "step_begin", Stop(), once=2)
    assert train(loop, model, batches(4)).step == 2


def test_early_stopping_asks_again_after_a_refusal_which_is_said_once(parts):
    model, optimizer = parts
    scores = iter([1.0, 1.0, 1.0, 0.5, 0.6])
    loop = Loop(
        model,
        optimizer,
        max_epochs=9,
        min_epochs=4,
        evaluate=lambda: {"eval_loss": next(scores)},
        callbacks=[EarlyStopping("eval_loss", patience=1)],
    )
    result = train(loop, model, batches(1))
    assert (result.step, result.stopped_by) == (5, "EarlyStopping")
    assert [(e.step, e.fate) for e in result.ledger] == [(2, "refused"), (5, "granted")]
    assert loop._run.ledger.totals == {"Stop refused": 2, "Stop granted": 1}


@pytest.mark.parametrize("event", ["step_end", "eval_end"])
def test_of_several_stops_the_first_is_the_one_that_ended_the_run(parts, event):
    """Fails if each stop that is granted takes the place of the one before."""
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=2, evaluate=lambda: {"a": 1.0})
    ask(loop, event, Stop("the first"), name="first")
    ask(loop, event, Stop("the second"), name="second")
    loop.bus.on("epoch_end", lambda event, state: Stop("the last"), name="last")
    result = train(loop, model, batches(1))
    assert (result.stopped_by, result.reason) == ("first", "the first")
    assert [(e.who, e.fate) for e in result.ledger] == [(who, "granted") for who in ("first", "second", "last")]
