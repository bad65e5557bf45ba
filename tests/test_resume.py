"""Promise 6: an interrupted and resumed run equals the uninterrupted one bit for bit, wherever it was cut."""

import random
import shutil

import numpy
import pytest
import torch
from small_runs import Recipe, checkpoints, count, identical, leftovers, on_disk, train
from torch import nn

from callbacks import EarlyStopping, ModelCheckpoint
from eventloop import CheckpointError, Event, Loop, Save, SetLR, Stop
from eventloop.checkpoint import Checkpoint, Checkpoints
from eventloop.rows import read_rows

EVERY_UPDATE = {"save_top_k": -1, "every_steps": 1}
RECIPES = {
    "shuffled": Recipe(),
    "accumulated": Recipe(accumulate=3),
    "accumulated, noise from the global generators, a generator of its own": Recipe(3, noise=True, own_generator=True),
    "noise, a generator of its own, evaluated each 2 updates": Recipe(1, True, True, evaluate_every=2),
    "a stream of unknown length": Recipe(stream=True),
    "a stream of unknown length, accumulated": Recipe(accumulate=3, stream=True),
}


class Cut(BaseException):
    """The end of the process, as far as the run can tell."""


def cut_at(step):
    """A callback that ends the process in the midst of the update after ``step``."""

    class Cutter:
        def on_step_begin(self, event, state):
            if state.step == step:
                raise Cut

    return Cutter()


def stop_at(step, rule="now"):
    """A callback that asks for a stop after ``step``."""

    class Stopper:
        def on_step_end(self, event, state):
            return Stop("enough") if state.step == step else None

        def describe(self):
            return rule

    return Stopper()


def said(caplog):
    return [record.getMessage() for record in caplog.records]


def events_of(run_dir, *callbacks, **options):
    """A run of `count`, and its events."""
    heard = []

    class Ear:
        def on_event(self, event: Event, state):
            heard.append((event.name, state.epoch, state.step))

    loop = count(run_dir, Ear(), *callbacks, **options)
    return loop, heard


# -- bit for bit -------------------------------------------------------------------------------------------------------


def assert_ends_like(part, whole, step):
    assert identical(part.losses, whole.losses[step:])
    for what in ("model", "restored", "optimizer", "callbacks", "drawn"):
        assert identical(getattr(part, what), getattr(whole, what)), what


@pytest.mark.parametrize("name", RECIPES)
def test_cut_at_any_save_and_resumed_it_equals_the_uninterrupted_run(tmp_path, name):
    recipe = RECIPES[name]
    whole = train(recipe, None)
    assert_ends_like(
        train(recipe, tmp_path / "whole", ModelCheckpoint(**EVERY_UPDATE)), whole, 0
    )  # saves change nothing
    saved = checkpoints(tmp_path / "whole")
    assert saved.keys() == set(range(1, len(whole.losses) + 1))
    for step, checkpoint in saved.items():
        if step < len(whole.losses):
            assert_ends_like(train(recipe, tmp_path / str(step), resume=checkpoint.path, seed=99), whole, step)


