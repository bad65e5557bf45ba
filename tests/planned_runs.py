"""Made-up runs: a plan says how long, what handlers ask for at which event, and what the body does at which turn."""

import contextlib
import itertools
import tempfile
from collections import Counter
from dataclasses import dataclass, field

import torch
from hypothesis import strategies as st

from eventloop import Evaluate, Loop, Request, Save, SkipUpdate, Stop
from eventloop.testing import Deliberate, Recorder


class Carried(Request):
    """Somebody obeys it."""


class Orphan(Request):
    """Nobody does."""


REQUESTS = {
    "stop": lambda: Stop("asked"),
    "save": lambda: Save("asked"),
    "evaluate": Evaluate,
    "skip": lambda: SkipUpdate("asked"),
    "carried": Carried,
    "orphan": Orphan,
}
EVENTS = [
    "train_begin",
    "epoch_begin",
    "step_begin",
    "gradients_ready",
    "step_end",
    "eval_begin",
    "eval_end",
    "epoch_end",
    "checkpoint_saved",
    "handler_failed",
    "run_failed",
    "train_end",
]


class Sizeless:
    """A loader that does not know its length."""

    def __init__(self, batches):
        self._batches = batches

    def __iter__(self):
        return iter(self._batches)


LOADERS = {"list": list, "sizeless": Sizeless, "generator": lambda batches: (b for b in batches)}
BODIES = ["epochs", "own update", "batches alone", "updates", "own loop", "own loop in epochs"]
ERRORS = {"raise": ZeroDivisionError, "interrupt": KeyboardInterrupt, "exit": SystemExit}


@dataclass(frozen=True)
class Plan:
    body: str
    loader: str
    batches: int
    accumulate: int
    max_epochs: int
    max_steps: int | None
    min_steps: int
    min_epochs: int
    eval_every: object
    evaluates: bool
    saves: bool
    holds: bool = False  # whether the body keeps its iterators, as a progress bar does, so that no break ends them
    asks: list = field(default_factory=list)  # (event, which time, what)
    acts: dict = field(default_factory=dict)  # by turn of the body: what it does, before or after its update


ACTS = st.tuples(st.sampled_from(["break", "continue", "return", *ERRORS]), st.sampled_from(["before", "after"]))
PLANS = st.builds(
    Plan,
    body=st.sampled_from(BODIES),
    loader=st.sampled_from(list(LOADERS)),
    batches=st.integers(1, 5),
    accumulate=st.integers(1, 4),
    max_epochs=st.sampled_from([2, 3, 1, 0]),
    max_steps=st.none() | st.integers(0, 8),
    min_steps=st.sampled_from([0, 0, 0, 3]),
    min_epochs=st.sampled_from([0, 0, 0, 1]),
    eval_every=st.sampled_from(["epoch", None, 1, 2, 3]),
    evaluates=st.booleans(),
    saves=st.sampled_from([False, False, True]),
    holds=st.booleans(),
    asks=st.lists(
        st.tuples(st.sampled_from(EVENTS), st.sampled_from([1, 2, 3, 5]), st.sampled_from([*REQUESTS, "fail"])),
        min_size=1,
        max_size=8,
    ),
    acts=st.just({}) | st.dictionaries(st.integers(0, 8), ACTS, max_size=2),
).filter(lambda p: p.min_epochs <= p.max_epochs and p.min_steps <= (5 if p.max_steps is None else p.max_steps))


class Asker:
    """Replies what the plan says, when it says so; counts and notes its own closing."""

    def __init__(self, asks, closed):
        self._closed, self.asked = closed, Counter()
        self._plan = {}
        for event, time, what in asks:
            self._plan.setdefault((event, time), []).append(what)
        self._seen = Counter()
        for event in EVENTS:
            setattr(self, f"on_{event}", lambda event, state: self._answer(event))

    def _answer(self, event):
        self._seen[event.name] += 1
        what = self._plan.pop((event.name, self._seen[event.name]), [])
        if "fail" in what:
            raise Deliberate("planned")
        self.asked.update(what)
        return tuple(REQUESTS[w]() for w in what)

    def close(self):
        self._closed.append(self)


class Run:
    """One planned run and what came of it."""

    def __init__(self, plan, folder, bus=None, **options):
        self.plan, self.closed, self.error, self.raised = plan, [], None, None
        self.model = torch.nn.Linear(1, 1, bias=False)
        limits = {w: getattr(plan, w) for w in ("max_epochs", "max_steps", "min_epochs", "min_steps")}
        if plan.body == "updates" and plan.max_steps is None:
            limits["max_steps"] = 5
        self.askers = [Asker(plan.asks[i::2], self.closed) for i in range(2)]
        self.loop = Loop(
            self.model,
            torch.optim.SGD(self.model.parameters(), lr=0.1),
            run_dir=folder if plan.saves else None,
            **limits,
            accumulate=plan.accumulate,
            evaluate=(lambda: {"eval_loss": 1.0}) if plan.evaluates else None,
            eval_every=plan.eval_every,
            callbacks=self.askers,
            bus=bus,
            **options,
        )
        self.loop.carry_out(Carried, lambda request: None)
        self.lines = Recorder(self.loop.bus, lambda event, state: event)
        self._turn, self._held = itertools.count(), []
        with contextlib.ExitStack() as caught:
            try:
                caught.enter_context(self.lines.handle)
                self._train()
            except BaseException as error:
                self.error = error

    def _train(self):
        loop, plan = self.loop, self.plan
        with loop:
            if plan.body in ("epochs", "own update", "own loop in epochs"):
                for _ in loop.epochs():
                    inner = self._batches() if plan.body == "own loop in epochs" else loop.batches(self._batches())
                    if self._turns(inner):
                        return
            elif plan.body == "batches alone":
                for _ in range(3):
                    if self._turns(loop.batches(self._batches())):
                        return
            else:
                self._turns(loop.updates() if plan.body == "updates" else range(5))

    def _batches(self):
        return LOADERS[self.plan.loader]([torch.ones(2, 1)] * self.plan.batches)

    def _turns(self, turns):
        """One epoch's turns of the body; True if it is to return."""
        if self.plan.holds:
            self._held.append(turns)
        for _ in turns:
            what, when = self.plan.acts.get(next(self._turn), (None, None))
            if when == "after":
                self._update()
            if what == "continue":
                continue
            if what == "break":
                break
            if what == "return":
                return True
            if what is not None:
                self.raised = ERRORS[what]("planned")
                raise self.raised
            if when is None:
                self._update()
            if self.plan.body.startswith("own loop") and self.loop.over:
                break
        return False

    def _update(self):
        loss = self.model(torch.ones(2, 1)).sum()
        if self.plan.body == "own update":
            self.loop.gradients_ready()
            self.loop.step_end(loss=loss)
        else:
            self.loop.backward(loss)
            self.loop.update()

    @property
    def names(self):
        return [name for name, *_ in self.lines]

    def at(self, name):
        return [step for line, step, _ in self.lines if line == name]


@contextlib.contextmanager
def carried_out(plan):
    with tempfile.TemporaryDirectory() as folder:
        yield Run(plan, f"{folder}/run")


def made_no_update(run):
    return isinstance(run.error, RuntimeError) and "made no update" in str(run.error)
