"""`order_report`: each pair whose relative order matters, found by what is read and written in a run."""

import io
import logging
from dataclasses import dataclass, field
from pathlib import Path

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from eventloop import Bus, Evaluate, Event, GradientsReady, Priority, Report, SetLR, StepEnd, Stop, TrainState
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
from eventloop.testing import FakeLoop, Recorder, assert_before, assert_order, order_report
from eventloop.testing.reads import Reads

SCRIPT = {"metrics": {"loss": [0.5] * 4}, "evaluations": {"eval_loss": [1.0]}}


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(logging.getLogger("eventloop"), "disabled", True)


class Noise:
    def __init__(self, priority=0):
        self.priority, self.calls = priority, 0

    def on_step_end(self, event, state):
        self.calls += 1
        return Report(noise=1.0)


class Reader:
    def __init__(self, priority=0):
        self.priority, self.saw = priority, []

    def on_step_end(self, event, state):
        self.saw.append("noise" in state.metrics)


class Judge:
    def __init__(self, noise, priority=0):
        self.noise, self.priority = noise, priority

    def on_step_end(self, event, state):
        return Stop() if self.noise.calls > 2 else None


class EarlyLogger(JSONLLogger):
    """In front of what it logs."""

    priority = Priority.MEASURE + 1


def lines(report):
    return [(one.event, one.first, one.second, one.what, one.how, one.verdict) for one in report]


def model_with_gradients():
    model = torch.nn.Linear(2, 1)
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    return model


# -- assert_order and assert_before ------------------------------------------------------------------------------------


def test_an_order_is_told_by_names_objects_and_functions(bus):
    noise = Noise(priority=5)

    def own(event, state):
        return None

    bus.on(StepEnd, own)
    bus.attach(noise)
    assert_order(bus, StepEnd, [noise, own])
    assert_order(bus, "step_end", ["Noise", own])
    with pytest.raises(AssertionError, match=r"(?s)place 1 is 'Noise', expected '\S*own'\nstep_end: 2 handlers"):
        assert_order(bus, StepEnd, [own, noise])
    with pytest.raises(AssertionError, match=r"place 2 is '\S*own', expected empty"):
        assert_order(bus, StepEnd, [noise])
    with pytest.raises(AssertionError, match=r"place 1 is 'Noise', expected <.*Reader object"):
        assert_order(bus, StepEnd, [Reader()])


def test_a_partial_order_names_the_first_pair_that_is_not_so(bus):
    for name in "abcd":
        bus.on(StepEnd, lambda event, state: None, name=name)
    judge = Judge(None)
    bus.attach(judge)
    assert_before(bus, StepEnd, "a", "c", judge)
    with pytest.raises(
        AssertionError, match=r"(?s)'d' is not called before 'b': it stands at 4, the other at 2\nstep_en"
    ):
        assert_before(bus, StepEnd, "a", "d", "b", "c")
    with pytest.raises(AssertionError, match=r"'e' does not hear this event\nstep_end: 5 handlers"):
        assert_before(bus, StepEnd, "a", "e")
    with pytest.raises(ValueError, match="compares two or more, not 1"):
        assert_before(bus, StepEnd, "a")


# -- what a snapshot tells of who reads it -----------------------------------------------------------------------------

ACTS = {
    "asked": lambda m: m.get("a"),
    "raw": lambda m: m.raw("b"),
    "gone": lambda m: m["c"],
    "in": lambda m: ("a" in m, "c" in m),
    "in fresh": lambda m: ("a" in m.fresh, "b" in m.fresh),
    "listed": lambda m: (list(m), len(m), dict(m)),
    "fresh listed": lambda m: (list(m.fresh), len(m.fresh), m.fresh | {"z"}),
    "step_of": lambda m: m.step_of("b"),
    "newer": lambda m: dict(TrainState(metrics=m).report(z=1.0).metrics),
}


def outcome(act, metrics):
    try:
        return act(metrics)
    except KeyError as error:
        return str(error)