@pytest.mark.parametrize("step", [1, 6, 7, 8, 13])
def test_cut_between_two_saves_it_goes_on_from_the_last_one_in_the_same_folder(tmp_path, step):
    recipe = RECIPES["noise, a generator of its own, evaluated each 2 updates"]
    saver = {"save_top_k": 1, "every_steps": 3}
    with pytest.raises(Cut):
        train(recipe, tmp_path, ModelCheckpoint(**saver), cut_at(step))
    rest = train(recipe, tmp_path, ModelCheckpoint(**saver), resume="auto", seed=99 if step > 2 else None)
    assert_ends_like(rest, train(recipe, None), step // 3 * 3)
    assert on_disk(tmp_path) == {21}


@pytest.mark.parametrize("step", [2, 7, 10])
def test_a_run_that_was_asked_to_stop_goes_on_in_the_midst_of_its_epoch(tmp_path, step):
    recipe = RECIPES["accumulated, noise from the global generators, a generator of its own"]
    limits = {"max_epochs": 4}
    whole = train(recipe, None, **limits)
    train(recipe, tmp_path, stop_at(step), **limits)
    rest = train(recipe, tmp_path, stop_at(step, rule="later"), resume="auto", seed=99, **limits)
    assert identical(rest.losses, whole.losses[step:])  # its evaluations are other ones, for a stop has a last one
    assert identical((rest.model, rest.optimizer), (whole.model, whole.optimizer))


def test_a_longer_plan_goes_on_in_the_midst_of_the_epoch_that_the_limit_cut(tmp_path):
    whole = train(Recipe(), None, max_steps=12, max_epochs=None)
    train(Recipe(), tmp_path, max_steps=9, max_epochs=None)
    rest = train(Recipe(), tmp_path, resume="auto", seed=99, max_steps=12, max_epochs=None)
    assert identical(rest.losses, whole.losses[9:])
    assert (rest.loop.result.epoch, rest.loop.result.step) == (2, 12)


def test_saved_before_the_first_batch_of_an_epoch_is_read_it_reads_the_same_order(tmp_path):
    class SaveAtEpochBegin:
        def on_epoch_begin(self, event, state):
            return Save("begin")

    recipe = RECIPES["accumulated, noise from the global generators, a generator of its own"]
    whole = train(recipe, None)
    train(recipe, tmp_path / "whole", SaveAtEpochBegin())
    for step in (3, 6):
        path = tmp_path / "whole" / "checkpoints" / f"step-{step:08d}"
        assert_ends_like(train(recipe, tmp_path / str(step), resume=path, seed=99), whole, step)


def test_the_random_states_of_python_numpy_and_torch_are_put_back(tmp_path):
    def draw():
        return random.random(), float(numpy.random.random()), float(torch.rand(())), random.gauss(0, 1)

    drawn = []

    class Draws:
        def on_step_begin(self, event, state):
            drawn.append(draw())

    count(tmp_path, Draws(), ModelCheckpoint(**EVERY_UPDATE), max_steps=6)
    draw()
    count(tmp_path, Draws(), max_steps=6, resume=3)
    assert drawn[6:] == drawn[3:6]


# -- where it goes on --------------------------------------------------------------------------------------------------


def test_auto_with_nothing_there_starts_fresh_and_says_so(tmp_path, caplog):
    loop = count(tmp_path / "new", max_steps=2, resume="auto")
    assert loop.result.step == 2
    assert any("no whole checkpoint in" in text and "starting fresh" in text for text in said(caplog))


def test_auto_starts_fresh_where_a_run_was_killed_before_its_first_checkpoint(tmp_path):
    with pytest.raises(Cut):
        count(tmp_path, cut_at(1), max_steps=3)
    assert count(tmp_path, max_steps=3, resume="auto").result.step == 3


def test_auto_starts_fresh_where_every_checkpoint_is_damaged_and_overwrites_none(tmp_path):
    count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), max_steps=2)
    for checkpoint in checkpoints(tmp_path).values():
        (checkpoint.path / "state.json").write_text("{}")
    loop = count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), max_steps=2, resume="auto")
    assert loop.result.step == 2
    assert {float(c.load()["model"]["w"]) for c in checkpoints(tmp_path).values()} == {1, 2}
    assert leftovers(tmp_path) == ["aside-1", "aside-2"]


@pytest.mark.parametrize(
    ("resume", "text"),
    [
        (7, r"resume=7: there is no checkpoint .*step-00000007; steps there: 1, 2, 3"),
        ("elsewhere", r"resume='elsewhere': there is no checkpoint elsewhere; steps there: 1, 2, 3"),
    ],
)
def test_a_checkpoint_that_is_not_there_is_an_error_that_names_those_that_are(tmp_path, resume, text):
    count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), max_steps=3)
    before = sorted(tmp_path.rglob("*"))
    with pytest.raises(CheckpointError, match=text):
        count(tmp_path, max_steps=4, resume=resume)
    assert sorted(tmp_path.rglob("*")) == before


def test_a_path_that_is_no_checkpoint_is_an_error_before_anything_is_written(tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(CheckpointError, match=r"folder is no checkpoint: it has no MANIFEST\.json"):
        count(tmp_path / "new", max_steps=4, resume=tmp_path / "folder")
    assert not (tmp_path / "new").exists()


@pytest.mark.parametrize("resume", [True, 1.0, ["auto"]])
def test_anything_else_is_no_way_to_resume(tmp_path, resume):
    with pytest.raises(TypeError, match="give None, 'auto', a checkpoint's path or a step"):
        count(tmp_path, max_steps=4, resume=resume)


def test_resume_needs_a_run_dir():
    with pytest.raises(ValueError, match="resume='auto' needs a run_dir"):
        count(None, max_steps=4, resume="auto")


def test_from_an_older_step_the_later_part_is_moved_aside_and_never_taken_again(tmp_path, caplog):
    count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), max_steps=6)
    with pytest.raises(Cut):
        count(tmp_path, ModelCheckpoint(save_top_k=0, every_steps=1), cut_at(4), max_steps=6, resume=3)
    assert on_disk(tmp_path) == {4}
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-00000004"
    assert sum("moved aside" in text for text in said(caplog)) == 3
    loop = count(tmp_path, max_steps=6, resume="auto")
    assert any("resumed from" in text and text.endswith("step 4") for text in said(caplog))
    assert loop.result.step == 6
    aside = Checkpoints(tmp_path / "checkpoints" / "aside-1", "").list()
    assert [c.step for c in aside] == [4, 5, 6]
    aside[0].verify()


