"""A run that was cut short, and went on in another process, is replayed as one history."""

import signal
import tempfile

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from small_runs import Count
from test_preemption import preempts
from test_replay import DECIDERS, VALUES, WHO

from callbacks import EarlyStopping, ModelCheckpoint, SignalStop, TimeLimit
from eventloop import Loop, Save, Stop
from eventloop.replay import replay
from eventloop.stream import read_stream

OPTIONS = st.fixed_dictionaries(
    {
        "eval_every": st.sampled_from(["epoch", 1, 2]),
        "accumulate": st.sampled_from([1, 2]),
        "saves": st.sampled_from(["wait", "skip", "sync"]),
    }
)
PLACES = ["step_begin", "step_end", "eval_begin", "eval_step", "eval_end", "epoch_begin", "epoch_end"]
STOPS = st.builds(preempts, st.integers(0, 8), st.sampled_from(PLACES), st.sampled_from([60.0, 60.0, 0.0]))


def sitting(folder, scores, *callbacks, max_steps=9, **options):
    """One process of a run whose evaluations draw three batches; it goes on if there is something to go on from."""
    model = Count()

    def evaluate():
        seen = sum(1 for _ in loop.eval_batches(range(3)))
        return {"eval_loss": scores[loop.state.step], "seen": float(seen)}

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    options |= {"evaluate": evaluate, "callbacks": callbacks, "resume": "auto", "journal": "full"}
    loop = Loop(model, optimizer, run_dir=folder, max_steps=max_steps, overwrite=True, **options)
    with loop:
        for _ in loop.epochs():
            for _ in loop.batches(range(4)):
                loop.backward(model())
                loop.update()
    return loop.result


@settings(max_examples=40)
@given(st.lists(VALUES, min_size=10, max_size=10), WHO, OPTIONS, st.lists(STOPS, min_size=1, max_size=2), st.booleans())
@example([1.0] * 10, ["best"], {"eval_every": 1, "accumulate": 1, "saves": "sync"}, [preempts(2, "eval_step")], True)
@example([1.0] * 10, ["every 2"], {"eval_every": 1, "accumulate": 1, "saves": "wait"}, [preempts(4)], True)
@example([1.0] * 10, ["best"], {"eval_every": 2, "accumulate": 1, "saves": "sync"}, [preempts(4, within=0.0)], False)
def test_a_replay_of_a_preempted_run_reproduces_its_ledger(scores, who, options, stops, goes_on):
    """Broken by an evaluation that is made where none was, by a deadline that outlives its process, and by a save that
    is made where there was no time for it."""
    with tempfile.TemporaryDirectory() as folder:
        for stop in [*stops, *([None] if goes_on else [])]:
            sitting(folder, scores, *(DECIDERS[name]() for name in who), *([stop] if stop else []), **options)
        played = replay(folder)
    assert played.reproduced, played
    assert played.unknown == ()


def test_an_evaluation_that_was_given_up_is_none_in_a_replay(tmp_path):
    """Broken by metrics of nothing: the best of the replay would be another."""
    scores = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5]
    for stop in ([preempts(3, "eval_step", batch=2)], []):
        sitting(tmp_path, scores, EarlyStopping("eval_loss", patience=9), *stop, eval_every=1, max_steps=5)
    played = replay(tmp_path)
    assert played.reproduced, played
    assert played.best == played.best_recorded
    assert (played.status, played.step) == ("completed", 5)


def test_the_end_of_a_preempted_run_is_that_of_the_record(tmp_path):
    sitting(tmp_path, [0.5] * 10, ModelCheckpoint("eval_loss"), preempts(3), eval_every=1)
    assert replay(tmp_path).status == "preempted"
    sooner = replay(tmp_path, {"ModelCheckpoint.save_top_k": 2})
    assert (sooner.status, sooner.step) == ("preempted", 3)


def test_of_the_batches_of_evaluations_the_full_journal_has_those_that_were_answered(tmp_path):
    """Broken by a row for each batch, and by none: nobody could tell where a stop came from."""

    class Asks:
        def on_eval_step(self, event, state):
            return Save("here") if (state.step, event.batch) == (2, 3) else None

    sitting(tmp_path, [0.5] * 10, Asks(), eval_every=1, max_steps=4)
    found = [row for row in read_stream(tmp_path) if row["event"] == "eval_step"]
    assert [(row["step"], row["batch"], row["total"]) for row in found] == [(2, 3, 3)]
    assert found[0]["asked"] == [["Asks", "Save", "here"]]
    assert replay(tmp_path).reproduced


@pytest.mark.parametrize("make", [SignalStop, lambda: TimeLimit(0.001, margin=0)])
def test_what_watches_the_process_is_not_built_anew(tmp_path, make, monkeypatch):
    """Broken by a replay that takes the process's signals for itself."""

    class Sends:
        def on_step_begin(self, event, state):
            if state.step == 2 and watcher.__class__ is SignalStop:
                signal.raise_signal(signal.SIGUSR1)

    watcher = make()
    sitting(tmp_path, [0.5] * 10, watcher, Sends(), eval_every=1)
    monkeypatch.setattr("signal.signal", None)
    played = replay(tmp_path)
    assert (played.reproduced, played.status, played.live) == (True, "preempted", ())
    assert list(played.as_it_was.values()) == ["what it asks comes from outside the run, by a signal or a clock"]


class Watches:
    """Stops the run by what it sees at the batches of its evaluations."""

    def on_eval_step(self, event, state):
        return Stop("seen") if (state.step, event.batch) == (3, 2) else None


def test_a_decider_that_hears_the_batches_of_evaluations_is_not_built_anew(tmp_path):
    """Broken by building it anew: it would hear of the answered batches alone."""
    sitting(tmp_path, [0.5] * 10, Watches(), eval_every=1)
    played = replay(tmp_path)
    assert (played.reproduced, played.status, played.step) == (True, "stopped", 3)
    assert played.as_it_was == {"Watches": "it hears eval_step, which the record has only where somebody answered"}
