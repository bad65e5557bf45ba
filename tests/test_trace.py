"""Recorded traces are plain lists; their assertions show the first difference, and a Trace who asked what."""

import pytest
import torch
from hypothesis import given

from eventloop import Bus, EvalEnd, HandlerFailed, Priority, Report, Save, SetLR, StepBegin, StepEnd, Stop, TrainState
from eventloop.callbacks import EarlyStopping, WarmupCosine
from eventloop.testing import Crowd, FakeLoop, MadeUpEvent, Recorder, Trace, subscriptions

SIX = [("step_begin", 0), ("step_end", 1), ("step_begin", 1), ("step_end", 2), ("eval_begin", 2), ("eval_end", 2)]


def filled(bus, lines):
    recorder = Recorder(bus)
    recorder.extend(lines)
    return recorder


def message(assertion, *given, **named):
    with pytest.raises(AssertionError) as caught:
        assertion(*given, **named)
    return str(caught.value).splitlines()


# -- assertions --------------------------------------------------------------------------------------------------------


def test_assert_equal_shows_the_first_difference_and_the_lines_before_it(bus):
    recorder = filled(bus, SIX)
    recorder.assert_equal(SIX)
    wanted = [*SIX[:4], ("step_begin", 2), *SIX[4:]]
    assert message(recorder.assert_equal, wanted) == [
        "they differ at line 5 (of 7 and 6):",
        "    ('step_end', 1)",
        "    ('step_begin', 1)",
        "    ('step_end', 2)",
        "  - ('step_begin', 2)",
        "  + ('eval_begin', 2)",
        "  - expected, + found",
    ]


def test_assert_equal_says_where_one_of_the_two_ends(bus):
    recorder = filled(bus, SIX[:1])
    assert message(recorder.assert_equal, SIX[:2])[-3:-1] == ["  - ('step_end', 1)", "  + nothing: the end"]
    assert message(recorder.assert_equal, [])[1:3] == ["  - nothing: the end", "  + ('step_begin', 0)"]


def test_assert_in_order_takes_names_and_beginnings_of_lines(bus):
    recorder = filled(bus, [*SIX, ("train_end", 2, "extra")])
    recorder.assert_in_order("step_end", ("step_end", 2), "eval_end", ("train_end",))
    recorder.assert_in_order()
    assert message(recorder.assert_in_order, "eval_begin", ("step_end", 2)) == [
        "('step_end', 2) does not come after 'eval_begin', found at line 5; it stands only before that; there follows:",
        "    ('eval_end', 2)",
        "    ('train_end', 2, 'extra')",
    ]
    assert message(filled(bus, []).assert_in_order, "step_end")[0] == "'step_end' does not come; there follows:"


def test_one_line_is_not_found_twice(bus):
    recorder = filled(bus, SIX)
    recorder.assert_in_order("step_end", "step_end")
    with pytest.raises(AssertionError, match=r"'eval_end' does not come after 'eval_end', found at line 6"):
        recorder.assert_in_order("eval_end", "eval_end")


def test_assert_counts_names_each_wrong_count_and_all_there_are(bus):
    recorder = filled(bus, SIX)
    recorder.assert_counts(step_end=2, eval_end=1, run_failed=0)
    assert message(recorder.assert_counts, step_end=3, eval_end=1, train_end=1) == [
        "step_end 2 times, expected 3; train_end 0 times, expected 1",
        "recorded: step_begin 2, step_end 2, eval_begin 1, eval_end 1",
    ]


# -- Trace -------------------------------------------------------------------------------------------------------------


def test_a_trace_is_a_list_of_tuples_that_tell_who_asked_what(bus):
    trace = Trace(bus)
    bus.on(StepEnd, lambda event, state: (Report(norm=2.0), Stop("enough")), name="guard")
    bus.on(StepEnd, lambda event, state: Save("best"), name="saver", priority=Priority.SAVE)
    bus.publish(StepBegin())
    bus.publish(StepEnd(), TrainState(step=1))
    guard = ("guard: Report(norm=2)", "guard: Stop(reason='enough')")
    assert trace == [("step_begin", 0), ("step_end", 1, *guard, "saver: Save(tag='best')")]
    trace.assert_in_order(("step_end", 1, "guard: Report(norm=2)"))


def test_a_trace_of_a_loop_prints_as_a_story():
    script = {"metrics": {"loss": 0.5}, "evaluations": {"eval_loss": [1.0, 2.0]}, "updates": 1}
    loop = FakeLoop([WarmupCosine(2), EarlyStopping("eval_loss", patience=1)], **script)
    trace = Trace(loop)
    loop.run()
    assert str(trace).splitlines()[2:] == [
        "step_begin 0: WarmupCosine: SetLR(group_0=0.05)",
        "gradients_ready 0",
        "step_end 1",
        "eval_begin 1",
        "eval_end 1",
        "epoch_end 1",
        "epoch_begin 1",
        "step_begin 1: WarmupCosine: SetLR(group_0=0.1)",
        "gradients_ready 1",
        "step_end 2",
        "eval_begin 2",
        "eval_end 2: EarlyStopping: Stop(reason='eval_loss has not improved on 1 for 1 evaluation')",
        "epoch_end 2",
        "checkpoint_saved 2",
        "train_end 2",
    ]


