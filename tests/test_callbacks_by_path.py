"""`callbacks` and `eventloop.callbacks`: what they have, what importing them loads, and a project that hides ours."""

import subprocess
import sys
from pathlib import Path

import pytest

import callbacks
import eventloop.callbacks

ROOT = Path(callbacks.__file__).parent.parent


def python(script, folder):
    """What a fresh interpreter in ``folder`` prints, which finds that folder first, then ours."""
    path = f"import sys; sys.path[:0] = ['', {str(ROOT)!r}]\n"
    done = subprocess.run(
        [sys.executable, "-c", path + script], cwd=folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


@pytest.fixture
def decoy(tmp_path):
    (tmp_path / "callbacks.py").write_text("print('decoy')\nclass EarlyStopping: ...\n")
    return tmp_path


def test_every_name_is_there_in_alphabetical_order():
    assert callbacks.__all__ == sorted(callbacks.__all__)
    assert set(callbacks.__all__) <= set(dir(callbacks)) == set(dir(eventloop.callbacks))
    assert all(isinstance(getattr(callbacks, name), type) for name in callbacks.__all__)


def test_every_name_is_there_with_the_suffix_too():
    assert [getattr(callbacks, f"{name}Callback") for name in callbacks.__all__] == [
        getattr(callbacks, name) for name in callbacks.__all__
    ]


def test_both_ways_give_the_same_classes():
    assert all(getattr(eventloop.callbacks, name) is getattr(callbacks, name) for name in callbacks.__all__)


@pytest.mark.parametrize("module", [callbacks, eventloop.callbacks])
def test_an_unknown_name_is_an_attribute_error_that_lists_what_there_is(module):
    with pytest.raises(AttributeError, match=r"has no attribute 'EarlyStoping'; there are .*EarlyStopping"):
        _ = module.EarlyStoping


def test_importing_and_making_callbacks_loads_no_torch(tmp_path):
    script = """
from callbacks import EarlyStopping, GradNormMonitor, LearningRateMonitor, NaNGuard, WarmupCosine
made = EarlyStopping("loss"), GradNormMonitor(), LearningRateMonitor(), NaNGuard(), WarmupCosine(5)
print(*[name for name in ("torch", "structlog", "numpy", "tensorboardX", "asyncio") if name in sys.modules])
"""
    assert python(script, tmp_path) == []


def test_a_project_with_a_callbacks_module_of_its_own_still_gets_ours(decoy):
    script = """
from eventloop.callbacks import EarlyStopping, WarmupCosineCallback
from eventloop import Bus, EvalEnd, TrainState
bus = Bus()
bus.attach(EarlyStopping("eval_loss"))
bus.publish(EvalEnd(), TrainState().end_evaluation({"eval_loss": 0.5}))
print(bus.objects[0][1].best, WarmupCosineCallback.__name__, "callbacks" in sys.modules)
"""
    assert python(script, decoy) == ["0.5", "WarmupCosine", "False"]


@pytest.mark.parametrize("first", ["callbacks", "eventloop.callbacks"])
def test_the_projects_own_module_and_ours_live_side_by_side_whichever_comes_first(decoy, first):
    script = f"""
import {first}
import callbacks, eventloop.callbacks
print(callbacks.EarlyStopping is eventloop.callbacks.EarlyStopping, eventloop.callbacks.EarlyStopping.__module__)
print(eventloop.callbacks.EarlyStopping is eventloop.callbacks.EarlyStopping)
"""
    assert python(script, decoy) == ["decoy", "False", "eventloop.shipped_callbacks.early_stopping", "True"]


def test_a_star_import_gives_all_of_ours_and_nothing_else(decoy):
    script = "from eventloop.callbacks import *; print(EarlyStopping.__module__, 'find_spec' in globals())"
    assert python(script, decoy) == ["eventloop.shipped_callbacks.early_stopping", "False"]


def test_a_folder_of_that_name_without_an_init_hides_nothing(tmp_path):
    (tmp_path / "callbacks").mkdir()
    script = "import callbacks, eventloop.callbacks as ours; print(callbacks.NaNGuard is ours.NaNGuard)"
    assert python(script, tmp_path) == ["True"]


@pytest.mark.parametrize("first", ["callbacks", "eventloop.callbacks"])
def test_without_a_decoy_it_is_the_package_itself_whichever_comes_first(tmp_path, first):
    script = f"""
import {first}
first = {first}.EarlyStopping
import callbacks, eventloop.callbacks
print(first is callbacks.EarlyStopping is eventloop.callbacks.EarlyStopping, first.__module__)
"""
    assert python(script, tmp_path) == ["True", "callbacks.early_stopping"]
