"""A failing example prints as a short snippet that runs as it stands, and makes the same thing again."""

import math
import subprocess
import sys
from pathlib import Path

import pytest
from drawn import run
from hypothesis import Phase, given, settings
from hypothesis import strategies as st

import eventloop
from eventloop import Priority, TrainState
from eventloop.testing import (
    Schedule,
    Stream,
    Subscriber,
    cut_points,
    event_streams,
    metric_series,
    metric_values,
    schedules,
    subscriptions,
)

STREAM = event_streams()


def printed(strategy, holds):
    """The example that hypothesis prints of a test that fails where the condition does not hold; its names, run."""

    @settings(max_examples=300, database=None, print_blob=False, phases=[Phase.generate, Phase.shrink])
    @given(strategy)
    def claim(value):
        assert holds(value)

    with pytest.raises(AssertionError) as raised:
        claim()
    text = "\n".join(raised.value.__notes__).partition("claim(")[2].partition("\n)")[0]
    return text, run(f"made = dict({text}\n)")["made"]["value"]


CLAIMS = {
    "subscribers": (subscriptions(), lambda crowd: not any(s.does == "raises" and s.priority < -50 for s in crowd)),
    "a stream": (STREAM, lambda stream: not any(state.step > 1 for _, state in stream)),
    "a stream that fails": (STREAM, lambda stream: stream[-1][0].status != "failed"),
    "a broken stream": (event_streams(broken=True), lambda stream: not stream.broken.startswith("back")),
    "a metric": (metric_values(), lambda value: not math.isinf(value)),
    "metrics": (metric_series(), lambda series: not any(math.isnan(m.get("eval_loss", 0.0)) for m in series)),
    "plans": (schedules(), lambda drawn: not any(isinstance(plan.warmup_steps, dict) for plan in drawn)),
    "cuts": (cut_points(9), lambda cuts: len(cuts) < 2),
    "a stream with cuts": (
        STREAM.flatmap(lambda stream: st.tuples(st.just(stream), cut_points(stream))),
        lambda pair: not 0 < pair[1][0] < len(pair[0]),
    ),
}


@pytest.mark.parametrize("claim", CLAIMS)
def test_a_printed_example_runs_and_fails_again(claim):
    """Planted: no ``nan`` to import; every field of a subscriber printed, as hypothesis does of a dataclass."""
    strategy, holds = CLAIMS[claim]
    text, value = printed(strategy, holds)
    assert not holds(value)
    assert "".join(text.split()) == "".join(f"value={value!r},".split())
    assert len(text) < 400, text


def told(event, state):
    return repr(event), repr(state), repr(dict(state.metrics)), sorted(state.metrics.fresh)


@given(event_streams(broken=True) | event_streams())
def test_the_repr_of_a_stream_makes_the_same_stream(stream):
    """Planted: ``samples`` left out of the repr."""
    again = run(f"made = {stream!r}")["made"]
    assert repr(again) == repr(stream)
    assert [told(*pair) for pair in again] == [told(*pair) for pair in stream]


@given(subscriptions(max_size=3), schedules())
def test_the_repr_of_subscribers_and_plans_makes_the_same(subscribers, drawn):
    assert run(f"made = {subscribers!r}, {drawn!r}")["made"] == (subscribers, drawn)


def test_what_is_as_the_default_has_it_is_left_out():
    assert repr(Subscriber()) == "Subscriber()"
    loud = Subscriber("raises", priority=Priority.LOG, filters={"every": 2})
    assert repr(loud) == "Subscriber(does='raises', priority=Priority.LOG, filters={'every': 2})"
    assert repr(Schedule(total_steps=9, updates=4)) == "Schedule(total_steps=9, updates=4)"
    assert repr(Stream("train_begin  train_end")) == "Stream('train_begin train_end')"
    assert repr(Stream("step_end", TrainState(total=3))) == "Stream('step_end', start=TrainState(step=0, total=3))"


def test_a_long_stream_has_a_line_for_each_update_and_evaluation():
    words = (
        "train_begin epoch_begin step_begin gradients_ready step_end loss=1.0 eval_begin eval_end epoch_end train_end"
    )
    assert repr(Stream(words, broken="so")).splitlines() == [
        "Stream('''",
        "    train_begin",
        "    epoch_begin",
        "    step_begin gradients_ready step_end loss=1.0",
        "    eval_begin eval_end",
        "    epoch_end",
        "    train_end",
        "''', broken='so')",
    ]


def test_a_stream_a_schedule_and_a_subscriber_need_no_hypothesis():
    script = "import sys\nfrom eventloop.testing import Stream, Schedule, Subscriber, inf, nan\nStream('step_end')"
    home = Path(eventloop.__file__).parents[1]
    check = f"{script}\nassert 'hypothesis' not in sys.modules"
    assert subprocess.run([sys.executable, "-c", check], check=False, cwd=home).returncode == 0
