"""`eventloop.checkpoint` in a loop of one's own: save, list, inspect, verify, load, export."""

import json
import os
import shutil

import numpy
import pytest
import torch
from safetensors import safe_open
from safetensors.torch import load_file
from small_runs import EVERY_UPDATE, Count, checkpoints, count, identical
from torch import nn

from callbacks import EarlyStopping, ModelCheckpoint
from eventloop import Bus, CheckpointError, EvalEnd, Loop, TrainState, checkpoint
from eventloop.checkpoint.lock import RunLock


def network(seed=0, width=2):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(2, width), nn.BatchNorm1d(width), nn.Linear(width, 1))


def training(seed=0):
    """The parts of a loop of one's own, three updates old."""
    model = network(seed)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.1, weight_decay=0.3 if seed else 0.2)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=1.0, total_steps=9)
    parts = {"model": model, "optimizer": optimizer, "scheduler": scheduler}
    update(parts, 3)
    return parts


def update(parts, n):
    for i in range(n):
        parts["optimizer"].zero_grad()
        parts["model"](torch.full((3, 2), 1.0 + i) * torch.tensor([[1.0], [2.0], [3.0]])).square().mean().backward()
        parts["optimizer"].step()
        parts["scheduler"].step()


def state_of(parts):
    return {name: part.state_dict() for name, part in parts.items()}


def raw_run(folder, steps=(1, 2, 3), **options):
    """A run of a `Count`, saved by hand; the weight is the step."""
    for step in steps:
        model = Count()
        model.w.data.fill_(step)
        checkpoint.save(folder, {"model": model}, step=step, **options)
    return folder


def flip(file):
    data = bytearray(file.read_bytes())
    data[-1] ^= 1
    file.write_bytes(data)


def step_folder(run, step):
    return run / "checkpoints" / f"step-{step:08d}"


# -- save and load -----------------------------------------------------------------------------------------------------


def test_a_loop_of_ones_own_goes_on_to_the_last_bit_with_the_scheduler_that_it_has(tmp_path):
    """Fails if the optimizer keeps the script's learning rate or momentum, which its scheduler has moved on."""
    saved = training()
    checkpoint.save(tmp_path, saved, step=3)
    loaded = training(seed=1)
    report = checkpoint.load(tmp_path, loaded)
    assert report.restored == ("model", "optimizer", "scheduler")
    assert (report.checkpoint.step, report.missing, dict(report.rest)) == (3, (), {})
    assert identical(state_of(loaded), state_of(saved))
    for parts in (saved, loaded):
        update(parts, 4)
    assert identical(state_of(loaded), state_of(saved))


