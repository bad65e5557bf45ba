"""A replay of an unchanged run reproduces its ledger exactly; what the record cannot tell is said, never guessed."""

import contextlib
import dataclasses
import itertools
import json
import logging
import math
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import assume, example, given
from hypothesis import strategies as st
from planned_runs import PLANS, Plan, Run
from small_runs import SCORES, Count, Cut, count, cut_at

from callbacks import EarlyStopping, ModelCheckpoint, NaNGuard, WarmupCosine
from eventloop import Bus, Evaluate, Event, Loop, Report, Save, SetLR, Stop
from eventloop.replay import replay


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(logging.getLogger("eventloop"), "disabled", True)


DECIDERS = {
    "patience 1": lambda: EarlyStopping("eval_loss", patience=1),
    "patience 2": lambda: EarlyStopping("eval_loss", patience=2, min_steps=3),
    "best": lambda: ModelCheckpoint("eval_loss", save_top_k=2),
    "every 2": lambda: ModelCheckpoint(every_steps=2),
    "every epoch": lambda: ModelCheckpoint(every_epochs=1, save_top_k=2),
    "guard": lambda: NaNGuard("eval_loss"),
    "schedule": lambda: WarmupCosine(2, 20),
}
WHO = st.lists(st.sampled_from(sorted(DECIDERS)), unique=True, max_size=3)


def asks(event, time, what, **options):
    plan = Plan("epochs", "list", 2, 1, 2, None, 0, 0, "epoch", True, True, asks=[(event, time, what)])
    return dataclasses.replace(plan, **options)


@given(PLANS, WHO, st.sampled_from(["wait", "skip", "sync"]))
@example(asks("epoch_begin", 1, "save"), [], "sync")
@example(asks("step_end", 2, "save"), ["best"], "sync")
@example(asks("eval_end", 1, "fail"), ["patience 1"], "sync")
@example(asks("step_end", 1, "orphan", min_epochs=1, eval_every=1), ["patience 1"], "sync")
@example(asks("checkpoint_saved", 1, "stop", body="own loop"), [], "sync")
@example(asks("epoch_end", 1, "stop", eval_every=None), ["best", "every epoch"], "sync")
@example(asks("epoch_begin", 2, "stop", body="own loop", acts={0: ("break", "before")}), [], "sync")
@example(asks("checkpoint_saved", 1, "stop", max_epochs=3, eval_every=None), ["every 2"], "wait")
def test_a_replay_of_an_unchanged_run_reproduces_its_ledger(plan, who, saves):
    """Broken by telling of each checkpoint where its state was taken,
    by a boundary at the end of every epoch, by requests of the user's that are always obeyed, and by going on
    where a stop was asked for at the last save, and by a last evaluation that always stands before the epoch's end."""
    with tempfile.TemporaryDirectory() as folder:
        bus = Bus()
        for name in who:
            bus.attach(DECIDERS[name]())
        Run(dataclasses.replace(plan, saves=True), f"{folder}/run", bus, journal="full", saves=saves)
        assume(Path(folder, "run", "journal.jsonl").exists())  # a body may leave before anything has begun
        played = replay(f"{folder}/run")
    assert played.reproduced, played
    assert not {name for name in played.as_it_was if not name.startswith("Asker")}


class Measures:
    """Reports, sets rates and asks for evaluations."""

    def on_step_end(self, event, state):
        return [Evaluate(), Report(x=float(state.step))] if state.step % 4 == 2 else None

    def on_eval_end(self, event, state):
        return SetLR(0.5) if state.step % 3 == 0 else None


def sitting(folder, scores, who, number, *extra, **options):
    model = Count()
    callbacks = [*(DECIDERS[name]() for name in who), Measures(), *extra]
    loop = Loop(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        run_dir=folder,
        callbacks=callbacks,
        max_steps=8 + 3 * number,
        evaluate=lambda: {"eval_loss": scores[loop.state.step]},
        journal="full",
        resume="auto" if number else None,
        **options,
    )
    with contextlib.suppress(Cut, KeyboardInterrupt), loop:
        for _ in loop.epochs():
            for _ in loop.batches(range(3)):
                loop.backward(model())
                loop.update()
    return loop


VALUES = st.sampled_from([1.0, 0.9, 0.5, 0.5, math.nan, math.inf, 0.3])
OPTIONS = st.fixed_dictionaries(
    {
        "eval_every": st.sampled_from(["epoch", None, 1, 2]),
        "min_steps": st.sampled_from([0, 4]),
        "accumulate": st.sampled_from([1, 2]),
        "saves": st.sampled_from(["wait", "skip", "sync"]),
    }
)


