"""The full journal: every publish and what came of it, in strict rows that read back as one history."""

import json
import math
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from collections import Counter
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from planned_runs import PLANS, Run
from small_runs import EVERY_UPDATE, Count, Cut, Recipe, count, cut_at, on_disk, said, train
from test_no_sync import Reads

from callbacks import EarlyStopping, ModelCheckpoint, WarmupCosine
from eventloop import Bus, EpochEnd, Event, Keep, Loop, Priority, Report, Request, Save, SetLR, StepEnd, Stop
from eventloop.diff import ASIDE
from eventloop.full_journal import FullJournal
from eventloop.journal_file import CHANGING, JournalFile
from eventloop.stream import read_stream
from eventloop.testing import Recorder
from eventloop.writer import Writer

HOUR = 3600.0


def no_constants(word):
    raise AssertionError(f"{word} is no JSON")


def events(rows):
    return [row for row in rows if row["event"] not in ("request", "missing", "truncated")]


def of(rows, event):
    return [row for row in rows if row["event"] == event]


def steady(row):
    """A row without what differs between two equal runs, and a resumed one learns the total from its first loader."""
    kept = {key: value for key, value in row.items() if key not in (*ASIDE, "total")}
    if "counters" in row:
        kept["counters"] = {name: value for name, value in row["counters"].items() if name != "total"}
    return kept


# -- everything is there -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mark(Event):
    """One of a user's own."""

    number: int = 0


def nesting():
    """A bus on which handlers publish events of their own, and the very event that they were given."""
    bus = Bus()

    @bus.on(StepEnd, name="marker")
    def mark(event, state):
        bus.publish(Mark(state.step), state.report(inner=float(state.step)))
        return Report(marked=2.0 * state.step)

    @bus.on(EpochEnd, name="echo", priority=Priority.LOG)
    def echo(event, state):
        if len(bus.repeated) < 3 and event not in bus.repeated:
            bus.repeated.append(event)
            bus.publish(event, state)

    bus.repeated = []
    return bus


def seen(event, state):
    counters = {name: getattr(state, name) for name in CHANGING}
    fresh = {key: state.metrics[key] for key in state.metrics.fresh}
    return event.name, state.step, state.epoch, counters, dict(state.lr), fresh, state.elapsed


def told(rows):
    """What `seen` would say of the rows: what is fresh is built up from what each row has of it."""
    fresh = {}
    for row in rows:
        news = {**row.get("metrics", {}), **row.get("reported", {})}
        if not row.get("nested"):
            fresh = news = news if row["event"] in ("step_begin", "eval_end") else fresh | news
        yield row["event"], row["step"], row["epoch"], row["counters"], row["lr"], news, row["elapsed"]


@settings(max_examples=30)
@given(PLANS)
def test_the_rows_are_what_a_recorder_saw_in_order_nested_ones_included(plan):
    """Failed where `_inside` said no, where a nested row moved on what is new, and where counters went on from one."""
    with tempfile.TemporaryDirectory() as folder:
        bus = nesting()
        recorder = Recorder(bus, seen, priority=-10_000)
        run = Run(replace(plan, saves=True), f"{folder}/run", bus, journal="full")
        if not recorder:
            return  # it had nothing to begin with
        stream = read_stream(f"{folder}/run")
        rows = events(stream)
        lines = [(name, *rest[1:]) for name, _, rest in recorder]
        assert list(told(rows)) == lines
        asked = Counter(kind for row in rows for _, kind, _ in row.get("asked", ()) if kind not in ("Report", "Keep"))
        assert asked.total() == sum((asker.asked for asker in run.askers), Counter()).total()
        failed = Counter(who for row in rows for who, *_ in row.get("failed", ()))
        assert failed == {who: n for who, n in run.loop.result.failure_counts.items() if who.startswith("Asker")}
        text = Path(f"{folder}/run/journal.jsonl").read_text(encoding="utf-8")
        assert all(json.loads(line, parse_constant=no_constants)["event"] for line in text.splitlines())
        assert stream.whole


@dataclass(frozen=True)
class Notify(Request):
    """One of a user's own."""

    address: str


def test_a_row_says_who_asked_for_what_in_order(tmp_path):
    asks = [Stop("bored"), Save("mine"), Keep(frozenset({3, 1})), SetLR(0.5), Report(a=1.0, b={"c": 2.0}), Notify("me")]
    bus = Bus()
    bus.on("step_end", lambda event, state: asks, name="eager", once=1)
    count(tmp_path, bus=bus, max_steps=2, journal="full")
    (row, *_) = of(read_stream(tmp_path), "step_end")
    assert row["asked"] == [
        ["eager", "Stop", "bored"],
        ["eager", "Save", "mine"],
        ["eager", "Keep", [1, 3]],
        ["eager", "SetLR", {"group_0": 0.5}],
        ["eager", "Report", ["a", "b/c"]],
        ["eager", "Notify", {"address": "me"}],
    ]
    assert row["reported"] == {"a": 1.0, "b/c": 2.0}