def test_numbers_are_told_whole_whatever_holds_them(bus):
    trace = Trace(bus)
    report = Report({"tensor": torch.tensor(1 / 3), "whole": 2, "nested": {"one": 0.1}, "text": "no number"})
    bus.on(StepEnd, lambda event, state: report, name="all")
    bus.on(StepEnd, lambda event, state: SetLR(1 / 3), name="rate")
    bus.publish(StepEnd())
    bad = "metric 'text' must be one real number, not builtins.str"
    told = f"Report(tensor=0.3333333432674408, whole=2, nested/one=0.1, {bad})"
    assert trace[0][2:] == (f"all: {told}", "rate: SetLR(0.3333333333333333)")


def test_requests_stand_at_their_own_event_whatever_is_published_inside_it(bus):
    trace = Trace(bus)
    bus.on(StepEnd, lambda event, state: bus.publish(MadeUpEvent(), state), name="publishes")
    bus.on(MadeUpEvent, lambda event, state: Stop("inner"), name="inner")
    bus.on(HandlerFailed, lambda event, state: Save("failed"), name="reporter")
    bus.on(StepEnd, lambda event, state: 1 / 0, name="raises")
    bus.on(StepEnd, lambda event, state: Stop("behind"), name="behind")
    bus.publish(StepEnd())
    assert trace == [
        ("step_end", 0, "raises raises ZeroDivisionError: division by zero", "behind: Stop(reason='behind')"),
        ("made_up_event", 0, "inner: Stop(reason='inner')"),
        ("handler_failed", 0, "reporter: Save(tag='failed')"),
    ]


@given(subscriptions(does=["silent", "reports", "stops", "raises", "publishes"], failures=["isolate", "raise"]))
def test_the_requests_told_are_those_of_the_control_and_the_lines_those_of_a_recorder(subscribers):
    """Broken by a trace that adds what is asked to its newest line, not to that of the event."""
    bus = Bus()
    recorder, trace = Recorder(bus, priority=10_000), Trace(bus)
    Crowd(bus, subscribers)
    bus.on(MadeUpEvent, lambda event, state: Save("made up"), name="inner")
    control = bus.dispatch(StepEnd())
    told = [text.partition(":")[0] for text in trace[0][2:] if " raises " not in text]
    assert told == [reply.who for reply in control.requests if reply.who != "inner"]
    assert sum(len(line[2:]) for line in trace if line[0] == "made_up_event") == len(control.save and control.of(Save))
    assert trace.names == recorder.names


def test_with_reads_a_trace_tells_what_each_handler_looked_at(bus):
    trace = Trace(bus, reads=True)

    def looks(event, state):
        if "grad_norm" not in state.metrics.fresh:
            return Stop(f"{state.metrics['loss']} {state.lr['body']}")
        return None

    bus.on(StepEnd, looks, name="looks")
    bus.on(StepEnd, lambda event, state: [*state.metrics] and None, name="lists")
    bus.publish(StepEnd(), TrainState(step=1, metrics={"loss": 0.5}, lr={"body": 0.1}))
    reads = "looks reads loss=0.5, lr[body]=0.1, no fresh grad_norm"
    assert trace == [("step_end", 1, reads, "looks: Stop(reason='0.5 0.1')", "lists reads loss")]


def test_a_closed_trace_records_no_more(bus):
    trace = Trace(bus)
    bus.publish(EvalEnd())
    trace.close()
    bus.on(EvalEnd, lambda event, state: Stop(), name="late")
    bus.publish(EvalEnd())
    assert trace == [("eval_end", 0)]


def test_an_event_that_there_is_not_is_no_count_of_none(bus):
    """Broken by a count of whatever name is given: stepend=0 is right for ever."""
    recorder = filled(bus, [*SIX, ("of_another_kit", 1)])
    with pytest.raises(ValueError, match="there is no event 'stepend'; did you mean 'step_end'"):
        recorder.assert_counts(stepend=0)
    recorder.assert_counts(of_another_kit=1, run_failed=0)


@pytest.mark.parametrize(("kind", "told"), [(Recorder, r"Recorder\(bus\)"), (Trace, r"Trace\(where\)")])
def test_what_has_no_events_cannot_be_recorded(kind, told):
    with pytest.raises(TypeError, match=rf"{told}: 5 is no Bus"):
        kind(5)


def test_a_recorder_says_how_to_record_a_loop_and_what_extra_is(bus):
    with pytest.raises(TypeError, match=r"is no Bus; of a loop give loop\.bus"):
        Recorder(FakeLoop())
    with pytest.raises(TypeError, match=r"extra='step': give a function of \(event, state\)"):
        Recorder(bus, "step")
