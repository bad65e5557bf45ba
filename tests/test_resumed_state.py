"""What a checkpoint brings back: settings of the script against state, models however they are wrapped."""

import pytest
import torch
from small_runs import (
    EVERY_UPDATE,
    Recipe,
    checkpoints,
    count,
    identical,
    said,
    train,
)
from torch import nn

from callbacks import EarlyStopping, ModelCheckpoint
from eventloop import CheckpointError, Loop, SetLR
from eventloop.progress import Groups, Progress
from eventloop.testing import Clock


def with_optimizer(run_dir, make, **options):
    """A run with an optimizer over a small model; returns the optimizer."""
    model = nn.Linear(2, 1)
    loop = Loop(model, optimizer := make(model.parameters()), run_dir=run_dir, **options)
    with loop:
        for _ in loop.updates():
            loop.backward(model(torch.ones(1, 2)).sum())
            loop.update()
    return optimizer


def test_settings_of_the_script_win_and_each_difference_is_said(tmp_path, caplog):
    with_optimizer(tmp_path, lambda p: torch.optim.AdamW(p, lr=0.1, betas=(0.9, 0.99)), max_steps=3)
    caplog.clear()
    changed = {"lr": 0.05, "betas": (0.8, 0.99), "weight_decay": 0.5}
    optimizer = with_optimizer(tmp_path, lambda p: torch.optim.AdamW(p, **changed), max_steps=4, resume="auto")
    (group,) = optimizer.param_groups
    assert {name: group[name] for name in changed} == changed
    assert {float(state["step"]) for state in optimizer.state.values()} == {4.0}  # moments and steps are state
    (report,) = [text for text in said(caplog) if text.startswith("resumed from")]
    differences = [line.strip() for line in report.splitlines() if line.startswith("  parameter group 0")]
    assert differences == [
        "parameter group 0: betas is (0.8, 0.99) now, was (0.9, 0.99) in the checkpoint",
        "parameter group 0: weight_decay is 0.5 now, was 0.01 in the checkpoint",
        "parameter group 0: lr is 0.05 now, was 0.1 in the checkpoint",
    ]


@pytest.mark.parametrize("tensor", [False, True])
def test_the_rate_in_use_is_scaled_by_the_new_base_over_the_old(tmp_path, tensor):
    def rate(value):
        return torch.tensor(value) if tensor else value

    class Halve:
        def on_step_begin(self, event, state):
            return SetLR(state.lr["group_0"] / 2) if state.step == 0 else None

    with_optimizer(tmp_path, lambda p: torch.optim.Adam(p, lr=rate(0.5)), max_steps=1, callbacks=[Halve()])
    given = rate(1.0)
    made = with_optimizer(tmp_path, lambda p: torch.optim.Adam(p, lr=given), max_steps=2, resume="auto")
    assert float(made.param_groups[0]["lr"]) == 0.5
    assert not tensor or made.param_groups[0]["lr"] is given  # compiled code holds on to it


def test_without_a_difference_nothing_is_said_and_the_rate_is_exact(tmp_path, caplog):
    with_optimizer(tmp_path, lambda p: torch.optim.AdamW(p, lr=0.1 / 3), max_steps=3)
    optimizer = with_optimizer(tmp_path, lambda p: torch.optim.AdamW(p, lr=0.1 / 3), max_steps=4, resume="auto")
    assert optimizer.param_groups[0]["lr"] == 0.1 / 3
    assert not [text for text in said(caplog) if "parameter group" in text]


def test_other_optimizers_than_those_of_the_checkpoint_are_an_error(tmp_path):
    with_optimizer(tmp_path, lambda p: torch.optim.SGD(p, lr=0.1), max_steps=1)
    with pytest.raises(CheckpointError, match=r"is of the optimizers '' \(a single one is ''\), not of 'g'"):
        with_optimizer(tmp_path, lambda p: {"g": torch.optim.SGD(p, lr=0.1)}, max_steps=2, resume="auto")


def test_patience_is_a_setting_and_the_count_is_state(tmp_path):
    scores = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 5: 1.4}
    count(tmp_path, EarlyStopping("eval_loss", patience=9), scores=scores, max_steps=3)
    stopper = EarlyStopping("eval_loss", patience=4)
    result = count(tmp_path, stopper, scores=scores, max_steps=5, resume="auto").result
    assert (result.stopped_by, result.step, stopper.count) == ("EarlyStopping", 5, 4)


def test_a_state_without_a_part_travels_on_and_a_part_without_a_state_starts_fresh(tmp_path, caplog):
    def scaled(scaler, **options):
        with_optimizer(tmp_path, lambda p: torch.optim.SGD(p, lr=0.1), scaler=scaler, **options)

    scaled(torch.amp.GradScaler("cpu", init_scale=8.0), max_steps=1)
    scaled(None, max_steps=2, resume="auto")
    assert "\n  a state of the scaler, which this run is without; it is kept" in caplog.text
    assert checkpoints(tmp_path)[2].load()["scaler"]["scale"] == 8.0
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaled(scaler, max_steps=3, resume="auto")
    assert scaler.get_scale() == 8.0
    with_optimizer(tmp_path / "b", lambda p: torch.optim.SGD(p, lr=0.1), max_steps=1)
    caplog.clear()
    options = {"scaler": torch.amp.GradScaler("cpu"), "max_steps": 2, "resume": "auto"}
    with_optimizer(tmp_path / "b", lambda p: torch.optim.SGD(p, lr=0.1), **options)
    assert "\n  no state of the scaler; it starts fresh" in caplog.text


