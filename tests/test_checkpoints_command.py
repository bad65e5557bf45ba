"""`eventloop checkpoints` shows what a run has, `eventloop export` takes the weights out."""

import fcntl
import json
import os
import pty
import resource
import struct
import subprocess
import sys
import termios

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file
from small_runs import EVERY_UPDATE, Count, checkpoints, count

from callbacks import ModelCheckpoint
from eventloop import checkpoint
from eventloop.checkpoint.command import human
from eventloop.cli import main

SCORES = {1: 0.5, 2: 0.25, 3: float("nan"), 4: 0.25}
HEAD = ["step", "epoch", "is", "tags", "eval_loss", "size", "written", "state"]


def command(*arguments):
    done = CliRunner().invoke(main, [*map(str, arguments)])
    return done.exit_code, done.stdout.splitlines(), done.stderr.splitlines()


def cells(line):
    return [cell.strip() for cell in line.split("  ") if cell.strip()]


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Four updates, all kept: the second is the best, of equal ones the earlier."""
    run = tmp_path_factory.mktemp("trained") / "a run"
    count(run, ModelCheckpoint("eval_loss", **EVERY_UPDATE), scores=SCORES, max_steps=4)
    return run


@pytest.fixture
def run(trained, tmp_path):
    """A copy to damage."""
    subprocess.run(["cp", "-a", trained, tmp_path], check=True)
    return tmp_path / trained.name


def file_of(run, step, name):
    return run / "checkpoints" / f"step-{step:08d}" / name


def flip(file):
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def table(run, *options, code=0):
    """The rows of the table as lists of cells, and the line below it."""
    status, lines, errors = command("checkpoints", run, *options)
    assert (status, errors) == (code, [])
    assert cells(lines[0]) == HEAD
    return [cells(line) for line in lines[2:-1]], lines[-1]


def test_the_table_shows_each_checkpoint_and_marks_the_best_the_newest_and_the_latest(trained):
    """Fails if the tags decide which is the best, for three are tagged so."""
    rows, total = table(trained)
    assert [row[0] for row in rows] == ["1", "2", "3", "4"]
    assert [row[2] for row in rows][1::2] == ["best eval_loss", "newest, latest"]
    assert [row[-4] for row in rows] == ["0.5", "0.25", "nan", "0.25"]
    assert {row[-1] for row in rows} == {"listed"}
    size = sum(c.size for c in checkpoints(trained).values())
    assert total == f"4 checkpoints, {human(size)}"


def test_verified_they_are_whole(trained):
    rows, _ = table(trained, "--verify")
    assert {row[-1] for row in rows} == {"whole"}
    assert table(trained / "checkpoints", "--verify")[0] == rows


@pytest.mark.parametrize(
    ("damage", "why"),
    [
        (lambda run: flip(file_of(run, 4, "model.safetensors")), "model.safetensors does not match its hash"),
        (lambda run: os.truncate(file_of(run, 4, "state.json"), 5), "state.json has 5 bytes instead of "),
        (lambda run: file_of(run, 4, "state.safetensors").unlink(), "state.safetensors is missing"),
    ],
    ids=["a bit", "cut", "gone"],
)
def test_damage_is_found_by_verify_alone_and_then_another_is_the_newest(run, damage, why):
    damage(run)
    rows, _ = table(run)
    assert {row[-1] for row in rows} == {"listed"}
    rows, total = table(run, "--verify", code=1)
    assert [row[-1] for row in rows][:3] == ["whole"] * 3
    assert rows[3][-1].startswith(f"broken: {why}")
    assert "newest" in rows[2]
    assert "latest" in rows[3]
    assert total.endswith(", 1 broken")


@pytest.mark.parametrize(("options", "code"), [((), 0), (("--verify",), 1)])
def test_a_broken_manifest_shows_without_verify_too(run, options, code):
    os.truncate(file_of(run, 3, "MANIFEST.json"), 5)
    (run / "checkpoints" / "step-strange").mkdir()
    rows, total = table(run, *options, code=code)
    assert rows[0][0] == "step-strange"
    assert rows[0][-1] == "broken: step-strange is no checkpoint: it has no MANIFEST.json"
    assert rows[3][0] == "step-00000003"
    assert rows[3][-1].startswith("broken: the manifest of step-00000003 cannot be read: ")
    assert total.startswith("5 checkpoints, ")
    assert total.endswith(", 2 broken")


def test_when_the_best_is_damaged_the_next_is_the_best(run):
    flip(file_of(run, 2, "model.safetensors"))
    rows, _ = table(run, "--verify", code=1)
    assert "best eval_loss, newest, latest" not in rows[3]
    assert rows[3][2] == "newest, best eval_loss, latest"


def test_for_machines_it_is_strict_json(run):
    flip(file_of(run, 4, "state.json"))
    code, lines, _ = command("checkpoints", run, "--json", "--verify")
    rows = json.loads("\n".join(lines), parse_constant=pytest.fail)
    known = checkpoints(run)
    assert code == 1
    assert [(row["step"], row["epoch"], row["is"], row["state"]) for row in rows] == [
        (1, 1, [], "whole"),
        (2, 1, ["best eval_loss"], "whole"),
        (3, 1, ["newest"], "whole"),
        (4, None, ["latest"], "broken"),
    ]
    assert rows[2]["metrics"] == {"eval_loss": "NaN"}
    assert rows[3]["problem"] == f"{known[4].path} is damaged: state.json does not match its hash"
    assert [(row["bytes"], row["run_id"], row["path"]) for row in rows] == [
        (c.size, c.run_id, str(c.path)) for c in known.values()
    ]


def test_a_loop_of_ones_own_shows_all_its_metrics_and_its_tags(tmp_path):
    for step in (1, 2):
        tags = ["best"] if step == 1 else []
        checkpoint.save(tmp_path, {"model": Count()}, step=step, tags=tags, metrics={"acc": step, "f1": 0.5})
    code, lines, _ = command("checkpoints", tmp_path)
    assert (code, cells(lines[0])[3:6]) == (0, ["tags", "acc", "f1"])
    assert [cells(line)[1:5] for line in lines[2:4]] == [["best", "best", "1", "0.5"], ["newest, latest", "2", "0.5",
                                                          cells(lines[3])[4]]]  # fmt: skip


def test_checkpoints_of_another_run_among_them_are_never_the_best(tmp_path):
    """Fails if a foreign score is ranked with this run's."""
    for name, scores in {"mine": {1: 0.5, 2: 0.25, 3: 0.3}, "other": {1: 0.01}}.items():
        count(tmp_path / name, ModelCheckpoint("eval_loss"), scores=scores, max_steps=len(scores))
    file_of(tmp_path / "other", 1, "").rename(file_of(tmp_path / "mine", 1, ""))
    rows, _ = table(tmp_path / "mine", "--verify")
    assert [row[0] for row in rows] == ["1", "2", "3"]
    assert [row[0] for row in rows if "best eval_loss" in row] == ["2"]


