"""The battery finds each planted fault, by the check that is meant for it, and shows it in Python that runs."""

import enum
import logging
import subprocess
import sys
import time
import unittest
from functools import partial
from pathlib import Path

import broken_callbacks
import pytest
from broken_callbacks import Counts
from click.testing import CliRunner

import eventloop.dispatch
from eventloop import Event, Keep, Priority, Report, Stop
from eventloop.callbacks import EarlyStopping
from eventloop.cli import main
from eventloop.testing import FakeLoop, MadeUpEvent
from eventloop.testing.checks import (
    CHECKS,
    CallbackCheckError,
    Cuts,
    an_hour_on,
    answers,
    callback_checks,
    check_callback,
    examine,
)

# class, the one check that fails, and what it says
BROKEN = [
    ("MisspeltMethod", "attaches", "there is no event 'epoch_ended'; did you mean 'on_epoch_end'?"),
    ("BindsTheUnknown", "attaches", "asks for 'scheduler'"),
    ("KeepsASet", "state", "KeepsASet.count is a builtins.set"),
    ("LendsItsState", "state", '{"count": 0} and has become {"count": 1}: let state_dict() give a copy'),
    ("LoadsNothing", "state", "it has state_dict and not the other"),
    ("ClosesOnce", "closes", "closing it twice, without a run, raised IndexError"),
    ("LeavesItsThread", "closes", "a run has left its threads: left behind"),
    ("NeedsItsKey", "every_run", "in a whole run: NeedsItsKey failed at eval_end of step 12: KeyError: 'eval_loss'"),
    ("FailsWhenTheRunFails", "every_run", "in a run that fails: FailsWhenTheRunFails failed at run_failed of step 6"),
    ("TossesACoin", "repeats", "in two equal runs answer"),
    ("StopsByTheClock", "repeats", "found:    Stop(reason='half an hour') at eval_end of step 2"),
    ("SharesItsList", "repeats", "a run has changed SharesItsList.seen, which all objects of the class share"),
    ("SharesItsDefault", "repeats", "a run has changed SharesItsDefault.__init__'s default 2"),
    ("AnotherKeyEachRun", "keys", "in two equal runs it reports ['count_"),
    ("BlankInItsKey", "keys", "'step count' is no text without blanks"),
    ("ReportsTheLoss", "keys", "it reports 'loss', which the loop has reported"),
    ("DescribesNothing", "names", "before a run describe() gives None, not a line of text"),
    ("SumsUpInAList", "names", "after a run summary() gives ["),
    ("RegistersUnderAnotherName", "names", "its handler 'judge' does not have its name"),
    ("SaysNoPriority", "priority", "it says no priority for epoch_end"),
    (
        "KeepsItsCount",
        "two_runs",
        "expected: Evaluate() at step_end of step 3\n  found:    Evaluate() at step_end of step 2",
    ),
    ("ForgetsItsCount", "resume", "found:    Evaluate() at step_end of step 4"),
    ("ForgetsWhenResumed", "resume", "found:    Evaluate() at step_end of step 4"),
    ("ForgetsAVerdict", "resume", "in a run whose metrics are tensors, resumed from the checkpoint of step 3"),
    ("FailsToLoad", "resume", "found:    the run raised a KeyError\n  which said: 'counted'"),
    ("StoresItsLimit", "settings", "with n=6 the state of a new one is {'count': 0, 'n': 6}"),
    ("LoadsItsLimit", "settings", "made with n=6 it has n=3 after loading a state"),
    ("CountsDown", "settings", "with n=6 the state of a new one is {'left': 6}"),
    ("KeepsItsHistory", "bounded", "bytes after half of a run of 600 updates"),
    ("ChangesTheEvent", "changes_nothing", "changed the event at step_end of step 1"),
    ("SetsTheRateByHand", "changes_nothing", "changed the optimizer's settings at epoch_begin"),
    ("DrawsAtRandom", "changes_nothing", "changed a global random state at epoch_end"),
    ("ScalesTheGradients", "changes_nothing", "changed the model at gradients_ready"),
    ("LeavesTheModelInEval", "changes_nothing", "changed the model at eval_end of step 2"),
    ("FreezesTheModel", "changes_nothing", "changed the model at eval_end of step 2"),
    ("ClearsTheMomentum", "changes_nothing", "changed the optimizer's state at epoch_end of step 2"),
    ("SilencesOthers", "isolation", "at epoch_end of step 2 a neighbour was not called"),
    ("ExitsTheProcess", "isolation", "a neighbour was not called (SystemExit('not worth going on'))"),
    ("MindsFailures", "isolation", "found:    Stop(reason='somebody failed')"),
    ("MindsItsCompany", "company", "with others on the bus, each of which is silent"),
    ("MindsItsPlace", "registration", "attached behind another of its band rather than before it"),
    ("TakesItsTime", "budget", "where 0.2 ms are allowed"),
    ("AsksAtEachStep", "asks", "calls for step_end it asked for a metric and answered nothing"),
]


