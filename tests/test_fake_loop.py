"""A FakeLoop does what a Loop does; only its numbers are written down before the run."""

import json
import logging
import subprocess
import sys
import tempfile

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from planned_runs import Asker

from eventloop import Loop, Save, SetLR, StepBegin, StepEnd, Stop
from eventloop.callbacks import EarlyStopping, ModelCheckpoint, WarmupCosine
from eventloop.testing import Clock, FakeLoop, Recorder

LOSSES = [1.0, 0.9, 0.8, 0.7, 0.6, 0.5, 0.4, 0.3]


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(logging.getLogger("eventloop"), "disabled", True)


LIMITS = st.fixed_dictionaries(
    {
        "max_epochs": st.integers(0, 3),
        "max_steps": st.none() | st.integers(0, 7),
        "accumulate": st.integers(1, 3),
        "eval_every": st.sampled_from(["epoch", None, 1, 2]),
    }
)
ASKS = st.lists(
    st.tuples(
        st.sampled_from(["train_begin", "step_begin", "gradients_ready", "step_end", "eval_end", "epoch_end"]),
        st.sampled_from([1, 2, 3]),
        st.sampled_from(["stop", "save", "evaluate", "skip", "orphan", "fail"]),
    ),
    max_size=5,
)


def trace(loop, train):
    def line(event, state):
        what = event.tags if event.name == "checkpoint_saved" else event  # paths differ
        return what, state.replace(run_id="", elapsed=0.0, metrics={})

    lines = Recorder(loop.bus, line)
    train()
    return [str(line) for line in lines], str(loop.result), [str(entry) for entry in loop.result.ledger]


@given(LIMITS, st.integers(1, 4), ASKS, st.booleans())
def test_it_publishes_counts_and_settles_as_a_loop_with_a_model_does(limits, updates, asks, evaluates):
    """Broken by a FakeLoop whose window reports no micro-batch, and by one that evaluates after epoch_end."""
    fake = FakeLoop(
        [Asker(asks, [])],
        metrics={"loss": 0.5},
        evaluations={"eval_loss": 1.0} if evaluates else None,
        updates=updates,
        **limits,
    )
    weight = torch.nn.Linear(1, 1)
    evaluate = (lambda: {"eval_loss": 1.0}) if evaluates else None
    optimizer = torch.optim.SGD(weight.parameters(), lr=0.1)
    with tempfile.TemporaryDirectory() as folder:
        askers = [Asker(asks, [])]
        real = Loop(weight, optimizer, evaluate=evaluate, callbacks=askers, run_dir=folder, saves="sync", **limits)

        def train():
            with real:
                for _ in real.epochs():
                    for _ in real.batches(range(updates)):
                        real.backward(weight(torch.ones(1)).sum())
                        real.update()

        expected = trace(real, train)
    assert trace(fake, fake.run) == expected


def test_a_run_as_long_as_its_longest_list_stops_where_a_callback_says(fake_loop):
    loop = fake_loop([EarlyStopping("eval_loss", patience=2)], evaluations={"eval_loss": [1.0, 0.9, 0.95, 0.97, 0.5]})
    assert str(loop.run()) == (
        "stopped after update 16 by EarlyStopping: eval_loss has not improved on 0.9 for 2 evaluations "
        "(20 % of 20 planned updates not spent)"
    )


def test_metrics_come_from_numbers_lists_and_functions_and_none_is_missing(fake_loop, bus):
    lines = Recorder(bus, lambda event, state: dict(state.metrics) if event.name == "step_end" else None)
    fake_loop(metrics={"a": 1.0, "b": [0.1, None, 0.3], "c": lambda turn: turn * 10.0}).run()
    assert [line[2] for line in lines if line[0] == "step_end"] == [
        {"a": 1.0, "b": 0.1, "c": 10.0},
        {"a": 1.0, "c": 20.0, "b": 0.1},  # b is an old one
        {"a": 1.0, "b": 0.3, "c": 30.0},
    ]


