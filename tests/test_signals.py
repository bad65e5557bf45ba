"""SignalStop: real signals, to runs in processes of their own and to this one."""

import contextlib
import logging
import os
import signal
import subprocess
import sys
import threading

import pytest
import signalled_runs
from forks import FORKS, start, told
from signalled_runs import RECIPE, count
from small_runs import checkpoints, identical, on_disk, said, train

from callbacks import JSONLLogger, SignalStop, TimeLimit
from eventloop import Bus, EpochEnd, StepEnd, TrainBegin, TrainState, read_metrics
from eventloop.rows import read_rows
from eventloop.testing import FakeLoop

TERM, USR1, INT = signal.SIGTERM, signal.SIGUSR1, signal.SIGINT


@pytest.fixture(autouse=True)
def plain_handlers():
    """This process's own handlers are those of a plain script, and stand again after the test."""
    before = {number: signal.getsignal(number) for number in (TERM, USR1, INT)}
    signal.signal(TERM, signal.SIG_DFL)
    signal.signal(INT, signal.default_int_handler)
    yield
    for number, handler in before.items():
        signal.signal(number, handler)


def signalled(function, *arguments, signals=(TERM,)):
    """The exit code of a child that gets these signals, each where it is held."""
    here, there = FORKS.Pipe()
    child = start(function, *arguments, there)
    there.close()
    for number in signals:
        assert here.poll(60)
        assert here.recv() == "here"
        os.kill(child.pid, number)
        with contextlib.suppress(BrokenPipeError):  # it may be dead by now
            here.send("go on")
    child.join(60)
    return child.exitcode


def rows(run_dir):
    return [{k: v for k, v in row.items() if k not in ("time", "elapsed")} for row in read_metrics(run_dir)]


def ended(outcome):
    return outcome.model, outcome.optimizer, outcome.callbacks, outcome.drawn, outcome.loop.state.step


# -- a run is told to go -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("number", [TERM, USR1, INT])
def test_it_saves_that_very_update_and_resumed_ends_bit_identical(tmp_path, number):
    """Fails if the handler only notes and nobody asks at step_end, and if the resumed run sees the stop again."""
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    assert signalled(signalled_runs.train_with_signals, cut, 5, signals=[number]) == 75
    assert on_disk(cut) == {5}  # in mid-epoch, with no evaluation; nobody else asks for saves
    end = list(read_rows(cut / "journal.jsonl"))[-1]
    assert (end["event"], end["status"], end["reason"]) == ("train_end", "preempted", f"{number.name} received")
    uncut = train(RECIPE, whole, JSONLLogger(every=1))
    rest = train(RECIPE, cut, JSONLLogger(every=1), seed=99, resume="auto")
    assert rest.loop.resumed.step == 5
    assert identical(ended(rest), ended(uncut))
    assert rest.losses == uncut.losses[5:]
    assert rows(cut) == rows(whole)


def test_in_a_long_evaluation_it_ends_at_the_next_batch_which_a_resume_makes_again(tmp_path):
    """Fails without the look at eval_step: all thousand batches are drawn."""
    assert signalled(signalled_runs.evaluate_with_signals, tmp_path) == 75
    assert on_disk(tmp_path) == {2}
    assert [row["step"] for row in read_metrics(tmp_path) if row["event"] == "eval_end"] == [1]
    loop = count(tmp_path, JSONLLogger(every=1), eval_every=1, max_steps=4, resume="auto")
    evaluated = [(row["step"], row["batches"]) for row in read_metrics(tmp_path) if row["event"] == "eval_end"]
    assert evaluated == [(n, 1000.0) for n in (1, 2, 3, 4)]
    assert (loop.result.status, loop.state.evals) == ("completed", 4)


def test_while_a_save_is_on_its_way_both_that_and_the_last_are_whole(tmp_path):
    """Fails if the run does not wait for the writer."""
    assert signalled(signalled_runs.save_with_signals, tmp_path) == 75
    found = checkpoints(tmp_path)
    last = list(read_rows(tmp_path / "journal.jsonl"))[-1]["step"]
    assert max(found) == last < 100_000
    assert [float(found[step].load()["model"]["w"]) for step in found] == [float(step) for step in found]


def script_with_workers(run_dir, *, held=False):
    """A script in a process group of its own; told to go where it is held. Its exit code."""
    code = f"import signalled_runs; signalled_runs.train_with_workers({str(run_dir)!r}, {held})"
    streams = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True, "start_new_session": True}
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen([sys.executable, "-c", code], env=environment, **streams) as child:
        if held:
            assert child.stdout.readline() == "here\n"
            os.killpg(child.pid, TERM)
        child.communicate("go on\n", timeout=60)
    return child.returncode