def test_moments_find_their_parameters_by_name(tmp_path):
    """Fails if torch's numbers go to the disk."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), momentum=0.9)
    model(torch.ones(3, 2)).sum().backward()
    optimizer.step()
    checkpoint.save(tmp_path, {"model": model, "optimizer": optimizer}, step=1)
    turned = torch.optim.SGD([*model.parameters()][::-1], momentum=0.9)
    checkpoint.load(tmp_path, {"model": model, "optimizer": turned})
    for parameter in model.parameters():
        assert torch.equal(turned.state[parameter]["momentum_buffer"], optimizer.state[parameter]["momentum_buffer"])


def test_a_bus_and_plain_values_travel_too(tmp_path):
    bus = Bus()
    bus.attach(stopper := EarlyStopping("eval_loss"))
    bus.publish(EvalEnd(), TrainState().end_evaluation({"eval_loss": 0.5}))
    values = {"epoch": 3, "best": float("inf"), "shape": (1, 2), "order": numpy.arange(3), "seen": torch.ones(2)}
    checkpoint.save(tmp_path, {"bus": bus, "values": values, "epoch": 3}, step=1)
    other = Bus()
    other.attach(again := EarlyStopping("eval_loss"))
    report = checkpoint.load(tmp_path, {"bus": other})
    assert again.best == stopper.best == 0.5
    assert report.rest.keys() == {"values", "epoch"}
    assert identical(report.rest["values"], values)
    assert checkpoint.load(tmp_path).keys() == {"bus", "values", "epoch"}


def test_what_is_saved_is_a_checkpoint_like_any_other_and_a_step_saved_again_is_replaced(tmp_path):
    run = raw_run(tmp_path / "my run", (1, 2), metrics={"acc": torch.tensor(0.5)}, tags=["best"])
    first = checkpoint.list(run)[1]
    again = checkpoint.save(run, {"model": Count()}, step=2, metrics={"acc": 0.25})
    assert (again.run_id, again.tags, again.metrics) == (first.run_id, ("best",), {"acc": 0.25})
    assert [c.step for c in checkpoint.list(run)] == [1, 2]
    assert [c.step for c in checkpoint.verify(run)] == [1, 2]
    assert (run / "checkpoints" / "latest").read_text() == "step-00000002"
    assert checkpoint.load(run)["model"]["w"] == 0


@pytest.mark.parametrize("place", ["run", "checkpoints"])
def test_where_a_loop_holds_the_run_nobody_else_saves_and_nothing_is_touched(tmp_path, place):
    """Fails if the lock is not asked for, or only after something was written."""
    folder = tmp_path if place == "run" else tmp_path / "checkpoints"
    lock = RunLock(tmp_path)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=rf"{tmp_path} is in use by process {os.getpid()}: one run at a time"):
        raw_run(folder)
    assert sorted(tmp_path.rglob("*")) == before
    lock.release()
    raw_run(folder)
    assert [c.step for c in checkpoint.list(tmp_path)] == [1, 2, 3]


@pytest.mark.parametrize("gone", ["", "run.json"])
def test_into_the_run_of_a_loop_that_is_over_nothing_is_saved(tmp_path, gone):
    """Fails if the loop's own last checkpoint is removed as one that nobody wants."""
    count(tmp_path, max_steps=1)
    if gone:
        (tmp_path / gone).unlink()
    with pytest.raises(CheckpointError, match="is the run of a Loop, which saves by itself; name another folder"):
        raw_run(tmp_path)
    assert set(checkpoints(tmp_path)) == {1}


def test_a_folder_is_of_one_run(tmp_path):
    raw_run(tmp_path, [1], run_id="mine")
    raw_run(tmp_path, [2])
    with pytest.raises(CheckpointError, match="holds checkpoints of run mine, not yours; name another folder"):
        raw_run(tmp_path, [2], run_id="yours")
    assert {(c.step, c.run_id) for c in checkpoint.list(tmp_path)} == {(1, "mine"), (2, "mine")}


def test_what_a_dead_process_has_left_half_written_is_removed_by_the_next_save(tmp_path):
    raw_run(tmp_path, [1])
    (tmp_path / "checkpoints" / ".tmp-00000002-1-0").mkdir()
    raw_run(tmp_path, [2])
    assert not [*(tmp_path / "checkpoints").glob(".tmp-*")]


@pytest.mark.parametrize(
    ("options", "error", "message"),
    [
        ({"step": -1}, ValueError, "step=-1: give the number of finished updates"),
        ({"step": True}, ValueError, "step=True"),
        ({"step": 1.0}, ValueError, r"step=1\.0"),
        ({"tags": "best"}, TypeError, r"tags='best': give a list of texts, such as \['best'\]"),
        ({"tags": [1]}, TypeError, r"tags=\[1\]"),
        ({"metrics": {"acc": "high"}}, TypeError, "metric acc is 'high'; a metric is one real number"),
        ({"metrics": {"acc": torch.ones(2)}}, TypeError, "metric acc is tensor"),
        ({"parts": {}}, ValueError, "there are no parts to save"),
        ({"parts": {"a/b": 1}}, ValueError, "'a/b' names a part"),
        ({"parts": {"__tuple__": 1}}, ValueError, "'__tuple__' names a part"),
        ({"parts": {"model": 7}}, TypeError, "the part 'model' is 7; a module goes by this name"),
        ({"parts": {"values": {"f": print}}}, TypeError, r"values\.f is a builtins\.builtin_function_or_method"),
    ],
)
def test_bad_arguments_are_named_and_leave_no_checkpoint(tmp_path, options, error, message):
    options = {"parts": {"n": 1}, "step": 1, **options}
    with pytest.raises(error, match=message):
        checkpoint.save(tmp_path / "run", options.pop("parts"), **options)
    assert not [*tmp_path.rglob("step-*")]
    assert not [*tmp_path.rglob(".tmp-*")]