def test_what_the_loop_gave_is_told_from_what_a_handler_made_of_it(tmp_path):
    bus = Bus()
    bus.on("gradients_ready", lambda event, state: Report(loss=7.0), name="smoother")
    count(tmp_path, bus=bus, max_steps=1, journal="full")
    (row,) = of(read_stream(tmp_path), "gradients_ready")
    assert (row["metrics"], row["reported"]) == ({"loss": -0.0}, {"loss": 7.0})


def test_nan_and_the_infinities_and_failures_are_told_in_strict_json(tmp_path):
    bus = Bus()
    bus.on("step_end", lambda event, state: Report(x=float("nan"), y=torch.tensor(float("inf"))), name="odd")
    bus.on("step_end", lambda event, state: 1 / 0, name="broken", failure="disable")
    count(tmp_path, bus=bus, max_steps=1, journal="full")
    line = next(line for line in (tmp_path / "journal.jsonl").read_text().splitlines() if '"step_end", "time"' in line)
    row = json.loads(line, parse_constant=no_constants)
    assert row["reported"] == {"x": "NaN", "y": "Infinity"}
    assert row["failed"] == [["broken", "step_end", "ZeroDivisionError: division by zero", "disable"]]


def test_the_first_row_says_what_a_replay_must_know(tmp_path):
    bus = Bus()
    bus.on("step_end", lambda event, state: None, name="seldom", every=5, when=lambda event, state: True)
    stopper = EarlyStopping("eval_loss", patience=9)
    count(tmp_path, WarmupCosine(1), stopper, bus=bus, scores={1: 0.5, 2: 0.5}, max_steps=2, journal="full")
    first = next(iter(read_stream(tmp_path)))
    limits = {"max_epochs": None, "max_steps": 2, "min_epochs": 0, "min_steps": 0}
    assert first["loop"] == {**limits, "eval_every": 1, "accumulate": 1, "evaluate": True}
    assert first["handlers"]["step_end"] == [
        {"name": "seldom", "event": "step_end", "priority": 0, "failure": "isolate", "filter": "every 5 steps, when="}
    ]
    assert [(h["name"], h["priority"]) for h in first["handlers"]["eval_end"]] == [("EarlyStopping", -200)]
    assert "WarmupCosine" in [h["name"] for h in first["handlers"]["step_begin"]]


def test_an_interrupted_dispatch_has_its_row_too(tmp_path):
    with pytest.raises(Cut):
        count(tmp_path, cut_at(1), max_steps=4, journal="full")
    *_, row, end = read_stream(tmp_path)
    assert (row["event"], row["step"], row["interrupted"]) == ("step_begin", 1, True)
    assert (end["event"], end["status"]) == ("train_end", "interrupted")


# -- recording changes nothing -----------------------------------------------------------------------------------------


class Device(torch.Tensor):
    """A number that, as far as anybody can tell, lies on a device."""

    is_cpu = False


def elsewhere(value):
    return torch.tensor(value).as_subclass(Device)


def test_a_value_on_a_device_is_never_waited_for_in_the_training_thread(tmp_path):
    """Failed where `_news` read every value at once."""
    model = Count()
    loop = Loop(model, torch.optim.SGD(model.parameters(), lr=1.0), run_dir=tmp_path, max_steps=3, journal="full")
    loop.bus.on("step_end", lambda event, state: Report(norm=elsewhere(0.5)), name="meter")
    reads = Reads(loop)
    with loop, reads:
        for step in loop.updates():
            loop.step_end(loss=elsewhere(float(step)), pair=elsewhere(2.0))
    assert reads.seen == []
    rows = of(read_stream(tmp_path), "step_end")
    assert [(row["metrics"], row["reported"]["norm"]) for row in rows] == [
        ({"pair": 2.0, "loss": float(step)}, 0.5) for step in (1, 2, 3)
    ]


def test_a_mean_over_micro_losses_is_the_same_to_the_last_bit(tmp_path):
    """Failed where the mean was torch's, which adds up in another order."""
    outcome = train(Recipe(accumulate=7), tmp_path, journal="full")
    losses = [row["metrics"]["loss"] for row in of(read_stream(tmp_path), "gradients_ready")]
    assert losses == outcome.losses
    assert len(losses) == 3


