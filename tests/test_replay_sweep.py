"""Other settings on the same numbers: a replay decides what the run would have decided; a grid gives a table."""

import json
import logging
import math
import tempfile

import pytest
from click.testing import CliRunner
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import count, on_disk

from callbacks import EarlyStopping, ModelCheckpoint, WarmupCosine
from eventloop import Bus, Stop
from eventloop.cli import main
from eventloop.replay import replay, sweep, table

LOSSES = {1: 0.9, 2: 0.5, 3: 0.6, 4: 0.4, 5: 0.7, 6: 0.6, 7: 0.3, 8: 0.8, 9: 0.9, 10: 0.5, 11: 0.6, 12: 0.9}


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(logging.getLogger("eventloop"), "disabled", True)


@pytest.fixture
def run_dir(tmp_path):
    """Twelve updates, stopped by a patience of 4 after the eleventh."""
    stopper, saver = EarlyStopping("eval_loss", patience=4), ModelCheckpoint("eval_loss", save_top_k=2)
    count(tmp_path / "run", WarmupCosine(3, 12), stopper, saver, scores=LOSSES, max_steps=12, journal="full")
    return tmp_path / "run"


def command(*arguments):
    return CliRunner().invoke(main, ["replay", *map(str, arguments)])


SCORES = st.lists(st.sampled_from([1.0, 0.9, 0.5, 0.5, math.nan, math.inf, 0.3]), min_size=8, max_size=8)


@settings(max_examples=settings.default.max_examples // 3)  # each of them writes a dozen checkpoints
@given(SCORES, st.integers(1, 4), st.sampled_from([0, 1, 2, -1]), st.sampled_from([0.0, 0.1]), st.sampled_from([0, 5]))
def test_a_replay_decides_what_a_run_with_these_settings_decides(scores, patience, top_k, min_delta, min_steps):
    """Broken by a patience that is one evaluation longer, and by checkpoints that are never removed."""
    known = dict(enumerate(scores, 1))
    options = {"scores": known, "max_steps": 8, "min_steps": min_steps}
    with tempfile.TemporaryDirectory() as folder:
        patient = EarlyStopping("eval_loss", patience=99), ModelCheckpoint("eval_loss", save_top_k=1)
        count(f"{folder}/recorded", *patient, journal="full", **options)
        real = (
            EarlyStopping("eval_loss", patience=patience, min_delta=min_delta),
            ModelCheckpoint("eval_loss", save_top_k=top_k),
        )
        loop = count(f"{folder}/real", *real, **options)
        changed = {"EarlyStopping.patience": patience, "EarlyStopping.min_delta": min_delta}
        played = replay(f"{folder}/recorded", changed | {"ModelCheckpoint.save_top_k": top_k})
        assert played.ledger == loop.result.ledger
        assert set(played.kept) == on_disk(loop._live["run_dir"])
        assert (played.status, played.step, played.stopped_by) == (
            loop.result.status,
            loop.result.step,
            loop.result.stopped_by,
        )


def test_it_tells_when_by_whom_why_what_was_kept_and_what_it_would_have_cost(run_dir):
    played = replay(run_dir, {"EarlyStopping.patience": 2})
    assert str(played).splitlines() == [
        "with EarlyStopping.patience=2: stopped after update 6 by EarlyStopping: eval_loss has not improved on 0.4 for "
        "2 evaluations; 5 of 11 updates saved (45 %)",
        "kept: 2, 4, 6",
        "best: eval_loss 0.4 at update 4; 0.3 at update 7 in the record (loss 0.1)",
    ]
    assert (played.best, played.best_recorded, played.kept) == ((0.4, 4), (0.3, 7), (2, 4, 6))


def test_without_settings_it_says_whether_the_ledger_came_out_again(run_dir):
    done = command(run_dir)
    assert done.exit_code == 0
    assert done.output == (
        "reproduced: all 6 lines of the ledger over 11 updates (decided anew: EarlyStopping, ModelCheckpoint)\n"
        "not decided anew: WarmupCosine (it set rates, and asked for nothing)\n"
    )


def test_a_ledger_that_does_not_come_out_again_is_said_with_the_first_difference(run_dir):
    journal = run_dir / "journal.jsonl"
    journal.write_text(journal.read_text().replace('"fate": "granted"', '"fate": "refused"', 1))
    done = command(run_dir)
    assert done.exit_code == 1
    assert "NOT reproduced" in done.output
    assert "record: Save by ModelCheckpoint (best) at eval_end of step 1 refused" in done.output
    assert "how exact this is" in command(run_dir, "--set", "EarlyStopping.patience=2").output


def test_a_grid_gives_a_row_for_every_combination(run_dir):
    grid = {"EarlyStopping.patience": [1, 2, 9], "ModelCheckpoint.save_top_k": [1, 3]}
    played = sweep(run_dir, grid)
    assert [tuple(p.settings.values()) for p in played] == [(1, 1), (1, 3), (2, 1), (2, 3), (9, 1), (9, 3)]
    assert played == [replay(run_dir, p.settings) for p in played]
    rows = table(played).splitlines()[2:]
    assert [row.split()[2] for row in rows] == ["3", "3", "6", "6", "not", "not"]


def test_the_command_prints_the_table(run_dir):
    done = command(run_dir, "--set", "EarlyStopping.patience=1,2", "--set", "ModelCheckpoint.save_top_k=1")
    assert done.exit_code == 0
    assert done.output.splitlines()[0].split("  ")[0] == "EarlyStopping.patience"
    assert "EarlyStopping  8 (73 %)" in done.output


def test_for_machines_there_is_strict_json(run_dir):
    one = json.loads(command(run_dir, "--set", "EarlyStopping.patience=2", "--json").output)
    assert (one["stopped_at"], one["saved"], one["best"]) == (6, 5, {"value": 0.4, "step": 4})
    several = json.loads(command(run_dir, "--set", "EarlyStopping.patience=1,2,3", "--json").output)
    assert [p["stopped_at"] for p in several] == [3, 6, 10]


def test_values_are_literals_and_else_texts(run_dir):
    done = command(run_dir, "--set", "EarlyStopping.mode=min,max", "--json")
    assert [p["settings"]["EarlyStopping.mode"] for p in json.loads(done.output)] == ["min", "max"]


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("EarlyStoping.patience=2", "no callback 'EarlyStoping' in this run; there are EarlyStopping, "),
        ("EarlyStopping.patiense=2", "EarlyStopping has no 'patiense'; it has patience, "),
        ("EarlyStopping.patience=0", "EarlyStopping: patience=0 must be a whole number >= 1"),
        ("EarlyStopping=2", "write it as CALLBACK.SETTING=VALUE, such as EarlyStopping.patience=5"),
        ("EarlyStopping.patience=1,,2", "--set EarlyStopping.patience=1,,2: value 2 of '1,,2' is empty"),
    ],
)
def test_a_setting_that_cannot_be_is_an_error_that_says_what_can(run_dir, setting, message):
    done = command(run_dir, "--set", setting)
    assert done.exit_code == 2
    assert message in done.output