@pytest.mark.parametrize(("name", "check", "told"), BROKEN, ids=[name for name, _, _ in BROKEN])
def test_each_fault_is_found_by_its_check_and_by_no_other_and_the_snippet_shows_it(name, check, told):
    """The planted faults are the callbacks; each check's docstring names those that it has failed on."""
    options = {"budget_ms": 0.2} if name == "TakesItsTime" else {}
    verdicts = examine(getattr(broken_callbacks, name), rounds=8, **options)
    failed = [verdict for verdict in verdicts if verdict.outcome == "failed"]
    assert [verdict.name for verdict in failed] == [check]
    assert told in failed[0].note
    with pytest.raises(BaseException) as raised:  # noqa: PT011  # one raises what the callback does, SystemExit say
        exec(failed[0].snippet, {"__name__": "pasted"})
    if "expected:" in failed[0].note and name != "TossesACoin":  # whose next two runs differ elsewhere
        assert str(raised.value) in failed[0].note


def test_every_check_has_a_planted_fault_and_its_docstring_names_one():
    by_check = {check: [name for name, c, _ in BROKEN if c == check] for check in CHECKS}
    for check, function in CHECKS.items():
        assert any(f"`{name}`" in function.__doc__ for name in by_check[check]), check


def test_a_right_one_passes_every_check():
    assert {verdict.outcome for verdict in examine(Counts, rounds=8)} == {"passed"}


def test_the_error_lists_every_failed_check_with_promise_event_and_snippet():
    class Both(broken_callbacks.DrawsAtRandom):
        def describe(self):
            return ""

    with pytest.raises(CallbackCheckError, match=r"^Both fails 2 of 18 checks: names, changes_nothing\n") as failed:
        check_callback(Both, rounds=2)
    text = str(failed.value)
    assert "changes_nothing: It changes neither the event nor the state" in text
    assert "What happened: Both changed a global random state at epoch_end of step 2" in text
    assert "    class Both(broken_callbacks.DrawsAtRandom):" in text  # a class inside a function is written out
    assert [verdict.name for verdict in failed.value.verdicts] == ["names", "changes_nothing"]


def test_the_snippet_makes_the_callback_as_the_factory_did():
    def make():
        return broken_callbacks.ForgetsItsCount(n=5)

    with pytest.raises(CallbackCheckError) as failed:
        check_callback(make, rounds=8)
    assert "from broken_callbacks import ForgetsItsCount" in str(failed.value)
    assert "return ForgetsItsCount(n=5)" in str(failed.value)


def test_a_skipped_check_needs_a_reason_and_a_name_that_exists():
    skip = {"resume": "it has no state by design"}
    check_callback(broken_callbacks.ForgetsItsCount, skip=skip, rounds=2)
    (verdict,) = [v for v in examine(broken_callbacks.ForgetsItsCount, skip=skip, rounds=2) if v.outcome == "skipped"]
    assert (verdict.name, verdict.note) == ("resume", "it has no state by design")
    with pytest.raises(ValueError, match="skip: resume='' is no reason"):
        check_callback(Counts, skip={"resume": ""})
    with pytest.raises(ValueError, match="there is no check 'resumes'; did you mean 'resume'"):
        check_callback(Counts, skip={"resumes": "why"})


def test_what_is_no_factory_is_refused():
    with pytest.raises(TypeError, match="is no factory: give a function"):
        check_callback(Counts())


