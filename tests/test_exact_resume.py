"""Promise 6 as one property: cut anywhere, any number of times, a run ends as if it had never been cut.

Compared are parameters and buffers, the optimizer's state, the scaler, every row of the log, the learning rates among
them, every decision with its fate, the checkpoints that are left, and the next numbers of the random generators. Apart
from that is what is measured in seconds.
"""

import random
from dataclasses import dataclass
from typing import Any

import numpy
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from small_runs import Cut, Samples, identical, on_disk
from torch.nn import functional
from torch.utils.data import DataLoader

from callbacks import EarlyStopping, JSONLLogger, LearningRateMonitor, ModelCheckpoint, WarmupCosine
from eventloop import Loop, read_metrics
from eventloop.checkpoint import Checkpoint

IN_SECONDS = ("time", "elapsed")
PLACES = ["step_begin", "gradients_ready", "step_end", "eval_begin", "eval_end", "epoch_begin", "epoch_end"]


@dataclass(frozen=True)
class Script:
    """What a user's script sets."""

    accumulate: int = 1
    eval_every: Any = "epoch"
    save_every: int = 1
    noise: bool = False
    own_generator: bool = False
    scaled: bool = False
    patience: int = 9
    saves: str = "wait"


SCRIPTS = st.builds(
    Script,
    accumulate=st.integers(1, 3),
    eval_every=st.sampled_from(["epoch", 1, 2, 3]),
    save_every=st.integers(1, 4),
    noise=st.booleans(),
    own_generator=st.booleans(),
    scaled=st.booleans(),
    patience=st.sampled_from([1, 2, 9]),
    saves=st.sampled_from(["wait", "skip", "sync"]),
)
CUTS = st.one_of(
    st.tuples(st.sampled_from(PLACES), st.integers(0, 14)),
    st.tuples(st.sampled_from(["micro-batch", "within an evaluation"]), st.integers(0, 14)),
)


class Cutter:
    """Ends the process, as far as the run can tell, at an event of a step."""

    priority = -950

    def __init__(self, place, step):
        self.place, self.step = place, step
        if place in PLACES:
            setattr(self, f"on_{place}", lambda event, state: self.look(place, state.step))
        else:
            self.on_train_end = lambda event, state: None

    def look(self, place, step):
        if (place, step) == (self.place, self.step):
            raise Cut


class Net(torch.nn.Sequential):
    """Batch norm and dropout, so that buffers and random states count."""

    def __init__(self):
        super().__init__(torch.nn.Linear(5, 6), torch.nn.BatchNorm1d(6), torch.nn.Dropout(0.3), torch.nn.Linear(6, 3))


def seed_all(seed):
    random.seed(seed)
    numpy.random.seed(seed)
    torch.manual_seed(seed)


def sit(script, run_dir, cut=None, also=None):
    """One process of a run: to its end, or to its cut; returns everything that it ended with."""
    seed_all(1)
    model = Net()
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.05)
    scaler = torch.amp.GradScaler("cpu", growth_interval=3) if script.scaled else None
    generator = torch.Generator().manual_seed(11) if script.own_generator else None
    loader = DataLoader(Samples(script.noise), batch_size=4, shuffle=True, generator=generator)
    if on_disk(run_dir):
        seed_all(99)  # a resumed process may have drawn whatever it likes
    cutter, samples = Cutter(*(cut or ("never", -1))), Samples()

    def evaluate():
        cutter.look("within an evaluation", loop.state.step)
        return {"eval_loss": functional.cross_entropy(model(samples.x), samples.y) + torch.rand(())}

    saver = ModelCheckpoint("eval_loss", save_top_k=2, every_steps=script.save_every)
    stopper = EarlyStopping("eval_loss", patience=script.patience)
    callbacks = [
        WarmupCosine(3),
        LearningRateMonitor(),
        JSONLLogger(every=1),
        stopper,
        saver,
        cutter,
        *([also] if also else []),
    ]
    options = {"accumulate": script.accumulate, "eval_every": script.eval_every, "saves": script.saves}
    options |= {"scaler": scaler, "clip_norm": 0.5, "max_epochs": 2, "run_dir": run_dir, "resume": "auto"}
    loop = Loop(model, optimizer, evaluate=evaluate, callbacks=callbacks, **options)
    with loop:
        for _ in loop.epochs():
            for x, y in loop.batches(loader):
                cutter.look("micro-batch", loop.state.micro)
                loop.backward(functional.cross_entropy(model(x), y) + 0.01 * random.random())
                loop.update()
    return ended(loop, model, optimizer, scaler, run_dir)


