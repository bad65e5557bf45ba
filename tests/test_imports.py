"""Importing is cheap: the bus and its test kit load nothing that only a run needs."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import eventloop

HEAVY = [
    "torch",
    "numpy",
    "structlog",
    "pydantic",
    "tensorboardX",
    "asyncio",
    "hypothesis",
    "tqdm",
    "yaml",
    "callbacks",
]


def loaded_by(statement):
    script = f"import sys\nbefore = set(sys.modules)\n{statement}\nprint(*sorted(set(sys.modules) - before))"
    run = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    return run.stdout.split()


@pytest.mark.parametrize(
    "statement",
    [
        "import eventloop",
        "import eventloop.testing",
        "import eventloop.checkpoint",
        "from eventloop.testing import Recorder, assert_order, Crowd, Subscriber",
        "from eventloop import Bus, StepEnd; bus = Bus(); bus.on(StepEnd, print); bus.publish(StepEnd())",
    ],
)
def test_nothing_heavy_is_loaded(statement):
    modules = loaded_by(statement)
    assert [name for name in HEAVY if name in modules] == []
    assert "eventloop.bus" in modules


def test_of_the_parts_that_are_no_standard_library_blinker_alone_is_loaded():
    packages = {name.partition(".")[0] for name in loaded_by("import eventloop, eventloop.testing")}
    assert packages - set(sys.stdlib_module_names) <= {"eventloop", "blinker", "typing_extensions"}


def test_the_strategies_load_hypothesis_when_one_is_asked_for():
    modules = loaded_by("from eventloop.testing import event_streams, metric_series, metric_values, subscriptions")
    assert "hypothesis" in modules
    assert "torch" not in modules


@pytest.mark.parametrize("module", ["eventloop", "eventloop.testing"])
def test_what_is_not_there_is_an_attribute_error_and_what_is_listed_is_there(module):
    script = f"import {module} as m\nassert not hasattr(m, 'nothing_like_it')\n[getattr(m, name) for name in m.__all__]"
    assert subprocess.run([sys.executable, "-c", script], check=False).returncode == 0


def test_eventloop_never_imports_callbacks_and_only_channel_knows_blinker():
    for path in Path(eventloop.__file__).parent.rglob("*.py"):
        imported = set()
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Import):
                imported |= {alias.name.partition(".")[0] for alias in node.names}
            elif isinstance(node, ast.ImportFrom) and not node.level:
                imported.add(node.module.partition(".")[0])
        assert "callbacks" not in imported or path.name == "callbacks.py", path.name  # the lazy way round a hidden name
        assert "blinker" not in imported or path.name == "channel.py"
