"""Made-up runs: they obey the order of life, or break it in the way that they say; where they may be cut."""

import itertools
import re

import pytest
from drawn import reached
from hypothesis import given, settings
from hypothesis import strategies as st

from eventloop import (
    Bus,
    CheckpointSaved,
    EpochBegin,
    EpochEnd,
    EvalEnd,
    EvalStep,
    Event,
    ReplyError,
    RunFailed,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainState,
)
from eventloop.testing import Deliberate, Recorder, Stream, cut_points, event_streams
from eventloop.testing.streams import BREACHES

EVALUATION = "(eval_begin eval_end )?"
UPDATE = f"step_begin (gradients_ready )?step_end (checkpoint_saved )?{EVALUATION}"
WHOLE = f"train_begin (epoch_begin ({UPDATE})*{EVALUATION}epoch_end )*"
FAILED = f"{WHOLE}(epoch_begin ({UPDATE})*(step_begin )?)?run_failed train_end "


def obeys(stream, apart=()):
    """Whether the events are in the order of life; counters, and the events that stand apart, left out."""
    names = "".join(event.name + " " for event, _ in stream if event.name not in apart)
    return re.fullmatch(f"{WHOLE}train_end |{FAILED}", names) is not None


def goes_back(stream):
    states = [state for _, state in stream]
    pairs = itertools.pairwise(states)
    return any(getattr(b, name) < getattr(a, name) for a, b in pairs for name in ("step", "epoch", "evals"))


def test_an_evaluation_that_was_given_up_is_not_counted_in_a_stream_and_leaves_nothing_fresh():
    """Planted: it counts like any other; the loss of the update is still fresh."""
    words = "step_begin step_end loss=0.5 eval_begin eval_step batch=1 total=3 eval_end completed=False"
    *_, (step, _), (end, state) = Stream(words)
    assert (step, end) == (EvalStep(1, 3), EvalEnd(completed=False))
    assert (state.evals, list(state.metrics.fresh), state.metrics["loss"]) == (0, [], 0.5)


# -- streams that obey -------------------------------------------------------------------------------------------------


@given(event_streams())
def test_a_stream_obeys_the_order_of_life(stream):
    """Planted: the open epoch is not ended when the run is left."""
    assert obeys(stream)
    assert not goes_back(stream)
    assert stream.broken == ""
    assert (stream[-1][0].status == "failed") == any(isinstance(event, RunFailed) for event, _ in stream)


@given(event_streams())
def test_the_snapshots_of_a_stream_count_what_the_stream_has(stream):
    """Planted: a skipped update counted as a step; metrics of an update still fresh at the evaluation."""
    seen = dict.fromkeys(("step", "epoch", "evals", "skipped"), 0)
    for event, state in stream:
        seen["epoch"] += event.name == "epoch_begin"
        seen["evals"] += event.name == "eval_end"
        if event.name == "step_end":
            seen["skipped" if event.skipped else "step"] += 1
            assert set(state.metrics.fresh) <= {"loss"}
        if event.name == "eval_end":
            assert set(state.metrics.fresh) <= {"eval_loss"}
        assert {name: getattr(state, name) for name in seen} == seen


@given(event_streams())
def test_a_run_that_is_left_ends_its_epoch_as_not_completed(stream):
    ends = [event.completed for event, _ in stream if event.name == "epoch_end"]
    assert all(ends[:-1])
    if ends and not ends[-1]:
        assert stream[-1][0].status in ("stopped", "interrupted", "preempted")


def test_every_turn_that_a_run_can_take_is_among_those_drawn():
    def has(text):
        return lambda stream: any(text in repr(event) for event, _ in stream)

    texts = ["skipped=True", "completed=False", "RunFailed", "CheckpointSaved", "EvalEnd", "'completed'", "preempted"]
    seen = reached(event_streams(), **{text: has(text) for text in texts}, updates=lambda s: s[-1][1].step > 4)
    assert min(seen.values()) >= 3, seen


@given(event_streams(evaluates=False, max_epochs=1, max_updates=1, start=TrainState(total=1, lr={"g": 0.5})))
def test_a_stream_can_be_narrowed_and_started_elsewhere(stream):
    names = [event.name for event, _ in stream]
    assert "eval_end" not in names
    assert names.count("step_end") <= 1
    assert all((state.total, dict(state.lr)) == (1, {"g": 0.5}) for _, state in stream)


@given(event_streams(broken=True) | event_streams())
def test_every_stream_can_be_published_on_a_strict_bus(stream):
    bus = Bus(failure="raise")
    recorder = Recorder(bus)
    for event, state in stream:
        bus.publish(event, state)
    assert recorder == [(event.name, state.step) for event, state in stream]
    assert all(isinstance(event, Event) for event, _ in stream)