@pytest.mark.parametrize("journal", ["short", "full"])
def test_handlers_see_the_same_metrics_whatever_is_recorded(tmp_path, journal):
    """Failed where the journal asked for the values: they lived on."""
    bus, names = Bus(), []
    bus.on("step_begin", lambda event, state: names.append(list(state.metrics)), name="looker")
    count(tmp_path, bus=bus, max_steps=3, journal=journal)
    assert names == [[], [], []]


# -- faults ------------------------------------------------------------------------------------------------------------

SCRIPT = """
import logging, resource, sys
from small_runs import Recipe, train
from callbacks import ModelCheckpoint

logging.getLogger("eventloop").setLevel(logging.ERROR)

class Watch:
    def on_step_end(self, event, state):
        {at_step_end}

loop = train(Recipe(noise=True), sys.argv[1], Watch(), {options}, journal="full").loop
print(loop.result.status, loop.result.step, sorted(loop.result.failure_counts))
"""


def script(folder, at_step_end, options):
    code = SCRIPT.format(at_step_end=at_step_end, options=options)
    return [sys.executable, "-c", code, str(folder)]


def test_after_kill_9_the_rows_are_whole_and_the_history_goes_on(tmp_path, request):
    line = "print(state.step, flush=True)"
    command = script(tmp_path / "run", line, "ModelCheckpoint(save_top_k=2, every_steps=5), max_epochs=None")
    with subprocess.Popen(command, cwd=request.path.parent, stdout=subprocess.PIPE, text=True) as child:
        assert any(line == "23\n" for line in child.stdout)
        child.send_signal(signal.SIGKILL)
    assert child.returncode == -signal.SIGKILL
    killed = list(read_stream(tmp_path / "run"))
    assert max(row["step"] for row in killed) >= 20  # what a checkpoint holds is in the journal
    saver = ModelCheckpoint(save_top_k=2, every_steps=5)
    recipe = Recipe(noise=True)
    train(recipe, tmp_path / "run", saver, resume="auto", max_epochs=None, max_steps=40, journal="full")
    whole = train(
        recipe, tmp_path / "whole", ModelCheckpoint(save_top_k=2, every_steps=5), max_epochs=6, journal="full"
    )
    assert whole.loop.result.step == 42
    rows, others = (
        [(row["event"], row["step"], row["metrics"]) for row in read_stream(tmp_path / name) if "metrics" in row]
        for name in ("run", "whole")
    )
    assert [row for row in rows if row[1] < 40] == [row for row in others if row[1] < 40]


def test_a_full_disk_is_the_journals_own_failure_and_leaves_whole_rows(tmp_path, request):
    limit = "state.step == 3 and resource.setrlimit(resource.RLIMIT_FSIZE, (60_000, resource.RLIM_INFINITY))"
    done = subprocess.run(
        script(tmp_path, limit, "max_epochs=30"), cwd=request.path.parent, capture_output=True, text=True, check=True
    )
    assert done.stdout.startswith("completed 210 ['FullJournal'")
    assert "FullJournal to" in done.stderr
    rows = list(read_stream(tmp_path))
    assert 100 < len(rows) < 400
    assert rows[-1]["event"] != "train_end"


def test_a_full_recording_ends_at_its_limit_and_the_short_rows_go_on(tmp_path, monkeypatch, caplog):
    monkeypatch.setattr("eventloop.loop.FullJournal", partial(FullJournal, limit=30_000))
    saver = ModelCheckpoint(every_steps=50)
    count(tmp_path, saver, scores=dict.fromkeys(range(401), 0.5), eval_every=50, max_steps=400, journal="full")
    stream = read_stream(tmp_path)
    rows = list(stream)
    at = [row["event"] for row in rows].index("truncated")
    assert {row["event"] for row in rows[at + 1 :]} == {
        "eval_end",
        "checkpoint_saved",
        "request",
        "epoch_end",
        "train_end",
    }
    assert len(of(rows, "eval_end")) == 8
    assert (stream.truncated, stream.whole) == (True, False)
    assert sum("has reached 30000 bytes" in line for line in said(caplog)) == 1