@given(st.lists(st.sampled_from(sorted(ACTS))))
def test_a_noted_snapshot_answers_as_the_plain_one_does(acts):
    """Broken by a noted mapping whose fresh names are all names."""
    state = TrainState(step=1, metrics={"b": 2.0}).begin_update().report(a=1.0)
    noted = Reads().noting(state)
    for act in acts:
        assert outcome(ACTS[act], noted.metrics) == outcome(ACTS[act], state.metrics)
    assert noted.replace(metrics={}) == state.replace(metrics={})


def test_each_way_of_reading_is_told_from_the_others():
    state = TrainState(step=1, metrics={"b": 2.0}).begin_update().report(a=1.0)
    for name, act in ACTS.items():
        reads = Reads()
        outcome(act, reads.noting(state).metrics)
        expected = {"gone": {"asked"}, "listed": {"listed", "asked"}, "newer": set()}.get(name, {name})
        assert {read.how for read in reads} == expected


def test_rates_are_read_group_by_group_or_all_of_them():
    state = TrainState(lr={"head": 0.1, "body": 0.2})
    for act, keys in [
        (lambda lr: lr["head"], {"head"}),
        (lambda lr: lr.get("body"), {"body"}),
        (lambda lr: "none" in lr, {"none"}),
        (lambda lr: [lr.keys(), lr.values(), lr.items(), len(lr), list(lr), lr == {}], {"head", "body", "*"}),
        (lambda lr: state.with_lr({"head": 0.3}), set()),
    ]:
        reads = Reads()
        act(reads.noting(state).lr)
        assert {read.key for read in reads} == keys


# -- the report --------------------------------------------------------------------------------------------------------


@given(st.integers(-1, 1), st.integers(-1, 1), st.booleans())
def test_the_verdict_is_what_the_reader_sees_at_the_first_event(writes, reads, reader_first):
    """Broken by a verdict that looks at priorities alone."""
    noise, reader = Noise(writes), Reader(reads)
    (found,) = order_report([reader, noise] if reader_first else [noise, reader], max_steps=1)
    sees = "fragile" if writes == reads else "right"
    assert found.verdict == (sees if reader.saw[0] else "wrong")
    assert (found.first, found.second, found.what, found.how) == ("Noise", "Reader", ("noise",), ("in",))


def test_the_shipped_callbacks_have_no_wrong_and_no_fragile_pair(tmp_path):
    def make():
        logging_ones = [
            JSONLLogger(every=2),
            TensorBoardLogger(every=3),
            ConsoleLogger(4, io.StringIO()),
            ProgressBar(),
        ]
        deciders = [ModelCheckpoint("eval_loss"), EarlyStopping("eval_loss"), NaNGuard("grad_norm", "skip")]
        return [*logging_ones, *deciders, GradNormMonitor(every=1), LearningRateMonitor(), WarmupCosine(2)]

    report = order_report(make, model=model_with_gradients(), run_dir=tmp_path, **SCRIPT)
    report.assert_right()
    assert (report.wrong, report.fragile, report.failures, report.snippet) == ([], [], (), "")
    through = ("through Totals",)
    loggers = ["ConsoleLogger", "JSONLLogger", "TensorBoardLogger"]
    assert lines(report) == [
        ("gradients_ready", "GradNormMonitor", "NaNGuard", ("grad_norm",), ("in fresh", "asked"), "right"),
        *(("step_end", "LearningRateMonitor", name, ("lr/group_0",), through, "right") for name in loggers),
    ]


def test_a_logger_in_front_of_what_it_logs_is_wrong_and_the_snippet_fails_alike(tmp_path):
    """Broken by a report that takes `Totals` for the reader."""
    report = order_report([LearningRateMonitor(), EarlyLogger(tmp_path / "log")], **SCRIPT)
    assert lines(report) == [
        ("step_end", "LearningRateMonitor", "EarlyLogger", ("lr/group_0",), ("through Totals",), "wrong")
    ]
    assert report[0].advice == (
        "EarlyLogger (201) is called before Totals (-99) and sees what was there at the event before, or nothing: "
        "give it a priority below -99 at step_end"
    )
    with pytest.raises(AssertionError, match="EarlyLogger"):
        report.assert_right()
    assert len(report.snippet.splitlines()) < 16
    with pytest.raises(AssertionError, match=r"(?s)LearningRateMonitor.*EarlyLogger.*wrong"):
        exec(report.snippet, {})


