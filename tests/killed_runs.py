"""What child processes do until they are killed or a fault ends them; forked from a process that has torch loaded."""

import logging
import os
import pickle
import resource
import signal
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import pytest
import safetensors.torch  # noqa: F401
import structlog  # noqa: F401
import torch
from disk_faults import Disk, crash_at
from gated_runs import Gate, asks, run, wait_until
from small_runs import Recipe, build, on_disk, train

import eventloop.loop  # noqa: F401
from callbacks import ModelCheckpoint
from callbacks.loggers.jsonl import JSONLLogger
from eventloop import StepEnd, Stop
from eventloop.checkpoint import Checkpoints

RECIPE = Recipe(accumulate=2, noise=True, own_generator=True, evaluate_every=3, total_steps=1000)
build(RECIPE)  # the first optimizer loads half of torch; that, and the imports above for nothing, before the forks


class Numbers:
    """A part of a checkpoint that holds one number, many times over."""

    def __init__(self, value, size=100):
        self.state = {f"w{i}": torch.full((size,), float(value)) for i in range(4)}

    def state_dict(self):
        return self.state

    def load_state_dict(self, state):
        self.state = state


def numbers(value, size=100):
    """Parts for a checkpoint in which every number is ``value``."""
    return {"model": Numbers(value, size), "other": Numbers(value, size)}


def first_saves(folder, size=100):
    """A checkpoint of step 1 and one of step 2."""
    service = Checkpoints(folder, "run")
    for step in (1, 2):
        service.save(step, numbers(step, size), {"saver": ["tag"]}, {}).result()
    return service


def names(root):
    """What lies in a folder."""
    return [path.name for path in root.iterdir()] if root.exists() else []


class Going:
    """Tells the parent that the run is on its way."""

    def __init__(self, pipe):
        self.pipe = pipe

    def on_step_end(self, event: StepEnd, state):
        if self.pipe is not None:
            self.pipe.send(state.step)
            self.pipe = None


def savers():
    """A saver for the newest and one for the best, each with its own limit, and a logger."""
    return [
        ModelCheckpoint(save_top_k=2, every_steps=1),
        ModelCheckpoint("eval_loss", save_top_k=2),
        JSONLLogger(every=1),
    ]


class Scene(NamedTuple):
    """A way to save, behind two checkpoints that stand."""

    step: int = 3
    value: float = 3.0
    size: int = 100
    keep: Mapping[str, Any] | None = None

    def before(self, root):
        """What stands before that save."""
        first_saves(root, self.size)

    def save(self, root):
        """Save, in this thread, so that the operations come in the same order each time."""
        service = Checkpoints(root, "run")
        if self.keep is not None:
            service.keep("saver", frozenset({self.step}), **self.keep)
        service.save(self.step, numbers(self.value, self.size), {"saver": ["tag"]}, {}).result()


SCENES = {
    "a new step": Scene(),
    "the same step again": Scene(2, 2.5),
    "files above every buffer": Scene(size=70_000),
    "with retention": Scene(keep={}),
    "with room made first": Scene(keep={"make_room": True}),
}


def die_in_save(root, scene, operation):
    """Save, and die at this operation that changes the disk; 0 if there are not so many."""
    scene = scene if isinstance(scene, Scene) else SCENES[scene]
    with pytest.MonkeyPatch.context() as patch:
        Disk(crash_at(operation), patch)
        scene.save(root)
        os._exit(0)


def end_in_mid_save(run_dir, how):
    """Leave the run behind update 3 while the checkpoint of update 2 is held back, until the run waits for it."""
    logging.getLogger("eventloop").setLevel(logging.CRITICAL)
    flag, gate = [], Gate()
    number = signal.SIGTERM if how.startswith("SIGTERM") else signal.SIGINT
    signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are started without
    if how.endswith("flag"):
        signal.signal(number, lambda *_: flag.append(True))

    class Stops:
        def on_step_begin(self, event, state):
            return Stop("a signal") if flag else None

    def leave():
        if how == "sys.exit":
            sys.exit(7)
        if how.startswith("SIG"):
            signal.raise_signal(number)

    waits = {"break": "save_last", "sys.exit": "_drain", "SIGINT": "_drain"}.get(how, "save_last")
    at = {2: lambda: gate.shut_until(waits), 3: leave}
    run(run_dir, asks({2}), gate, Stops(), at=at, leave_after=3 if how == "break" else None, max_steps=9)


def hold(run_dir, pipe):
    """Save update 1, and stay in the run until killed."""
    run(run_dir, asks({1}), at={2: lambda: (pipe.send(1), signal.pause())}, saves="sync", max_steps=9)