def save_and_load(tmp_path, first, second):
    """Make one update of the first model, and give the second one its checkpoint; returns the names stored."""
    for model, options in ((first, {"max_steps": 1}), (second, {"max_steps": 1, "resume": "auto"})):
        loop = Loop(model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=tmp_path, **options)
        with loop:
            for _ in loop.updates():
                loop.backward(sum(p.sum() for p in model.parameters()))
                loop.update()
    return set(checkpoints(tmp_path)[1].load()["model"])


class Pass(nn.parallel.DistributedDataParallel):
    """A wrapper class of the user's own; nothing is distributed here."""

    def __init__(self, module):
        nn.Module.__init__(self)
        self.module = module


@pytest.mark.parametrize(
    "wrap",
    [
        nn.DataParallel,
        Pass,
        lambda model: torch.compile(model, backend="eager"),
        lambda model: torch.compile(nn.DataParallel(model), backend="eager"),
    ],
    ids=["DataParallel", "DDP", "compile", "both"],
)
def test_wrapped_models_are_looked_through(tmp_path, wrap):
    first, second = nn.Linear(2, 1), nn.Linear(2, 1)
    assert save_and_load(tmp_path / "a", wrap(first), second) == {"weight", "bias"}
    assert torch.equal(first.weight, second.weight)
    save_and_load(tmp_path / "b", nn.Sequential(first), wrap(nn.Sequential(second)))
    assert torch.equal(first.weight, second.weight)


class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.inside, self.outside = nn.Linear(3, 3), nn.Linear(3, 3)
        self.outside.weight = self.inside.weight
        self.note = {"seen": 0}

    def get_extra_state(self):
        return self.note

    def set_extra_state(self, state):
        self.note = state


def test_tied_weights_stay_tied_and_extra_state_comes_back(tmp_path):
    first, second = Tied(), Tied()
    first.note = {"seen": 7, "by": (1, float("inf"))}
    save_and_load(tmp_path, first, second)
    assert torch.equal(first.outside.weight, second.outside.weight)
    assert second.outside.weight is second.inside.weight
    assert second.note == first.note


def test_another_architecture_is_an_error_that_names_every_tensor_and_what_to_do(tmp_path):
    text = r"unexpected: bias; size mismatch for weight: \(1, 2\) in the .*, \(1, 3\) in .*take another run_dir"
    with pytest.raises(CheckpointError, match=text):
        save_and_load(tmp_path, nn.Linear(2, 1), nn.Linear(3, 1, bias=False))


def test_weights_are_a_plain_safetensors_file(tmp_path):
    from safetensors.torch import load_file

    first = nn.Linear(2, 1)
    save_and_load(tmp_path, first, nn.Linear(2, 1))
    stored = load_file(tmp_path / "checkpoints" / "step-00000001" / "model.safetensors")
    assert identical(stored, {name: tensor.detach() for name, tensor in first.state_dict().items()})


def test_the_state_that_was_loaded_does_not_hang_on_the_file(tmp_path):
    whole = train(Recipe(), None, max_steps=6, max_epochs=None)
    train(Recipe(), tmp_path, ModelCheckpoint(**EVERY_UPDATE), max_steps=4, max_epochs=None)

    class Destroys:
        def on_train_begin(self, event, state):
            for file in (tmp_path / "checkpoints" / "step-00000004").iterdir():
                with file.open("r+b") as damaged:
                    damaged.write(bytes(file.stat().st_size))

    rest = train(Recipe(), tmp_path, Destroys(), resume="auto", max_steps=6, max_epochs=None)
    assert identical((rest.losses, rest.optimizer), (whole.losses[4:], whole.optimizer))


def test_a_rate_that_waits_for_the_next_update_is_in_force_after_a_resume_too(tmp_path):
    """Fails if the held rates are no part of the state."""

    class Slow:
        def on_step_end(self, event, state):
            return SetLR(0.25) if state.step == 1 else None

    count(tmp_path, Slow(), max_steps=1)
    assert count(tmp_path, Slow(), max_steps=2, resume="auto").state.lr == {"group_0": 0.25}


def test_the_time_of_a_run_goes_on_over_its_sittings():
    """Fails if it begins anew on resume, or if the time between two sittings counts."""
    clock = Clock()
    first = Progress(Groups({}), "run", clock)
    clock.advance(5.0)
    saved = first.state_dict()
    clock.advance(1000.0)
    second = Progress(Groups({}), "run", clock)
    second.load_state_dict(saved)
    clock.advance(2.0)
    assert second.snapshot().elapsed == 7.0