@given(
    st.lists(VALUES, min_size=20, max_size=20),
    WHO,
    OPTIONS,
    st.lists(st.sampled_from([3, 5, 7]), min_size=1, max_size=3),
)
@example(
    [1.0] * 20, ["every 2", "patience 1"], {"eval_every": 1, "min_steps": 4, "accumulate": 1, "saves": "sync"}, [3]
)
def test_a_run_of_several_sittings_is_replayed_as_one_history(scores, who, options, cuts):
    """Broken by a refusal that is said once over all sittings, and by requests that outlive the process they were made
    in."""
    with tempfile.TemporaryDirectory() as folder:
        for number, cut in enumerate([*cuts, None]):
            sitting(folder, scores, who, number, *([] if cut is None else [cut_at(cut)]), **options)
        played = replay(folder)
    assert played.reproduced, played
    assert set(played.as_it_was) <= {"Measures"}


class Greets:
    """Asks whenever a process takes the run up."""

    def on_train_begin(self, event, state):
        return [Save("hello"), Stop("enough")] if state.step >= 6 else [Save("hello"), SetLR(0.5)]


def test_what_was_asked_when_a_run_was_taken_up_again_is_asked_again(tmp_path):
    """Broken by passing over the beginnings of later processes."""
    for number, extra in enumerate([[cut_at(4)], [], []]):
        sitting(tmp_path, SCORES | dict.fromkeys(range(10, 20), 0.5), ["every 2"], number, Greets(), *extra)
    played = replay(tmp_path)
    assert played.reproduced, played
    assert [entry.step for entry in played.ledger if entry.who == "Greets"] == [0, 4, 11, 11]
    assert "Greets" in played.as_it_was


def test_a_stop_that_comes_where_a_process_ended_is_not_passed_over(tmp_path):
    """Broken by going on with the next process whatever was decided."""
    for number in range(2):
        sitting(tmp_path, dict.fromkeys(range(1, 20), 0.5), ["best"], number, EarlyStopping("eval_loss", patience=9))
    assert replay(tmp_path).reproduced
    for patience, step in enumerate([3, 6, 8], 1):
        played = replay(tmp_path, {"EarlyStopping.patience": patience})
        assert (played.stopped_at, played.status) == (step, "stopped")


class Breaks:
    """Puts a file in the place of the checkpoints' folder at one update, and takes it away at another."""

    def __init__(self, folder, broken, mended):
        self.root, self.broken, self.mended = folder / "checkpoints", broken, mended

    def on_step_begin(self, event, state):
        if state.step == self.broken:
            self.root.rename(self.root.with_name("away"))
            self.root.write_text("in the way")
        if state.step == self.mended:
            self.root.unlink()
            self.root.with_name("away").rename(self.root)


@pytest.mark.parametrize("saves", ["sync", "wait"])
@pytest.mark.parametrize("policy", ["isolate", "stop", "raise"])
def test_saves_that_have_failed_fail_again_by_the_policy_of_who_asked(tmp_path, policy, saves):
    """Broken by saves that always succeed, and by telling at once of those that failed later."""
    run_dir = tmp_path / "run"
    bus = Bus()
    bus.attach(ModelCheckpoint(every_steps=1), failure=policy)
    with contextlib.suppress(OSError):
        count(run_dir, Breaks(run_dir, 3, 5), bus=bus, max_steps=7, journal="full", saves=saves)
    if not (run_dir / "checkpoints").is_dir():
        (run_dir / "checkpoints").unlink()
    played = replay(run_dir)
    assert played.reproduced, played
    assert any(entry.fate == "refused" for entry in played.ledger) == (policy != "raise" or saves == "wait")
    assert played.live == ("ModelCheckpoint",)


@pytest.mark.parametrize("error", [ZeroDivisionError("planned"), KeyboardInterrupt()])
def test_a_run_that_was_ended_by_an_error_ends_by_it_again(tmp_path, error):
    class Late:
        def on_step_end(self, event, state):
            return Save("late") if state.step == 3 else None

    loop = Loop(
        model := Count(),
        torch.optim.SGD(model.parameters(), lr=1.0),
        run_dir=tmp_path,
        callbacks=[Late()],
        max_steps=9,
        journal="full",
    )
    with contextlib.suppress(ZeroDivisionError, KeyboardInterrupt), loop:
        for update in loop.updates():
            loop.backward(model())
            loop.update()
            if update == 3:
                raise error
    played = replay(tmp_path)
    assert played.reproduced, played
    assert [entry.fate for entry in played.ledger] == ["expired"]
    assert played.status == loop.result.status


