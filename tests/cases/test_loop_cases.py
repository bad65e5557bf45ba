"""Handed cases that a whole loop has to get right, by their ids."""

import logging
from collections import Counter
from itertools import pairwise

import pytest
import torch

from callbacks import EarlyStopping, LearningRateMonitor, ModelCheckpoint, WarmupCosine
from eventloop import Bus, Evaluate, Loop, Save, SkipUpdate, Stop
from eventloop.checkpoint import Checkpoint, Checkpoints
from eventloop.testing import Recorder


def counter_model():
    """A model of one weight, which the body sets to the number of updates done."""
    model = torch.nn.Linear(1, 1, bias=False)
    with torch.no_grad():
        model.weight.zero_()
    return model, torch.optim.SGD(model.parameters(), lr=0.0)


def run(loop, model, batches=1, weight=lambda state: state.step):
    """Train; behind each update the weight becomes ``weight(state)``."""
    with loop:
        for _ in loop.epochs():
            for _ in loop.batches([torch.ones(1, 1)] * batches):
                loop.backward(model(torch.ones(1, 1)).sum())
                loop.update()
                with torch.no_grad():
                    model.weight.fill_(float(weight(loop.state)))
    return loop.result


def saved(loop):
    """The steps of the checkpoints on disk with the weights in them."""
    found = Checkpoints(loop._run.folder.checkpoints.root, "").list()
    return {c.step: c.load()["model"]["weight"].item() for c in found}


# -- C27: one handler's exception takes the others, or the training, down ----------------------------------------------


def c27(policy, bus):
    model, optimizer = counter_model()
    loop, calls = Loop(model, optimizer, max_steps=10, bus=bus), Counter()

    def log(event, state):
        raise OSError("disk full")

    def stop(event, state):
        return Stop("at 4") if state.step == 4 else None

    with (
        bus.on("step_end", log, name="logger", failure=policy),
        bus.on("step_end", lambda event, state: calls.update(["counter"]), name="counter"),
        bus.on("step_end", stop, name="stopper"),
    ):
        return run(loop, model, batches=20), calls


def test_c27_a_failing_logger_costs_neither_the_others_nor_the_stop(caplog):
    bus = Bus()
    for _ in range(2):  # the next run on the same bus works
        caplog.clear()
        result, calls = c27("isolate", bus)
        assert (result.step, result.stopped_by, calls["counter"]) == (4, "stopper", 4)
        assert result.failure_counts == {"logger": 4}
        errors = [r.message for r in caplog.records if r.levelno == logging.ERROR]
        assert errors == ["logger failed at step_end of step 1: OSError: disk full"]


def test_c27_the_error_of_one_that_must_not_fail_reaches_the_caller():
    with pytest.raises(OSError, match="disk full"):
        c27("raise", Bus())


# -- C29: after a crash nothing is closed and the run stays "running" --------------------------------------------------


class Writer:
    """Buffers rows and writes them when it is closed."""

    def __init__(self):
        self.life, self.buffer, self.written = [], [], []

    def on_train_begin(self, event, state):
        self.life.append("begin")

    def on_step_end(self, event, state):
        self.buffer.append(state.step)

    def on_train_end(self, event, state):
        self.life.append(event.status)

    def close(self):
        self.life.append("close")
        self.written, self.buffer = self.buffer, []


def test_c29_a_crash_closes_every_handler_once_and_ends_as_a_failure():
    model, optimizer = counter_model()
    writers, error = [Writer(), Writer()], RuntimeError("crash")

    def crash(state):
        if state.step == 2:
            raise error
        return 0

    with pytest.raises(RuntimeError) as caught:
        run(Loop(model, optimizer, max_steps=9, callbacks=writers), model, batches=9, weight=crash)
    assert caught.value is error
    for writer in writers:
        assert writer.life == ["begin", "failed", "close"]
        assert writer.written == [1, 2]


def test_c29_a_run_that_ends_normally_has_written_all_its_rows():
    model, optimizer = counter_model()
    writer = Writer()
    run(Loop(model, optimizer, max_steps=2, callbacks=[writer]), model, batches=2)
    assert writer.life == ["begin", "completed", "close"]
    assert writer.written == [1, 2]


# -- C31: the best weights come back only if the early stop itself fired -----------------------------------------------