def test_a_part_without_a_state_is_an_error_or_by_choice_reported_and_nothing_else_is_loaded(tmp_path):
    saved = training()
    checkpoint.save(tmp_path, saved, step=3)
    parts = {**training(seed=1), "bus": Bus()}
    before = json.dumps(state_of(parts)["scheduler"])
    with pytest.raises(CheckpointError, match=r"no state of bus \(there: model, optimizer, scheduler\)"):
        checkpoint.load(tmp_path, parts)
    assert json.dumps(state_of(parts)["scheduler"]) == before
    assert checkpoint.load(tmp_path, parts, strict=False).missing == ("bus",)
    assert identical(parts["model"].state_dict(), saved["model"].state_dict())


def test_all_that_does_not_fit_is_listed_and_nothing_is_loaded(tmp_path):
    """Fails if the scheduler has its state already when the model turns out to be another."""
    saved = training()
    checkpoint.save(tmp_path, saved, step=3)
    update(saved, 1)
    model = network(width=3)
    parts = {**saved, "model": model, "optimizer": torch.optim.AdamW(model.parameters())}
    before = identical_copy(state_of(parts))
    with pytest.raises(CheckpointError) as caught:
        checkpoint.load(tmp_path, parts)
    assert "model: size mismatch for 0.weight: (2, 2) in the checkpoint, (3, 2) in the model" in str(caught.value)
    assert "optimizer: optimizer state of 0.weight" in str(caught.value)
    assert identical(state_of(parts), before)


def identical_copy(states):
    return {
        name: {k: v.clone() if isinstance(v, torch.Tensor) else v for k, v in state.items()}
        for name, state in states.items()
    }


class Fussy:
    def __init__(self, value, fails=False):
        self.value, self.fails = value, fails

    def state_dict(self):
        return {"value": self.value}

    def load_state_dict(self, state):
        if self.fails:
            self.fails = False
            raise RuntimeError("not this one")
        self.value = state["value"]


def test_when_a_part_fails_those_before_it_are_put_back(tmp_path):
    """Fails if the first part keeps the loaded state, or if the model has been filled."""
    model = network()
    checkpoint.save(tmp_path, {"model": model, "a": Fussy(1), "b": Fussy(1)}, step=1)
    parts = {"model": network(seed=5), "a": Fussy(2), "b": Fussy(2, fails=True)}
    with pytest.raises(RuntimeError, match="not this one") as caught:
        checkpoint.load(tmp_path, parts)
    assert caught.value.__notes__ == [f"while loading the b of {step_folder(tmp_path, 1)}"]
    assert (parts["a"].value, parts["b"].value) == (2, 2)
    assert identical(parts["model"].state_dict(), network(seed=5).state_dict())


def test_a_plain_value_cannot_be_loaded_into(tmp_path):
    checkpoint.save(tmp_path, {"epoch": 1}, step=1)
    with pytest.raises(TypeError, match=r"part 'epoch' is 3, which cannot be loaded; a plain value is in \.rest"):
        checkpoint.load(tmp_path, {"epoch": 3})


# -- which one ---------------------------------------------------------------------------------------------------------

SCORES = {1: float("nan"), 2: 0.3, 3: -float("inf"), 4: 0.3, 5: 0.9}


def test_a_path_means_the_newest_whole_checkpoint_of_a_run_or_the_one_that_it_is(tmp_path):
    run = raw_run(tmp_path)
    flip(step_folder(run, 3) / "model.safetensors")
    for path, step in ((run, 2), (run / "checkpoints", 2), (step_folder(run, 1), 1), (str(step_folder(run, 2)), 2)):
        assert checkpoint.load(path)["model"]["w"] == step
    assert checkpoint.load(run, which=1)["model"]["w"] == 1
    with pytest.raises(CheckpointError, match=r"step-00000003 is damaged: model\.safetensors does not match its hash"):
        checkpoint.load(run, which=3)
    with pytest.raises(CheckpointError, match=r"no checkpoint of step 7 in .*; steps there: 1, 2, 3"):
        checkpoint.load(run, which=7)
    with pytest.raises(ValueError, match=r"which='best' chooses among the checkpoints of a run, and .* is one"):
        checkpoint.load(step_folder(run, 1), which="best")
    with pytest.raises(ValueError, match="which='last': give 'newest', 'best' or a step"):
        checkpoint.load(run, which="last")