def test_a_skipped_turn_is_no_update_and_the_script_goes_on(fake_loop, bus):
    ends = Recorder(bus, lambda event, state: (getattr(event, "skipped", None), state.metrics.get("loss")))
    result = fake_loop(metrics={"loss": LOSSES[:4]}, skipped={2}, max_epochs=1).run()
    assert result.step == 3
    turns = [line[2] for line in ends if line[0] == "step_end"]
    assert turns == [(False, 1.0), (True, 0.9), (False, 0.8), (False, 0.7)]


def test_what_the_script_raises_ends_the_run_as_it_would_in_a_real_body(fake_loop, recorder):
    loop = fake_loop(fails={3: ZeroDivisionError("planned")}, max_epochs=2)
    with pytest.raises(ZeroDivisionError, match="planned"):
        loop.run()
    assert (loop.result.status, loop.result.step) == ("failed", 2)
    assert recorder.names[-3:] == ["step_begin", "run_failed", "train_end"]


def test_a_body_that_leaves_ends_its_epoch_as_not_completed(fake_loop, bus):
    lines = Recorder(bus, lambda event, state: getattr(event, "completed", None))
    assert fake_loop(leaves=2, max_epochs=3).run().step == 2
    assert [line[2] for line in lines if line[0] == "epoch_end"] == [False]


def test_time_is_the_clocks_alone(fake_loop, clock, bus):
    seen = []
    bus.on(StepEnd, lambda event, state: seen.append(state.elapsed), every={"seconds": 20}, name="each 20 s")
    fake_loop(seconds=8.0, updates=6).run()
    assert seen == [24.0, 40.0]
    assert clock() == 48.0


def test_rates_are_set_by_schedules_and_have_the_names_given(fake_loop, bus):
    rates = Recorder(bus, lambda event, state: dict(state.lr), priority=-2000)
    bus.on(StepBegin, lambda event, state: SetLR({"head": 0.5}), name="sets")
    fake_loop(lr={"head": 1.0, "body": 2.0}, updates=1).run()
    assert [line[2] for line in rates if line[0] == "step_end"] == [{"head": 0.5, "body": 2.0}]


def test_calls_by_hand_take_numbers_in_place_of_losses(fake_loop, recorder):
    with fake_loop(max_steps=2, accumulate=2) as loop:
        for _ in loop.batches(range(8)):
            loop.backward(2.0)
            loop.update()
    assert loop.result.step == 2
    assert loop.state.metrics["loss"] == 2.0
    assert recorder.names.count("step_end") == 2


class Counts:
    """Asks for a save and a stop by its own count."""

    def __init__(self):
        self.count = 0

    def on_step_end(self, event, state):
        self.count += 1
        return (Save(), Stop("enough")) if self.count >= 5 else Save()

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


def test_checkpoints_in_memory_are_those_of_their_moment_and_a_run_resumes_from_each(fake_loop):
    script = {"metrics": {"loss": LOSSES}}
    first = fake_loop([Counts()], **script)
    whole = str(first.run())
    assert whole.startswith("stopped after update 5 by Counts")
    assert [checkpoint.step for checkpoint in first.checkpoints] == [1, 2, 3, 4, 5]
    for checkpoint in first.checkpoints[:-1]:
        second = fake_loop([Counts()], **script, resume=checkpoint)
        assert str(second.run()) == whole


def test_a_state_that_is_not_plain_is_found_at_once(fake_loop):
    class Odd(Counts):
        def state_dict(self):
            return {"count": object()}

    with pytest.raises(TypeError, match=r"bus.callbacks.Odd.count is a builtins.object"):
        fake_loop([Odd()]).run()


def test_retention_is_that_of_real_checkpoints(fake_loop):
    scores = [0.5, 0.3, 0.4, 0.2, 0.6]
    loop = fake_loop([ModelCheckpoint("eval_loss", save_top_k=2)], evaluations={"eval_loss": scores}, updates=1)
    loop.run()
    assert loop.kept == [2, 4, 5]
    assert [checkpoint.step for checkpoint in loop.checkpoints] == [1, 2, 3, 4, 5]


