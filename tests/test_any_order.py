"""`assert_any_order`: a set of callbacks does the same in any order of registration, or a snippet shows that not."""

import itertools
import logging
import random
import subprocess
import sys

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from eventloop import Priority, Report, Save, StepBegin, StepEnd, Stop, TrainState
from eventloop.callbacks import (
    ConsoleLogger,
    EarlyStopping,
    GradNormMonitor,
    JSONLLogger,
    LearningRateMonitor,
    ModelCheckpoint,
    NaNGuard,
    ProgressBar,
    TensorBoardLogger,
    WarmupCosine,
)
from eventloop.testing import assert_any_order
from eventloop.testing.any_order import _orders


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(logging.getLogger("eventloop"), "disabled", True)


class Noise:
    """Reports, by default, in the band of whoever names none."""

    def __init__(self, size=1.0, priority=0):
        self.size, self.priority, self.calls = size, priority, 0

    def on_step_end(self, event, state):
        self.calls += 1
        return Report(noise=self.size)


class OwnLogger:
    """Forgets to name a band."""

    def __init__(self, priority=0):
        self.priority, self.rows = priority, []

    def on_step_end(self, event, state):
        self.rows.append(dict(state.metrics))


class Judge:
    """Reads an attribute of another callback."""

    def __init__(self, noise):
        self.noise = noise

    def on_step_end(self, event, state):
        return Stop("enough") if self.noise.calls >= 3 else None


class Saver:
    def on_step_end(self, event, state):
        return Save("often")


def noise_and_judge():
    noise = Noise(2.0)
    return [WarmupCosine(2), Judge(noise), EarlyStopping("eval_loss"), noise, Saver()]


def difference(make, **script):
    """The message of the difference, and the snippet in it; that it has to run."""
    with pytest.raises(AssertionError) as caught:
        assert_any_order(make, **script)
    told, snippet = str(caught.value).split("to reproduce it:\n\n")
    return told, snippet


SCRIPT = {"metrics": {"loss": 0.5}, "evaluations": {"eval_loss": [1.0, 0.9, float("nan")]}}


def test_the_shipped_callbacks_do_the_same_in_any_order(tmp_path):
    model = torch.nn.Linear(2, 1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)

    def make():
        deciders = [EarlyStopping("eval_loss", patience=2), ModelCheckpoint("eval_loss", save_top_k=2), NaNGuard()]
        measuring = [WarmupCosine(3), LearningRateMonitor(), GradNormMonitor(every=2)]
        loggers = [JSONLLogger(tmp_path / "log.jsonl", every=2), TensorBoardLogger(tmp_path / "tb", every=3)]
        return [*loggers, ConsoleLogger(every=3), ProgressBar(), *deciders, *measuring]

    evaluations = {"eval_loss": [1.0, 0.8, 0.9, 0.9, 0.9]}
    assert_any_order(make, limit=15, model=model, metrics={"loss": 0.5}, evaluations=evaluations)


def test_a_logger_in_one_band_with_what_it_logs_is_found_and_its_snippet_fails_alike():
    """Broken by a trace without what was read: a logger asks for nothing."""
    told, snippet = difference(lambda: [WarmupCosine(2), OwnLogger(), EarlyStopping("eval_loss"), Noise(2.0)], **SCRIPT)
    assert told.startswith("the order of registration decides: with [OwnLogger, Noise] (-) and [Noise, OwnLogger] (+)")
    assert told.splitlines()[4:6] == [
        "  - step_end 1: OwnLogger reads loss=0.5",
        "  + step_end 1: OwnLogger reads loss=0.5, noise=2",
    ]
    assert "give OwnLogger or Noise a priority" in told
    with pytest.raises(AssertionError, match=r"\[OwnLogger, Noise\] \(-\) and \[Noise, OwnLogger\] \(\+\)"):
        exec(snippet, {})


