"""Kills without end: a run that is killed and goes on in the same folder, each time with other settings."""

from __future__ import annotations

import logging
import random
import time
from dataclasses import dataclass
from pathlib import Path

import killed_runs
from forks import FORKS, start
from small_runs import checkpoints, identical, leftovers, on_disk, train

from callbacks import ModelCheckpoint
from callbacks.loggers.jsonl import JSONLLogger
from eventloop import read_metrics
from eventloop.checkpoint import Checkpoints
from eventloop.rows import read_rows


def drawn(seed):
    """The callbacks and settings of one sitting; none of them may change what is learnt."""
    choice = random.Random(seed).choice
    limits = {"save_top_k": choice([1, 2]), "keep_last": choice([None, 2, 4]), "keep_every": choice([None, 200])}
    savers = [
        ModelCheckpoint(every_steps=choice([1, 1, 2]), make_room=choice([False, False, False, True]), **limits),
        ModelCheckpoint("eval_loss", save_top_k=choice([1, 2])),
    ]
    options = {"saves": choice(["wait", "wait", "skip"]), "journal": choice(["short", "short", "full"])}
    return [*savers, JSONLLogger(every=1)], options


def sit(run_dir, seed, pipe):
    """One sitting, until it is killed."""
    logging.getLogger("eventloop").setLevel(logging.ERROR)
    callbacks, options = drawn(seed)
    other = seed if on_disk(run_dir) else None
    train(
        killed_runs.RECIPE,
        run_dir,
        *callbacks,
        killed_runs.Going(pipe),
        resume="auto",
        max_epochs=None,
        seed=other,
        **options,
    )


def marks(checkpoint):
    """The number of updates as each file of a checkpoint has it: as JSON, and as two kinds of tensors."""
    states = checkpoint.load()
    moments = {int(float(state["step"])) for state in states["optimizer"][""]["state"].values()}
    seen = int(states["model"]["1.num_batches_tracked"])
    return {checkpoint.step, states["progress"]["step"], *moments}, (seen, states["progress"]["micro"])


@dataclass
class Storm:
    """What has been seen of it; printed as one line."""

    run_dir: Path
    kills: int = 0
    early: int = 0  # of them before the first update
    rubbish: int = 0  # kills that have left some
    back: int = 0  # kills after which the newest was older than before, which room made first may cost
    newest: int = 0
    seconds: float = 0.0

    def rage(self, kills, longest, seed=0):
        """Kill so often, each up to ``longest`` seconds after the first update, or now and then before it."""
        moments, began = random.Random(seed), time.monotonic()
        for n in range(kills):
            here, there = FORKS.Pipe()
            child = start(sit, self.run_dir, 1000 * seed + n, there)
            early = n > 0 and moments.random() < 0.2
            if early:
                child.join(moments.uniform(0, 0.2))
            else:
                there.close()  # so that a child that ends by itself is no long wait
                assert here.recv() == self.newest + 1  # goes on from the newest
                child.join(moments.uniform(0, longest))
            child.kill()
            child.join()
            assert child.exitcode == -9
            self.kills, self.early = self.kills + 1, self.early + early
            (saver, *_), _ = drawn(1000 * seed + n)
            self.check(may_go_back=saver.make_room)
        self.seconds = time.monotonic() - began

    def check(self, may_go_back):
        """Everything that must hold whenever a run was killed; where room is made, the newest goes before the next."""
        root, standing = self.run_dir / "checkpoints", list(checkpoints(self.run_dir).values())
        if not root.exists():
            return
        self.rubbish += bool(leftovers(self.run_dir))
        for checkpoint in standing:
            steps, (seen, micro) = marks(checkpoint)
            assert steps == {checkpoint.step}
            assert seen == micro
        newest = Checkpoints(root, "").newest()
        step = newest.step if newest else 0
        assert step == max((c.step for c in standing), default=0)
        assert step >= (min(self.newest, 1) if may_go_back else self.newest)
        self.back, self.newest = self.back + (step < self.newest), step
        if (root / "latest").exists():
            assert (root / "latest").read_text() in [c.path.name for c in standing[-2:]]
        assert all(row["event"] for row in read_rows(self.run_dir / "journal.jsonl"))
        logged = [row["step"] for row in read_metrics(self.run_dir) if row["event"] == "step_end"]
        assert logged[: self.newest] == list(range(1, self.newest + 1))
        assert logged == sorted(set(logged))

    def end_as_if_it_never_was(self):
        """The run goes on to its end, and all that it ends with is what a run that was never killed ends with."""
        limits = {"max_steps": self.newest + 3, "max_epochs": None}
        whole = train(killed_runs.RECIPE, None, **limits)
        rest = train(killed_runs.RECIPE, self.run_dir, *killed_runs.savers(), resume="auto", seed=99, **limits)
        assert identical(rest.losses, whole.losses[self.newest :])
        assert identical((rest.model, rest.optimizer, rest.callbacks), (whole.model, whole.optimizer, whole.callbacks))
        assert leftovers(self.run_dir) == []
        rows = [row for row in read_metrics(self.run_dir) if row["event"] == "step_end"]
        assert [row["step"] for row in rows] == list(range(1, self.newest + 4))
        assert [row["loss"] for row in rows] == whole.losses

    def __str__(self):
        saves = sum(row["event"] == "checkpoint_saved" for row in read_rows(self.run_dir / "journal.jsonl"))
        return (
            f"{self.kills} kills ({self.early} before the first update), {saves} saves told of, rubbish found "
            f"{self.rubbish} times, back {self.back} times for room, newest step {self.newest}, {self.seconds:.0f} s"
        )