def test_with_a_run_dir_the_folder_is_real_and_resume_auto_goes_on(fake_loop, tmp_path):
    options = {"metrics": {"loss": LOSSES}, "run_dir": tmp_path / "run"}
    with pytest.raises(KeyboardInterrupt):
        fake_loop([WarmupCosine(2), Counts()], **options, fails={4: KeyboardInterrupt()}).run()
    assert (tmp_path / "run" / "journal.jsonl").is_file()
    second = fake_loop([WarmupCosine(2), Counts()], **options, resume="auto")
    assert str(second.run()).startswith("stopped after update 5 by Counts")
    assert second.kept[-1] == 5


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"updates": 0}, "updates=0 must be a whole number >= 1"),
        ({"metrics": {"loss": "low"}}, r"metrics\['loss'\]='low' must be a number, a list or a function"),
        ({"evaluations": [1.0]}, r"evaluations=\[1.0\] must be a mapping"),
        ({"resume": "auto"}, "resume='auto' needs a run_dir"),
        ({"max_steps": -1}, "max_steps=-1 must be a whole number >= 0"),
        ({"eval_every": "day"}, "eval_every='day'"),
        ({"skipped": {0}}, r"skipped=\{0\}: 0 is no turn; turns are whole numbers, the first is 1"),
        ({"skipped": [2, "3"]}, r"skipped=\[2, '3'\]: '3' is no turn"),
        ({"skipped": 3}, "skipped=3 must be a set of turns"),
        ({"leaves": 0}, "leaves=0 must be a whole number >= 1"),
        ({"leaves": "end"}, "leaves='end' must be a whole number >= 1"),
        ({"fails": {1: "x"}}, r"fails\[1\]='x' must be an error that can be raised"),
        ({"fails": {1: OSError}}, r"fails\[1\]=<class 'OSError'> must be an error"),
        ({"fails": {0: OSError()}}, r"fails=.*: 0 is no turn"),
        ({"fails": [OSError()]}, r"fails=\[OSError\(\)\] must be a mapping of turns to errors"),
        ({"seconds": -1}, "seconds=-1 must be a number >= 0"),
        ({"seconds": float("nan")}, "seconds=nan must be a number >= 0"),
        ({"clock": 5}, "clock=5 must be a Clock"),
        ({"lr": "high"}, "lr='high' must be a finite number >= 0, or one for each group"),
        ({"lr": {"head": -0.1}}, r"lr\['head'\]=-0.1 must be a finite number >= 0"),
    ],
)
def test_a_wrong_script_is_refused_by_name(options, message):
    with pytest.raises(ValueError, match=message):
        FakeLoop(**options)


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (Counts(), r"callbacks = <.*Counts object.*: give a list, FakeLoop\(\[...\]\)"),
        ([Counts], r"callbacks = \[Counts\]: that is a class; write Counts\(...\)"),
    ],
)
def test_callbacks_are_a_list_of_objects(callbacks, message):
    with pytest.raises(TypeError, match=message):
        FakeLoop(callbacks)
    with pytest.raises(TypeError, match=r"FakeLoop\(bus=\): 5 is no Bus"):
        FakeLoop(bus=5)


def test_turns_behind_the_end_of_a_run_are_no_mistake():
    script = {"skipped": {9}, "fails": {9: OSError()}, "leaves": 9}
    assert FakeLoop(metrics={"loss": [1.0, 2.0]}, **script).run().step == 2


def test_a_clock_goes_on_when_told_and_never_back():
    clock = Clock(5.0)
    clock.advance(2.5)
    assert clock() == 7.5
    assert repr(clock) == "Clock(7.5)"
    with pytest.raises(ValueError, match="must be a number >= 0"):
        clock.advance(-1.0)
    with pytest.raises(ValueError, match="must be a number >= 0"):
        clock.advance(float("nan"))


def test_a_whole_run_loads_no_torch():
    code = (
        "import sys, json\n"
        "from eventloop.testing import FakeLoop\n"
        "from eventloop.callbacks import EarlyStopping, ModelCheckpoint, WarmupCosine\n"
        "parts = [WarmupCosine(2), EarlyStopping('eval_loss', patience=1), ModelCheckpoint('eval_loss')]\n"
        "loop = FakeLoop(parts, metrics={'loss': 1.0}, evaluations={'eval_loss': [1.0, 2.0, 3.0]})\n"
        "loop.run()\n"
        "print(json.dumps([loop.result.step, sorted({'torch', 'hypothesis', 'pytest'} & set(sys.modules))]))\n"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == [8, []]