@pytest.mark.parametrize(("mode", "best"), [("min", 2), ("max", 5)])
def test_the_best_is_the_one_by_the_savers_own_record(tmp_path, mode, best):
    """Fails if NaN, infinity or a later equal score is the best, if a tag decides, or if the mode is not looked at."""
    count(tmp_path, ModelCheckpoint("eval_loss", mode, **EVERY_UPDATE), scores=SCORES, max_steps=5)
    assert checkpoint.load(tmp_path, which="best")["model"]["w"] == best


def test_without_a_record_the_last_that_was_tagged_is_the_best(tmp_path):
    for step, tags in {1: ["best"], 2: ["best"], 3: []}.items():
        raw_run(tmp_path, [step], tags=tags)
    assert checkpoint.load(tmp_path, which="best")["model"]["w"] == 2


def test_no_best_or_two_of_them_is_an_error_that_names_the_steps(tmp_path):
    raw_run(tmp_path / "none")
    with pytest.raises(CheckpointError, match="is known as the best; steps there: 1, 2, 3"):
        checkpoint.load(tmp_path / "none", which="best")
    evaluate = lambda: {"eval_loss": SCORES[loop.state.step], "acc": -SCORES[loop.state.step]}  # noqa: E731
    savers = [ModelCheckpoint("eval_loss"), ModelCheckpoint("acc", "min")]
    model = Count()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loop = Loop(model, optimizer, run_dir=tmp_path / "two", max_steps=5, evaluate=evaluate, eval_every=1,
                callbacks=savers)  # fmt: skip
    with loop:
        for _ in loop.updates():
            loop.backward(model())
            loop.update()
    with pytest.raises(CheckpointError, match="the best are of steps 2 by eval_loss, 5 by acc: name the step"):
        checkpoint.load(tmp_path / "two", which="best")


# -- list, inspect, verify ---------------------------------------------------------------------------------------------

DAMAGE = {
    "a bit": (lambda folder: flip(folder / "model.safetensors"), "model.safetensors does not match its hash"),
    "cut": (lambda folder: os.truncate(folder / "state.json", 3), "state.json has 3 bytes instead of"),
    "gone": (lambda folder: (folder / "model.safetensors").unlink(), "model.safetensors is missing"),
    "manifest": (lambda folder: os.truncate(folder / "MANIFEST.json", 9), "cannot be read"),
    "empty": (lambda folder: [file.unlink() for file in folder.iterdir()], "it has no MANIFEST.json"),
}


@pytest.mark.parametrize("how", DAMAGE)
def test_damage_is_found_and_named_and_the_others_stay_listed(tmp_path, how):
    damage, text = DAMAGE[how]
    run = raw_run(tmp_path / "a run")
    damage(step_folder(run, 2))
    found = checkpoint.inspect(run, verify=True)
    assert [entry.path for entry in found] == [step_folder(run, step) for step in (1, 2, 3)]
    assert [bool(entry.problem) for entry in found] == [False, True, False]
    assert text in found[1].problem
    for path in (run, run / "checkpoints", step_folder(run, 2)):
        with pytest.raises(CheckpointError, match="step-00000002") as caught:
            checkpoint.verify(path)
        assert text in str(caught.value)
    assert [c.step for c in checkpoint.verify(step_folder(run, 3))] == [3]


def test_every_damaged_one_is_named_at_once(tmp_path):
    run = raw_run(tmp_path)
    for step in (1, 3):
        flip(step_folder(run, step) / "state.json")
    with pytest.raises(CheckpointError, match=r"step-00000001 is damaged: .*; .*step-00000003 is damaged: "):
        checkpoint.verify(run)


