"""What the child processes of test_signals.py do: runs that say where they are, and go on when they are told to."""

from __future__ import annotations

import logging
import multiprocessing
import os
import signal
import sys
from pathlib import Path

import killed_runs  # noqa: F401  # loaded before the forks
import torch
from small_runs import Count, Recipe, Samples, train
from torch.utils.data import DataLoader

from callbacks import JSONLLogger, ModelCheckpoint, SignalStop
from callbacks.signals import ignore_signals
from eventloop import Loop, Priority

RECIPE = Recipe(accumulate=2, noise=True, own_generator=True, evaluate_every=3)


class Halt:
    """Holds the run at an event of a step until the parent says so."""

    priority = Priority.FIRST

    def __init__(self, pipe, step, event="step_end", batch=None):
        self.pipe, self.step, self.batch = pipe, step, batch
        setattr(self, f"on_{event}", self.halt)

    def halt(self, event, state):
        if state.step == self.step and self.batch in (None, getattr(event, "batch", None)):
            hold(self.pipe)


def hold(pipe):
    """Say that this place has been reached, and wait."""
    pipe.send("here")
    pipe.recv()


def plain_process():
    """The handlers that a script finds, whatever measures this one."""
    for number in (signal.SIGTERM, signal.SIGUSR1):
        signal.signal(number, signal.SIG_DFL)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    logging.getLogger("eventloop").setLevel(logging.ERROR)


def leave(result):
    sys.exit(result.exit_code)


def train_with_signals(run_dir, step, pipe):
    """A run without a saver, held at a step."""
    plain_process()
    leave(train(RECIPE, run_dir, JSONLLogger(every=1), SignalStop(), Halt(pipe, step)).loop.result)


def interrupted_twice(run_dir, pipe):
    """Held twice at one update."""
    plain_process()
    try:
        train(RECIPE, run_dir, SignalStop(), Halt(pipe, 4), Halt(pipe, 4))
    except KeyboardInterrupt:
        sys.exit(130)


def count(run_dir, *callbacks, **options):
    """Updates, each with an evaluation of many batches."""
    model = Count()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)

    def evaluate():
        return {"batches": float(sum(1 for _ in loop.eval_batches(range(1000))))}

    loop = Loop(model, optimizer, run_dir=run_dir, evaluate=evaluate, callbacks=callbacks, **options)
    with loop:
        for _ in loop.updates():
            loop.backward(model())
            loop.update()
    return loop


def evaluate_with_signals(run_dir, pipe):
    """Held at a batch of the second evaluation."""
    plain_process()
    halt = Halt(pipe, 2, "eval_step", 3)
    leave(count(run_dir, SignalStop(), halt, JSONLLogger(every=1), eval_every=1, max_steps=4).result)


def save_with_signals(run_dir, pipe):
    """The first save is held in the thread that writes it."""

    class Held:
        def on_train_begin(self, event, state):
            self.times = 0

        def persist(self):
            self.times += 1
            if self.times == 1:
                hold(pipe)

    plain_process()
    saver = ModelCheckpoint(every_steps=1)
    leave(count(run_dir, SignalStop(), Held(), saver, max_steps=100_000, eval_every=None).result)


class WithWorkers(Recipe):
    """Its batches come from two workers."""

    def loader(self):
        return DataLoader(Samples(), batch_size=4, num_workers=2, worker_init_fn=ignore_signals)


class Lines:
    """A pipe to the parent over the standard streams."""

    def send(self, text):
        print(text, flush=True)

    def recv(self):
        return sys.stdin.readline()


def train_with_workers(run_dir, held):
    """A script of its own, which goes on from where the one before has been cut."""
    plain_process()
    halts = [Halt(Lines(), 9)] if held else []
    recipe = WithWorkers(accumulate=2)
    leave(train(recipe, Path(run_dir), JSONLLogger(every=1), SignalStop(), *halts, resume="auto").loop.result)


def wait_for_a_signal(pipe):
    """What a process that knows nothing of all this does."""
    try:
        hold(pipe)
    except KeyboardInterrupt:
        os._exit(7)


def fork_under_signals(pipe):
    """Fork a process in the midst of a run, once for each signal; send how each has ended, and the run."""
    plain_process()
    ended = []

    class Forks:
        def on_step_end(self, event, state):
            here, there = multiprocessing.Pipe()
            child = multiprocessing.get_context("fork").Process(target=wait_for_a_signal, args=(there,))
            child.start()
            assert here.poll(60)
            os.kill(child.pid, (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)[state.step - 1])
            child.join(60)
            ended.append(child.exitcode)

    result = count(None, SignalStop(), Forks(), max_steps=3, eval_every=None).result
    pipe.send((ended, result.status))