def test_loggers_that_had_no_turn_are_in_the_report_too(tmp_path):
    report = order_report([JSONLLogger(tmp_path / "log", every=1000), Noise(Priority.LOG + 1)], **SCRIPT)
    assert lines(report) == [("step_end", "Noise", "JSONLLogger", ("noise",), ("through Totals",), "fragile")]
    assert "both have priority -99" in report.fragile[0].advice


def test_a_callback_that_reads_anothers_attribute_is_wrong_or_fragile_and_the_snippet_fails_alike():
    def make(first):
        noise = Noise()
        return [Judge(noise), noise] if first else [noise, Judge(noise)]

    report = order_report(lambda: make(first=True), **SCRIPT)
    assert lines(report) == [("step_end", "Noise", "Judge", ("Noise.calls",), ("attribute",), "wrong")]
    assert "    judge = Judge(noise=noise)\n    return [judge, noise]\n" in report.snippet
    with pytest.raises(AssertionError, match=r"(?s)Noise\.calls.*wrong"):
        exec(report.snippet, {})
    report = order_report(lambda: make(first=False), **SCRIPT)
    assert [one.verdict for one in report] == ["fragile"]
    report.assert_right(fragile=True)
    with pytest.raises(AssertionError, match=r"(?s)give Judge one below 0 at step_end,.*or Noise one above"):
        report.assert_right()


def test_what_is_in_a_list_or_a_tensor_counts_as_the_attribute():
    """Broken by lists that are compared by which list it is, not by what is in it."""

    class Fills:
        def __init__(self):
            self.rows, self.total, self.fixed = [], torch.zeros(1), "same"
            with torch.inference_mode():
                self.untracked = torch.zeros(1)  # it has no count of what was written to it

        def on_step_end(self, event, state):
            self.rows.append(1)
            self.total.add_(1)

    class Looks(Judge):
        def on_step_end(self, event, state):
            return self.noise.rows and self.noise.total and self.noise.fixed and None

    fills = Fills()
    report = order_report([fills, Looks(fills, Priority.LOG)], **SCRIPT)
    assert lines(report) == [("step_end", "Fills", "Looks", ("Fills.rows", "Fills.total"), ("attribute",), "right")]
    assert report[0].advice == "nothing: 0 before -100"
    assert (type(fills), len(fills.rows)) == (Fills, 4)


def test_objects_whose_class_cannot_be_derived_from_are_left_alone_and_frozen_ones_are_not():
    class Final(Noise):
        def __init_subclass__(cls):
            raise TypeError("final")

    @dataclass(frozen=True)
    class Frozen:
        calls: list = field(default_factory=list)

        def on_step_end(self, event, state):
            self.calls.append(1)

    class Looks(Judge):
        def on_step_end(self, event, state):
            return [] if self.noise.calls else None

    final, frozen = Final(), Frozen()
    assert order_report([final, Looks(final)], **SCRIPT) == []
    report = order_report([frozen, Looks(frozen)], **SCRIPT)
    assert [one.what for one in report] == [("Frozen.calls",)]
    assert type(frozen) is Frozen


def test_two_that_report_one_key_or_set_one_group_or_ask_for_a_stop_are_a_pair():
    class Twin(Noise):
        pass

    class Sets:
        def on_step_begin(self, event, state):
            return SetLR(0.2)

    class Stops:
        def on_step_end(self, event, state):
            return (Stop("now"), Evaluate())

    class Halts(Stops):
        priority = Priority.DECIDE

    report = order_report([Noise(), Twin(), WarmupCosine(1), Sets(), Stops(), Halts(), Stops()], **SCRIPT)
    told = {(one.first, one.second, one.what, one.how, one.verdict) for one in report}
    assert told == {
        ("Noise", "Twin", ("noise",), ("reported twice",), "wrong"),
        ("WarmupCosine", "Sets", ("lr[group_0]",), ("set twice",), "wrong"),
        ("Stops", "Stops#2", ("Stop",), ("asked twice",), "fragile"),
        ("Stops", "Halts", ("Stop",), ("asked twice",), "right"),
        ("Stops#2", "Halts", ("Stop",), ("asked twice",), "right"),
    }
    assert {text.partition(" failed")[0] for text in report.failures} == {"Twin", "Sets"}


