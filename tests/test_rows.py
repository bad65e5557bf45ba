"""Rows are strict JSON, no key is dropped, and a file is whole rows whatever a killed writer has left."""

import json
import math
import subprocess
import sys
from datetime import UTC, datetime
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eventloop import read_metrics
from eventloop.rows import LineFile, decode, encode, read_rows


def strict(line):
    """A reader that takes no NaN, no Infinity and no key twice."""

    def refuse(word):
        raise ValueError(word)

    def once(pairs):
        assert len(dict(pairs)) == len(pairs)
        return dict(pairs)

    return json.loads(line, parse_constant=refuse, object_pairs_hook=once)


SCALARS = st.none() | st.booleans() | st.integers() | st.floats() | st.text()
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner), max_leaves=8)
TEXTS = {"NaN", "Infinity", "-Infinity"}


@given(st.dictionaries(st.text(), VALUES))
def test_a_row_is_one_line_of_strict_json_and_comes_back_as_it_was(row):
    line = encode(row)
    assert "\n" not in line
    assert strict(line).keys() == row.keys()
    if not any(text in line for text in TEXTS):
        assert decode(line) == row


@given(st.dictionaries(st.text(), st.floats()))
def test_every_float_comes_back_as_itself(row):
    assert decode(encode(row)) == pytest.approx(row, rel=0, abs=0, nan_ok=True)


@pytest.mark.parametrize(
    ("value", "form"),
    [
        (np.float32(1.5), 1.5),
        (np.int64(3), 3),
        (np.bool_(True), True),
        (np.float32("nan"), "NaN"),
        (np.array([1, 2]), [1, 2]),
        (np.complex64(1j), "1j"),
        (torch.tensor(2.0), 2.0),
        (torch.tensor(math.inf), "Infinity"),
        (torch.tensor([[1, 2]], requires_grad=False), [[1, 2]]),
        (torch.tensor(1.5, dtype=torch.bfloat16), 1.5),
        (torch.ones((), requires_grad=True), 1.0),
        (torch.zeros(2000), "Tensor of shape (2000,), torch.float32"),
        (Fraction(1, 4), 0.25),
        ((1, {"a": -math.inf}), [1, {"a": "-Infinity"}]),
        ({"b", "a"}, ["a", "b"]),
        (Path("runs/x"), "runs/x"),
        (datetime(2030, 1, 2, tzinfo=UTC), "2030-01-02T00:00:00+00:00"),
        (ValueError("no"), "ValueError: no"),
        (b"raw", "b'raw'"),
        (Ellipsis, "Ellipsis"),
    ],
)
def test_a_value_that_is_no_plain_number_gets_a_readable_form(value, form):
    assert strict(encode({"value": value})) == {"value": form}


def test_keys_that_are_no_text_are_kept_also_where_two_look_alike():
    assert strict(encode({1: "a", "1": "b", None: "c"})) == {"1": "a", "1_": "b", "None": "c"}


def write(path, *rows, keep=None):
    file = LineFile(path, keep)
    file.extend(rows)
    file.close()


ROWS = [{"step": n, "loss": 1.5, "note": "é" * n} for n in range(1, 5)]


@given(st.integers(0, 400))
def test_a_file_cut_anywhere_is_repaired_by_whoever_appends(tmp_path_factory, size):
    path = tmp_path_factory.mktemp("rows") / "log.jsonl"
    write(path, *ROWS)
    with path.open("r+b") as file:
        file.truncate(min(size, path.stat().st_size))
    whole = list(read_rows(path))
    assert whole == ROWS[: len(whole)]
    write(path, {"step": 9})
    assert [strict(line) for line in path.read_text().splitlines()] == [*whole, {"step": 9}]


def test_only_the_end_of_the_file_is_read_to_repair_it(tmp_path):
    path = tmp_path / "log.jsonl"
    with path.open("wb") as file:
        file.truncate(2**33)  # eight gigabytes of nothing, which take no place
        file.seek(2**33)
        file.write(b'\n{"step": 1}\n{"st')
    write(path, {"step": 2})
    with path.open("rb") as file:
        file.seek(2**33)
        assert file.read() == b'\n{"step": 1}\n{"step": 2}\n'
    path.unlink()


def test_a_torn_line_longer_than_a_block_is_cut_off(tmp_path):
    path = tmp_path / "log.jsonl"
    write(path, {"step": 1}, {"text": "x" * 20000})
    with path.open("r+b") as file:
        file.truncate(path.stat().st_size - 5)
    write(path, {"step": 2})
    assert list(read_rows(path)) == [{"step": 1}, {"step": 2}]


@given(st.integers(0, 12), st.lists(st.integers(0, 12), max_size=12))
def test_rows_of_later_steps_are_cut_and_no_others(tmp_path_factory, step, steps):
    path = tmp_path_factory.mktemp("rows") / "log.jsonl"
    rows = [{"step": n, "text": "x" * 700} for n in sorted(steps)]
    write(path, *rows)
    write(path, keep=lambda row: row["step"] <= step)
    assert list(read_rows(path)) == [row for row in rows if row["step"] <= step]


def test_a_line_that_is_no_row_goes_only_with_the_rows_before_it(tmp_path):
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 1}\n# mine\n{"step": 2}\n# mine too\n')
    write(path, keep=lambda row: row["step"] <= 2)
    assert path.read_text() == '{"step": 1}\n# mine\n{"step": 2}\n# mine too\n'
    write(path, keep=lambda row: row["step"] <= 1)
    assert path.read_text() == '{"step": 1}\n# mine\n'


def test_read_metrics_takes_a_folder_or_a_file_and_passes_over_a_torn_last_line(tmp_path):
    path = tmp_path / "metrics.jsonl"
    path.write_text('{"step": 1, "loss": "NaN", "note": "abc"}\n{"step": 2}\n{"step": 3, "lo')
    for run in (tmp_path, path, str(tmp_path)):
        first, second = read_metrics(run)
        assert (first["step"], math.isnan(first["loss"]), first["note"]) == (1, True, "abc")
        assert second == {"step": 2}


def test_a_bad_line_in_the_middle_is_an_error_that_names_its_place(tmp_path):
    (tmp_path / "metrics.jsonl").write_text('{"step": 1}\n[1, 2]\n{"step": 2}\n')
    with pytest.raises(ValueError, match=r"metrics\.jsonl, line 2: .*\[1, 2\].* is not a row"):
        read_metrics(tmp_path)
    with pytest.raises(FileNotFoundError):
        read_metrics(tmp_path / "nothing")


FULL_DISK = """
import resource, sys
from eventloop.rows import LineFile
file = LineFile(sys.argv[1])
file.append({"step": 1})
resource.setrlimit(resource.RLIMIT_FSIZE, (100, 100))
try:
    file.extend({"step": n, "loss": 0.5} for n in range(2, 100))
except OSError as error:
    print(type(error).__name__)
"""


def test_a_write_that_the_disk_takes_in_part_leaves_the_whole_rows_that_fitted(tmp_path):
    path = tmp_path / "log.jsonl"
    done = subprocess.run([sys.executable, "-c", FULL_DISK, str(path)], capture_output=True, text=True, check=True)
    assert done.stdout == "OSError\n"
    assert [row["step"] for row in read_rows(path)] == [1, 2, 3, 4]
    assert path.read_bytes().endswith(b"\n")
    assert path.stat().st_size <= 100