def test_a_callback_that_reads_anothers_attribute_is_found_and_its_snippet_fails_alike():
    told, snippet = difference(noise_and_judge, **SCRIPT)
    assert "with [Judge, Noise] (-) and [Noise, Judge] (+)" in told
    assert "  - step_end 3\n  + step_end 3: Judge: Stop(reason='enough')\n" in told
    assert snippet.splitlines()[4:] == [
        "def callbacks():",
        "    noise = Noise(size=2.0)",
        "    judge = Judge(noise=noise)",
        "    return [judge, noise]",
        "",
        "",
        "assert_any_order(callbacks, metrics={'loss': 0.5}, evaluations={'eval_loss': [1.0, 0.9, float('nan')]})",
    ]
    with pytest.raises(AssertionError, match=r"\+ step_end 3: Judge: Stop"):
        exec(snippet, {})


def test_a_class_inside_a_function_is_written_out_in_the_snippet():
    class Local(OwnLogger):
        def on_step_end(self, event, state):
            return Stop() if "noise" in state.metrics.fresh else None

    _, snippet = difference(lambda: [Local(), Noise()], max_steps=2)
    assert "class Local(OwnLogger):" in snippet
    with pytest.raises(AssertionError, match=r"\[Local, Noise\]"):
        exec(snippet, {})


def test_where_nobody_can_build_them_again_the_snippet_takes_the_factory_of_the_test():
    class Odd(OwnLogger):
        def __init__(self, kept_nowhere):
            super().__init__()

    def make():
        return [Saver(), Odd(1), Noise()]

    _, snippet = difference(make, max_steps=2)
    assert "# it cannot be pasted as it stands: Odd keeps no kept_nowhere\n# make: what the test has\n" in snippet
    assert "assert_any_order(callbacks, max_steps=2)" in snippet
    with pytest.raises(AssertionError, match=r"\[Odd, Noise\]"):
        exec(snippet, {"make": make})


@pytest.mark.parametrize("losses", [lambda turn: 1.0 / turn, range(1, 4)])
def test_options_that_are_no_literals_stay_those_of_the_test(losses):
    options = {"metrics": {"loss": losses}, "max_steps": 2}
    _, snippet = difference(lambda: [OwnLogger(), Noise()], **options)
    assert "# options: the keywords that the test has\nassert_any_order(callbacks, **options)" in snippet
    with pytest.raises(AssertionError, match=r"\[OwnLogger, Noise\]"):
        exec(snippet, {"options": options})


@given(st.integers(-2, 2), st.integers(-2, 2), st.booleans())
def test_two_that_depend_on_each_other_differ_just_where_they_tie(one, other, swapped):
    """Broken by a comparison of the reports alone, and by one that keeps the order of requests at an event."""

    def make():
        pair = [Noise(priority=one), OwnLogger(priority=other)]
        return [*(reversed(pair) if swapped else pair), Saver()]

    if one == other:
        with pytest.raises(AssertionError, match="Noise"):
            assert_any_order(make, max_steps=1)
    else:
        assert_any_order(make, max_steps=1)


def test_equal_classes_keep_their_names_in_every_order():
    assert_any_order(lambda: [Saver(), Saver(), EarlyStopping("eval_loss"), EarlyStopping("acc", "max")], **SCRIPT)


def test_two_stops_at_one_event_are_a_difference_for_the_result_names_the_first():
    def make():
        return [EarlyStopping("eval_loss", patience=1), EarlyStopping("eval_loss", patience=1)]

    told, _ = difference(make, evaluations={"eval_loss": [1.0, 2.0]})
    assert "  - stopped after update 8 by EarlyStopping: eval_loss" in told
    assert "  + stopped after update 8 by EarlyStopping#2: eval_loss" in told


def test_a_failure_in_one_order_alone_is_a_difference():
    class Needs:
        def on_step_end(self, event, state):
            return Report(twice=state.metrics["noise"] * 2)

    told, _ = difference(lambda: [Needs(), Noise(3.0)], max_steps=1)
    assert "  - step_end 1: Needs raises KeyError: \"no metric 'noise'; there are: none\"; Needs reads no noise" in told
    assert "  + step_end 1: Needs reads noise=3; Needs: Report(twice=6)" in told


def test_an_error_that_ends_the_run_is_its_last_line():
    class Strict:
        failure = "raise"

        def on_step_end(self, event, state):
            state.metrics["noise"]

    told, _ = difference(lambda: [Strict(), Noise()], max_steps=1)
    assert "with [Strict, Noise] (-)" in told
    assert_any_order(lambda: [Saver(), Noise()], fails={2: KeyboardInterrupt()}, max_steps=3)


