"""A replay says what it has verified: who decided anew, who could not, and whether the recording is whole."""

import importlib
import json
import logging
import sys

import pytest
from click.testing import CliRunner
from small_runs import SCORES, count

from callbacks import EarlyStopping, ModelCheckpoint, WarmupCosine
from eventloop import Bus, Priority, SetLR, Stop
from eventloop.cli import main
from eventloop.replay import replay


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(logging.getLogger("eventloop"), "disabled", True)


def command(*arguments):
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


RISING = {step: 1.0 + step for step in range(1, 20)}


class Plateau:
    """Halves the rate after some evaluations without a better one."""

    priority = Priority.DECIDE

    def __init__(self, patience=2):
        self.patience, self._best, self._count = patience, None, 0

    def on_eval_end(self, event, state):
        better = self._best is None or state.metrics["eval_loss"] < self._best
        self._best = state.metrics["eval_loss"] if better else self._best
        self._count = 0 if better else self._count + 1
        return SetLR(state.lr["group_0"] / 2) if self._count >= self.patience else None


def plateau(run_dir, *more, **options):
    count(run_dir, Plateau(), *more, scores=RISING, max_steps=6, journal="full", **options)
    return run_dir


STRAYED = (
    "from update {} on the learning rate of group_0 differs from the record; the metrics behind it are the record's"
)


@pytest.mark.parametrize(("patience", "update"), [(1, 3), (4, 4)])
def test_a_rate_that_differs_from_the_record_makes_what_follows_unknown(tmp_path, patience, update):
    """Broken by believing the metrics whatever the rate."""
    played = replay(plateau(tmp_path), {"Plateau.patience": patience})
    assert played.unknown == (STRAYED.format(update),)


def test_the_recorded_rates_set_live_are_no_difference(tmp_path):
    """Broken by calling every rate that is set live another one."""
    count(tmp_path, WarmupCosine(2, 9), Plateau(99), scores=RISING, max_steps=6, journal="full")
    same, other = (replay(tmp_path, {"WarmupCosine.warmup_steps": steps}) for steps in (2, 5))
    assert (same.live, same.unknown, same.verified) == (("WarmupCosine",), (), True)
    assert other.unknown == (STRAYED.format(1),)


def test_a_callback_that_fails_with_its_new_settings_is_an_error(tmp_path):
    """Broken by leaving its failures on the bus."""
    done = command(plateau(tmp_path), "--set", "Plateau.patience=three")
    assert done.exit_code == 2
    assert "failed: Plateau failed at eval_end of step 1: TypeError: '>=' not supported" in done.output
    assert "(and 5 times more)" in done.output
    assert "error: with these settings Plateau failed at eval_end of step 1: TypeError" in done.output
    played = replay(tmp_path, {"Plateau.patience": "three"})
    assert [failure.subscription for failure in played.failures] == ["Plateau"] * 6
    assert played.as_json()["failures"][0].startswith("Plateau failed at eval_end of step 1")


class Brittle:
    """Fails once, and decides all the same."""

    def __init__(self, stop_at=5):
        self.stop_at = stop_at

    def on_step_end(self, event, state):
        if state.step == 2:
            raise ZeroDivisionError("planned")
        return Stop("there") if state.step == self.stop_at else None


def test_a_failure_that_the_record_has_too_is_no_news(tmp_path):
    """Broken by telling every failure of the replay."""
    count(tmp_path, Brittle(), max_steps=9, journal="full")
    for played in (replay(tmp_path), replay(tmp_path, {"Brittle.stop_at": 4})):
        assert (played.live, played.failures, played.verified) == (("Brittle",), (), True)


class Exhaustible:
    """Can be built as often as ``left`` says."""

    left = 99

    def __init__(self):
        Exhaustible.left -= 1
        if Exhaustible.left < 0:
            raise RuntimeError("no more of us")

    def on_step_end(self, event, state):
        return Stop("there") if state.step == 4 else None


def test_a_stop_by_one_who_cannot_be_built_anew_is_not_verified(tmp_path, monkeypatch):
    """Broken by saying "reproduced" because the ledger is the record's own."""
    count(tmp_path, Exhaustible(), max_steps=9, journal="full")
    monkeypatch.setattr(Exhaustible, "left", 0)
    done = command(tmp_path)
    assert done.exit_code == 1
    first = "not verified: Exhaustible: Exhaustible cannot be made with {}: RuntimeError: no more of us"
    assert done.output.splitlines()[0] == first
    played = replay(tmp_path)
    assert (played.reproduced, played.verified) == (True, False)


def test_a_stop_by_a_function_is_not_verified(tmp_path):
    bus = Bus()
    bus.on("step_end", lambda event, state: Stop() if state.step == 4 else None, name="enough")
    count(tmp_path, EarlyStopping("eval_loss", patience=9), bus=bus, scores=RISING, max_steps=6, journal="full")
    done = command(tmp_path, "--set", "EarlyStopping.patience=2", "--json")
    told = json.loads(done.output)
    assert (done.exit_code, told["stopped_at"], told["reproduced"], told["verified"]) == (1, 3, False, False)
    assert "it is a function" in told["unverified"]["enough"]


def test_without_run_json_nothing_is_verified_and_it_is_said_that_it_is_missing(tmp_path):
    """Broken by taking everybody for a function."""
    count(tmp_path / "asked", ModelCheckpoint("eval_loss"), scores=RISING, max_steps=3, journal="full")
    count(tmp_path / "silent", EarlyStopping("eval_loss"), scores=RISING, max_steps=2, journal="full")
    for run, who in [("asked", "ModelCheckpoint: run.json is missing"), ("silent", "run.json: it is missing")]:
        (tmp_path / run / "run.json").unlink()
        done = command(tmp_path / run)
        assert (done.exit_code, done.output.startswith(f"not verified: {who}")) == (1, True)
        assert "function" not in done.output
    done = command(tmp_path / "silent", "--set", "EarlyStopping.patience=1")
    assert (done.exit_code, "EarlyStopping.patience: run.json is missing" in done.output) == (2, True)