def test_a_rate_that_is_read_where_it_is_set_is_a_pair_and_a_held_one_is_not():
    class Looks:
        def on_step_begin(self, event, state):
            dict(state.lr)

        on_step_end = on_step_begin

    class SetsLate:
        def on_step_end(self, event, state):
            return SetLR(0.3)

    report = order_report([Looks(), WarmupCosine(1)], **SCRIPT)
    assert lines(report) == [("step_begin", "WarmupCosine", "Looks", ("lr[group_0]",), ("asked", "listed"), "right")]
    assert order_report([Looks(), SetsLate()], **SCRIPT) == []


def test_the_table_has_a_line_a_pair_and_says_what_to_do():
    report = order_report([Reader(), Noise(), Reader(-1)], max_steps=1)
    table = str(report).splitlines()
    assert table[0].split("  ")[0] == "event"
    assert [line.split()[-1] for line in table if line.startswith("step_end")]
    assert [one.verdict for one in report] == ["wrong", "right"]
    assert str(order_report([Reader()], max_steps=1)) == "no pair whose order matters"
    assert str(report[1]) == "step_end: Noise -> noise -> Reader#2: right; nothing: 0 before -1"


def test_what_failed_in_the_run_stands_below_the_table():
    report = order_report([GradNormMonitor(every=1)], max_steps=1)
    assert report == []
    assert str(report).splitlines()[1].startswith("failed: the run raised TypeError: GradNormMonitor.bind asks for")


def test_any_function_that_drives_a_bus_will_do():
    def run(bus):
        bus.on(GradientsReady, lambda event, state: Report(late=1.0), name="late", priority=-1)
        bus.on(GradientsReady, lambda event, state: state.metrics.get("late") and None, name="early")
        bus.publish(GradientsReady())

    things = [Noise()]
    report = order_report(things, run=run)
    assert lines(report) == [("gradients_ready", "late", "early", ("late",), ("asked",), "wrong")]
    assert "order_report(callbacks, run=run).assert_right()" in report.snippet
    with pytest.raises(AssertionError, match="early"):
        exec(report.snippet, {})


def test_objects_that_cannot_be_built_again_are_taken_from_the_test():
    class Odd(Reader):
        def __init__(self, nowhere):
            super().__init__()

    things = [Odd(1), Noise()]
    report = order_report(things, max_steps=1)
    assert "# it cannot be pasted as it stands: Odd keeps no nowhere\n# things: what the test has\n" in report.snippet
    with pytest.raises(AssertionError, match="Odd"):
        exec(report.snippet, {"things": [Odd(1), Noise()]})


class Told:
    """Its arguments are of every kind that a snippet can tell."""

    def __init__(self, kind, pair, path, table, *others, inverse=None, priority=0, **more):
        self.kind, self.pair, self.path, self._table, self.inverse, self.priority = kind, pair, path, table, inverse, 0

    def on_step_end(self, event, state):
        return self.kind({"told": self.pair[0]}) if self.inverse is lines else None


class Lister:
    def on_step_end(self, event, state):
        list(state.metrics.fresh)


def test_a_snippet_tells_literals_paths_classes_functions_and_numbers_that_are_not_finite():
    told = Told(Report, (1.0, float("-inf")), Path("a/b"), {"c": [None, True]}, inverse=lines)
    report = order_report([told, Lister()], run=publish_once)
    arguments = "kind=Report, pair=(1.0, float('-inf'),), path='a/b', table={'c': [None, True]}, inverse=lines"
    assert report.snippet.splitlines() == [
        "from eventloop.requests import Report",
        "from eventloop.testing import order_report",
        "from test_order_report import Lister, Told, lines, publish_once",
        "",
        "",
        "def callbacks():",
        f"    told = Told({arguments})",
        "    lister = Lister()",
        "    return [told, lister]",
        "",
        "",
        "order_report(callbacks, run=publish_once).assert_right()",
    ]


def publish_once(bus):
    bus.publish(StepEnd())