def test_the_checkpoint_that_was_gone_on_from_stays_until_there_is_another(tmp_path):
    scores = {1: 0.1, 2: 0.2, 3: 0.3, 4: 0.4, 5: 0.5}
    count(tmp_path, ModelCheckpoint("eval_loss", save_top_k=2), scores=scores, max_steps=3)
    with pytest.raises(Cut):
        count(tmp_path, ModelCheckpoint("eval_loss", save_top_k=1), cut_at(3), scores=scores, max_steps=5, resume=3)
    assert on_disk(tmp_path) == {1, 3}


def test_the_hint_is_put_right_when_a_run_goes_on(tmp_path):
    count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), max_steps=3)
    (tmp_path / "checkpoints" / "latest").write_text("step-00000002")  # killed between two renames
    with pytest.raises(Cut):
        count(tmp_path, ModelCheckpoint(save_top_k=0, every_steps=9), cut_at(3), max_steps=9, resume="auto")
    assert (tmp_path / "checkpoints" / "latest").read_text() == "step-00000003"
    assert on_disk(tmp_path) == {3}


def test_a_path_into_the_runs_own_folder_may_be_written_in_any_way(tmp_path, monkeypatch):
    count(tmp_path / "run", ModelCheckpoint(**EVERY_UPDATE), max_steps=3)
    monkeypatch.chdir(tmp_path)
    own = checkpoints(tmp_path / "run")[3].run_id
    loop = count(tmp_path / "run", max_steps=4, resume="run/../run/checkpoints/step-00000003")
    assert loop.state.run_id == checkpoints(tmp_path / "run")[4].run_id == own


def test_from_another_folder_that_folder_is_left_as_it_is(tmp_path):
    count(tmp_path / "old", ModelCheckpoint(**EVERY_UPDATE), max_steps=3)
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "old").rglob("*")}
    path = tmp_path / "old" / "checkpoints" / "step-00000002"
    loop = count(tmp_path / "new", ModelCheckpoint(save_top_k=1, every_steps=1), max_steps=5, resume=path)
    assert (loop.result.step, on_disk(tmp_path / "new")) == (5, {5})
    assert {path: path.stat().st_mtime_ns for path in (tmp_path / "old").rglob("*")} == before


def test_from_another_folder_into_a_used_one_is_refused_or_moves_it_aside(tmp_path):
    count(tmp_path / "old", ModelCheckpoint(**EVERY_UPDATE), max_steps=3)
    count(tmp_path / "used", max_steps=1)
    path = tmp_path / "old" / "checkpoints" / "step-00000002"
    with pytest.raises(FileExistsError, match="holds another run"):
        count(tmp_path / "used", max_steps=4, resume=path)
    loop = count(tmp_path / "used", max_steps=4, resume=path, overwrite=True)
    assert (loop.result.step, on_disk(tmp_path / "used"), on_disk(tmp_path / "used.old-1")) == (4, {4}, {1})


def test_a_moved_run_resumes(tmp_path):
    count(tmp_path / "here", ModelCheckpoint(**EVERY_UPDATE), max_steps=2)
    (tmp_path / "here").rename(tmp_path / "there")
    assert count(tmp_path / "there", max_steps=4, resume="auto").result.step == 4


# -- nothing left to do ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("limits", [{"max_steps": 3}, {"max_epochs": 1, "max_steps": 3}])
def test_a_run_that_had_completed_does_nothing(tmp_path, limits):
    closed = []

    class Closes:
        def on_train_begin(self, event, state):
            return None

        def close(self):
            closed.append(True)

    options = {"scores": {1: 0.3, 2: 0.2, 3: 0.1}, **limits}
    count(tmp_path, ModelCheckpoint("eval_loss"), **options)
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    loop, heard = events_of(tmp_path, ModelCheckpoint("eval_loss"), Closes(), resume="auto", **options)
    assert heard == [("train_begin", 1, 3), ("train_end", 1, 3)]
    assert (loop.result.status, loop.result.step, closed) == ("completed", 3, [True])
    after = {path: path.read_bytes() for path in tmp_path.rglob("*.json")}
    assert {path for path in before if before[path] != after[path]} == {tmp_path / "run.json"}


