"""The run folder: a journal that strict readers take, what was run, and never another run's files."""

import json
import subprocess
import sys

import pytest
from loops import ask, batches, model_and_optimizer, train

from callbacks import EarlyStopping, WarmupCosine
from eventloop import Bus, Evaluate, Loop, Save, Stop
from eventloop.rundir import import_path
from eventloop.testing import Deliberate


@pytest.fixture
def parts():
    return model_and_optimizer()


@pytest.fixture
def folder(tmp_path):
    return tmp_path / "runs" / "first"


def no_constants(word):
    raise AssertionError(f"{word} is no JSON")


def strict(text):
    return json.loads(text, parse_constant=no_constants)


def journal(folder):
    return [strict(line) for line in (folder / "journal.jsonl").read_text().splitlines()]


def files(folder):
    return sorted(str(p.relative_to(folder)) for p in folder.rglob("*") if p.is_file())


# -- the journal -------------------------------------------------------------------------------------------------------


def test_the_journal_tells_the_life_of_the_run(parts, folder):
    model, optimizer = parts
    loop = Loop(model, optimizer, run_dir=folder, max_epochs=2, evaluate=lambda: {"eval_loss": float("nan")})
    train(loop, model, batches(2))
    rows = journal(folder)
    assert [(row["event"], row["step"], row["epoch"]) for row in rows] == [
        ("train_begin", 0, 0),
        ("epoch_begin", 0, 1),
        ("eval_end", 2, 1),
        ("epoch_end", 2, 1),
        ("epoch_begin", 2, 2),
        ("eval_end", 4, 2),
        ("epoch_end", 4, 2),
        ("checkpoint_saved", 4, 2),
        ("train_end", 4, 2),
    ]
    assert rows[0]["run_id"] == loop.state.run_id
    assert rows[0]["resumed"] is False
    assert rows[2]["metrics"] == {"eval_loss": "NaN"}
    assert (rows[7]["checkpoint"], rows[7]["tags"]) == ("step-00000004", ["last"])
    assert (rows[8]["status"], rows[8]["reason"]) == ("completed", "")


def test_the_journal_tells_an_epoch_that_was_left_from_one_that_was_completed(parts, folder):
    """Fails if every epoch's end is written as that of a whole epoch."""
    model, optimizer = parts
    loop = Loop(model, optimizer, run_dir=folder, max_epochs=3)
    ask(loop, "step_end", Stop("enough"), once=3)
    train(loop, model, batches(2))
    ends = [(row["epoch"], row["completed"]) for row in journal(folder) if row["event"] == "epoch_end"]
    assert ends == [(1, True), (2, False)]


def test_every_request_stands_in_the_journal_with_its_fate(parts, folder):
    model, optimizer = parts
    loop = Loop(model, optimizer, run_dir=folder, max_epochs=1, min_steps=2)
    ask(loop, "step_end", Stop("bored"), name="bored")
    ask(loop, "step_begin", (Save("early"), Evaluate()), once=1, name="eager")
    train(loop, model, batches(5))
    told = [row for row in journal(folder) if row["event"] == "request"]
    assert [(r["who"], r["request"], r["detail"], r["at"], r["step"], r["decided"], r["fate"]) for r in told] == [
        ("eager", "Save", "early", "step_begin", 1, 1, "deferred"),
        ("bored", "Stop", "bored", "step_end", 1, 1, "refused"),
        ("eager", "Evaluate", "", "step_begin", 1, 1, "refused"),
        ("eager", "Save", "early", "step_begin", 1, 1, "granted"),
        ("bored", "Stop", "bored", "step_end", 2, 2, "granted"),
    ]
    assert told[1]["note"] == "before min_steps=2"


def test_failures_and_the_loops_own_error_stand_in_the_journal(parts, folder):
    model, optimizer = parts
    loop = Loop(model, optimizer, run_dir=folder, max_epochs=1)

    @loop.bus.on("step_end", name="logger")
    def fails(event, state):
        raise OSError("no space")

    def body():
        with loop:
            for x in loop.batches(batches(3)):
                loop.step_end(loss=x.mean())
                raise Deliberate("planned")

    with pytest.raises(Deliberate):
        body()
    rows = journal(folder)
    assert [row["event"] for row in rows[2:]] == ["handler_failed", "run_failed", "train_end"]
    assert (rows[2]["handler"], rows[2]["at"], rows[2]["error"]) == ("logger", "step_end", "OSError('no space')")
    assert rows[3]["error"] == "Deliberate('planned')"
    assert (rows[4]["status"], rows[4]["reason"]) == ("failed", "planned")


def test_a_second_run_on_the_same_bus_writes_into_its_own_journal_alone(parts, folder, tmp_path):
    model, optimizer = parts
    bus, other = Bus(), tmp_path / "second"
    train(Loop(model, optimizer, run_dir=folder, bus=bus, max_steps=1), model, batches(1))
    first = journal(folder)
    train(Loop(model, optimizer, run_dir=other, bus=bus, max_steps=1), model, batches(1))
    assert journal(folder) == first
    assert [row["event"] for row in journal(other)] == [row["event"] for row in first]
    assert bus.objects == ()