def test_sent_to_a_process_group_with_workers_of_a_loader_that_ignore_it(tmp_path):
    """Fails without ``worker_init_fn=ignore_signals``: the workers die, and the run with them."""
    cut, whole = tmp_path / "cut", tmp_path / "whole"
    assert script_with_workers(cut, held=True) == 75
    assert on_disk(cut) == {9}
    assert (script_with_workers(cut), script_with_workers(whole)) == (0, 0)
    assert rows(cut) == rows(whole)
    ends = [checkpoints(path)[max(on_disk(path))].load() for path in (cut, whole)]
    assert identical(ends[0]["model"], ends[1]["model"])
    assert identical(ends[0]["optimizer"], ends[1]["optimizer"])


# -- a second one ------------------------------------------------------------------------------------------------------


def test_a_second_sigint_raises_keyboard_interrupt(tmp_path):
    """Fails if the second is only noted too."""
    assert signalled(signalled_runs.interrupted_twice, tmp_path, signals=[INT, INT]) == 130
    end = list(read_rows(tmp_path / "journal.jsonl"))[-1]
    assert (end["event"], end["status"]) == ("train_end", "interrupted")


def test_a_second_sigterm_kills_at_once(tmp_path):
    assert signalled(signalled_runs.interrupted_twice, tmp_path, signals=[TERM, TERM]) == -TERM
    assert list(read_rows(tmp_path / "journal.jsonl"))[-1]["event"] != "train_end"


def test_a_second_signal_of_another_kind_is_a_first_one(tmp_path):
    assert signalled(signalled_runs.interrupted_twice, tmp_path, signals=[INT, USR1]) == 0
    end = list(read_rows(tmp_path / "journal.jsonl"))[-1]
    assert (end["status"], end["reason"]) == ("preempted", "SIGINT received")


def test_a_forked_process_ends_as_it_would_without_it():
    """Fails if the handler does not look at its process: the children would wait for ever."""
    assert told(signalled_runs.fork_under_signals) == ([-TERM, 7, -USR1], "completed")


# -- in this process ---------------------------------------------------------------------------------------------------


class Sends:
    """Sends this process a signal at an event of a step."""

    priority = 900

    def __init__(self, number, step=2, event="step_end", times=1):
        self.number, self.step, self.times = number, step, times
        setattr(self, f"on_{event}", self.send)

    def send(self, event, state):
        for _ in range(self.times if state.step == self.step else 0):
            os.kill(os.getpid(), self.number)


def handlers():
    return [signal.getsignal(number) for number in (TERM, USR1, INT)]


@pytest.mark.parametrize(
    ("event", "step", "ended"), [("train_begin", 0, 0), ("epoch_begin", 0, 0), ("step_begin", 0, 1), ("eval_end", 2, 2)]
)
def test_wherever_it_comes_it_is_not_lost(tmp_path, event, step, ended):
    """Fails if the handlers are set behind the others of train_begin."""
    loop = count(tmp_path, Sends(USR1, step, event), SignalStop(), max_steps=9, eval_every=2)
    assert (loop.result.status, loop.result.step, loop.result.refused) == ("preempted", ended, ())


def test_the_handlers_that_were_there_are_put_back_exactly_and_called_after_ours():
    """Fails if close sets the default, or if ours takes the place of the user's."""
    called, asked = [], SignalStop()

    def own(number, frame):
        called.append((number, asked.on_step_end(StepEnd(), TrainState()).reason))

    signal.signal(TERM, own)
    before = handlers()
    loop = count(None, Sends(TERM), asked, max_steps=9, eval_every=None)
    assert (loop.result.reason, loop.result.step, called) == ("SIGTERM received", 2, [(TERM, "SIGTERM received")])
    assert handlers() == before


def test_however_the_run_ends_the_handlers_are_put_back():
    before = handlers()

    class Fails:
        failure = "raise"

        def on_step_end(self, event, state):
            raise ValueError("no")

    with pytest.raises(ValueError, match="no"):
        count(None, SignalStop(), Fails(), max_steps=9, eval_every=None)
    assert handlers() == before


def test_a_second_one_goes_to_the_handler_that_was_there_alone():
    """Fails if the handler that was there is left out, or hears the first twice."""
    called = []
    signal.signal(TERM, lambda number, frame: called.append(number))
    loop = count(None, Sends(TERM, times=3), SignalStop(), max_steps=9, eval_every=None)
    assert (loop.result.status, called) == ("preempted", [TERM] * 3)


def test_python_s_own_handler_of_sigint_is_not_called_at_the_first():
    """Fails if it is called like any other that was there."""
    loop = count(None, Sends(INT), SignalStop(), max_steps=9, eval_every=None)
    assert (loop.result.status, loop.result.reason, loop.result.exit_code) == ("preempted", "SIGINT received", 75)


def test_a_handler_that_somebody_else_has_set_since_stays():
    """Fails if close puts back without a look."""

    def newer(number, frame):
        pass

    class Sets:
        def on_step_end(self, event, state):
            signal.signal(USR1, newer)

    count(None, SignalStop(), Sets(), max_steps=1, eval_every=None)
    assert signal.getsignal(USR1) is newer