def test_with_a_higher_limit_it_goes_on(tmp_path):
    count(tmp_path, max_steps=3)
    assert count(tmp_path, max_steps=5, resume="auto").result.step == 5


def test_a_run_that_a_request_has_stopped_counts_as_finished(tmp_path, caplog):
    count(tmp_path, stop_at(2), max_steps=5)
    loop, heard = events_of(tmp_path, stop_at(2), max_steps=5, resume="auto")
    assert [name for name, *_ in heard] == ["train_begin", "train_end"]
    assert (loop.result.status, loop.result.stopped_by, loop.result.reason) == ("stopped", "Stopper", "enough")
    why = "Stopper stopped this run at step 2: enough; it counts as finished until a limit or a setting of Stopper "
    assert f"{why}changes" in said(caplog)
    assert count(tmp_path, stop_at(2), max_steps=5, resume="auto").result.step == 2  # a third time too


@pytest.mark.parametrize(
    ("stopper", "limits"),
    [(stop_at(2, "other"), {"max_steps": 5}), (stop_at(2), {"max_steps": 6}), (cut_at(99), {"max_steps": 5})],
    ids=["a setting of the stopper", "a limit", "no stopper"],
)
def test_until_what_the_stop_depends_on_is_another(tmp_path, stopper, limits):
    count(tmp_path, stop_at(2), max_steps=5)
    result = count(tmp_path, stopper, resume="auto", **limits).result
    assert (result.status, result.step) == ("completed", limits["max_steps"])


def test_a_stop_that_came_after_the_save_of_its_step_is_in_a_checkpoint_too(tmp_path):
    class StopsAtSaved:
        def on_checkpoint_saved(self, event, state):
            return Stop("saved") if state.step == 2 else None

    savers = [ModelCheckpoint(**EVERY_UPDATE), StopsAtSaved()]
    count(tmp_path, *savers, max_steps=5)
    assert count(tmp_path, *savers, max_steps=5, resume="auto").result.step == 2


def test_from_a_checkpoint_before_the_stop_it_goes_on(tmp_path):
    savers = [ModelCheckpoint(**EVERY_UPDATE), stop_at(3)]
    count(tmp_path, *savers, max_steps=5)
    loop = count(tmp_path, *savers, max_steps=5, resume=1)
    assert (loop.result.stopped_by, loop.result.step) == ("Stopper", 3)


# -- settings against state --------------------------------------------------------------------------------------------


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
    differences = [text for text in said(caplog) if text.startswith("parameter group 0")]
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
    assert any("has a state of the scaler, which this run is without; it is kept" in text for text in said(caplog))
    assert checkpoints(tmp_path)[2].load()["scaler"]["scale"] == 8.0
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0)
    scaled(scaler, max_steps=3, resume="auto")
    assert scaler.get_scale() == 8.0
    with_optimizer(tmp_path / "b", lambda p: torch.optim.SGD(p, lr=0.1), max_steps=1)
    caplog.clear()
    options = {"scaler": torch.amp.GradScaler("cpu"), "max_steps": 2, "resume": "auto"}
    with_optimizer(tmp_path / "b", lambda p: torch.optim.SGD(p, lr=0.1), **options)
    assert any(text.endswith("has no state of the scaler; it starts fresh") for text in said(caplog))


# -- models ------------------------------------------------------------------------------------------------------------


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


def test_another_architecture_is_torchs_own_error(tmp_path):
    with pytest.raises(RuntimeError, match="size mismatch for weight"):
        save_and_load(tmp_path, nn.Linear(2, 1), nn.Linear(3, 1))


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


# -- the journal -------------------------------------------------------------------------------------------------------


def test_the_journal_tells_of_both_sittings(tmp_path):
    with pytest.raises(Cut):
        count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), cut_at(2), max_steps=4)
    count(tmp_path, max_steps=4, resume="auto")
    rows = list(read_rows(tmp_path / "journal.jsonl"))
    assert [(row["resumed"], row["step"]) for row in rows if row["event"] == "train_begin"] == [(False, 0), (True, 2)]
    assert [row["status"] for row in rows if row["event"] == "train_end"] == ["interrupted", "completed"]
    assert len({row["run_id"] for row in rows if row["event"] == "train_begin"}) == 1


def test_a_copy_of_a_checkpoint_is_a_checkpoint(tmp_path):
    count(tmp_path / "run", ModelCheckpoint(**EVERY_UPDATE), max_steps=3)
    shutil.copytree(tmp_path / "run" / "checkpoints" / "step-00000002", tmp_path / "good")
    assert Checkpoint.read(tmp_path / "good").step == 2
    assert count(tmp_path / "new", max_steps=4, resume=tmp_path / "good").result.step == 4
