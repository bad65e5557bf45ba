"""The types say what the bus says at run time: the files in tests/typing are read by mypy, not run."""

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent / "typing"


@pytest.fixture(scope="module")
def verdict(tmp_path_factory):
    cache = str(tmp_path_factory.mktemp("mypy"))
    files = [str(HERE / name) for name in ("accepted.py", "rejected.py")]
    words = [sys.executable, "-m", "mypy", "--config-file", str(HERE / "mypy.ini"), "--cache-dir", cache, *files]
    run = subprocess.run(words, capture_output=True, text=True)  # apart, as mypy raises the recursion limit
    assert run.stderr == ""
    return run.stdout.splitlines()


def test_handlers_of_the_exact_and_of_a_base_event_with_any_kind_of_reply_are_accepted(verdict):
    assert [line for line in verdict if "accepted.py" in line] == []


def test_a_wrong_event_state_or_reply_is_rejected(verdict):
    assert [line for line in verdict if "rejected.py" in line] == []


def test_the_library_itself_is_strictly_typed(verdict):
    assert [line for line in verdict if "typing/" not in line and "error:" in line] == []