def test_foreign_folders_are_inspected_and_never_listed(tmp_path):
    run = raw_run(tmp_path)
    (run / "checkpoints" / "step-ten").mkdir()
    shutil.copytree(step_folder(run, 1), step_folder(run, 9))
    (run / "checkpoints" / "aside-1").mkdir()
    assert [c.step for c in checkpoint.list(run)] == [1, 2, 3]
    problems = {entry.path.name: entry.problem for entry in checkpoint.inspect(run) if entry.problem}
    assert problems.keys() == {"step-ten", "step-00000009"}
    assert "holds step 1, so it is not where it belongs" in problems["step-00000009"]


def test_the_forerunner_of_a_step_that_a_kill_left_is_the_checkpoint_only_as_long_as_there_is_no_other(tmp_path):
    run = raw_run(tmp_path)
    step_folder(run, 3).rename(spare := run / "checkpoints" / "step-00000003.replaced")
    assert [entry.path.name for entry in checkpoint.inspect(run)][2:] == [spare.name]
    assert [c.step for c in checkpoint.verify(run)] == [1, 2, 3]
    shutil.copytree(spare, step_folder(run, 3))
    assert [entry.path.name for entry in checkpoint.inspect(run)] == [f"step-0000000{step}" for step in (1, 2, 3)]


def test_one_that_a_running_run_removes_meanwhile_is_not_called_broken(tmp_path):
    """Fails if a checkpoint that was there when the folder was listed must be there when it is read."""
    run = raw_run(tmp_path)
    found = checkpoint.inspect(run, verify=True, progress=lambda size: shutil.rmtree(step_folder(run, 3), True))
    assert [(entry.path, entry.problem) for entry in found] == [(step_folder(run, step), "") for step in (1, 2)]


def test_parts_of_ones_own_may_be_called_as_those_of_a_loop(tmp_path):
    """Fails if what is read for the best is taken for granted."""
    for parts in ({"settings": [1], "bus": 2}, {"settings": {"save": 3}, "bus": {"callbacks": {"save": None}}}):
        checkpoint.save(tmp_path, parts, step=1, tags=["best"])
        assert checkpoint.load(tmp_path, which="best") == parts


def test_the_bytes_that_are_read_are_told(tmp_path):
    told = []
    run = raw_run(tmp_path)
    whole = checkpoint.verify(run, progress=told.append)
    assert sum(told) == sum(c.size for c in whole) > 0


def test_a_run_without_checkpoints_has_none_and_what_is_no_run_is_an_error(tmp_path):
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "journal.jsonl").touch()
    assert (checkpoint.list(tmp_path / "new"), checkpoint.verify(tmp_path / "new")) == ([], ())
    with pytest.raises(CheckpointError, match=r"no whole checkpoint in .*; steps there: none"):
        checkpoint.load(tmp_path / "new")
    for name, text in {
        "nowhere": "there is nothing",
        "new/journal.jsonl": "it is a file",
        ".": "in it are new",
    }.items():
        with pytest.raises(CheckpointError, match=f"no run at .*: {text}; a run folder has checkpoints/, run.json or"):
            checkpoint.list(tmp_path / name)
    with pytest.raises(CheckpointError, match=r"step-00000001 is a checkpoint; name its run, .*checkpoints"):
        checkpoint.list(step_folder(raw_run(tmp_path / "raw", [1]), 1))


def test_a_run_folder_may_be_called_like_a_checkpoint(tmp_path):
    run = raw_run(tmp_path / "step-100")
    assert [c.step for c in checkpoint.verify(run)] == [1, 2, 3]


# -- export ------------------------------------------------------------------------------------------------------------


def test_a_file_has_the_weights_under_plain_names_and_the_plain_model_takes_it(tmp_path):
    count(tmp_path / "run", ModelCheckpoint("eval_loss", **EVERY_UPDATE), scores=SCORES, max_steps=5)
    for which, step in (("newest", 5), ("best", 2), (3, 3)):
        file = tmp_path / f"{which}.safetensors"
        assert checkpoint.export(tmp_path / "run", file, which=which).step == step
        (model := Count()).load_state_dict(load_file(file))
        assert model.w.item() == step
    with safe_open(file, "pt") as opened:
        assert opened.metadata() == {"format": "pt"}
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_file()) == [
        "3.safetensors", "best.safetensors", "newest.safetensors",
    ]  # fmt: skip


