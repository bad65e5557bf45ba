"""Checkpoints are written while the training goes on: what is stored, when it is told, and what the next save does."""

import threading

import pytest
from gated_runs import Gate, Life, asks, run, weights
from hypothesis import given
from hypothesis import strategies as st
from small_runs import on_disk

from callbacks import ModelCheckpoint
from eventloop.rows import read_rows


def test_training_goes_on_while_a_checkpoint_is_written_and_it_holds_its_own_moment(tmp_path):
    """Fails if the tensors are not copied: the checkpoint of update 1 would hold the weights of update 3."""
    gate, seen = Gate(), {}

    def let_go():
        seen["before"] = on_disk(tmp_path)
        gate.open.set()

    loop, lines = run(tmp_path, asks({1}), gate, at={1: gate.shut, 3: let_go})
    assert seen == {"before": set()}
    assert [line for line in lines if line[0] == "step"] == [("step", n) for n in (1, 2, 3, 4)]
    (told,) = [line[2] for line in lines if line[:2] == ("saved", 1)]
    assert told >= 3
    assert weights(tmp_path) == {1: 1.0, 4: 4.0}
    assert [(e.request, e.fate, e.decided) for e in loop.result.ledger] == [("Save", "granted", 1)]


def test_latest_moves_when_the_checkpoint_is_durable_and_not_before(tmp_path):
    gate, seen = Gate(), []
    latest = tmp_path / "checkpoints" / "latest"

    def look():
        assert gate.reached.wait(60)
        seen.append(latest.read_text() if latest.exists() else None)
        gate.open.set()

    run(tmp_path, asks({1}), gate, at={1: gate.shut, 2: look})
    assert seen == [None]
    assert latest.read_text() == "step-00000004"


def test_the_next_save_waits_for_the_one_on_its_way_and_hears_of_it_first(tmp_path):
    gate = Gate()
    opener = threading.Thread(target=lambda: gate.reached.wait(60) and gate.open.set())

    def shut():
        gate.shut()
        opener.start()

    _, lines = run(tmp_path, asks({1, 2}), gate, at={1: shut})
    opener.join()
    saved = [line[1] for line in lines if line[0] == "saved"]
    assert saved == [1, 2, 4]
    assert lines.index(("saved", 1, 2)) == lines.index(("step", 2)) + 1
    assert weights(tmp_path) == {1: 1.0, 2: 2.0, 4: 4.0}


def test_with_skip_the_next_save_is_left_out_and_counted(tmp_path):
    gate = Gate()
    loop, lines = run(tmp_path, asks({1, 2, 3}), gate, at={1: gate.shut, 4: gate.open.set}, saves="skip", max_steps=5)
    assert [line[1] for line in lines if line[0] == "saved"] == [1, 5]
    assert str(loop.result).endswith("refused: Save by Asks (another save was being written)")
    assert loop._run.ledger.totals == {"Save granted": 1, "Save refused": 2}


def test_a_save_that_may_not_be_skipped_waits_even_then(tmp_path):
    """Fails if `may_skip` is not looked at: the better model of update 2 would never be on disk."""
    gate, scores = Gate(), {1: 0.9, 2: 0.5, 3: 0.7}
    opener = threading.Thread(target=lambda: gate.reached.wait(60) and gate.open.set())

    def shut():
        gate.shut()
        opener.start()

    saver = ModelCheckpoint("eval_loss")
    options = {"eval_every": 1, "evaluate": lambda: {"eval_loss": scores[saver_loop["step"]]}, "saves": "skip"}
    saver_loop = {"step": 0}
    step = type("Steps", (), {"on_step_end": lambda self, event, state: saver_loop.update(step=state.step)})()
    loop, _ = run(tmp_path, saver, gate, step, at={1: shut}, max_steps=3, **options)
    opener.join()
    assert (saver.best_step, saver.best_score, on_disk(tmp_path)) == (2, 0.5, {2, 3})
    assert loop.result.refused == ()


@given(steps=st.sets(st.integers(1, 6)), saves=st.sampled_from(["wait", "sync"]))
def test_each_save_is_told_once_in_order_between_updates_and_before_the_end(tmp_path_factory, steps, saves):
    """Fails if a save that is still on its way at the run's end is not waited for."""
    run_dir = tmp_path_factory.mktemp("run")
    _, lines = run(run_dir, asks(steps), saves=saves, max_steps=6)
    saved = [line for line in lines if line[0] == "saved"]
    assert [step for _, step, _ in saved] == sorted(steps | {6})
    assert all(told >= step for _, step, told in saved)
    assert lines[-1] == ("completed", 6)
    assert weights(run_dir) == {step: float(step) for step in steps | {6}}
    if saves == "sync":
        assert all(told == step for _, step, told in saved)


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt()], ids=["an error", "Ctrl-C"])
def test_after_an_error_the_save_on_its_way_ends_well_and_nothing_is_told(tmp_path, error):
    gate, life = Gate(), Life()

    def fail():
        threading.Thread(target=lambda: gate.reached.wait(60) and gate.open.set()).start()
        raise error

    with pytest.raises(type(error)) as caught:
        run(tmp_path, asks({1}), gate, life, at={1: gate.shut, 2: fail})
    assert caught.value is error
    assert life.lines == [
        ("step", 1),
        ("step", 2),
        ({"ValueError": "failed"}.get(type(error).__name__, "interrupted"), 2),
    ]
    assert weights(tmp_path) == {1: 1.0}


def test_no_thread_is_left_and_none_is_started_without_a_save(tmp_path):
    before = set(threading.enumerate())
    run(tmp_path / "saving", asks({1}))
    run(None)
    assert not {thread.name for thread in set(threading.enumerate()) - before if "checkpoint" in thread.name}


def test_an_unknown_way_to_save_is_refused_by_name():
    with pytest.raises(ValueError, match=r"saves='later' must be 'wait', 'skip' or 'sync'"):
        run(None, saves="later")


def test_a_handler_that_fails_at_checkpoint_saved_does_not_make_the_save_a_refused_one(tmp_path):
    class Fails:
        failure = "raise"

        def on_checkpoint_saved(self, event, state):
            raise OSError("no network")

    gate = Gate()
    with pytest.raises(OSError, match="no network"):
        run(tmp_path, asks({1}), gate, Fails(), at={1: gate.shut, 2: gate.open.set})
    fates = [row["fate"] for row in read_rows(tmp_path / "journal.jsonl") if row.get("request") == "Save"]
    assert fates == ["granted"]