@pytest.mark.parametrize(
    ("scores", "restore", "weight"),
    [
        ([1.0, 0.5, 0.6, 0.7], True, 2.0),
        ([1.0, 0.5, 0.6, 0.7], False, 4.0),
        ([1.0, 0.9, 0.8, 0.7], True, 4.0),
        ([1.0, 0.9, 0.8, 0.7], False, 4.0),
    ],
)
def test_c31_the_best_weights_come_back_whatever_ended_the_run(scores, restore, weight):
    model, optimizer = counter_model()
    series = iter(scores)
    stopper = EarlyStopping("eval_loss", patience=10, restore_best=restore)
    loop = Loop(model, optimizer, max_epochs=4, evaluate=lambda: {"eval_loss": next(series)}, callbacks=[stopper])
    run(loop, model, weight=lambda state: state.epoch)
    assert loop.result.status == "completed"
    assert model.weight.item() == weight


def test_c31_the_weights_are_swapped_after_the_last_save(tmp_path):
    model, optimizer = counter_model()
    series = iter([1.0, 0.5, 0.6, 0.7])
    stopper = EarlyStopping("eval_loss", patience=10, restore_best=True)
    loop = Loop(
        model,
        optimizer,
        run_dir=tmp_path / "run",
        max_epochs=4,
        evaluate=lambda: {"eval_loss": next(series)},
        callbacks=[stopper],
    )
    run(loop, model, weight=lambda state: state.epoch)
    assert saved(loop) == {4: 4.0}  # the newest checkpoint resumes exactly
    assert model.weight.item() == 2.0


# -- C33: an accumulation window grows across the epoch boundary -------------------------------------------------------


@pytest.mark.parametrize(("batches", "windows"), [(10, [4, 4, 2]), (12, [4, 4, 4])])
def test_c33_windows_are_flushed_at_the_epochs_end_and_the_plan_is_right(batches, windows):
    model, optimizer = counter_model()
    loop = Loop(model, optimizer, max_epochs=2, accumulate=4)
    lines = Recorder(loop.bus, lambda event, state: state.micro)
    result = run(loop, model, batches=batches)
    ends = [0, *[micro for name, _, micro in lines if name == "step_end"]]
    assert [b - a for a, b in pairwise(ends)] == windows * 2
    assert lines.names.count("step_begin") == lines.names.count("step_end") == result.step == result.total == 6


# -- C43: the last steps are neither evaluated nor saved ---------------------------------------------------------------


@pytest.mark.parametrize(("updates", "evaluated"), [(11, [4, 8, 11]), (12, [4, 8, 12])])
def test_c43_the_last_update_is_judged_and_saved_once(tmp_path, updates, evaluated):
    model, optimizer = counter_model()
    scores = {4: 0.5, 8: 0.4, 11: 0.3, 12: 0.3}
    saver = ModelCheckpoint("eval_loss", save_top_k=1)
    loop = Loop(
        model,
        optimizer,
        run_dir=tmp_path / "run",
        max_steps=updates,
        eval_every=4,
        evaluate=lambda: {"eval_loss": scores[loop.state.step]},
        callbacks=[saver],
        saves="sync",
    )
    lines = Recorder(loop.bus)
    run(loop, model, batches=20)
    assert [step for name, step in lines if name == "eval_end"] == evaluated
    assert [step for name, step in lines if name == "checkpoint_saved"] == evaluated
    assert saved(loop) == {updates: float(updates)}
    assert (saver.best_step, saver.best_score) == (updates, 0.3)
    assert loop.result.best.step == updates


# -- C45: the rate in the row is that of the next update ---------------------------------------------------------------


@pytest.mark.parametrize("schedule_first", [True, False])
def test_c45_the_rate_reported_for_an_update_is_the_one_it_used(schedule_first):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    callbacks = [WarmupCosine(warmup_steps=4), LearningRateMonitor()]
    loop = Loop(model, optimizer, max_steps=12, callbacks=callbacks if schedule_first else callbacks[::-1])
    used, rows = [], []
    optimizer.register_step_pre_hook(lambda optimizer, args, kwargs: used.append(optimizer.param_groups[0]["lr"]))
    loop.bus.on("step_end", lambda event, s: rows.append((s.step, s.metrics["lr/group_0"], s.lr["group_0"])))
    with loop:
        for x in loop.batches([torch.ones(1, 1)] * 12):
            loop.backward(model(x).sum())
            loop.update()
    assert rows == [(n, rate, rate) for n, rate in enumerate(used, 1)]
    # update n of the rule here has the rate that the case gives to update n for a warmup begun at base / W
    assert used[:5] == [0.25, 0.5, 0.75, 1.0, 1.0]
    assert used[8] == pytest.approx(0.5, abs=1e-9)
    assert used[11] == pytest.approx(0.0380602337, abs=1e-9)