def test_a_folder_without_a_journal_and_a_run_that_is_not_there_are_errors_of_their_own(tmp_path):
    for path, message in [(tmp_path, "has no journal"), (tmp_path / "no", f"there is no run at {tmp_path / 'no'}")]:
        done = command(path)
        assert (done.exit_code, message in done.output) == (2, True)


def test_who_runs_first_is_named_as_who_has_stopped_the_run(tmp_path):
    """Broken by stand-ins that all run behind the deciders."""
    bus = Bus()
    bus.on("eval_end", lambda event, state: Stop("first") if state.step == 3 else None, name="first")
    bus.on("eval_end", lambda event, state: Stop("last") if state.step == 3 else None, name="last", priority=-500)
    bus.attach(EarlyStopping("eval_loss", patience=9))
    count(tmp_path, bus=bus, scores=LOSSES, max_steps=8, journal="full")
    played = replay(tmp_path, {"EarlyStopping.patience": 1})
    assert [entry.who for entry in played.ledger] == ["first", "EarlyStopping", "last"]
    assert (played.stopped_by, played.reason) == ("first", "first")


def test_a_callback_is_named_by_its_class_where_there_is_but_one(tmp_path):
    bus = Bus()
    bus.attach(EarlyStopping("eval_loss", patience=9), name="patient")
    count(tmp_path, bus=bus, scores=LOSSES, max_steps=8, journal="full")
    by_class, by_name = (replay(tmp_path, {f"{name}.patience": 1}) for name in ("EarlyStopping", "patient"))
    assert by_class.stopped_by == by_name.stopped_by == "patient"
    assert by_class.stopped_at == by_name.stopped_at == 3