def test_a_watched_run_is_the_run_that_it_would_be_without():
    """Broken by objects that keep the class by which they were watched."""

    def recorded(watched):
        stopper = EarlyStopping("eval_loss", patience=2)
        parts = [WarmupCosine(2), LearningRateMonitor(), stopper, Noise(), Judge(Noise())]
        script = {"metrics": {"loss": 0.5}, "evaluations": {"eval_loss": [1.0, 2.0, 3.0, 4.0]}}
        traces = []

        def run(bus):
            traces.append(Recorder(bus, lambda event, state: (dict(state.metrics), dict(state.lr)), priority=-2000))
            traces.append(str(FakeLoop(bus=bus, **script).run()))

        if watched:
            order_report(parts, run=run)
        else:
            bus = Bus()
            for part in parts:
                bus.attach(part)
            run(bus)
        return traces, stopper.state_dict(), type(stopper)

    assert recorded(watched=True) == recorded(watched=False)


@pytest.mark.parametrize(
    ("script", "error", "message"),
    [
        ({"metric": {"loss": 1.0}}, TypeError, "unexpected keyword argument 'metric'"),
        ({"updates": -4}, ValueError, "updates=-4 must be a whole number >= 1"),
    ],
)
def test_a_wrong_keyword_is_an_error_and_no_report_without_pairs(script, error, message):
    """Broken by a FakeLoop that is built where the errors of the run are caught."""
    with pytest.raises(error, match=message):
        order_report([EarlyLogger(), LearningRateMonitor()], **script)


def test_a_report_of_what_failed_is_not_right_unless_that_is_expected():
    """Broken by a verdict on the pairs alone."""

    class Fails:
        def on_step_end(self, event, state):
            raise ZeroDivisionError("always")

    report = order_report([Fails(), Noise()], **SCRIPT)
    with pytest.raises(AssertionError, match=r"(?s)failing=True.*failed: Fails failed at step_end of step 1: Zero"):
        report.assert_right()
    report.assert_right(failing=True)
    order_report([Noise()], fails={2: OSError("planned")}, max_steps=3).assert_right()


@pytest.mark.parametrize(
    ("callbacks", "message"),
    [
        (3, r"callbacks = 3: give a list of callbacks, or a function that builds one"),
        ([Noise], r"callbacks = \[Noise\]: that is a class; write Noise\(\.\.\.\)"),
        (Noise, r"callbacks\(\) returned <.*Noise object.*: give a function that returns a list"),
    ],
)
def test_what_is_no_set_of_callbacks_is_refused_with_the_right_form(callbacks, message):
    with pytest.raises(TypeError, match=message):
        order_report(callbacks, max_steps=1)


class Inner(Event):
    name = "inner_of_order_report"


class Publishes:
    priority = -5

    def bind(self, *, bus):
        self.bus = bus

    def on_step_end(self, event, state):
        return self.bus.publish(Inner(), state)


class SaysInside:
    def on_inner_of_order_report(self, event, state):
        return Report(inside=1.0)


class ReadsInside:
    priority = 5

    def on_step_end(self, event, state):
        state.metrics.get("inside")


def test_what_is_reported_at_a_publish_inside_a_handler_is_written_by_that_handler():
    """Fails if a Control that a handler returns is passed over."""
    report = order_report([Publishes(), SaysInside(), ReadsInside()], metrics={"loss": [1.0, 2.0]})
    assert [(one.event, one.first, one.second) for one in report.wrong] == [("step_end", "Publishes", "ReadsInside")]


class Slotted:
    __slots__ = ("count",)
    priority = -5

    def __init__(self):
        self.count = 0

    def on_step_end(self, event, state):
        self.count += 1


class LooksAtSlotted:
    priority = 5

    def __init__(self, other):
        self.other = other

    def on_step_end(self, event, state):
        return Report(count=float(self.other.count))


def test_an_attribute_in_a_slot_is_one():
    """Fails if only what is in __dict__ counts as an attribute."""
    slotted = Slotted()
    report = order_report([slotted, LooksAtSlotted(slotted)], metrics={"loss": [1.0, 2.0]})
    assert [(one.first, one.second, one.verdict) for one in report] == [("Slotted", "LooksAtSlotted", "wrong")]