def test_a_run_without_checkpoints_says_so(tmp_path):
    (tmp_path / "run.json").write_text("{}")
    assert command("checkpoints", tmp_path, "--verify") == (0, [f"no checkpoints in {tmp_path}/checkpoints"], [])
    assert command("checkpoints", tmp_path, "--json")[:2] == (0, ["[]"])


@pytest.mark.parametrize("name", ["nowhere", "file", "of another program", "empty"])
def test_what_is_no_run_is_one_sentence_and_exit_code_2(tmp_path, name):
    (tmp_path / "file").touch()
    (tmp_path / "empty").mkdir()
    (tmp_path / "of another program").mkdir()
    (tmp_path / "of another program" / "epoch=1.ckpt").touch()
    there = {"nowhere": "there is nothing", "file": "it is a file", "empty": "it is empty"}
    code, lines, errors = command("checkpoints", tmp_path / name)
    assert (code, lines) == (2, [])
    assert errors == [
        f"error: no run at {tmp_path / name}: {there.get(name, 'in it are epoch=1.ckpt')}; a run folder has "
        f"checkpoints/, run.json or journal.jsonl"
    ]


def in_terminal(*arguments):
    """What a real process writes to stdout, a pipe, and to stderr, a terminal."""
    here, there = pty.openpty()
    fcntl.ioctl(there, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 80, 0, 0))
    process = [sys.executable, "-m", "eventloop", *map(str, arguments)]
    done = subprocess.run(process, stdout=subprocess.PIPE, stderr=there, stdin=subprocess.DEVNULL, check=False)
    os.set_blocking(here, False)
    try:
        said = os.read(here, 100_000).decode()
    except BlockingIOError:  # nothing was written
        said = ""
    os.close(there)
    os.close(here)
    return done.returncode, done.stdout.decode(), said