def test_rows_that_a_slow_disk_has_cost_are_counted_where_they_are_missing(tmp_path, monkeypatch, caplog):
    """Failed where the sink did not look at the numbers."""
    free, numbers = threading.Event(), []

    def stuck(path, limit):
        assert free.wait(60)
        return JournalFile(path, limit)

    monkeypatch.setattr("eventloop.full_journal.JournalFile", stuck)
    monkeypatch.setattr("eventloop.full_journal.Writer", partial(Writer, limit=20, pause=HOUR))
    bus = Bus()
    bus.on(Event, lambda event, state: numbers.append(event.name), name="counter")
    bus.on(EpochEnd, lambda event, state: free.set(), name="repair")
    count(tmp_path, bus=bus, max_steps=30, journal="full")
    rows = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
    assert rows[0]["event"] == "missing"
    assert len(events(rows)) + len(of(rows, "request")) + rows[0]["rows"] == len(numbers)
    assert sum("records were dropped" in line for line in said(caplog)) == 1


# -- resuming ----------------------------------------------------------------------------------------------------------


def savers():
    return ModelCheckpoint(**EVERY_UPDATE), ModelCheckpoint("eval_loss", save_top_k=2)


def history(folder):
    return [steady(row) for row in read_stream(folder)]


def recorded(folder, *cutters, every="epoch", **options):
    return train(Recipe(noise=True, evaluate_every=every), folder, *savers(), *cutters, journal="full", **options)


@pytest.fixture(scope="module", params=["epoch", 2])
def undisturbed(request, tmp_path_factory):
    folder = tmp_path_factory.mktemp("undisturbed")
    recorded(folder, every=request.param, saves="sync")
    return request.param, history(folder)


@pytest.mark.parametrize("saves", ["sync", "wait"])
@pytest.mark.parametrize("cuts", [(1,), (6,), (7,), (8,), (3, 9), (5, 5), (7, 14)], ids=str)
def test_a_resumed_run_reads_as_one_history(tmp_path, undisturbed, cuts, saves):
    """Failed where the lost rows stayed, where the epoch began twice, and where the save at the cut was lost."""
    every, expected = undisturbed
    for cut in cuts:
        with pytest.raises(Cut):
            recorded(tmp_path, cut_at(cut), every=every, resume="auto", saves=saves)
    recorded(tmp_path, every=every, resume="auto", seed=99, saves=saves)
    assert history(tmp_path) == expected
    stream = read_stream(tmp_path)
    assert (stream.sittings, stream.whole) == (len(cuts) + 1, True)
    assert next(stream.sitting(1))["resumed"] is True


class Slow:
    """Each save is durable so many updates after its state was taken; ends the process at ``cut``."""

    def __init__(self, folder, delays, cut=None):
        self.folder, self.delays, self.cut, self.step, self.until = Path(folder), [*delays], cut, 0, 0
        self.taken = None
        self.moved = threading.Condition()

    def reach(self, step):
        with self.moved:
            self.step = step
            self.moved.notify_all()

    def on_step_begin(self, event, state):
        if state.step == self.cut:
            self.reach(math.inf)
            raise Cut

    def on_step_end(self, event, state):
        self.reach(state.step)
        while self.taken is not None and state.step >= self.until and self.taken not in on_disk(self.folder):
            pass

    def state_dict(self):
        self.taken = self.step or None
        self.until = min(self.step + self.delays.pop(0), 12) if self.delays else 0
        return {}

    def load_state_dict(self, state):
        self.delays = []

    def persist(self):
        with self.moved:
            assert self.moved.wait_for(lambda: self.step >= self.until, 60)


def twelve(folder, delays, saves, cut=None):
    slow = Slow(folder, delays, cut)
    scores = {step: 1.0 / step for step in range(1, 13)}
    saver = ModelCheckpoint(every_steps=3, save_top_k=2)
    options = {"max_steps": 12, "journal": "full", "resume": "auto", "saves": saves}
    count(folder, EarlyStopping("eval_loss"), saver, slow, scores=scores, eval_every=2, **options)


@settings(max_examples=15)
@given(st.lists(st.integers(0, 3), min_size=5, max_size=5), st.sampled_from([None, 4, 5, 7, 9, 11]))
@example([1, 1, 1, 1, 1], 5)
@example([3, 3, 3, 3, 3], 5)
def test_a_run_reads_the_same_however_long_its_saves_took(delays, cut):
    """Failed where a lost part was cut off at the row of the checkpoint, where that row stayed where it was told, and
    where a checkpoint of which no row told was left out."""
    with tempfile.TemporaryDirectory() as folder:
        twelve(f"{folder}/sync", [], "sync")
        if cut is not None:
            with pytest.raises(Cut):
                twelve(f"{folder}/wait", delays, "wait", cut)
        twelve(f"{folder}/wait", [] if cut else delays, "wait")
        assert history(f"{folder}/wait") == history(f"{folder}/sync")
        assert read_stream(f"{folder}/wait").whole