@pytest.mark.parametrize(
    ("options", "error", "told"),
    [
        (
            {"metric": {}},
            TypeError,
            r"check_callback has no option 'metric'; did you mean 'metrics'\? there are skip, mon",
        ),
        ({"skip": ["resume"]}, ValueError, r"skip=\['resume'\] must be a mapping of checks to reasons"),
        ({"metrics": 3}, ValueError, "metrics=3 must be a mapping of names to a number, a list or a function"),
        ({"evaluations": [1.0]}, ValueError, r"evaluations=\[1.0\] must be a mapping"),
        ({"budget_ms": "x"}, ValueError, "budget_ms='x' must be a number of milliseconds > 0"),
        ({"monitor": 3}, ValueError, "monitor=3 must be the name of a metric, or a list of names"),
        ({"bind": 3}, ValueError, "bind=3 must be a mapping of live objects"),
        ({"rounds": 0}, ValueError, "rounds=0 must be a whole number >= 1"),
        ({"rounds": True}, ValueError, "rounds=True must be a whole number >= 1"),
        ({"expression": 3}, ValueError, "expression=3 must be a text"),
        ({"expression": "Counts"}, ValueError, "write module:Class"),
    ],
)
def test_a_wrong_option_is_refused_by_its_name_and_its_right_form(options, error, told):
    """Broken by leaving the options to the constructor of `Subject`."""
    with pytest.raises(error, match=told):
        check_callback(Counts, **options)


@pytest.mark.parametrize(
    ("make", "told"),
    [
        (lambda: Counts, "the factory gave the class Counts, not an object"),
        (lambda one=Counts(): one, "the factory gave the same object twice"),  # noqa: B008  # that is the fault
        (lambda: Counts("three" + 3), "the factory raised TypeError"),
        (lambda: None, "the factory returned None: does it lack a return?"),
        (lambda: 5, "the factory returned 5: an int has no on_<event> method"),
    ],
)
def test_a_factory_that_makes_nothing_new_is_found_before_anything_is_run(make, told):
    verdicts = examine(make)
    assert verdicts[0].outcome == "failed"
    assert told in verdicts[0].note
    assert {verdict.outcome for verdict in verdicts[1:]} == {"not run"}


def test_what_compares_runs_is_not_run_where_no_two_are_equal():
    verdicts = {v.name: v for v in examine(broken_callbacks.TossesACoin, rounds=8)}
    not_run = {name for name, verdict in verdicts.items() if verdict.outcome == "not run"}
    assert not_run == {"two_runs", "resume", "isolation", "company", "registration"}
    assert verdicts["resume"].note == "two equal runs differ already: see repeats and keys"


CONTRACT = callback_checks(Counts, skip={"bounded": "shown as skipped"}, rounds=2)


def test_as_a_parametrisation_each_check_has_its_name_and_raises_or_is_skipped():
    assert list(map(str, CONTRACT)) == list(CHECKS)
    for check in CONTRACT:
        if check.name == "bounded":
            with pytest.raises(unittest.SkipTest, match="shown as skipped"):
                check()
        else:
            check()
    broken = {check.name: check for check in callback_checks(broken_callbacks.MisspeltMethod)}
    with pytest.raises(CallbackCheckError, match="did you mean 'on_epoch_end'"):
        broken["attaches"]()
    for name in [*CHECKS][1:]:
        with pytest.raises(unittest.SkipTest, match="see attaches"):
            broken[name]()


def test_the_policy_is_checked_by_a_fault_that_is_injected(monkeypatch):
    """Broken by a bus that forgets what the policy ``stop`` asks for."""

    class Stops(Counts):
        failure = "stop"

    (isolation,) = [check for check in callback_checks(Stops, rounds=2) if check.name == "isolation"]
    isolation()
    whole = eventloop.dispatch.Dispatcher.failed

    def forgetful(self, *args):
        failures, _, told = whole(self, *args)
        return failures, None, told

    monkeypatch.setattr(eventloop.dispatch.Dispatcher, "failed", forgetful)
    (isolation,) = [check for check in callback_checks(Stops, rounds=2) if check.name == "isolation"]
    with pytest.raises(CallbackCheckError, match="it raised at train_begin under failure='stop': the run ended with"):
        isolation()