def test_a_loop_that_was_never_run_writes_nothing_into_its_folder(parts, folder, tmp_path):
    model, optimizer = parts
    bus = Bus()
    Loop(model, optimizer, run_dir=tmp_path / "given up", bus=bus)
    train(Loop(model, optimizer, run_dir=folder, bus=bus, max_steps=1), model, batches(1))
    assert sorted(p.name for p in tmp_path.iterdir()) == ["runs"]


def test_a_journal_that_cannot_be_written_is_told_and_ends_nothing(parts, folder):
    model, optimizer = parts
    loop = Loop(model, optimizer, run_dir=folder, max_epochs=1)
    loop.bus.on("train_begin", lambda event, state: (folder / "journal.jsonl").mkdir())
    ask(loop, "step_end", Stop("enough"), once=2, name="counter")
    told = []
    loop.bus.on("handler_failed", lambda event, state: told.append((event.subscription, event.event.name)))
    result = train(loop, model, batches(3))
    assert (result.status, result.step) == ("stopped", 2)
    assert set(result.failure_counts) == {"Journal"}
    assert told[:3] == [("Journal", "train_begin"), ("Journal", "epoch_begin"), ("Journal", "step_end")]


FULL_DISK = """
import resource, sys
from loops import batches, model_and_optimizer, train
from eventloop import Loop

model, optimizer = model_and_optimizer()
loop = Loop(model, optimizer, run_dir=sys.argv[1], max_epochs=1)

@loop.bus.on("train_begin")
def fill(event, state):
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.getrlimit(resource.RLIMIT_FSIZE)[1]))

@loop.bus.on("step_end", name="chatty")
def fails(event, state):
    raise ValueError("x" * 10_000)

result = train(loop, model, batches(30))
print(result.status, result.step, sorted(result.failure_counts))
"""


def test_a_full_disk_under_the_journal_does_not_end_the_run_and_leaves_whole_rows(folder, request):
    script = [sys.executable, "-c", FULL_DISK, str(folder)]
    done = subprocess.run(script, capture_output=True, text=True, cwd=request.path.parent, check=True)
    assert done.stdout == "completed 30 ['Journal', 'chatty']\n"
    assert "Journal failed at handler_failed of step" in done.stderr  # said once, by logging's last resort
    events = [row["event"] for row in journal(folder)]
    assert 10 < events.count("handler_failed") < 30
    assert events[-1] == "train_end"  # a short row found room


# -- what was run ------------------------------------------------------------------------------------------------------


def test_run_json_tells_what_was_run(parts, folder, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    model, optimizer = parts
    stopper = EarlyStopping("eval_loss", patience=2, min_delta=0.5)
    loop = Loop(model, optimizer, run_dir=folder, max_steps=1, callbacks=[WarmupCosine(1), stopper])
    train(loop, model, batches(1))
    document = strict((folder / "run.json").read_text())
    (sitting,) = document["sittings"]
    assert sitting["run_id"] == loop.state.run_id
    assert sitting["argv"] == sys.argv
    assert sitting["git"] is None
    assert sitting["seed"] == 0
    assert {"python", "torch", "numpy", "blinker"} <= sitting["versions"].keys()
    assert sitting["callbacks"] == [
        {
            "name": "WarmupCosine",
            "type": "WarmupCosine",
            "path": "callbacks:WarmupCosine",
            "settings": {"warmup_steps": 1, "total_steps": None, "eta_min": 0.0, "on_change": "follow"},
        },
        {
            "name": "EarlyStopping",
            "type": "EarlyStopping",
            "path": "callbacks:EarlyStopping",
            "settings": {
                "monitor": "eval_loss",
                "mode": "min",
                "patience": 2,
                "min_delta": 0.5,
                "min_steps": 0,
                "restore_best": False,
                "strict": False,
            },
        },
    ]


class Odd:
    """Settings of kinds that JSON has no word for, and one that is not kept."""

    def __init__(self, limit, model=None, gone=None):
        self.limit, self.model = limit, model

    def on_step_end(self, event, state):
        pass


def test_settings_are_strict_json_and_only_those_that_are_kept(parts, folder):
    model, optimizer = parts
    loop = Loop(model, optimizer, run_dir=folder, max_steps=1, callbacks=[Odd((float("inf"), 1), model)])
    train(loop, model, batches(1))
    (sitting,) = strict((folder / "run.json").read_text())["sittings"]
    assert sitting["callbacks"][0]["settings"] == {"limit": ["Infinity", 1]}
    assert sitting["callbacks"][0]["path"] == "test_run_folder:Odd"


def test_a_callback_is_named_by_the_package_from_which_it_can_be_imported():
    hidden = type("EarlyStopping", (), {"__module__": "eventloop.shipped_callbacks.early_stopping"})
    assert import_path(EarlyStopping) == "callbacks:EarlyStopping"
    assert import_path(Loop) == "eventloop:Loop"
    assert import_path(hidden) == "eventloop.callbacks:EarlyStopping"  # where "callbacks" is somebody else's
    assert import_path(Odd) == "test_run_folder:Odd"


def test_run_json_names_the_commit_and_whether_anything_differs_from_it(parts, tmp_path, monkeypatch):
    model, optimizer = parts
    monkeypatch.chdir(tmp_path)
    identity = ["-c", "user.name=me", "-c", "user.email=me@example.org"]
    for command in (["init", "-q"], [*identity, "commit", "-q", "--allow-empty", "-m", "first"]):
        subprocess.run(["git", *command], check=True, capture_output=True)
    told = []
    for name in ("clean", "dirty"):
        train(Loop(model, optimizer, run_dir=name, max_steps=1), model, batches(1))
        told.append(strict((tmp_path / name / "run.json").read_text())["sittings"][0]["git"])
        (tmp_path / "script.py").write_text("changed")
        subprocess.run(["git", "add", "script.py"], check=True)
    commit = subprocess.run(["git", "rev-parse", "HEAD"], capture_output=True, text=True, check=True).stdout.strip()
    assert told == [{"commit": commit, "dirty": False}, {"commit": commit, "dirty": True}]


def test_nothing_is_written_before_the_run_begins_and_nothing_else_after(parts, folder):
    model, optimizer = parts
    loop = Loop(model, optimizer, run_dir=folder, max_epochs=1)
    with loop:
        assert not folder.exists()
        for _ in loop.batches(batches(1)):
            loop.step_end(loss=1.0)
    assert [name for name in files(folder) if not name.startswith("checkpoints/step-")] == [
        ".lock",
        "checkpoints/latest",
        "journal.jsonl",
        "run.json",
    ]


# -- a used folder -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "named"),
    [
        ("run.json", "run.json"),
        ("journal.jsonl", "journal.jsonl"),
        ("metrics.jsonl", "metrics.jsonl"),
        ("checkpoints/step-00000003/MANIFEST.json", "checkpoints/step-* (1)"),
        ("tb/events.out.tfevents.1", "tb/**/events* (1)"),
    ],
)
def test_a_folder_with_traces_of_another_run_is_refused_by_name(parts, folder, path, named):
    (folder / path).parent.mkdir(parents=True)
    (folder / path).write_text("theirs")
    with pytest.raises(FileExistsError) as caught:
        Loop(*parts, run_dir=folder)
    assert str(caught.value) == (
        f"run_dir {folder} holds another run: {named}. Go on with it by resume='auto', "
        "name another folder, or move it aside by overwrite=True"
    )
    assert files(folder) == [path]