# -- streams that do not -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("way", BREACHES)
def test_a_broken_stream_breaks_the_order_of_life_and_says_how(way):
    """Planted: a saved checkpoint doubled; the begin dropped of the update in which the body raised."""

    @given(event_streams(broken=[way]))
    def breaks(stream):
        assert stream.broken.startswith(f"{way}: ")
        assert goes_back(stream) if way == "back" else not obeys(stream, ["checkpoint_saved"])

    breaks()


def test_every_way_of_breaking_is_among_those_drawn():
    """Planted: one way left out."""
    seen = reached(
        event_streams(broken=True),
        **{way: lambda stream, way=way: stream.broken.startswith(way) for way in BREACHES},
        epoch_back=lambda stream: stream.broken.startswith("back: epoch"),
        in_the_middle=lambda stream: int(stream.broken.split()[-1]) > 5,
    )
    assert min(seen.values()) >= 3, seen


# -- words -------------------------------------------------------------------------------------------------------------


def test_words_are_events_with_their_fields_counters_and_metrics_behind_them():
    words = (
        "train_begin resumed=True epoch_begin step_begin step=4 step_end loss=0.5 samples=8 epoch_end completed=False"
    )
    stream = Stream(words)
    events = [TrainBegin(True), EpochBegin(), StepBegin(), StepEnd(), EpochEnd(False)]
    assert [event for event, _ in stream] == events
    state = stream[3][1]
    assert (state.epoch, state.step, state.samples, dict(state.metrics)) == (1, 5, 8, {"loss": 0.5})
    assert stream.words == words


def test_a_saved_checkpoint_and_a_failed_run_have_what_a_loop_would_give_them():
    stream = Stream("step_begin step_end checkpoint_saved checkpoint_saved path=elsewhere run_failed")
    assert stream[2][0] == CheckpointSaved("step_1", 1, ("asked",))
    assert stream[3][0].path == "elsewhere"
    assert isinstance(stream[4][0].error, Deliberate)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("loss=1.0 step_end", r"'loss=1.0' stands before any event"),
        ("train_begin step_edn", r"no event 'step_edn'; did you mean 'step_end'"),
        ("step_end loss=low", r"'loss' must be one real number, not builtins.str"),
    ],
)
def test_a_wrong_word_is_an_error_that_names_it(words, message):
    with pytest.raises((ValueError, ReplyError), match=message):
        Stream(words)


# -- cut points --------------------------------------------------------------------------------------------------------


@given(st.integers(0, 9).flatmap(lambda n: st.tuples(st.just(n), cut_points(n))))
def test_a_number_of_updates_is_cut_at_numbers_in_order_each_once(drawn):
    """Planted: the places not sorted; the end of the run left out (see below)."""
    updates, cuts = drawn
    assert 1 <= len(cuts) <= 3
    assert cuts == sorted(set(cuts))
    assert set(cuts) <= set(range(updates + 1))


@given(event_streams().flatmap(lambda stream: st.tuples(st.just(stream), cut_points(stream, max_cuts=2))))
def test_a_stream_is_cut_where_no_update_and_no_evaluation_is_open(drawn):
    """Planted: every place of the stream offered."""
    stream, cuts = drawn
    for cut in cuts:
        names = [event.name for event, _ in stream[:cut]]
        ended = cut == len(stream)
        assert ended or names.count("step_begin") == names.count("step_end")
        assert ended or names.count("eval_begin") == names.count("eval_end")


def test_the_boundaries_of_a_stream_are_its_ends_and_every_place_between_updates_and_evaluations():
    stream = Stream(
        "train_begin epoch_begin step_begin gradients_ready step_end eval_begin eval_end epoch_end train_end"
    )
    assert stream.boundaries == [0, 1, 2, 5, 7, 8, 9]
    assert Stream("train_begin step_begin run_failed train_end").boundaries == [0, 1, 4]


def test_the_beginning_the_end_and_several_cuts_are_among_those_drawn():
    seen = reached(
        cut_points(20, max_cuts=4),
        beginning=lambda cuts: cuts[0] == 0,
        end=lambda cuts: cuts[-1] == 20,
        middle=lambda cuts: cuts[0] > 0 and cuts[-1] < 20,
        several=lambda cuts: len(cuts) == 4,
        neighbours=lambda cuts: any(b == a + 1 for a, b in itertools.pairwise(cuts)),
    )
    assert min(seen.values()) >= 10, seen


@settings(max_examples=5)
@given(cut_points(1, min_cuts=2, max_cuts=9))
def test_there_are_as_many_cuts_as_asked_for_and_an_error_if_there_are_not_so_many_places(cuts):
    assert cuts == [0, 1]
    with pytest.raises(ValueError, match=r"min_cuts=3, but the run has only the places \[0, 1\]"):
        cut_points(1, min_cuts=3)


@given(event_streams(broken=["back"]))
def test_a_counter_goes_back_where_the_word_is_the_snapshots_and_not_the_events_own(stream):
    """Failed on a step= behind checkpoint_saved, which has a field of that name."""
    place = int(stream.broken.rpartition(" ")[2])
    assert goes_back(stream[place - 1 : place + 1])