def test_a_decider_of_a_key_of_ones_own_is_given_that_key():
    class Judge(Counts):
        def on_eval_end(self, event, state):
            return Stop() if state.metrics["accuracy"] > 0.5 else None

    failed = {v.name for v in examine(Judge, rounds=2) if v.outcome == "failed"}
    assert failed == {"every_run"}
    check = {c.name: c for c in callback_checks(Judge, evaluations={"accuracy": 0.6}, rounds=2)}
    assert check["company"]._subject.script["evaluations"]["accuracy"] == 0.6
    check["company"]()


def one(make, name, **options):
    """The verdict of one check."""
    (check,) = [check for check in callback_checks(make, **options) if check.name == name]
    return check.verdict()


@pytest.mark.parametrize(("name", "check"), [("ForgetsOnDisk", "resume"), ("KeepsItsCountOnDisk", "two_runs")])
def test_a_run_with_a_folder_is_cut_and_run_again_with_real_checkpoints(name, check, tmp_path, monkeypatch):
    verdict = one(getattr(broken_callbacks, name), check, rounds=3)
    assert 'Path(mkdtemp()) / "run"' in verdict.snippet
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    with pytest.raises(AssertionError) as raised:
        exec(verdict.snippet, {"__name__": "pasted"})
    assert str(raised.value) in verdict.note


def failing(self):
    raise OSError("the disk is full")


@pytest.mark.parametrize(
    ("check", "attributes", "told"),
    [
        ("names", {"gauges": [5]}, "before a run gauges is [5], not names"),
        ("names", {"touches_model": "yes"}, "before a run touches_model is 'yes', not True or False"),
        ("names", {"describe": failing}, "before a run describe() gives OSError('the disk is full')"),
        ("closes", {"close": failing}, "closing it once, without a run, raised OSError: the disk is full"),
        ("closes", {"close": lambda self: self.count and failing(self)}, "closing it after a run raised OSError"),
        (
            "state",
            {"state_dict": lambda self: {"mode": Wrong.OFF}},
            "the state is {'mode': <Wrong.OFF: 3>}, and {'mode': 3}",
        ),
    ],
)
def test_other_faults_are_found_too(check, attributes, told):
    verdict = one(type("Odd", (Counts,), attributes), check, rounds=2)
    assert verdict.outcome == "failed"
    assert told in verdict.note


class Wrong(enum.IntEnum):
    OFF = 3

    def __eq__(self, other):
        return self is other

    __hash__ = enum.IntEnum.__hash__


def test_a_place_may_be_said_in_the_options_of_each_event():
    class Says(broken_callbacks.SaysNoPriority):
        def options(self):
            return {"epoch_end": {"priority": 5}}

    assert one(Says, "priority").outcome == "passed"


def test_what_no_check_expects_is_a_failure_of_that_check_with_its_error():
    class Odd(Counts):
        @property
        def gauges(self):
            raise ZeroDivisionError("odd")

    verdict = one(Odd, "names", rounds=2)
    assert (verdict.outcome, verdict.note) == ("failed", "the check was ended by ZeroDivisionError: odd")
    assert verdict.snippet.endswith("check_callback(make)")


class Reads(broken_callbacks.DrawsAtRandom):
    """Holds paths, truths and numbers of which some are refused, and one argument under a name of its own."""

    def __init__(self, path=None, strict=False, share=0.5, *, n=3, secret=None):
        super().__init__(n)
        if not 0.0 < share < 1.0:
            raise ValueError("share")
        self.path, self.strict, self._share, self.hidden = path, strict, share, secret


@pytest.mark.parametrize(
    ("make", "call"),
    [
        (lambda: Reads(), "Reads()"),
        (lambda: Reads(Path("a/b"), True, n=4), "Reads(path=Path('a/b'), strict=True, n=4)"),
        (lambda: Reads(share=0.25), "Reads(share=0.25)"),
        (lambda: Reads(object()), 'NotImplementedError("make your callback here")'),
    ],
)
def test_the_expression_is_read_from_the_object_if_that_is_possible(make, call):
    snippet = one(make, "changes_nothing", rounds=2).snippet
    assert call in snippet
    assert one(make, "settings", rounds=2).outcome == "passed"


