"""The bar counts updates of the planned total, asks at most twice a second, and leaves nothing behind."""

import io
import itertools
import os
import pty
import threading

import pytest
import torch
from raw_runs import RawRun

from callbacks import ConsoleLogger, ProgressBar
from eventloop import Bus, EvalBegin, EvalEnd, EvalStep, StepEnd, TrainBegin, TrainEnd, TrainState


class Terminal(io.StringIO):
    def isatty(self):
        return True


@pytest.fixture(autouse=True)
def a_terminal(monkeypatch):
    monkeypatch.setenv("TERM", "xterm")


def test_elsewhere_than_on_a_terminal_there_is_a_plain_line_an_evaluation_an_epoch_and_at_the_end():
    file = io.StringIO()
    run = RawRun(ProgressBar(file), state=TrainState(total=4))
    for _ in range(2):
        run.epoch()
        run.steps(1, 2, loss=lambda n: torch.tensor(n / 3))
        run.evaluate(eval_loss=0.25)
        run.end_epoch()
    run.end()
    assert file.getvalue().splitlines() == [
        "evaluation: 2/4 updates, eval_loss=0.25",
        "epoch 1: 2/4 updates, eval_loss=0.25, loss=0.6667",
        "evaluation: 4/4 updates, eval_loss=0.25",
        "epoch 2: 4/4 updates, eval_loss=0.25, loss=0.6667",
        "completed: 4/4 updates, eval_loss=0.25, loss=0.6667",
    ]


@pytest.mark.parametrize("term", ["dumb", "xterm"])
def test_there_is_no_control_character_where_lines_cannot_be_written_over(monkeypatch, term):
    file = Terminal() if term == "dumb" else io.StringIO()
    monkeypatch.setenv("TERM", term)
    run = RawRun(ProgressBar(file))
    run.steps(1, 3, loss=float)
    run.end("stopped")
    assert file.getvalue() == "stopped: 3 updates, loss=3\n"


def test_the_last_line_of_the_bar_is_exact_though_it_moves_seldom():
    file = Terminal()
    run = RawRun(ProgressBar(file), state=TrainState(total=5))
    run.epoch()
    run.steps(1, 5, loss=float)
    run.end()
    last = file.getvalue().rstrip("\n").rpartition("\r")[2]
    assert last.startswith("epoch 1: 100%")
    assert " 5/5 " in last
    assert "loss=5" in last
    assert file.getvalue().endswith("\n")


def test_without_a_total_the_bar_shows_the_count_alone():
    file = Terminal()
    run = RawRun(ProgressBar(file))
    run.steps(1, 5, loss=float)
    run.end()
    last = file.getvalue().rstrip("\n").rpartition("\r")[2]
    assert last.startswith("5update ")
    assert "%" not in last


def test_a_resumed_run_starts_where_it_stands():
    file = Terminal()
    run = RawRun(ProgressBar(file), state=TrainState(step=40, total=100), saved={})
    assert " 40/100 " in file.getvalue()
    run.bus.close()


def test_numbers_are_asked_for_at_most_twice_a_second():
    seconds = itertools.count()
    bus, metrics = Bus(failure="raise", clock=lambda: next(seconds) * 0.05), []
    bus.attach(ProgressBar(Terminal()))
    state = TrainState()
    bus.publish(TrainBegin(), state)
    for _ in range(100):  # five seconds
        state = state.begin_update().end_update().report(loss=torch.tensor(1.0))
        metrics.append(state.metrics)
        bus.publish(StepEnd(), state)
    read = sum(bool(list(m.known())) for m in metrics)
    assert 8 <= read <= 11
    bus.close()


def test_it_uses_no_colour_and_no_thread_and_leaves_nothing_open(monkeypatch):
    monkeypatch.setenv("NO_COLOR", "1")
    file, before = Terminal(), threading.active_count()
    run = RawRun(ProgressBar(file))
    run.step(loss=1.0)
    assert threading.active_count() == before
    run.bus.close()
    assert "\x1b[3" not in file.getvalue()
    assert file.getvalue().endswith("\n")
    size = len(file.getvalue())
    run.bus.close()
    assert len(file.getvalue()) == size


def test_an_evaluation_is_not_in_the_rate(monkeypatch):
    seconds = [0.0]
    monkeypatch.setattr("time.monotonic", lambda: seconds[0])
    monkeypatch.setattr("tqdm.std.time", lambda: 1e9 + seconds[0])
    file = Terminal()
    run = RawRun(ProgressBar(file), state=TrainState(total=20))
    run.steps(1, 10, loss=float)
    seconds[0] = 5.0
    run.bus.on(EvalBegin, lambda event, state: seconds.__setitem__(0, 100.0), priority=-1000)
    run.evaluate(eval_loss=1.0)
    run.end()
    assert "2.00update/s" in file.getvalue().rpartition("\r")[2]