def test_a_file_in_the_place_of_the_folder_is_refused(parts, tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(FileExistsError, match="run is a file; name a folder"):
        Loop(*parts, run_dir=tmp_path / "run")


def test_a_folder_with_files_of_the_users_own_is_fine(parts, folder):
    model, optimizer = parts
    folder.mkdir(parents=True)
    (folder / "notes.md").write_text("mine")
    train(Loop(model, optimizer, run_dir=folder, max_steps=1), model, batches(1))
    assert (folder / "notes.md").read_text() == "mine"


def test_overwrite_moves_the_earlier_runs_aside_under_numbered_names(parts, folder, caplog):
    model, optimizer = parts
    ids = []
    for _ in range(3):
        loop = Loop(model, optimizer, run_dir=folder, max_steps=1, overwrite=True)
        ids.append(loop.state.run_id)
        train(loop, model, batches(1))
    places = [folder.with_name("first.old-1"), folder.with_name("first.old-2"), folder]
    assert [journal(place)[0]["run_id"] for place in places] == ids
    assert sorted(p.name for p in folder.parent.iterdir()) == ["first", "first.old-1", "first.old-2"]
    assert f"moved the earlier run aside to {places[1]}" in caplog.text


def test_overwrite_moves_nothing_before_the_run_begins_nor_a_folder_that_is_not_used(parts, folder):
    model, optimizer = parts
    train(Loop(model, optimizer, run_dir=folder, max_steps=1), model, batches(1))
    with Loop(model, optimizer, run_dir=folder, max_steps=1, overwrite=True):
        pass
    assert [p.name for p in folder.parent.iterdir()] == ["first"]
    fresh = folder.with_name("fresh")
    fresh.mkdir()
    train(Loop(model, optimizer, run_dir=fresh, max_steps=1, overwrite=True), model, batches(1))
    assert sorted(p.name for p in folder.parent.iterdir()) == ["first", "fresh"]


def test_a_checkpoint_of_another_folder_is_no_leave_to_write_into_a_used_one(parts, folder):
    model, optimizer = parts
    used = folder.with_name("used")
    for place in (folder, used):
        train(Loop(model, optimizer, run_dir=place, max_steps=1), model, batches(1))
    origin = folder / "checkpoints" / "step-00000001"
    with pytest.raises(FileExistsError, match="used holds another run"):
        Loop(model, optimizer, run_dir=used, resume=origin)
    loop = Loop(model, optimizer, run_dir=used, resume=origin, overwrite=True, max_steps=2)
    train(loop, model, batches(2))
    assert sorted(p.name for p in folder.parent.iterdir()) == ["first", "used", "used.old-1"]
    assert loop.result.step == 2