def test_into_a_pipe_goes_the_table_alone_and_the_bar_is_for_a_terminal(trained):
    code, table, bar = in_terminal("checkpoints", trained, "--verify")
    assert code == 0
    assert table == "\n".join([*command("checkpoints", trained, "--verify")[1], ""])
    assert table.isascii()
    assert "verifying: " in bar


@pytest.mark.parametrize("arguments", [["checkpoints", "--help"], ["export", "--help"], ["checkpoints", "--verify"]])
def test_neither_help_nor_a_listing_loads_torch(trained, arguments):
    call = arguments if "--help" in arguments else [*arguments, str(trained)]
    script = (
        f"import sys; from eventloop.cli import main\ntry: main({call})\nfinally: assert 'torch' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
    assert ("Usage: " if call == arguments else "newest") in done.stdout


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1 kB"), (20_488, "20.5 kB"), (999_499, "999 kB"), (999_500, "1 MB"),
     (1_234_567_890, "1.23 GB"), (5 * 10**15, "5 PB")],
)  # fmt: skip
def test_sizes_are_told_as_one_says_them(size, text):
    assert human(size) == text


# -- export ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("options", "step"), [((), 4), (("--best",), 2), (("--step", 3), 3)])
def test_the_weights_are_exported(trained, tmp_path, options, step):
    file = tmp_path / "my weights.safetensors"
    code, lines, errors = command("export", trained, file, *options)
    path = checkpoints(trained)[step].path
    assert (code, errors) == (0, [])
    assert lines == [f"{file}: {human(file.stat().st_size)}, the weights of step {step}, from {path}"]
    assert load_file(file)["w"] == step


def test_a_checkpoint_can_be_exported_by_its_path_in_another_dtype_and_over_a_file(trained, tmp_path):
    (file := tmp_path / "w.safetensors").write_text("old")
    source = checkpoints(trained)[1].path
    assert command("export", source, file)[2] == [
        f"error: {file} is there already; overwrite=True (--overwrite) replaces it"
    ]
    assert command("export", source, file, "--overwrite", "--dtype", "bfloat16")[0] == 0
    assert load_file(file)["w"].dtype == torch.bfloat16


@pytest.mark.parametrize(
    ("options", "text"),
    [
        (("--step", 9), "error: no checkpoint of step 9 in "),
        (("--dtype", "int4"), "error: dtype='int4': give one of float64, float32, float16, bfloat16"),
        (("--best", "--step", 1), "Error: --best and --step name two checkpoints; give one of them"),
    ],
)
def test_a_bad_argument_of_export_is_one_sentence_and_exit_code_2(trained, tmp_path, options, text):
    code, lines, errors = command("export", trained, tmp_path / "w.safetensors", *options)
    assert (code, lines) == (2, [])
    assert errors[-1].startswith(text)
    assert [*tmp_path.iterdir()] == []


def test_on_a_full_disk_no_half_of_a_file_is_left(trained, tmp_path):
    """Fails if what was begun stays beside the file that was not to be."""
    done = subprocess.run(
        [sys.executable, "-m", "eventloop", "export", trained, tmp_path / "w.safetensors"],
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (50, 50)),
        capture_output=True,
        text=True,
        check=False,
    )
    assert (done.returncode, done.stdout) == (2, "")
    assert "cannot be written: File too large" in done.stderr
    assert [*tmp_path.iterdir()] == []
