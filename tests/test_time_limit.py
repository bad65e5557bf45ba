"""TimeLimit: when it asks for a stop, on a clock that the test moves, and from when on the real one counts."""

import os
import subprocess
import sys
import time
from datetime import timedelta
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from small_runs import count, on_disk

from callbacks import ModelCheckpoint, TimeLimit
from callbacks.time_limit import process_age
from eventloop import Bus, CheckpointSaved, EvalEnd, EvalStep, StepEnd, TrainBegin, TrainState
from eventloop.testing import Clock, FakeLoop


def run(limit, *callbacks, **options):
    """A run whose updates take a second each."""
    return FakeLoop([limit, *callbacks], **{"max_steps": 1000, **options}).run()


class Told:
    """A bus that tells of what happens at a time of the clock; `at` is the stop asked for there."""

    def __init__(self, limit):
        self.clock = Clock()
        self.bus = Bus("raise", self.clock)
        self.bus.attach(limit)
        self.bus.bind()
        self.bus.publish(TrainBegin(), TrainState())

    def at(self, seconds, event=None):
        self.clock.advance(seconds - self.clock.now)
        asked = self.bus.publish(event or StepEnd(), TrainState(step=1)).requests
        return asked[0].request if asked else None

    def first(self, seconds):
        """The first of these times at which it asks."""
        return next(second for second in seconds if self.at(second) is not None)


# -- when --------------------------------------------------------------------------------------------------------------


@given(limit=st.integers(30, 300), margin=st.integers(0, 20), step=st.integers(1, 9))
def test_the_last_update_ends_with_the_margin_to_spare_and_no_further_one_would(limit, margin, step):
    """Fails if the time of an update, or the margin, is left out."""
    result = run(TimeLimit(limit, margin=margin), seconds=float(step))
    assert result.status == "preempted"
    assert result.step * step <= limit - margin
    assert (result.step + 1) * step > limit - margin
    assert result.reason == f"the time limit of {limit} s is near"


def test_a_run_that_ends_before_is_left_alone():
    assert run(TimeLimit("01:00:00"), max_steps=100).status == "completed"


def test_it_says_how_much_is_left():
    told = Told(TimeLimit(100, margin=20.0))
    assert told.at(70) is None or told.at(70).within == 30.0
    assert told.at(95).within == 5.0
    assert told.at(120).within == 0.0


@pytest.mark.parametrize(
    ("saves", "first"), [([], 90), ([10.0], 75), ([10.0, 2.0, 2.0], 75), ([10.0, 2.0, 2.0, 4.0], 84)]
)
def test_the_slowest_of_the_last_three_saves_fits_one_and_a_half_times(saves, first):
    """Fails if the last save is taken instead of the slowest, or all there ever were."""
    told = Told(TimeLimit(100, margin=9.0))
    for seconds in saves:
        told.at(0, CheckpointSaved(seconds=seconds))
    assert told.first(range(100)) == first + 1


def test_a_long_evaluation_without_looks_in_it_is_a_turn_too():
    """Fails if the time between two looks is measured at step_end alone."""
    told = Told(TimeLimit(100, margin=0.0))
    told.at(1)
    assert told.at(31, EvalEnd()) is None
    assert told.first(range(32, 100)) == 71


def test_in_an_evaluation_it_looks_at_each_batch():
    told = Told(TimeLimit(100, margin=0.0))
    told.at(1)
    assert next(second for second in range(2, 101) if told.at(second, EvalStep(1))) == 100


def test_a_long_first_update_is_forgotten_in_time():
    """Fails if the longest turn of all is kept: the run would end half a minute early."""
    told = Told(TimeLimit(100, margin=0.0))
    told.at(30)
    assert told.first(range(31, 101)) == 100


def test_left_out_the_margin_is_two_percent_and_at_least_ten_seconds_and_at_most_half():
    assert [TimeLimit(limit).describe() for limit in (8, 300, 3600)] == [
        "8 s, 4 s to spare",
        "300 s, 10 s to spare",
        "3600 s, 72 s to spare",
    ]


# -- counted from when -------------------------------------------------------------------------------------------------


def test_a_new_sitting_has_a_new_wall_clock(tmp_path):
    """Fails if the seconds of the first sitting are state."""
    first = run(TimeLimit(20, margin=0), run_dir=tmp_path, max_steps=50)
    second = run(TimeLimit(20, margin=0), run_dir=tmp_path, max_steps=50, resume="auto")
    assert [(r.status, r.step) for r in (first, second)] == [("preempted", 20), ("preempted", 40)]