@pytest.mark.parametrize("error", [ZeroDivisionError("planned"), KeyboardInterrupt()])
def test_a_stop_keeps_the_run_from_the_error_that_came_later(tmp_path, error):
    """Broken by raising the recorded error before what was asked for is carried out."""
    loop = Loop(
        model := Count(),
        torch.optim.SGD(model.parameters(), lr=1.0),
        run_dir=tmp_path,
        callbacks=[StopsAt(9)],
        max_steps=9,
        journal="full",
    )
    with contextlib.suppress(ZeroDivisionError, KeyboardInterrupt), loop:
        for update in loop.updates():
            loop.backward(model())
            loop.update()
            if update == 5:
                raise error
    assert replay(tmp_path).status == loop.result.status
    early, late = (replay(tmp_path, {"StopsAt.step": step}) for step in (4, 5))
    assert (early.status, early.stopped_at, early.unknown) == ("stopped", 4, ())
    assert (late.status, late.stopped_at) == ("stopped", 5)
    assert late.unknown == ("whether the stop of update 5 or the error that came there was first",)


def test_an_evaluation_that_has_failed_fails_again(tmp_path):
    """Broken by an evaluation that gives nothing in place of its error."""
    scores = {1: 1.0, 2: 2.0}
    with pytest.raises(KeyError):
        count(tmp_path, ModelCheckpoint(every_steps=1), scores=scores, max_steps=9, journal="full")
    played = replay(tmp_path)
    assert (played.reproduced, played.status, played.step) == (True, "failed", 3)
    assert [entry.fate for entry in played.ledger] == ["granted", "granted", "expired"]