def test_tied_weights_are_there_under_each_name(tmp_path):
    """Fails if the second name is left out, as safetensors' own save_file would."""
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    model[1].weight = model[0].weight
    checkpoint.save(tmp_path, {"model": model}, step=1)
    checkpoint.export(tmp_path, tmp_path / "w.safetensors")
    plain = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2))
    plain.load_state_dict(load_file(tmp_path / "w.safetensors"), strict=True)
    assert identical(plain.state_dict(), model.state_dict())


@pytest.mark.parametrize("dtype", ["bfloat16", torch.float16])
def test_floating_point_tensors_are_turned_into_a_dtype_and_no_others(tmp_path, dtype):
    model = network()
    checkpoint.save(tmp_path, {"model": model}, step=1)
    checkpoint.export(tmp_path, file := tmp_path / "w.safetensors", dtype=dtype)
    kind = torch.bfloat16 if dtype == "bfloat16" else dtype
    expected = {n: v.to(kind) if v.is_floating_point() else v for n, v in model.state_dict().items()}
    assert identical(load_file(file), dict(expected))
    assert load_file(file)["1.num_batches_tracked"].dtype == torch.int64


def test_a_file_that_is_there_is_replaced_only_when_asked_for(tmp_path):
    run, file = raw_run(tmp_path), tmp_path / "w.safetensors"
    file.write_text("mine")
    with pytest.raises(FileExistsError, match=r"w\.safetensors is there already; overwrite=True"):
        checkpoint.export(run, file)
    assert file.read_text() == "mine"
    checkpoint.export(run, file, overwrite=True)
    assert load_file(file)["w"] == 3


def test_what_cannot_be_exported_leaves_no_file(tmp_path):
    run = raw_run(tmp_path / "run")
    checkpoint.save(tmp_path / "other", {"generator": Count()}, step=1)
    (tmp_path / "dir.safetensors").mkdir()
    for path, name, options, error, message in (
        (run, "w.pt", {}, ValueError, r"the name of the file ends in \.safetensors"),
        (run, "no/w.safetensors", {}, FileNotFoundError, "there is no folder"),
        (run, "dir.safetensors", {"overwrite": True}, FileExistsError, "is a folder"),
        (run, "w.safetensors", {"dtype": "int8"}, ValueError, "dtype='int8': give one of float64, float32"),
        (run, "w.safetensors", {"dtype": "save"}, ValueError, "dtype='save'"),
        (tmp_path / "other", "w.safetensors", {}, CheckpointError, "holds no model; weights are those of the part"),
        (tmp_path / "nowhere", "w.safetensors", {}, CheckpointError, "no run at"),
    ):
        with pytest.raises(error, match=message):
            checkpoint.export(path, tmp_path / name, **options)
    flip(step_folder(run, 2) / "model.safetensors")
    with pytest.raises(CheckpointError, match="is damaged"):
        checkpoint.export(step_folder(run, 2), tmp_path / "w.safetensors")
    assert [path for path in tmp_path.iterdir() if path.is_file()] == []


@pytest.mark.parametrize(
    ("call", "text"),
    [
        (lambda d: checkpoint.load(d, torch.nn.Linear(1, 1)), "parts is a Linear; give a mapping of names"),
        (lambda d: checkpoint.save(d, torch.nn.Linear(1, 1), step=2), "parts is a Linear; give a mapping of names"),
        (lambda d: checkpoint.save(d, {}, step=2, metrics=[1]), "metrics is a list; give a mapping of names"),
    ],
)
def test_what_is_no_mapping_is_said_to_be_none(tmp_path, call, text):
    checkpoint.save(tmp_path, {"model": torch.nn.Linear(1, 1)}, step=1)
    with pytest.raises(TypeError, match=text):
        call(tmp_path)