def test_the_next_run_on_the_same_bus_starts_clean():
    """Fails if turns and saves of the run before still count."""
    told = Told(TimeLimit(100, margin=9.0))
    told.at(40, CheckpointSaved(seconds=50.0))
    told.at(40)
    told.bus.publish(TrainBegin(), TrainState())
    assert told.first(range(41, 140)) == 131


def test_it_saves_what_it_stops_at(tmp_path):
    assert run(TimeLimit(20, margin=0), run_dir=tmp_path).step == max(on_disk(tmp_path)) == 20


def test_attached_in_mid_run_it_counts_from_its_first_look():
    class Attaches:
        def on_step_end(self, event, state):
            if state.step == 10:
                loop.bus.attach(TimeLimit(20, margin=0))

    loop = FakeLoop([Attaches()], max_steps=100)
    assert loop.run().status == "preempted"
    assert 10 < loop.result.step <= 31


def test_the_age_of_the_process_is_that_of_this_process():
    """Fails if another field of /proc/self/stat is read."""
    code = "import time; from callbacks.time_limit import process_age as age; a = age(); b = time.monotonic()\n"
    code += "while time.monotonic() - b < 0.2: pass\nprint(a, age() - a)"
    began = time.monotonic()
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    age, went_on = map(float, done.stdout.split())
    assert 0.0 < age < time.monotonic() - began + 0.1
    assert 0.1 < went_on < 10.0
    assert process_age() > time.monotonic() - began


def test_where_the_system_does_not_tell_the_age_is_nought(monkeypatch):
    def denied(*arguments, **options):
        raise PermissionError

    monkeypatch.setattr(Path, "read_text", denied)
    assert process_age() == 0.0


def test_a_real_run_counts_from_the_start_of_the_process():
    """Fails if it counts from train_begin: three updates take no half of the process's age."""
    loop = count(None, TimeLimit(process_age() + 0.001, margin=0), max_steps=3)
    assert (loop.result.status, loop.result.exit_code) == ("preempted", 75)
    assert count(None, TimeLimit(process_age() + 3600, margin=0), max_steps=3).result.status == "completed"


def test_it_may_count_from_a_time_before_the_process():
    """Fails if ``since`` is not looked at."""
    limit = TimeLimit("01:00:00", since=time.time() - 3550.0, margin=60)
    loop = count(None, limit, max_steps=3)
    assert (loop.result.status, loop.result.reason) == ("preempted", "the time limit of 01:00:00 is near")
    assert count(None, TimeLimit("01:00:00", since=time.time() + 3500.0), max_steps=3).result.status == "completed"


def test_with_a_saver_the_run_goes_on_in_the_next_job(tmp_path):
    for _ in range(3):
        last = run(
            TimeLimit(20, margin=0), ModelCheckpoint(every_steps=5), run_dir=tmp_path, max_steps=50, resume="auto"
        )
    assert (last.status, last.step) == ("completed", 50)


# -- the argument ------------------------------------------------------------------------------------------------------

TEXTS = {
    "30:00": 1800,
    "90:00": 5400,
    "12:00:00": 43200,
    "100:00:30": 360030,
    "1-0": 86400,
    "2-12": 216000,
    "2-12:30": 217800,
    "1-12:00:05": 129605,
}


@pytest.mark.parametrize("text", TEXTS)
def test_text_is_read_as_slurm_reads_it(text):
    assert TimeLimit(text, margin=1).describe() == f"{text}, 1 s to spare"
    told = Told(TimeLimit(text, margin=0))
    assert told.at(TEXTS[text] / 2 - 1) is None
    assert told.at(TEXTS[text] - 1).within == 1.0


@pytest.mark.parametrize(
    "limit",
    [
        "30",
        "1:2:3:4",
        "12:60",
        "1-24:00",
        "soon",
        "-5:00",
        "",
        0,
        -1,
        True,
        None,
        float("nan"),
        float("inf"),
        timedelta(0),
    ],
)
def test_anything_else_is_an_error_that_names_it_and_the_forms(limit):
    with pytest.raises(
        ValueError, match=r"TimeLimit: limit=.* must be seconds above 0, a timedelta, or text: 'MM:SS'"
    ) as no:
        TimeLimit(limit)
    assert repr(limit) in str(no.value)


def test_a_timedelta_is_as_good_as_seconds():
    assert TimeLimit(timedelta(hours=1)).describe() == TimeLimit(3600).describe()


@pytest.mark.parametrize("arguments", [{"margin": -1}, {"margin": float("inf")}, {"since": "now"}])
def test_a_margin_or_a_start_that_is_no_number_is_an_error(arguments):
    (name,) = arguments
    with pytest.raises(ValueError, match=f"TimeLimit: {name}="):
        TimeLimit(60, **arguments)