def hold_and_fork(run_dir, pipe):
    """Fork while the checkpoint of update 2 is on its way, let it go on, and stay in the run until killed."""
    gate = Gate()

    def fork():
        if not (worker := os.fork()):
            signal.pause()
        gate.let_go()
        pipe.send(worker)
        signal.pause()

    run(run_dir, asks({2}), gate, at={2: gate.shut, 3: fork}, max_steps=9)


def save_on_a_full_disk(root, limit, pipe):
    """Save what does not fit; send the error and what lies there."""
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    try:
        Checkpoints(Path(root), "run").save(9, numbers(9, 300_000), {"saver": ["tag"]}, {}).result()
    except OSError as error:
        pipe.send((type(error).__name__, str(error), sorted(path.name for path in Path(root).iterdir())))


def train_with_a_disk_full_at_step_3(run_dir, policy, saves, pipe):
    """Train while the disk is full for one save; send how it ended."""
    logging.getLogger("eventloop").setLevel(logging.CRITICAL)
    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    saver = ModelCheckpoint(save_top_k=-1, every_steps=1)
    saver.failure = policy

    class Disk:
        def on_step_begin(self, event, state):
            if state.step == 2:
                wait_until(lambda: 2 in on_disk(run_dir))
                resource.setrlimit(resource.RLIMIT_FSIZE, (6000, hard))

        def on_handler_failed(self, event, state):
            resource.setrlimit(resource.RLIMIT_FSIZE, (hard, hard))

    try:
        limits = {"max_steps": 4, "max_epochs": None, "saves": saves}
        result = train(RECIPE, run_dir, saver, Disk(), **limits).loop.result
        pipe.send((result.status, str(result), dict(result.failure_counts)))
    except OSError as error:
        pipe.send((type(error).__name__, str(error), error.__notes__))


class Heavy:
    """A callback with a state of this many bytes."""

    def __init__(self, size):
        self.weights = torch.ones(size // 4)

    def on_train_end(self, event, state):
        pass

    def state_dict(self):
        return {"weights": self.weights}

    def load_state_dict(self, state):
        pass


def train_on_a_disk_for_two(run_dir, limit, make_room, pipe):
    """Five updates, each with a checkpoint of a third of the disk, two of which are kept; send how it ended."""
    logging.getLogger("eventloop").setLevel(logging.CRITICAL)
    if limit is not None:
        resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
    saver = ModelCheckpoint(save_top_k=2, every_steps=1, make_room=make_room)
    saver.failure = "isolate"
    loop, _ = run(run_dir, saver, Heavy(1_200_000), max_steps=5)
    pipe.send((loop.result.status, dict(loop.result.failure_counts)))


def train_as_nobody(run_dir, pipe):
    """Train where the folder of the checkpoints may not be written to; send how it ended and what failed."""
    logging.getLogger("eventloop").setLevel(logging.CRITICAL)
    root = run_dir / "checkpoints"
    root.mkdir(parents=True)
    root.chmod(0o555)
    if os.getuid() == 0:
        os.chown(run_dir, 65534, 65534)
        os.setuid(65534)
    loop, _ = run(run_dir, asks({2}), max_steps=3)
    errors = [failure.error for failure in loop.result.failures]
    pipe.send((loop.result.status, [type(error).__name__ for error in errors], [str(error) for error in errors]))


def train_without_memory_at_step_2(run_dir, pipe):
    """Train while there is no memory for one copy, the one of another size; send how it ended and what failed."""
    logging.getLogger("eventloop").setLevel(logging.CRITICAL)
    heavy = Heavy(4)
    _, hard = resource.getrlimit(resource.RLIMIT_AS)

    class Memory:
        priority = -800

        def on_step_end(self, event, state):
            if state.step == 2:
                heavy.weights = torch.ones(50_000_000)
                pages = int(Path("/proc/self/statm").read_text().split()[0])
                resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + 50_000_000, hard))

        def on_handler_failed(self, event, state):
            resource.setrlimit(resource.RLIMIT_AS, (hard, hard))
            heavy.weights = torch.ones(9)

    loop, _ = run(run_dir, asks({1, 2, 3}), heavy, Memory())
    failures = [(str(f.subscription), f"{type(f.error).__name__}: {f.error}") for f in loop.result.failures]
    pipe.send((loop.result.status, failures, on_disk(run_dir)))


def resume_without_pickle(run_dir):
    """Resume where every way to unpickle is an error."""

    def poisoned(*arguments, **options):
        os._exit(66)

    pickle.load = pickle.loads = pickle.Unpickler = pickle._Unpickler = torch.load = poisoned
    torch.serialization.load = poisoned
    logging.getLogger("eventloop").setLevel(logging.ERROR)
    outcome = train(RECIPE, run_dir, resume="auto", max_steps=4, max_epochs=None)
    os._exit(0 if outcome.loop.result.step == 4 else 1)
