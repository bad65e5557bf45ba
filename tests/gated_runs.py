"""Runs whose saves are held back in the thread that writes them, until a test lets them go on or fail."""

from __future__ import annotations

import signal
import sys
import threading
from concurrent.futures import wait

import torch
from small_runs import Count, checkpoints

from eventloop import Loop, Save


class Gate:
    """Holds a save back before its commit, from ``shut`` on until it is opened; any object may, by ``persist``.

    Attributes:
        loop: the one whose saves it holds back; set by `run`.
        saving: the save that it let go last.
    """

    loop: Loop

    def __init__(self):
        self.open, self.reached = threading.Event(), threading.Event()
        self.open.set()
        self.saving = None

    def on_train_end(self, event, state):
        """Nothing; but who hears no event cannot be attached."""

    def shut(self):
        self.open.clear()
        self.reached.clear()

    def persist(self):
        self.reached.set()
        assert self.open.wait(60)

    def let_go(self):
        """Open it, and wait until the save has ended; it is told of later."""
        self.saving = self.loop._run.saving
        self.open.set()
        wait([self.saving.future])

    def shut_until(self, function, interrupt_in=None):
        """Shut it until this thread, which trains, waits inside a function of that name.

        Args:
            function: the name.
            interrupt_in: the name of a function in which Ctrl-C is pressed before.
        """
        self.shut()
        trains = threading.get_ident()

        def watch():
            assert self.reached.wait(60)
            if interrupt_in is not None:
                wait_until(lambda: is_inside(trains, interrupt_in) and is_inside(trains, "wait"))
                signal.pthread_kill(trains, signal.SIGINT)
            wait_until(lambda: is_inside(trains, function))
            self.saving = self.loop._run.saving
            self.open.set()

        threading.Thread(target=watch).start()


class Losing(Gate):
    """Behind it the disk is gone: what was written of the next saves is moved away before they end."""

    def __init__(self, run_dir, saves=1):
        super().__init__()
        self.root, self.left = run_dir / "checkpoints", saves

    def persist(self):
        super().persist()
        if self.left:
            self.left -= 1
            for folder in self.root.glob(".tmp-*"):
                folder.rename(self.root.parent / f"lost-{self.left}")


def wait_until(true):
    """Until it is, a minute at most."""
    poll = threading.Event()
    for _ in range(60_000):
        if true():
            return
        poll.wait(0.001)
    raise AssertionError("it never was")


def is_inside(thread, function):
    """Whether a function of that name is on the thread's stack."""
    frame = sys._current_frames().get(thread)
    while frame is not None and frame.f_code.co_name != function:
        frame = frame.f_back
    return frame is not None


class Life:
    """What was told, with the step at which it was."""

    priority = -900

    def __init__(self):
        self.lines = []

    def on_step_end(self, event, state):
        self.lines.append(("step", state.step))

    def on_checkpoint_saved(self, event, state):
        self.lines.append(("saved", event.step, state.step))
        assert event.seconds > 0

    def on_handler_failed(self, event, state):
        self.lines.append(("failed", event.subscription, state.step))

    def on_train_end(self, event, state):
        self.lines.append((event.status, state.step))


def asks(steps, tag="mine", policy="isolate", **options):
    """A callback that asks for a save after each of these steps."""

    class Asks:
        failure = policy

        def on_step_end(self, event, state):
            return Save(tag, **options) if state.step in steps else None

    return Asks()


def run(run_dir, *callbacks, at=None, leave_after=None, **options):
    """Updates of a `Count`, whose weight is the number of updates made; ``at`` is called in the body, by step."""
    model, life = Count(), Life()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loop = Loop(model, optimizer, run_dir=run_dir, callbacks=[*callbacks, life], **{"max_steps": 4, **options})
    for gate in callbacks:
        if isinstance(gate, Gate):
            gate.loop = loop
    with loop:
        for _ in loop.updates():
            loop.backward(model())
            loop.update()
            (at or {}).get(loop.state.step, lambda: None)()
            if loop.state.step == leave_after:
                break
    return loop, life.lines


def weights(run_dir):
    return {step: float(c.load()["model"]["w"]) for step, c in checkpoints(run_dir).items()}
