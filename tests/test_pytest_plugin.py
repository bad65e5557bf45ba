"""The fixtures are there as soon as the package is installed, without a line of set-up."""

import subprocess
import sys

USERS_TESTS = """
import sys

import pytest

from eventloop import StepEnd, TrainState
from eventloop.callbacks import EarlyStopping


def test_loading_the_plugin_loads_no_torch():
    assert "torch" not in sys.modules


def test_the_bus_is_strict_and_the_recorder_hears_it(bus, recorder):
    bus.on(StepEnd, lambda event, state: 1 / 0, name="divides")
    with pytest.raises(ZeroDivisionError):
        bus.publish(StepEnd(), TrainState(step=3))
    assert recorder.names == ["step_end", "handler_failed"]


def test_a_fake_loop_is_on_that_bus_and_goes_by_that_clock(fake_loop, bus, recorder, clock):
    loop = fake_loop([EarlyStopping("eval_loss", patience=1)], evaluations={"eval_loss": [1.0, 2.0, 3.0]}, updates=2)
    assert loop.bus is bus
    assert loop.run().stopped_by == "EarlyStopping"
    assert recorder.names[0] == "train_begin"
    assert clock() == 4.0


def test_a_second_one_has_a_bus_of_its_own(fake_loop, bus, clock):
    first, second = fake_loop(), fake_loop()
    assert first.bus is bus
    assert second.bus is not bus
    assert first.clock is second.clock is clock


def test_a_bus_given_is_taken(fake_loop, bus):
    fake_loop()
    assert fake_loop(bus=bus).bus is bus
"""


def test_a_users_tests_find_the_fixtures(tmp_path):
    """Broken by taking the entry point away, and by a plugin that imports torch."""
    (tmp_path / "test_mine.py").write_text(USERS_TESTS, encoding="utf-8")
    command = [sys.executable, "-m", "pytest", "-q", "-W", "error", "-p", "no:cacheprovider", str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert "5 passed" in done.stdout, done.stdout + done.stderr