class Whimsical:
    """Decides by how many of it there have been."""

    made = 0

    def __init__(self, least=1):
        self.least = least
        Whimsical.made += 1
        self._number = Whimsical.made

    def on_step_end(self, event, state):
        return Stop("whim") if state.step == self._number + self.least else None


def test_who_decides_otherwise_with_its_own_settings_verifies_nothing_with_others(tmp_path, monkeypatch):
    """Broken by asking only whether the run came out again while it was played as it was."""
    monkeypatch.setattr(Whimsical, "made", 0)
    count(tmp_path, Whimsical(), max_steps=9, journal="full")
    played = replay(tmp_path, {"Whimsical.least": 3})
    assert (played.live, played.reproduced, played.verified) == (("Whimsical",), False, False)
    assert played.as_json()["reproduced"] is False
    assert "not verified: Whimsical: built anew it decides otherwise on the same numbers" in str(played)


def test_who_is_not_decided_anew_is_listed_and_a_setting_makes_it_live(tmp_path):
    """Broken by naming the deciders alone."""
    plateau(tmp_path, EarlyStopping("eval_loss", patience=9))
    told = str(replay(tmp_path)).splitlines()
    assert told[0].endswith("(decided anew: EarlyStopping)")
    assert told[1:] == ["not decided anew: Plateau (it set rates, and asked for nothing)"]
    played = replay(tmp_path, {"Plateau.patience": 2})
    assert (played.live, played.not_anew, played.unknown) == (("Plateau", "EarlyStopping"), {}, ())


def rows_of(run_dir):
    return (run_dir / "journal.jsonl").read_text().splitlines(keepends=True)


@pytest.mark.parametrize("first", [1, 8, 9, 20])
def test_rows_cut_out_of_the_midst_are_counted(tmp_path, first):
    """Broken by rows without a number: that of one evaluation leaves no gap in the counters."""
    rows = rows_of(plateau(tmp_path))
    (tmp_path / "journal.jsonl").write_text("".join(rows[:first] + rows[first + 2 :]))
    with pytest.raises(ValueError, match=r"journal.jsonl: 2 rows are missing"):
        replay(tmp_path)


def test_an_older_recording_without_numbers_is_read_and_a_gap_in_its_updates_is_seen(tmp_path):
    """Broken by rows that must have a number, and by counters that may jump."""
    rows = [json.loads(row) for row in rows_of(plateau(tmp_path))]
    old = [json.dumps({name: value for name, value in row.items() if name != "n"}) + "\n" for row in rows]
    (tmp_path / "journal.jsonl").write_text("".join(old))
    assert replay(tmp_path).verified
    kept = [text for text, row in zip(old, rows, strict=True) if row.get("step") not in (2, 3)]
    (tmp_path / "journal.jsonl").write_text("".join(kept))
    with pytest.raises(ValueError, match="lacks the rows between update 1 and update 4"):
        replay(tmp_path)


def test_a_record_without_an_end_is_said_to_be_open(tmp_path):
    """Broken by telling it only of a replay without settings."""
    rows = rows_of(plateau(tmp_path, EarlyStopping("eval_loss", patience=9)))
    assert "without an end" not in str(replay(tmp_path))
    (tmp_path / "journal.jsonl").write_text("".join(rows[:-1]))
    sentence = "the record ends at update 6 without an end: the run is still going on, or was killed"
    for setting in ([], ["--set", "EarlyStopping.patience=2"]):
        done = command(tmp_path, *setting)
        assert (done.exit_code, sentence in done.output.splitlines()) == (0, True)
        assert json.loads(command(tmp_path, *setting, "--json").output)["open"] is True


BEFORE = """
from eventloop import Callback, Stop

class Boom(Callback):
    def on_step_end(self, event, state):
        return Stop("boom") if state.step == 3 else None
"""
AFTER = """
from eventloop import Callback, Stop

class Boom(Callback):
    def on_epoch_end(self, event, state):
        return Stop("boom, and later")
"""


def test_a_class_that_has_changed_since_the_recording_is_said_to_have(tmp_path, monkeypatch):
    """Broken by handing on what the bus says of it."""
    monkeypatch.syspath_prepend(tmp_path)
    script = tmp_path / "changing_callback.py"
    script.write_text(BEFORE)
    count(tmp_path / "run", importlib.import_module("changing_callback").Boom(), max_steps=5, journal="full")
    script.write_text(AFTER)
    monkeypatch.delitem(sys.modules, "changing_callback")
    importlib.invalidate_caches()
    why = replay(tmp_path / "run").unverified["Boom"]
    monkeypatch.delitem(sys.modules, "changing_callback")
    assert why.startswith("Boom has changed since the recording: Boom has options for step_end")


def test_a_run_that_was_replayed_with_its_schedule_has_the_recorded_rates(tmp_path):
    count(
        tmp_path, WarmupCosine(3, 9), EarlyStopping("eval_loss", patience=2), scores=SCORES, max_steps=9, journal="full"
    )
    played = replay(tmp_path, {"WarmupCosine.eta_min": 0.0})
    assert (played.unknown, played.verified, played.stopped_at) == ((), True, replay(tmp_path).stopped_at)