def test_one_that_is_still_called_after_the_run_is_what_was_there_before():
    """Fails if the handler goes on noting: Ctrl-C would do nothing."""
    kept = []

    class Wraps:
        def on_step_end(self, event, state):
            kept.append(signal.getsignal(INT))

    count(None, SignalStop(), Wraps(), max_steps=1, eval_every=None)
    with pytest.raises(KeyboardInterrupt):
        kept[0](INT, None)


def test_an_ignored_sigint_stays_ignored():
    signal.signal(INT, signal.SIG_IGN)
    loop = count(None, Sends(INT), SignalStop(), max_steps=3, eval_every=None)
    assert (loop.result.status, signal.getsignal(INT)) == ("completed", signal.SIG_IGN)


def test_in_a_thread_that_is_not_the_main_one_there_is_one_warning_and_no_handler(caplog):
    """Fails with a ValueError of Python's where the handlers are set all the same."""
    before, ends = handlers(), []

    def run():
        ends.append((count(None, SignalStop(), max_steps=3, eval_every=None).result.status, handlers()))

    with caplog.at_level(logging.WARNING, "eventloop"):
        thread = threading.Thread(target=run)
        thread.start()
        thread.join(60)
    assert ends == [("completed", before)]
    assert [text for text in said(caplog) if "SignalStop" in text] == [
        "SignalStop: this run is not in the main thread, where alone Python lets handlers be set: "
        "SIGTERM, SIGUSR1, SIGINT will not stop it"
    ]


def test_attached_in_mid_run_it_hears_from_the_next_event_on():
    """Fails if the handlers are set at train_begin alone."""

    class Attaches:
        def on_step_end(self, event, state):
            if state.step == 1:
                self.bus.attach(SignalStop())

        def bind(self, *, bus):
            self.bus = bus

    signal.signal(USR1, signal.SIG_IGN)  # instead of dying
    loop = count(None, Attaches(), Sends(USR1, 4), max_steps=9, eval_every=None)
    assert (loop.result.status, loop.result.step) == ("preempted", 4)


def test_it_says_how_much_of_the_grace_is_left_and_forgets_at_the_next_run():
    """Fails if the age of the signal is not taken off, or if a run ends by the signal of the one before."""
    bus, stopper = Bus(failure="raise"), SignalStop(["SIGUSR1"], grace=20.0)
    bus.attach(stopper)
    bus.publish(TrainBegin(), TrainState())
    os.kill(os.getpid(), USR1)
    first, later = (bus.publish(StepEnd(), TrainState(step=step)).requests[0].request for step in (1, 2))
    assert 0.0 < later.within < first.within < 20.0
    assert bus.publish(EpochEnd(completed=False), TrainState(step=2)).stop is None
    bus.close()
    bus.publish(TrainBegin(), TrainState())
    assert bus.publish(StepEnd(), TrainState(step=1)).stop is None
    bus.close()


def test_one_that_comes_while_other_handlers_are_at_work_counts_at_that_event():
    """Fails if it looks before them, as the other deciders do."""

    class Late(Sends):
        priority = -900

    loop = count(None, SignalStop(), Late(USR1), max_steps=9, eval_every=None)
    assert (loop.result.status, loop.result.step) == ("preempted", 2)


def test_a_loop_without_evaluations_is_not_told_to_make_some(caplog):
    """Fails if its place at eval_end is one that waits."""
    loop = FakeLoop([SignalStop(), TimeLimit(3600)], max_steps=3)
    assert loop.run().status == "completed"
    assert [text for text in said(caplog) if "waited" in text] == []


def test_without_any_grace_left_it_still_stops():
    loop = count(None, Sends(USR1), SignalStop(grace=0), max_steps=9, eval_every=None)
    assert (loop.result.status, loop.result.step) == ("preempted", 2)


def test_signals_are_given_by_name_or_number():
    assert SignalStop("SIGTERM").signals == ("SIGTERM",)
    assert SignalStop([15, INT, "SIGTERM", "SIGHUP"]).signals == ("SIGTERM", "SIGINT", "SIGHUP")
    assert SignalStop(grace=5).describe() == "SIGTERM, SIGUSR1, SIGINT: 5 s of grace"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"signals": ["SIGTRM"]}, r"signals='SIGTRM' is no signal; did you mean 'SIGTERM'\? valid are names"),
        ({"signals": "sigterm"}, "did you mean 'SIGTERM'"),
        ({"signals": 12345}, "signals=12345 is no signal; valid are"),
        ({"signals": ["SIGKILL"]}, "signals='SIGKILL': SIGKILL cannot be caught"),
        ({"signals": 11}, "SIGSEGV cannot be caught, or not survived"),
        ({"signals": ()}, r"signals=\(\) must name at least one"),
        ({"grace": -1}, "grace=-1 must be a finite number >= 0"),
    ],
)
def test_what_is_no_signal_is_an_error_that_names_the_nearest(arguments, message):
    with pytest.raises(ValueError, match=f"SignalStop: .*{message}"):
        SignalStop(**arguments)
