"""Logs as they have failed elsewhere: cases C11, C25, C29, C47, C49, C61 and C83."""

import json
import math
import subprocess
import sys

import numpy as np
import pytest
import torch
from raw_runs import RawRun
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from callbacks import JSONLLogger, TensorBoardLogger
from eventloop import Loop, Report, StepEnd, read_metrics
from eventloop.rows import encode


def both(every=1):
    return [JSONLLogger(every=every), TensorBoardLogger(every=every)]


def rows(folder, *keys):
    return [tuple(row.get(key) for key in keys) for row in read_metrics(folder)]


def points(folder, tag="train/loss"):
    events = EventAccumulator(str(folder / "tb" / "rank_0"))
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def strict(line):
    def refuse(word):
        raise ValueError(f"{word} is not JSON")

    return json.loads(line, parse_constant=refuse)


# -- C11: rows of the lost part of a run -------------------------------------------------------------------------------

SITTING = """
import os, sys, torch
from callbacks import JSONLLogger, TensorBoardLogger
from eventloop import Loop, Save, StepEnd
model = torch.nn.Linear(1, 1)
loggers = [JSONLLogger(every=1), TensorBoardLogger(every=1)]
optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
attempt, last = int(sys.argv[2]), int(sys.argv[3])
with Loop(model, optimizer, run_dir=sys.argv[1], max_steps=20, callbacks=loggers, resume="auto", saves="sync") as loop:
    loop.bus.on(StepEnd, lambda event, state: Save("tenth") if state.step == 10 else None)
    for step in loop.updates():
        if step > last:
            loop.bus.persist()  # what the lost part has written is on disk
            os._exit(0)
        loop.step_end(loss=float(100 * attempt + step))
assert loop.result.failures == ()
"""


def test_c11_the_rows_of_the_lost_part_are_gone_and_each_step_is_there_once(tmp_path):
    for attempt, last in ((1, 15), (2, 20)):
        command = [sys.executable, "-W", "ignore", "-c", SITTING, str(tmp_path), str(attempt), str(last)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    expected = [(n, 100.0 + n if n <= 10 else 200.0 + n) for n in range(1, 21)]
    assert rows(tmp_path, "step", "loss") == expected
    assert points(tmp_path) == expected


# -- C25: NaN and Infinity ---------------------------------------------------------------------------------------------


def test_c25_a_strict_reader_takes_the_rows_of_a_run_that_diverges(tmp_path):
    run = RawRun(JSONLLogger(every=1), run_dir=tmp_path)
    run.steps(1, 2)
    run.step(loss=math.nan, grad_norm=math.inf, lr=0.1)
    run.step(loss=0.5)
    run.end()
    third, fourth = [strict(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()][2:]
    assert (third["loss"], third["grad_norm"], third["lr"]) == ("NaN", "NaN", 0.1)
    assert (fourth["loss"], "grad_norm" in fourth) == (0.5, False)


# -- C29: a crash ------------------------------------------------------------------------------------------------------


class Closes:
    def __init__(self):
        self.calls = []

    def on_train_begin(self, event, state):
        self.calls.append("begin")

    def on_train_end(self, event, state):
        self.calls.append(event.status)

    def close(self):
        self.calls.append("close")


@pytest.mark.parametrize("crash_at", [3, None])
def test_c29_the_rows_before_a_crash_are_on_disk_and_everything_is_closed_once(tmp_path, crash_at):
    model, error, counted = torch.nn.Linear(1, 1), RuntimeError("in step 3"), Closes()
    loop = Loop(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        run_dir=tmp_path,
        max_steps=2 if crash_at is None else 9,
        callbacks=[*both(), counted],
    )

    def train():
        with loop:
            for step in loop.updates():
                if step == crash_at:
                    raise error
                loop.step_end(loss=float(step))

    if crash_at is None:
        train()
    else:
        with pytest.raises(RuntimeError) as caught:
            train()
        assert caught.value is error
    assert counted.calls == ["begin", "completed" if crash_at is None else "failed", "close"]
    assert rows(tmp_path, "step", "loss") == points(tmp_path) == [(1, 1.0), (2, 2.0)]
    assert loop.result.failures == ()


# -- C47: a torn last line ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("end", "steps"), [('{"step": 4, "lo', [1, 2, 3, 4, 5]), ('{"step": 4}', [1, 2, 3, 4, 5, 6])])
def test_c47_a_torn_last_line_spoils_no_row(tmp_path, end, steps):
    path = tmp_path / "metrics.jsonl"
    path.write_text("".join(f'{{"step": {n}}}\n' for n in (1, 2, 3)) + end)
    first = RawRun()
    first.steps(1, steps[-3])
    resumed = RawRun(JSONLLogger(every=1), run_dir=tmp_path, state=first.state, saved={})
    resumed.steps(1, 2, loss=float)
    resumed.end()
    assert [strict(line)["step"] for line in path.read_text().splitlines()] == steps


# -- C49: the mean of a window -----------------------------------------------------------------------------------------


def test_c49_a_mean_has_as_many_terms_as_there_were_steps(tmp_path):
    run = RawRun(JSONLLogger(every=5, first=True), run_dir=tmp_path)
    run.steps(1, 12, loss=float)
    run.end()
    assert rows(tmp_path, "step", "loss") == [(1, 1.0), (5, 3.5), (10, 8.0), (12, 11.5)]


# -- C61: values that are no plain float -------------------------------------------------------------------------------

MIXED = {
    "loss": 0.5,
    "np": np.float32(1.5),
    "t": torch.tensor(2.0),
    "flag": True,
    "note": "abc",
    "hist": [1, 2],
    "none": None,
}


def test_c61_numbers_of_every_kind_are_logged_and_what_is_none_is_named(tmp_path):
    run = RawRun(*both(), run_dir=tmp_path, failure="isolate")
    run.bus.on(StepEnd, lambda event, state: Report(MIXED), name="mixed")
    run.steps(1, 2)
    run.end()
    assert rows(tmp_path, "loss", "np", "t", "flag") == [(0.5, 1.5, 2.0, 1.0)] * 2
    for tag, value in (("loss", 0.5), ("np", 1.5), ("t", 2.0)):
        assert points(tmp_path, f"train/{tag}") == [(1, value), (2, value)]
    told = " ".join(str(failure) for failure in run.bus.failures)
    assert all(f"metric '{key}' must be one real number" in told for key in ("note", "hist", "none"))


def test_c61_a_row_has_a_readable_form_for_every_value():
    assert strict(encode(MIXED)) == MIXED | {"np": 1.5, "t": 2.0}


# -- C83: a fork -------------------------------------------------------------------------------------------------------

FORK = """
import os, sys
from callbacks import JSONLLogger
from eventloop import Bus, StepEnd, TrainBegin, TrainState
bus = Bus()
bus.attach(JSONLLogger(every=1))
bus.bind(run_dir=sys.argv[1])
bus.publish(TrainBegin())
bus.publish(StepEnd(), TrainState(step=1, metrics={"loss": 1.0}))
if os.fork() == 0:
    sys.exit(0)
os.wait()
bus.publish(StepEnd(), TrainState(step=2, metrics={"loss": 2.0}))
bus.close()
"""


def test_c83_a_forked_worker_neither_hangs_nor_writes_the_buffer_again(tmp_path):
    subprocess.run([sys.executable, "-W", "ignore", "-c", FORK, str(tmp_path)], check=True, timeout=30)
    assert rows(tmp_path, "step", "loss") == [(1, 1.0), (2, 2.0)]
