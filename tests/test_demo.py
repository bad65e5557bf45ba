"""The demo as a user runs it: a command, its output, and the folder that it leaves."""

import json
import re
import signal
import subprocess
import sys
import threading
import time

import pytest

from eventloop import read_metrics
from eventloop.checkpoint import Checkpoints
from eventloop.rows import read_rows


def command(*arguments, **options):
    told = {"capture_output": True, "text": True, "timeout": 120} | options
    return subprocess.run([sys.executable, "-m", "eventloop", *arguments], check=False, **told)


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return tmp_path_factory.mktemp("demo")


@pytest.fixture(scope="module")
def story(place):
    done = command("demo", cwd=place)
    assert done.returncode == 0, done.stderr
    return done.stdout


def rows_of(folder):
    return list(read_rows(folder / "journal.jsonl"))


def test_the_story_says_who_stopped_it_and_what_it_came_to(story):
    said = re.search(
        r"stopped after update (\d+) by EarlyStopping: eval_loss has not improved on (\S+) for 3 eval", story
    )
    assert said is not None
    assert f"updates not spent: {390 - int(said[1])} of 390" in story
    assert re.search(rf"best: eval_loss {float(said[2]):.4g} at step \d+, in runs/digits-1/checkpoints/step-\d+", story)
    assert "failures:\n  none" in story
    assert "tensorboard --logdir runs/digits-1/tb" in story


def test_the_story_shows_the_order_and_the_cost_of_the_handlers(story):
    order = re.findall(r"^ +\d\. +(-?\d+)", story, re.MULTILINE)
    assert order == sorted(order, key=int, reverse=True)
    assert len(order) >= 6
    calls = int(re.search(r"^NaNGuard +step_end +(\d+)", story, re.MULTILINE)[1])
    assert f"stopped after update {calls} " in story


def test_the_stop_comes_from_a_real_rise_of_eval_loss(story, place):
    rows = [row for row in read_metrics(place / "runs/digits-1") if row["event"] == "eval_end"]
    losses = [row["eval_loss"] for row in rows]
    best = losses.index(min(losses))
    assert len(losses) == best + 1 + 3
    assert all(loss > losses[best] for loss in losses[best + 1 :])
    assert losses[best] < losses[0] / 3


def test_the_best_checkpoint_is_whole_and_holds_the_best_weights(story, place):
    name = re.search(r"checkpoints/(step-\d+)", story)[1]
    found = {c.path.name: c for c in Checkpoints(place / "runs/digits-1/checkpoints", "").list()}
    found[name].verify()
    assert found[name].metrics["eval_loss"] == min(c.metrics["eval_loss"] for c in found.values())


def test_a_second_run_leaves_the_first_ones_folder_alone(story, place):
    before = {p: p.stat().st_mtime_ns for p in (place / "runs/digits-1").rglob("*")}
    done = command("demo", "--max-epochs", "2", "--patience", "100", cwd=place)
    assert "completed after update 26" in done.stdout
    assert {p: p.stat().st_mtime_ns for p in (place / "runs/digits-1").rglob("*")} == before
    refused = command("demo", "--run-dir", "runs/digits-1", cwd=place)
    assert refused.returncode == 2
    assert refused.stderr.startswith(f"error: run_dir {place / 'runs/digits-1'} holds another run: ")
    assert refused.stdout == ""


def test_a_full_disk_under_a_logger_costs_its_rows_and_nothing_else(place):
    done = command("demo", "--fail-logger", "--run-dir", "full", cwd=place)
    assert done.returncode == 0, done.stderr
    assert "File too large" in done.stdout
    lost, given = re.search(r"JSONLLogger: (\d+) rows lost of (\d+)", done.stdout).groups()
    assert 0 < int(lost) < int(given)
    assert rows_of(place / "full")[-1]["status"] in ("stopped", "completed")
    assert int(given) - int(lost) <= len(read_metrics(place / "full")) < int(given)  # of the last write some got in


def figures(story):
    """Its first lines: how the run ended, what was not spent, and the best; the folder apart."""
    return [line.partition(", in ")[0] for line in story.strip().splitlines()[:3]]


def test_killed_in_the_middle_of_an_epoch_it_goes_on_and_ends_with_the_figures_of_the_uncut_run(story, place):
    folder = place / "elsewhere" / "runs" / "digits-7"
    folder.parent.mkdir(parents=True)
    child = subprocess.Popen(
        [sys.executable, "-m", "eventloop", "demo", "--run-dir", str(folder)],
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    deadline = time.monotonic() + 60
    while not len(list(folder.glob("checkpoints/step-*"))) >= 2 and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    child.send_signal(signal.SIGKILL)
    assert child.wait() == -signal.SIGKILL
    steps = [c.step for c in Checkpoints(folder / "checkpoints", "").list()]
    assert Checkpoints(folder / "checkpoints", "").newest().step == max(steps)
    assert rows_of(folder)[0]["event"] == "train_begin"
    assert all(json.dumps(row, allow_nan=True) for row in read_metrics(folder))
    done = command("demo", "--resume", cwd=place / "elsewhere")  # by default the last one
    assert done.returncode == 0, done.stderr
    assert figures(done.stdout) == figures(story)
    evaluated = [row["step"] for row in read_metrics(folder) if row["event"] == "eval_end"]
    assert evaluated == sorted(set(evaluated))


def test_interrupted_it_saves_what_it_has_and_says_how_to_go_on(place):
    folder = place / "interrupted"
    child = subprocess.Popen(
        [sys.executable, "-m", "eventloop", "demo", "--run-dir", str(folder)], stderr=subprocess.PIPE, text=True
    )
    deadline = time.monotonic() + 60
    while not list(folder.glob("checkpoints/step-*")) and time.monotonic() < deadline:
        threading.Event().wait(0.05)
    child.send_signal(signal.SIGINT)
    _, told = child.communicate(timeout=60)
    assert child.returncode == 75
    assert told.endswith(f"preempted; to go on: python -m eventloop demo --run-dir {folder} --resume\n")
    assert "Traceback" not in told
    end = rows_of(folder)[-1]
    assert (end["status"], end["reason"]) == ("preempted", "SIGINT received")
    assert Checkpoints(folder / "checkpoints", "").newest().step == end["step"]


def test_help_loads_no_torch():
    script = "from eventloop.cli import main; main(['--help'], standalone_mode=False); import sys; print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert "torch" not in done.stdout.splitlines()[-1].split()
    assert "demo" in done.stdout


def test_a_misspelt_option_is_one_sentence_and_exit_code_2():
    done = command("demo", "--patiance", "3")
    assert done.returncode == 2
    assert "No such option '--patiance'" in done.stderr