def test_the_expression_may_be_given():
    verdict = one(Reads, "changes_nothing", rounds=2, expression="my.callbacks:Mine(a=1)")
    assert "from my.callbacks import Mine" in verdict.snippet
    assert "return Mine(a=1)" in verdict.snippet


def live():
    import torch

    model = torch.nn.Linear(1, 1)
    return {"model": model, "name": "given"}


class NeedsWhatIsGiven(broken_callbacks.DrawsAtRandom):
    def bind(self, *, model, name):
        assert (type(model).__name__, name) == ("Linear", "given")


def test_live_objects_may_be_given_and_stand_in_the_snippet():
    (verdict,) = [v for v in examine(NeedsWhatIsGiven, bind=live, rounds=2) if v.outcome == "failed"]
    assert verdict.name == "changes_nothing"
    assert "import live as bind" in verdict.snippet
    with pytest.raises(AssertionError, match="changed a global random state"):
        exec(verdict.snippet, {"__name__": "pasted"})


def test_answers_are_counted_from_a_cut_and_from_a_resume_alike():
    script = {"metrics": {"loss": [1.0] * 8}, "updates": 4}
    run = FakeLoop([Counts(), Cuts()], **script)
    whole = answers(run)
    assert whole.lines == ["Evaluate() at step_end of step 3", "Evaluate() at step_end of step 6"]
    assert (whole.cuts, whole.calls) == ([1, 2, 3, 4, 5, 6, 7, 8], 9)
    assert whole.after(2) == whole.lines[1:]
    again = answers(FakeLoop([Counts(), Cuts()], **script, resume=run.checkpoints[2]))
    assert again.resumed() == whole.lines[1:]


def test_an_answer_is_told_by_its_requests_wherever_they_come_from():
    class Asks(Counts):
        def bind(self, *, bus):
            self.bus = bus

        def on_step_end(self, event, state):
            return (
                self.bus.publish(MadeUpEvent(), state)
                if state.step == 1
                else [Report(a={"b": 2}), Keep(frozenset([2, 1]))]
            )

        def on_made_up_event(self, event, state):
            return Stop("enough")

    found = answers(FakeLoop([Asks()], metrics={"loss": [1.0, 1.0]}, updates=2, min_steps=2))
    told = ["Stop(reason='enough')", "Report(a={'b': 2})", "Keep([1, 2])"]
    assert [answer.text for answer in found] == told  # what was published is answered once
    assert [answer.keys for answer in found][1] == ("a",)


class Mark(Event):
    name = "mark_of_a_check"


class PublishesAMark:
    priority = 0

    def bind(self, *, bus):
        self.bus = bus

    def on_eval_end(self, event, state):
        return self.bus.publish(Mark(), state)

    def on_mark_of_a_check(self, event, state):
        return Report(marks=1.0)


def test_who_publishes_an_event_of_its_own_and_returns_the_answers_passes():
    """Broken by listing every reply in a Control as the callback's own: company and registration failed."""
    assert {v.outcome for v in examine(PublishesAMark, rounds=2)} == {"passed"}


EVENT_SCRIPT = """
from eventloop import Bus, Callback, Event, Report
from eventloop.testing.checks import check_callback


class Own(Event):
    name = "own_of_a_script"


class Publishes(Callback):
    priority = 0

    class Inner(Event):
        name = "inner_of_a_script"

    def bind(self, *, bus):
        self.bus = bus

    def describe(self):
        return None

    def on_eval_end(self, event, state):
        return self.bus.publish(Own(), state)

    def on_own_of_a_script(self, event, state):
        return Report(own=1.0)

    def on_inner_of_a_script(self, event, state):
        return None


try:
    check_callback(Publishes, rounds=2)
except AssertionError as error:
    print(error)
Bus().attach(Publishes())
print("attached")
"""


