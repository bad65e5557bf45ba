"""The settings of a replay: how they are written, what they may be, and what the record cannot judge."""

import json
import logging
import string

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from small_runs import SCORES, count

from callbacks import EarlyStopping, ModelCheckpoint
from eventloop.cli import main
from eventloop.literal import literal, literals
from eventloop.replay import replay, sweep


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(logging.getLogger("eventloop"), "disabled", True)


@pytest.fixture
def run_dir(tmp_path):
    saver, stopper = ModelCheckpoint("eval_loss"), EarlyStopping("eval_loss", patience=9)
    count(tmp_path, saver, stopper, scores=SCORES, max_steps=6, journal="full")
    return tmp_path


def told(run_dir, *settings):
    options = [word for setting in settings for word in ("--set", setting)]
    return json.loads(CliRunner().invoke(main, ["replay", str(run_dir), *options, "--json"]).output)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        *(("true", True), ("True", True), ("FALSE", False), ("none", None), ("null", None), ("None", None)),
        *(
            ("5", 5),
            ("1e-3", 0.001),
            ("(1, 2)", (1, 2)),
            ("'true'", "true"),
            ("eval_loss", "eval_loss"),
            ("a.b", "a.b"),
        ),
    ],
)
def test_a_value_is_a_literal_or_one_of_yamls_words_and_else_a_text(text, value):
    """Broken by Python's spelling alone: "false" was a text, and true."""
    assert literal(text) == value
    assert type(literal(text)) is type(value)


PLAIN = st.none() | st.booleans() | st.integers() | st.text(string.ascii_letters + " ,'\"([{", max_size=5)


@given(st.lists(PLAIN | st.lists(PLAIN, max_size=3) | st.tuples(PLAIN, PLAIN), min_size=1, max_size=5))
def test_values_are_read_back_whatever_commas_are_in_them(values):
    """Broken by a split at every comma."""
    assert literals(",".join(map(repr, values))) == values


@pytest.mark.parametrize("text", ["1,,2", ",1", "1,", "", " "])
def test_an_empty_value_is_an_error_that_says_which(text):
    number = [not part.strip() for part in text.split(",")].index(True) + 1
    with pytest.raises(ValueError, match=f"value {number} of {text!r} is empty"):
        literals(text)


def test_the_words_of_yaml_reach_the_callback(run_dir):
    """Broken by handing on the text "false"."""
    played = told(run_dir, "EarlyStopping.strict=false,true", "ModelCheckpoint.every_steps=none")
    assert [one["settings"]["EarlyStopping.strict"] for one in played] == [False, True]
    assert {one["settings"]["ModelCheckpoint.every_steps"] for one in played} == {None}


def test_the_values_of_one_setting_given_twice_add_up(run_dir):
    """Broken by the last one alone."""
    played = told(run_dir, "EarlyStopping.patience=2", "EarlyStopping.patience=1,3")
    assert [one["settings"]["EarlyStopping.patience"] for one in played] == [2, 1, 3]


@pytest.mark.parametrize("who", ["EarlyStopping", "ModelCheckpoint"])
def test_a_metric_that_the_record_does_not_have_is_said_to_be_unknown(run_dir, who):
    """Broken by the silence of a decider that never hears of it."""
    played = replay(run_dir, {f"{who}.monitor": "nope_loss"})
    assert played.unknown == ("the record has no metric 'nope_loss'; there are eval_loss, loss",)
    assert replay(run_dir, {f"{who}.monitor": "loss"}).unknown == ()


def test_another_mode_is_the_mode_by_which_the_best_is_told(run_dir):
    """Broken by the mode of whoever comes first."""
    played = replay(run_dir, {"EarlyStopping.mode": "max"})
    assert (played.mode, played.best, played.best_recorded) == ("max", (0.9, 1), (0.9, 1))
    assert "best: eval_loss (max) 0.9 at update 1, the same as in the record" in str(played)


@pytest.mark.parametrize(
    ("settings", "error", "message"),
    [
        ("EarlyStopping.patience=2", TypeError, 'must be a mapping such as {"EarlyStopping.patience": 5}'),
        ({"patience": 2}, ValueError, "'patience' names no setting: write it as CALLBACK.SETTING"),
        ({5: 2}, ValueError, "5 names no setting"),
    ],
)
def test_settings_of_another_form_are_refused_before_anything_is_read(settings, error, message):
    with pytest.raises(error) as refused:
        replay("no such run", settings)
    assert message in str(refused.value)


@pytest.mark.parametrize(
    ("grid", "error", "message"),
    [
        ("EarlyStopping.patience=2", TypeError, 'must be a mapping such as {"EarlyStopping.patience": [2, 3, 5]}'),
        (
            {"EarlyStopping.patience": 2},
            TypeError,
            "grid['EarlyStopping.patience']=2 must be a list of values, such as [2]",
        ),
        ({"EarlyStopping.mode": "max"}, TypeError, "grid['EarlyStopping.mode']='max' must be a list of values"),
        (
            {"EarlyStopping.patience": []},
            ValueError,
            "grid['EarlyStopping.patience'] is empty: give at least one value",
        ),
        ({"patience": [2]}, ValueError, "'patience' names no setting"),
    ],
)
def test_a_grid_of_another_form_is_refused_before_anything_is_read(grid, error, message):
    with pytest.raises(error) as refused:
        sweep("no such run", grid)
    assert message in str(refused.value)


class Half:
    """Takes numbers alone."""

    def __init__(self, share=0.5):
        self.share = share
        self._half = share / 2

    def on_train_begin(self, event, state):
        if self.share > 1:
            raise ValueError("above 1")

    def bind(self):
        if self.share > 9:
            raise LookupError("far above 1")


@pytest.mark.parametrize(
    ("value", "message"),
    [("text", "Half cannot be made with {'share': 'text'}: TypeError"), (10.0, "the run cannot begin so: far above 1")],
)
def test_a_value_that_the_callback_cannot_take_is_an_error_and_no_traceback(tmp_path, value, message):
    """Broken by letting every error of a constructor through, and by calling a failed bind the end of a run."""
    count(tmp_path, Half(), max_steps=3, journal="full")
    with pytest.raises(ValueError) as refused:  # noqa: PT011  # matched below
        replay(tmp_path, {"Half.share": value})
    assert message in str(refused.value)