def test_the_row_of_a_checkpoint_tells_where_its_state_was_taken_and_a_sitting_when_it_was_told(tmp_path):
    twelve(tmp_path, [2, 2, 2, 2], "wait")
    stream = read_stream(tmp_path)
    moved, told = of(stream, "checkpoint_saved"), of(stream.sitting(0), "checkpoint_saved")
    assert [(row["step"], row["counters"]["update"]) for row in moved] == [(3, 3), (6, 6), (9, 9), (12, 12)]
    assert [row["time"] for row in moved] == [row["time"] for row in told]
    assert all(row["step"] >= step + 2 for row, step in zip(told, (3, 6, 9), strict=False))


@pytest.mark.parametrize("saves", ["sync", "wait"])
@pytest.mark.parametrize("rows", ["checkpoint", "fates", "both"])
def test_a_checkpoint_of_which_no_row_tells_is_told_from_what_was_asked(tmp_path, saves, rows):
    """Failed where the place was looked for by step, where the fates stayed away, and where Keep was not taken from the
    train_begin of the sitting that went on."""
    recorded(tmp_path / "whole", saves=saves)
    with pytest.raises(Cut):
        recorded(tmp_path / "run", cut_at(4), saves=saves)
    path = tmp_path / "run" / "journal.jsonl"
    lost = {
        "checkpoint": lambda row: row.get("checkpoint") == "step-00000004",
        "fates": lambda row: row.get("decided") == 4,
    }
    gone = lost.values() if rows == "both" else [lost[rows]]
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    kept = [row for row in lines if not any(is_gone(row) for is_gone in gone)]
    path.write_text("".join(json.dumps(row) + "\n" for row in kept), encoding="utf-8")
    recorded(tmp_path / "run", resume="auto", saves=saves)
    assert history(tmp_path / "run") == history(tmp_path / "whole")


@pytest.mark.parametrize("saves", ["sync", "wait"])
def test_a_short_journal_reads_as_one_history_too(tmp_path, saves):
    for name, cuts in (("whole", ()), ("run", (5,))):
        for cut in cuts:
            with pytest.raises(Cut):
                train(Recipe(), tmp_path / name, *savers(), cut_at(cut), saves=saves)
        train(Recipe(), tmp_path / name, *savers(), resume="auto", saves=saves)
    assert history(tmp_path / "run") == history(tmp_path / "whole")
    assert not read_stream(tmp_path / "run").full


def test_a_run_that_goes_on_in_another_folder_has_no_beginning_there(tmp_path):
    count(tmp_path / "old", max_steps=2, journal="full")
    origin = tmp_path / "old" / "checkpoints" / "step-00000002"
    count(tmp_path / "new", max_steps=4, resume=origin, journal="full")
    stream = read_stream(tmp_path / "new")
    first = next(iter(stream))
    assert (first["event"], first["resumed"], first["step"], first["after"]) == ("train_begin", True, 2, None)
    assert (stream.full, stream.whole) == (True, False)


# -- asking for it -----------------------------------------------------------------------------------------------------


def test_what_is_no_journal_is_refused(tmp_path):
    model = Count()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    with pytest.raises(ValueError, match="journal='long' must be 'short' or 'full'"):
        Loop(model, optimizer, run_dir=tmp_path, journal="long")
    with pytest.raises(ValueError, match="journal='full' needs a run_dir"):
        Loop(model, optimizer, journal="full")
    with pytest.raises(FileNotFoundError, match="has no journal"):
        read_stream(tmp_path)
    (tmp_path / "journal.jsonl").write_text('{"event": "request", "request": "Stop"}\n')
    with pytest.raises(ValueError, match="tells of no run"):
        read_stream(tmp_path)


@pytest.mark.parametrize("saves", ["sync", "wait"])
def test_a_run_that_is_gone_as_soon_as_its_checkpoint_is_there_reads_as_one_history(tmp_path, saves):
    """Failed where the fates behind a checkpoint, which wait in the queue by then, were missed."""

    class Copies:
        def on_step_begin(self, event, state):
            if state.step == 2:
                while 2 not in on_disk(tmp_path / "run"):
                    pass
                shutil.copytree(tmp_path / "run", tmp_path / "gone")

    options = {"journal": "full", "max_steps": 4, "saves": saves}
    count(tmp_path / "run", ModelCheckpoint(every_steps=2), Copies(), **options)
    count(tmp_path / "gone", ModelCheckpoint(every_steps=2), resume="auto", **options)
    assert read_stream(tmp_path / "gone").sittings == 2
    assert history(tmp_path / "gone") == history(tmp_path / "run")