def ended(loop, model, optimizer, scaler, run_dir):
    result = loop.result
    rows = [{key: v for key, v in row.items() if key not in IN_SECONDS} for row in read_metrics(run_dir)]
    decided = [(e.who, e.request, e.detail, e.event, e.step, e.fate, e.decided) for e in result.ledger]
    return {
        "parameters and buffers": model.state_dict(),
        "optimizer": optimizer.state_dict(),
        "scaler": {} if scaler is None else scaler.state_dict(),
        "rows": rows,
        "decisions": decided,
        "end": (result.status, result.stopped_by, result.reason, result.step, result.epoch, str(result.best)[:20]),
        "counters": [loop.state.micro, loop.state.samples, loop.state.evals],
        "checkpoints": sorted(on_disk(run_dir)),
        "drawn next": (random.random(), float(numpy.random.random()), float(torch.rand(()))),
    }


def assert_same(cut, whole):
    for what in whole:
        assert identical(cut[what], whole[what]), f"{what}: {cut[what]} instead of {whole[what]}"


def cut_and_go_on(script, run_dir, cuts):
    """The run in as many processes as there are cuts, and one to the end."""
    for cut in cuts:
        try:
            sit(script, run_dir, cut)
        except Cut:
            continue
        break  # it came to its end before
    else:
        return sit(script, run_dir)
    return None


@settings(max_examples=20)
@given(script=SCRIPTS, cuts=st.lists(CUTS, min_size=1, max_size=3))
def test_a_run_that_was_cut_anywhere_ends_as_if_it_never_was(tmp_path_factory, script, cuts):
    """Fails if any component is left out: see the next test."""
    whole = sit(script, tmp_path_factory.mktemp("whole"))
    run_dir = tmp_path_factory.mktemp("cut")
    rest = cut_and_go_on(script, run_dir, cuts)
    if rest is not None:
        assert_same(rest, whole)


EVERYTHING = Script(accumulate=2, eval_every=2, save_every=1, noise=True, own_generator=True, scaled=True)


@pytest.mark.parametrize("accumulate", [1, 2])
def test_cut_at_every_update_of_a_small_training(tmp_path, accumulate):
    script = Script(accumulate=accumulate, eval_every=3, noise=True, own_generator=True, scaled=True)
    whole = sit(script, tmp_path / "whole")
    for step in range(whole["end"][3]):
        assert_same(cut_and_go_on(script, tmp_path / str(step), [("step_begin", step)]), whole)


def test_cut_after_an_early_stop_it_stays_stopped(tmp_path):
    script = Script(patience=1, eval_every=1)
    whole = sit(script, tmp_path / "whole")
    assert whole["end"][:2] == ("stopped", "EarlyStopping")
    again = sit(script, tmp_path / "whole")
    assert again["end"] == whole["end"]
    assert identical(again["parameters and buffers"], whole["parameters and buffers"])
    assert again["rows"] == whole["rows"]


def forget_buffers(model):
    return {name: torch.zeros_like(v) if "running" in name or "num" in name else v for name, v in model.items()}


def zeros(model):
    return {name: torch.zeros_like(v) if isinstance(v, torch.Tensor) else v for name, v in model.items()}


LEFT_OUT = {
    "weights": lambda s: s.update(model=zeros(s["model"])),
    "buffers of batch norm": lambda s: s.update(model=forget_buffers(s["model"])),
    "moments of the optimizer": lambda s: s["optimizer"][""].update(state={}),
    "scaler": lambda s: s.pop("scaler"),
    "counters": lambda s: s["progress"].update(step=0),
    "epoch": lambda s: s["progress"].update(epoch=0),
    "micro-batches": lambda s: s["progress"].update(micro=0),
    "samples": lambda s: s["progress"].update(samples=0),
    "evaluations": lambda s: s["progress"].update(evals=0),
    "position in the data": lambda s: s.pop("position"),
    "ledger": lambda s: s.pop("ledger"),
    "random states of python": lambda s: s["random"]["now"].update(python=random.getstate()),
    "random states of numpy": lambda s: s["random"]["now"].update(numpy=numpy.random.get_state()),
    "random states of torch": lambda s: s["random"]["now"].update(torch=torch.get_rng_state()),
    "random states at the epoch's beginning": lambda s: s["random"].pop("epoch_began"),
    "state of the callbacks": lambda s: s["bus"].update(callbacks={}),
}


@pytest.mark.parametrize("component", LEFT_OUT)
def test_leaving_out_any_one_component_is_seen(tmp_path, monkeypatch, component):
    whole = sit(EVERYTHING, tmp_path / "whole")
    load = Checkpoint.load

    def partly(self, *arguments):
        states = load(self, *arguments)
        LEFT_OUT[component](states)
        return states

    with pytest.raises(Cut):
        sit(EVERYTHING, tmp_path / "cut", ("step_begin", 5))
    monkeypatch.setattr(Checkpoint, "load", partly)
    try:
        rest = sit(EVERYTHING, tmp_path / "cut")
    except (KeyError, TypeError, RuntimeError):
        return  # it is missed already when the run goes on
    differing = [what for what in whole if not identical(rest[what], whole[what])]
    assert differing, f"nobody missed the {component}"