def test_nothing_is_written_into_the_runs_folder(tmp_path):
    count(tmp_path, ModelCheckpoint("eval_loss"), scores=SCORES, max_steps=6, journal="full")
    before = {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")}
    replay(tmp_path)
    replay(tmp_path, {"ModelCheckpoint.save_top_k": 2})
    assert {path: (path.stat().st_mtime_ns, path.stat().st_size) for path in tmp_path.rglob("*")} == before


def test_a_replay_loads_no_torch_where_the_deciders_need_none(tmp_path):
    count(
        tmp_path, EarlyStopping("eval_loss"), ModelCheckpoint("eval_loss"), scores=SCORES, max_steps=6, journal="full"
    )
    program = (
        "import sys; from eventloop.replay import replay; played = replay(sys.argv[1], {'EarlyStopping.patience': 1})\n"
        "print(played.stopped_at, sorted({'torch', 'click', 'hypothesis'} & sys.modules.keys()))"
    )
    command = [sys.executable, "-c", program, str(tmp_path)]
    done = subprocess.run(command, check=True, cwd=Path(__file__).parent.parent, capture_output=True, text=True)
    assert done.stdout == "3 []\n"


def test_a_short_journal_is_refused_and_it_is_said_how_to_record_a_full_one(tmp_path):
    count(tmp_path, EarlyStopping("eval_loss"), scores=SCORES, max_steps=3)
    with pytest.raises(ValueError, match=r"short journal.* record it by Loop\(..., journal='full'\)"):
        replay(tmp_path)


@pytest.mark.parametrize(
    ("row", "message"),
    [({"event": "missing", "time": 0, "rows": 17}, "lacks 17 rows"), ({"event": "truncated", "time": 0}, "truncated")],
)
def test_a_recording_that_is_not_whole_is_refused(tmp_path, row, message):
    count(tmp_path, max_steps=3, journal="full")
    with (tmp_path / "journal.jsonl").open("a") as file:
        file.write(json.dumps(row) + "\n")
    with pytest.raises(ValueError, match=message):
        replay(tmp_path)


def test_a_run_that_was_resumed_from_another_folder_is_refused(tmp_path):
    count(tmp_path / "first", max_steps=3, journal="full")
    checkpoint = tmp_path / "first" / "checkpoints" / "step-00000003"
    count(tmp_path / "second", max_steps=6, journal="full", resume=checkpoint)
    with pytest.raises(ValueError, match="begins at update 3: the run was resumed from another folder"):
        replay(tmp_path / "second")


def test_a_function_that_decides_is_played_as_it_was_and_named(tmp_path):
    bus = Bus()

    @bus.on("step_end", name="enough")
    def stop(event, state):
        return Stop("enough") if state.step == 4 else None

    count(tmp_path, bus=bus, max_steps=9, journal="full")
    played = replay(tmp_path)
    assert (played.reproduced, played.stopped_at, played.stopped_by) == (True, 4, "enough")
    assert "run.json does not name it" in played.as_it_was["enough"]


class ByHand:
    """Decides by what no record can know."""

    answers = itertools.count()

    def on_step_end(self, event, state):
        return Stop("by hand") if next(self.answers) == 3 else None


def test_who_decides_otherwise_on_the_same_numbers_is_played_as_it_was(tmp_path):
    """Broken by believing whoever can be built anew."""
    count(tmp_path, ByHand(), max_steps=9, journal="full")
    played = replay(tmp_path)
    assert (played.reproduced, played.stopped_at, played.live) == (True, 4, ())
    assert played.as_it_was == {"ByHand": "built anew it decides otherwise on the same numbers"}


class StopsAt:
    """A decider of a user's own."""

    def __init__(self, step, evaluate_at=None):
        self.step, self.evaluate_at = step, evaluate_at

    def on_step_end(self, event, state):
        if state.step == self.evaluate_at:
            return Evaluate()
        return Stop("there") if state.step == self.step else None


def test_a_decider_of_the_users_own_runs_live_with_other_settings(tmp_path):
    count(tmp_path, StopsAt(5), max_steps=9, journal="full")
    assert replay(tmp_path).live == ("StopsAt",)
    played = replay(tmp_path, {"StopsAt.step": 3})
    assert (played.stopped_at, played.stopped_by, played.reason, played.saved) == (3, "StopsAt", "there", 2)


def test_an_evaluation_that_was_not_recorded_is_said_to_be_unknown(tmp_path):
    """Broken by evaluating all the same."""
    count(tmp_path, StopsAt(9), scores=SCORES, max_steps=6, eval_every=2, journal="full")
    played = replay(tmp_path, {"StopsAt.evaluate_at": 3})
    assert played.unknown == ("an evaluation at update 3, where none was recorded",)
    assert [entry.note for entry in played.ledger] == ["no evaluation was recorded here"]


def test_a_later_stop_than_the_record_has_is_not_guessed(tmp_path):
    scores = {step: float(step) for step in range(1, 10)}
    count(tmp_path, EarlyStopping("eval_loss", patience=3), scores=scores, max_steps=9, journal="full")
    played = replay(tmp_path, {"EarlyStopping.patience": 5})
    assert (played.status, played.stopped_at, played.step) == ("open", None, 4)
    assert "would not have stopped within the 4 recorded updates" in str(played)


def test_an_update_that_would_have_been_skipped_is_said_to_be_unknown(tmp_path):
    model = Count()
    guard = NaNGuard("loss", action="skip")
    loop = Loop(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        run_dir=tmp_path,
        callbacks=[guard],
        max_steps=4,
        journal="full",
    )
    with loop:
        for update in loop.updates():
            loop.backward(model() * (math.nan if update == 2 and not loop.state.skipped else 1.0))
            loop.update()
    assert replay(tmp_path).reproduced
    played = replay(tmp_path, {"NaNGuard.monitor": "other"})
    assert played.unknown == (
        "update 2 if it is made: it was skipped, as NaNGuard asked",
        "the record has no metric 'other'; there are loss",
    )


def test_a_decider_that_looks_after_the_model_is_given_one_without_parameters(tmp_path):
    stopper = EarlyStopping("eval_loss", patience=1, restore_best=True)
    count(tmp_path, stopper, scores=SCORES, max_steps=9, journal="full")
    played = replay(tmp_path)
    assert (played.reproduced, played.live, played.stopped_at) == (True, ("EarlyStopping",), 3)


class NewsOfOurs(Event):
    """Published by hand."""


def test_what_was_published_by_hand_is_answered_as_it_was(tmp_path):
    class Listens:
        def on_news_of_ours(self, event, state):
            return (Report(heard=1.0), Save("news"))

    model = Count()
    loop = Loop(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        run_dir=tmp_path,
        callbacks=[Listens(), ModelCheckpoint("heard", mode="max", every_steps=2)],
        max_steps=4,
        journal="full",
    )
    with loop:
        for _ in loop.updates():
            loop.backward(model())
            loop.update()
            loop.publish(NewsOfOurs())
    played = replay(tmp_path)
    assert played.reproduced, played
    assert played.live == ("ModelCheckpoint",)


def test_a_run_that_is_still_going_on_is_replayed_as_far_as_it_is(tmp_path):
    scores = {step: float(step) for step in range(1, 10)}
    count(tmp_path, EarlyStopping("eval_loss", patience=9), scores=scores, max_steps=9, journal="full")
    journal = tmp_path / "journal.jsonl"
    lines = journal.read_text().splitlines(keepends=True)
    journal.write_text("".join(lines[:-4]))
    assert replay(tmp_path).status == "open"
    assert replay(tmp_path, {"EarlyStopping.patience": 3}).stopped_at == 4