def test_the_battery_defines_no_event_of_the_user_a_second_time(tmp_path):
    """Broken by executing the classes that are written out into the snippet, those of events among them."""
    (tmp_path / "mine.py").write_text(EVENT_SCRIPT)
    done = subprocess.run([sys.executable, tmp_path / "mine.py"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
    assert "fails 1 of 18 checks: names" in done.stdout
    assert "class Own(Event):" in done.stdout
    assert done.stdout.endswith("attached\n")


def test_the_clocks_are_right_again_after_a_run_at_another_time():
    """Broken by clocks that are not put back where the run raises."""
    before = time.time, time.monotonic, time.perf_counter

    def fails():
        with an_hour_on() as goes_on:
            first = time.time()
            goes_on(None, lambda event, state: None, None, None)
            assert 3600.0 <= time.time() - first < 3700.0
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fails()
    assert (time.time, time.monotonic, time.perf_counter) == before


def test_an_interrupt_that_no_script_has_is_the_users():
    class Interrupted(Counts):
        def on_step_end(self, event, state):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        examine(Interrupted, rounds=2)


def test_an_epoch_that_a_resume_opens_again_is_no_answer_of_its_own():
    class Greets(Counts):
        def on_epoch_begin(self, event, state):
            return Report(epoch=state.epoch)

    outcomes = {verdict.name: verdict.outcome for verdict in examine(Greets, rounds=3)}
    assert outcomes["resume"] == "passed"


# -- what a run must have for a callback to answer ---------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "patience"),
    [("JudgesAFixedKey", 3), ("ListsItsMetrics", 3), ("JudgesItsMetric", 40), ("WatchesTheGradients", 40)],
)
def test_a_metric_that_only_the_code_names_is_reported_and_the_run_is_long_enough(name, patience):
    """Broken by a script that has only ``monitor``, and by one of 16 evaluations whatever the patience."""
    make = partial(getattr(broken_callbacks, name), patience=patience)
    verdict = one(make, "resume")
    assert verdict.outcome == "failed"
    assert "expected: Stop(" in verdict.note
    with pytest.raises(AssertionError) as raised:
        exec(verdict.snippet, {"__name__": "pasted"})
    assert str(raised.value) in verdict.note


def test_a_key_that_it_reports_itself_is_not_reported_to_it():
    """Broken by reporting each text among its settings."""

    class Reporter(Counts):
        def __init__(self, key="count"):
            super().__init__()
            self.key = key

        def on_eval_end(self, event, state):
            return Report({self.key: self.count}) if self.key not in state.metrics.fresh else None

    assert one(Reporter, "keys", rounds=2).outcome == "passed"


class NeverAnswers(Counts):
    def on_step_end(self, event, state):
        return Stop() if state.metrics.get("temperature", 0.0) < -5.0 else None


def test_who_never_answers_is_not_exercised_and_is_told_what_to_give():
    """Broken by a pass without a note."""
    with pytest.warns(UserWarning, match="it never answered: it asked for 'temperature' at step_end; give metrics="):
        check_callback(NeverAnswers, rounds=2, skip={"asks": "it is a guard"})
    idle = [v.name for v in examine(NeverAnswers, rounds=2) if v.outcome == "not exercised"]
    assert idle == ["repeats", "two_runs", "resume", "company", "registration"]
    checks = {c.name: c for c in callback_checks(NeverAnswers, rounds=2)}
    with pytest.raises(unittest.SkipTest, match="it never answered"):
        checks["resume"]()
    told = {v.name: v.outcome for v in examine(NeverAnswers, rounds=2, metrics={"temperature": -9.0})}
    assert "not exercised" not in told.values()


class Writes:
    """A logger at an ordinary place: it has nothing to return."""

    priority = 0

    def __init__(self):
        self.rows = []

    def on_eval_end(self, event, state):
        self.rows.append(dict(state.metrics))


class Logs(Writes):
    priority = Priority.LOG

    def on_step_end(self, event, state):
        return self.rows.append(dict(state.metrics))


@pytest.mark.parametrize("make", [Writes, Logs])
def test_a_logger_passes_for_what_it_writes_is_its_answer(make):
    """Broken by counting the LOG band among those that ask for nothing, and by ``could_answer`` that is always true."""
    assert {v.outcome for v in examine(make, rounds=2)} == {"passed"}


def test_a_logger_elsewhere_is_told_where_to_stand():
    class Early(Logs):
        priority = Priority.MEASURE

    assert "let it stand in the LOG band if it is a logger" in one(Early, "asks", rounds=2).note


def test_a_snippet_has_only_the_turns_and_metrics_that_it_needs():
    """Broken by printing the script of the whole check."""
    snippet = one(broken_callbacks.ForgetsItsCount, "resume").snippet
    assert "script = {'metrics': {}, 'evaluations': {}, 'updates': 2, 'max_steps': 4}" in snippet


def test_what_cannot_be_pasted_says_so_and_what_is_in_the_way():
    """Broken by a class inside a function that is written out without the names of that function."""
    far = object()

    class Closed(broken_callbacks.DrawsAtRandom):
        def on_step_end(self, event, state):
            return None if self is far else super().on_step_end(event, state)

    snippet = one(Closed, "changes_nothing", rounds=2).snippet
    assert "# this cannot be pasted as it stands; do here what your factory does: Closed uses far" in snippet


SCRIPT = """
import math
from dataclasses import dataclass, field
from eventloop import Callback, Stop
from eventloop.testing import examine

LIMIT = 3


def far(x):
    return math.fabs(x) > LIMIT


@dataclass(eq=False)
class Mine(Callback):
    n: int = 2
    seen: int = field(default=0, init=False)

    @property
    def priority(self):
        return 0

    def on_step_end(self, event, state):
        self.seen += 1
        return Stop("far") if far(self.seen) else None


print(next(v.snippet for v in examine(lambda: Mine(n=5)) if v.name == "resume"))
"""


def test_a_class_of_a_script_is_written_out_with_all_that_it_takes_from_it(tmp_path):
    """Broken by importing from ``__main__``, and by a class without its module's imports and constants."""
    (tmp_path / "mine.py").write_text(SCRIPT)
    done = subprocess.run([sys.executable, tmp_path / "mine.py"], capture_output=True, text=True, check=False)
    assert "    return Mine(n=5)" in done.stdout
    with pytest.raises(AssertionError, match=r"expected: Stop\(reason='far'\) at step_end of step 4"):
        exec(done.stdout, {"__name__": "pasted"})
    assert done.stderr == ""


def test_a_snippet_and_a_check_leave_the_log_alone(caplog):
    """Broken by runs in ``answers`` that are not quiet."""
    verdict = one(broken_callbacks.ForgetsItsCount, "resume", rounds=8)
    with pytest.raises(AssertionError):
        exec(verdict.snippet, {"__name__": "pasted"})
    assert caplog.records == []
    logging.getLogger("eventloop").warning("a word of the user's")
    assert caplog.messages == ["a word of the user's"]


# -- the command -------------------------------------------------------------------------------------------------------


def run(*arguments):
    done = CliRunner().invoke(main, ["check-callback", *arguments])
    return done.exit_code, done.output + (done.stderr if done.stderr not in done.output else "")


@pytest.fixture
def folder(tmp_path, monkeypatch):
    """A user's folder with a module in it; what its import adds to the process is gone afterwards."""
    (tmp_path / "mine.py").write_text(Path(broken_callbacks.__file__).read_text())
    (tmp_path / "wrong.py").write_text("import nothing_of_this_name")
    (tmp_path / "odd.py").write_text("1 / 0")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", [*sys.path])
    yield tmp_path
    for name in ("mine", "wrong", "odd"):
        sys.modules.pop(name, None)


def test_the_command_prints_a_table_and_ends_with_0():
    code, text = run("callbacks:EarlyStopping", "--arg", "monitor=eval_loss", "--arg", "patience=2")
    assert code == 0, text
    lines = text.splitlines()
    assert lines[0].split() == ["check", "verdict", "seconds", "note"]
    assert [line.split()[:2] for line in lines[2:20]] == [[name, "passed"] for name in CHECKS]
    assert "eval_end" in next(line for line in lines if line.startswith("budget"))  # what a call costs
    assert lines[-1] == "18 passed"


def test_the_command_shows_what_failed_and_how_to_see_it_and_ends_with_1(folder):
    code, text = run("mine:ForgetsItsCount", "--arg", "n=4", "--skip", "budget=it is fast", "--skip", "asks=no metrics")
    assert code == 1
    assert "found:    Evaluate() at step_end of step 5" in text
    assert "from mine import ForgetsItsCount" in text
    assert "return ForgetsItsCount(n=4)" in text
    assert text.splitlines()[-1] == "15 passed, 1 failed, 2 skipped"


@pytest.mark.parametrize("option", ["--monitor", "--metric"])
def test_the_command_counts_what_was_not_exercised_and_takes_the_names_of_metrics(folder, option):
    """Broken by a count of what has passed alone, and by an option that is not handed on."""
    code, text = run("mine:LooksThroughTheNames")
    assert (code, text.splitlines()[-1]) == (0, "13 passed, 5 not exercised")
    assert "not exercised: it never answered: it asked for no metric by name; give metrics=" in text
    code, text = run("mine:LooksThroughTheNames", option, "heat")
    assert (code, text.splitlines()[-1]) == (0, "18 passed")


@pytest.mark.parametrize(("text", "value"), [("true", True), ("NULL", None), ("3", 3), ("a b", "a b"), ("1e-3", 0.001)])
def test_an_argument_is_what_its_text_stands_for(folder, text, value):
    """Broken by ``true`` as a text."""
    _, told = run("mine:NeedsADevice", "--arg", f"name={text}")
    assert f"NeedsADevice(name={value!r}) raised" in told


def test_a_file_is_a_place_as_well_and_its_snippet_finds_it(folder):
    code, text = run(f"{folder}/mine.py:DescribesNothing")
    assert code == 1
    snippet = text.partition("To see it:\n\n")[2].rpartition("\n\n")[0]
    pasted = "\n".join(line[4:] for line in snippet.splitlines())
    done = subprocess.run([sys.executable, "-c", pasted], capture_output=True, text=True, check=False)
    assert "AssertionError" in done.stderr


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["mine:Count"], "mine has no class 'Count'; did you mean 'Counts'? callbacks there: AnotherKeyEachRun, "),
        (["nowhere:Count"], "there is no module 'nowhere'; in this folder: mine, odd, wrong"),
        (["nowhere.py:Count"], "there is no file nowhere.py; in .: mine.py, odd.py, wrong.py"),
        (["wrong:Count"], "importing wrong raised No module named 'nothing_of_this_name'"),
        (["odd:Count"], "importing odd raised ZeroDivisionError"),
        (["Count"], "'Count': write module:Class or path/to/file.py:Class"),
        (["callbacks:EarlyStopping"], "error: EarlyStopping needs monitor: give --arg monitor=..."),
        (["mine:Counts", "--arg", "m=3"], "error: Counts has no argument 'm'; it takes n"),
        (
            ["mine:NeedsADevice", "--arg", "name=cuda"],
            "error: NeedsADevice(name='cuda') raised RuntimeError: no cuda here",
        ),
        (
            ["callbacks:EarlyStopping", "--arg", "monitor=loss", "--arg", "patience=0"],
            "patience=0 must be a whole number",
        ),
        (["mine:Counts", "--arg", "n"], "--arg 'n': write --arg name=value"),
        (["mine:Counts", "--skip", "resume"], "--skip 'resume': write --skip name=reason"),
        (["mine:Counts", "--skip", "resum=no"], "there is no check 'resum'; did you mean 'resume'?"),
        ([], "name a callback, as module:Class, or ask for --list"),
    ],
)
def test_wrong_usage_ends_with_2_and_says_what_there_is(folder, arguments, told):
    code, text = run(*arguments)
    assert (code, told in text) == (2, True), text


def test_a_file_whose_name_is_taken_by_another_module_is_refused(folder):
    (folder / "json.py").write_text("class Mine:\n    def on_step_end(self, event, state): ...\n")
    code, text = run("json.py:Mine")
    assert code == 2
    assert "json.py cannot be imported as 'json': that is" in text


def test_the_command_lists_the_checks_with_what_they_promise():
    code, text = run("--list")
    assert code == 0
    assert [line.split()[0] for line in text.splitlines()[2:]] == list(CHECKS)
    assert "It raises in no lawful run" in text


def test_the_checks_need_no_torch_and_no_test_runner_to_be_imported():
    code = (
        "import sys, eventloop.testing.checks as checks\n"
        "print(sorted({'torch', 'hypothesis', 'pytest', 'numpy'} & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "[]"


def test_a_missing_metric_is_lawful_for_who_is_strict_about_it():
    def make():
        return EarlyStopping("eval_loss", strict=True)

    assert [v.name for v in examine(make, rounds=8) if v.outcome == "failed"] == []