def test_an_interrupt_that_the_script_does_not_make_is_the_users():
    class Interrupts:
        def on_step_end(self, event, state):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        assert_any_order(lambda: [Interrupts(), Noise()], max_steps=1)


def test_callbacks_that_draw_at_random_are_said_to_be_so():
    draw = random.Random(7)

    class Draws:
        def on_step_end(self, event, state):
            return Report(drawn=draw.random())

    with pytest.raises(AssertionError, match="two runs in one order of registration differ, so orders cannot be"):
        assert_any_order(lambda: [Draws(), Saver()], max_steps=1)


def test_a_factory_has_to_build_new_callbacks():
    made = [Noise(), Saver()]
    with pytest.raises(ValueError, match="make\\(\\) returned the same Noise, Saver again"):
        assert_any_order(lambda: made, max_steps=1)
    sizes = itertools.count(1)
    with pytest.raises(ValueError, match="returned 2 callbacks, and 1 the first time"):
        assert_any_order(lambda: [Noise() for _ in range(next(sizes))], max_steps=1)


def test_any_function_that_drives_a_bus_will_do():
    def run(bus):
        state = TrainState(lr={"body": 0.1}).begin_update()
        bus.publish(StepBegin(), state)
        bus.publish(StepEnd(), state.end_update().report(loss=1.0))
        return "one update"

    assert_any_order(lambda: [Noise(), Saver(), OwnLogger(Priority.LOG)], run=run)
    told, snippet = difference(lambda: [Noise(), OwnLogger()], run=run)
    assert "    step_begin 0: the learning rate is body=0.1" in told
    with pytest.raises(AssertionError, match="OwnLogger reads loss=1"):
        exec(snippet, {"options": {"run": run}})
    with pytest.raises(TypeError, match="max_steps: keywords for a FakeLoop, and run= makes its own run"):
        assert_any_order(lambda: [Noise()], run=run, max_steps=1)


@given(st.integers(1, 9), st.integers(1, 60), st.integers(0, 3))
def test_the_orders_tried_are_all_or_as_many_as_allowed_and_the_same_each_time(size, limit, seed):
    """Broken by a limit that is applied to the drawn orders alone."""
    orders = list(_orders(size, limit, seed))
    assert all(sorted(order) == list(range(size)) for order in orders)
    assert orders == list(_orders(size, limit, seed))
    every = set(itertools.permutations(range(size))) if size <= 4 else set()
    if 0 < len(every) <= limit:
        assert set(orders) == every
    else:
        assert len(orders) == limit
        if limit >= size:
            assert tuple(reversed(range(size))) in orders


@settings(max_examples=20)
@given(st.permutations(range(6)))
def test_whatever_order_shows_it_the_two_that_decide_are_named(order):
    """Broken by a walk between the orders that swaps others than neighbours."""
    parts = [Saver, OwnLogger, lambda: WarmupCosine(1), Noise, lambda: EarlyStopping("eval_loss"), LearningRateMonitor]
    with pytest.raises(AssertionError, match=r"with \[(OwnLogger, Noise|Noise, OwnLogger)\] \(-\) and"):
        assert_any_order(lambda: [parts[i]() for i in order], limit=6, max_steps=1)


# -- what would let a proof pass that is none --------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ({"metric": {"loss": 1.0}}, TypeError, "unexpected keyword argument 'metric'"),
        ({"updates": -4}, ValueError, "updates=-4 must be a whole number >= 1"),
        ({"max_step": 3}, TypeError, "unexpected keyword argument 'max_step'"),
        ({"limit": 0}, ValueError, "limit=0 must be a whole number >= 1"),
        ({"run": 5}, TypeError, "run=5: give a function that is given the bus"),
    ],
)
def test_a_wrong_keyword_is_an_error_and_no_run_that_is_the_same_in_any_order(script, error, message):
    """Broken by a FakeLoop that is built where the errors of the run are caught."""
    with pytest.raises(error, match=message):
        assert_any_order(lambda: [OwnLogger(), Noise()], **script)


class Fails:
    def on_step_end(self, event, state):
        raise ZeroDivisionError("always")