# -- C51: one evaluation is counted twice ------------------------------------------------------------------------------


def test_c51_one_evaluation_is_one_verdict():
    model, optimizer = counter_model()
    series = iter([1.0, 1.1, 0.9, 1.0, 1.05, 0.1])
    seen = []
    loop = Loop(
        model,
        optimizer,
        max_epochs=6,
        evaluate=lambda: {"eval_loss": next(series)},
        callbacks=[EarlyStopping("eval_loss", patience=2)],
    )
    loop.bus.on("epoch_end", lambda event, state: seen.append(state.metrics["eval_loss"]))
    result = run(loop, model)
    assert (result.status, result.epoch) == ("stopped", 5)
    assert seen == [1.0, 1.1, 0.9, 1.0, 1.05]  # the metrics are there at epoch_end as well


# -- C63: the schedule moves on though the update was skipped ----------------------------------------------------------


def test_c63_skipped_updates_move_neither_the_schedule_nor_an_interval(tmp_path):
    model = torch.nn.Linear(1, 1, bias=False)
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loop = Loop(
        model,
        optimizer,
        run_dir=tmp_path / "run",
        max_epochs=1,
        callbacks=[WarmupCosine(warmup_steps=4, total_steps=12), ModelCheckpoint(every_steps=4)],
    )
    loop.bus.on("gradients_ready", lambda event, s: SkipUpdate("overflow") if s.step + s.skipped < 2 else None)
    lines = Recorder(loop.bus, lambda event, state: (getattr(event, "skipped", None), state.lr["group_0"]))
    result = run(loop, model, batches=6)
    done = [rate for name, _, (skipped, rate) in lines if name == "step_end" and not skipped]
    assert done == [0.25, 0.5, 0.75, 1.0]
    assert (result.step, loop.state.skipped) == (4, 2)
    assert [step for name, step, _ in lines if name == "checkpoint_saved"] == [4]


# -- C73: "every 10 steps" fires at 9, or names a step that it does not hold -------------------------------------------


def test_c73_saves_each_10_updates_hold_what_they_are_named_after(tmp_path):
    model, optimizer = counter_model()
    saver = ModelCheckpoint(every_steps=10, save_top_k=-1)
    loop = Loop(model, optimizer, run_dir=tmp_path / "run", max_steps=35, callbacks=[saver])
    rows, paths = [], []
    loop.bus.on("step_end", lambda event, state: rows.append(state.step), every=10)
    loop.bus.on("checkpoint_saved", lambda event, state: paths.append((event.path, event.step, event.tags)))
    run(loop, model, batches=50)
    assert rows == [10, 20, 30]
    assert [(step, tags) for _, step, tags in paths] == [
        (10, ("step",)),
        (20, ("step",)),
        (30, ("step",)),
        (35, ("last",)),
    ]
    assert saved(loop) == {10: 10.0, 20: 20.0, 30: 30.0, 35: 35.0}
    assert [Checkpoint.read(tmp_path.__class__(path)).step for path, *_ in paths] == [10, 20, 30, 35]


# -- C85: the last handler's "no" overwrites an earlier handler's "stop" -----------------------------------------------


@pytest.mark.parametrize("impatient_first", [True, False])
def test_c85_requests_add_up_and_nobodys_silence_is_a_veto(tmp_path, impatient_first):
    model, optimizer = counter_model()
    series = iter([1.0, 1.1, 1.2])
    bus = Bus()
    stoppers = [("A", EarlyStopping("eval_loss", patience=1)), ("B", EarlyStopping("eval_loss", patience=5))]
    for name, stopper in stoppers if impatient_first else stoppers[::-1]:
        bus.attach(stopper, name=name)
    bus.on("eval_end", lambda event, state: None, name="silent")
    bus.on("eval_end", lambda event, state: (), name="empty")
    bus.on("eval_end", lambda event, state: (Save("judged"), Evaluate()), name="asker")
    loop = Loop(
        model,
        optimizer,
        run_dir=tmp_path / "run",
        max_epochs=3,
        evaluate=lambda: {"eval_loss": next(series)},
        bus=bus,
    )
    result = run(loop, model)
    assert (result.epoch, result.stopped_by) == (2, "A")
    granted = Counter((e.who, e.request) for e in result.ledger if e.fate == "granted")
    assert granted == {("A", "Stop"): 1, ("asker", "Save"): 2, ("asker", "Evaluate"): 2}