def evaluating(monkeypatch, file, batches, total=None, seconds_each=1.0):
    """In an evaluation behind ten updates in five seconds, at its last batch; returns the bus and the state."""
    now = [5.0]
    monkeypatch.setattr("time.monotonic", lambda: now[0])
    monkeypatch.setattr("tqdm.std.time", lambda: now[0])
    bus, state = Bus(failure="raise", clock=lambda: now[0]), TrainState(epoch=1, total=20)
    bus.attach(ProgressBar(file))
    bus.publish(TrainBegin(), state)
    now[0], state = 10.0, state.replace(step=10)
    bus.publish(StepEnd(), state)
    bus.publish(EvalBegin(), state)
    for batch in range(1, batches + 1):
        now[0] += seconds_each
        bus.publish(EvalStep(batch, total), state)
    return bus, state


def told_of_evaluation(file):
    return [line.partition(":")[0] for line in file.getvalue().split("\r") if "evaluation" in line]


@pytest.mark.parametrize(("total", "of"), [(3, "/3"), (None, "")])
def test_while_an_evaluation_draws_its_batches_the_bar_tells_the_batch(monkeypatch, total, of):
    """Fails if eval_step is not heard, and if the word stays when the evaluation is over."""
    file = Terminal()
    bus, state = evaluating(monkeypatch, file, 3, total)
    assert told_of_evaluation(file) == [f"epoch 1, evaluation {batch}{of}" for batch in (1, 2, 3)]
    bus.publish(EvalEnd(), state)
    bus.close()
    assert file.getvalue().rpartition("\r")[2].startswith("epoch 1: ")


def test_the_batches_of_an_evaluation_are_told_at_most_twice_a_second(monkeypatch):
    """Fails if each batch is shown."""
    file = Terminal()
    evaluating(monkeypatch, file, 100, seconds_each=0.05)[0].close()
    assert 8 <= len(set(told_of_evaluation(file))) <= 11


def test_the_rate_stands_still_while_an_evaluation_is_under_way(monkeypatch):
    """Fails if the time of an evaluation is taken off at its end alone."""
    file = Terminal()
    bus, _ = evaluating(monkeypatch, file, 50)
    assert "2.00update/s" in file.getvalue().rpartition("\r")[2]
    bus.close()


def test_of_the_batches_of_an_evaluation_nothing_is_shown_elsewhere_than_on_a_terminal(monkeypatch):
    """Fails if a line is printed for each."""
    file = io.StringIO()
    evaluating(monkeypatch, file, 3)[0].close()
    assert file.getvalue() == ""


def test_other_ranks_show_nothing():
    for file in (Terminal(), io.StringIO()):
        run = RawRun(ProgressBar(file), state=TrainState(rank=1, world=2))
        run.step(loss=1.0)
        run.end()
        assert file.getvalue() == ""


def test_it_goes_to_what_stderr_is_when_the_run_begins(capsys):
    run = RawRun(ProgressBar())
    run.step(loss=1.0)
    run.end()
    assert capsys.readouterr() == ("", "completed: 1 updates, loss=1\n")


def test_a_line_of_the_console_logger_stands_alone_above_the_bar():
    file = Terminal()
    run = RawRun(ProgressBar(file), ConsoleLogger(every=1, file=file))
    run.steps(1, 2, loss=float)
    run.end()
    lines = [line.rpartition("\r")[2] for line in file.getvalue().splitlines()]
    assert [line for line in lines if line.startswith("step ")] == [
        "step 1  epoch 0  loss 1",
        "step 2  epoch 0  loss 2",
    ]


def test_a_run_that_ends_before_it_began_leaves_no_bar():
    file, bus = Terminal(), Bus()
    bus.attach(ProgressBar(file))
    bus.publish(TrainEnd("failed"))
    bus.close()
    assert file.getvalue().count("\n") <= 1


def test_on_a_terminal_that_does_not_know_its_width_there_are_lines_and_no_empty_bar():
    ours, theirs = pty.openpty()  # new ones are 0 columns wide
    with os.fdopen(theirs, "w") as file:
        run = RawRun(ProgressBar(file), state=TrainState(total=1))
        run.steps(1, 1, loss=lambda n: 0.5)
        run.end()
        assert os.read(ours, 1000) == b"completed: 1/1 updates, loss=0.5\r\n"
    os.close(ours)