def test_callbacks_that_fail_in_every_order_alike_are_no_proof_unless_that_is_expected():
    """Broken by a proof that looks at differences alone."""
    with pytest.raises(AssertionError, match=r"(?s)failing=True\n  failed: Fails failed at step_end of step 1: Zero"):
        assert_any_order(lambda: [Fails(), Saver()], max_steps=2)
    assert_any_order(lambda: [Fails(), Saver()], max_steps=2, failing=True)


def test_a_run_that_raises_is_no_proof_either():
    def run(bus):
        raise OSError("no data")

    with pytest.raises(AssertionError, match="failed: the run raised OSError: no data"):
        assert_any_order(lambda: [Noise(), Saver()], run=run)
    assert_any_order(lambda: [Noise(), Saver()], run=run, failing=True)


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (
            [Saver(), Noise()],
            r"make=\[.*: give a function that builds new callbacks: assert_any_order\(lambda: \[...\]\)",
        ),
        (Saver, r"make\(\) returned <.*Saver object.*: give a function that returns a list"),
        (lambda: [Saver], r"make\(\) returned \[Saver\]: that is a class; write Saver\(\.\.\.\)"),
    ],
)
def test_what_builds_no_callbacks_is_refused_with_the_right_form(make, message):
    with pytest.raises(TypeError, match=message):
        assert_any_order(make, max_steps=1)


# -- snippets of a script that is run as one ---------------------------------------------------------------------------

SCRIPT_OF_A_USER = """
import math
from eventloop import Priority, Report
from eventloop.testing import assert_any_order

SCALE = 2.0

def twice(value):
    return math.floor(SCALE * value)

class Doubles:
    def __init__(self, priority=Priority.NORMAL):
        self.priority = priority

    def on_step_end(self, event, state):
        return Report(twice=twice(state.metrics["loss"]))

class Reads:
    def __init__(self, priority=0):
        self.priority = priority

    def on_step_end(self, event, state):
        state.metrics.get("twice")

assert_any_order(lambda: [Doubles(Priority.LOG), Reads(-100)], metrics={"loss": [1.0]}, fails={9: OSError("x")})
"""


def told_by_a_script(tmp_path, text):
    path = tmp_path / "script.py"
    path.write_text(text)
    done = subprocess.run([sys.executable, str(path)], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    return done.stderr.partition("to reproduce it:\n\n")[2]


def test_helpers_and_constants_of_a_script_are_written_out_so_that_its_snippet_runs(tmp_path):
    """Broken by snippets that have the classes alone."""
    snippet = told_by_a_script(tmp_path, SCRIPT_OF_A_USER)
    for part in (
        "import math\n",
        "SCALE = 2.0\n",
        "def twice(value):\n",
        "Doubles(priority=Priority.LOG)",
        "OSError('x')",
    ):
        assert part in snippet
    assert "the test has" not in snippet
    with pytest.raises(AssertionError, match=r"\[Doubles, Reads\]"):
        exec(snippet, {"__name__": "pasted"})


def test_what_cannot_be_written_out_is_named_and_the_options_are_still_told(tmp_path):
    """Broken by options that are left to the test wherever its callbacks are."""
    snippet = told_by_a_script(
        tmp_path, SCRIPT_OF_A_USER.replace("SCALE = 2.0", "from fractions import Fraction\nSCALE = Fraction(2)")
    )
    assert "# it cannot be pasted as it stands: Doubles uses twice, and twice uses SCALE, and " in snippet
    assert snippet.rstrip().endswith("assert_any_order(callbacks, metrics={'loss': [1.0]}, fails={9: OSError('x')})")


class Tokens:
    """Counts in a list that it shares with others, and reports a large number."""

    def __init__(self, shared, key):
        self.shared, self.key = shared, key

    def on_step_end(self, event, state):
        self.shared.append(1)
        return Report({self.key: 1e7 + len(self.shared)})


def test_a_difference_in_the_eighth_digit_is_one():
    """Fails if numbers are compared by six digits."""

    def make():
        shared = []
        return [Tokens(shared, "a"), Tokens(shared, "b")]

    with pytest.raises(AssertionError, match="the order of registration decides"):
        assert_any_order(make, metrics={"loss": [1.0, 2.0]})
