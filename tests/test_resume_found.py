"""What a breaker found: whose folder it is, what is in a checkpoint, what is refused before the training begins."""

import os
import sys

import pytest
import torch
from small_runs import EVERY_UPDATE, Count, checkpoints, count, said
from torch import nn

from callbacks import ModelCheckpoint
from eventloop import CheckpointError, Keep, Loop, checkpoint


def steps(loop, optimizer, n=None):
    with loop:
        for _ in loop.updates():
            optimizer.step()
            loop.step_end(loss=1.0)


def made(run_dir, **options):
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    return Loop(model, optimizer, run_dir=run_dir, **options), optimizer


def test_a_run_that_was_made_before_another_began_in_its_folder_is_refused(tmp_path):
    """Fails if the folder is looked at only when the loop is made: two runs would lie in it."""
    first, second = made(tmp_path, max_steps=4), made(tmp_path, max_steps=3)
    steps(*first)
    with pytest.raises(FileExistsError, match="holds another run"):
        steps(*second)
    assert {c.run_id for c in checkpoints(tmp_path).values()} == {first[0].state.run_id}


def test_auto_goes_on_from_what_was_written_since_it_was_made(tmp_path):
    first, second = made(tmp_path, max_steps=2), made(tmp_path, max_steps=3, resume="auto")
    steps(*first)
    steps(*second)
    assert (second[0].resumed.step, second[0].state.run_id) == (2, first[0].state.run_id)


def test_a_forked_child_that_leaves_the_body_ends_nothing(tmp_path):
    """Fails if the child ends the run: the parent's journal would have two ends."""
    loop, optimizer = made(tmp_path, max_steps=3, callbacks=[ModelCheckpoint(**EVERY_UPDATE)])
    with loop:
        for step in loop.updates():
            optimizer.step()
            loop.step_end(loss=1.0)
            if step == 2 and (child := os.fork()) == 0:
                try:
                    sys.exit(3)
                except SystemExit:
                    loop.__exit__(SystemExit, SystemExit(3), None)
                    os._exit(7)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    assert (tmp_path / "journal.jsonl").read_text().count('"train_end"') == 1


def test_a_parameter_outside_the_model_comes_back_with_its_value(tmp_path):
    def run(**options):
        model, scale = Count(), nn.Parameter(torch.ones(()))
        optimizer = torch.optim.SGD([*model.parameters(), scale], lr=1.0)
        loop = Loop(model, optimizer, run_dir=tmp_path, **options)
        with loop:
            for _ in loop.updates():
                loop.backward(model() - scale)
                loop.update()
        return float(scale.detach())

    assert run(max_steps=2) == 3.0
    assert run(max_steps=3, resume="auto") == 4.0


class Unsavable(nn.Linear):
    def get_extra_state(self):
        return object()

    def set_extra_state(self, state):
        pass


@pytest.mark.parametrize("kind", ["extra state", "complex128", "lazy"])
def test_a_model_that_no_file_can_hold_is_refused_before_the_first_update(tmp_path, kind):
    model = {"extra state": Unsavable, "complex128": nn.Linear, "lazy": lambda a, b: nn.LazyLinear(b)}[kind](2, 1)
    if kind == "complex128":
        model.register_buffer("phase", torch.zeros(2, dtype=torch.complex128))
    loop = Loop(model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=tmp_path, max_steps=2)
    with pytest.raises((TypeError, ValueError), match=r"^(model\._extra_state|model\.phase|weight)"):
        steps(loop, None)  # an update would be an AttributeError


def test_a_buffer_may_have_any_name(tmp_path):
    def model():
        made = Count()
        made.register_buffer("_metadata", torch.ones(1))
        return made

    for options in ({"max_steps": 1}, {"max_steps": 2, "resume": "auto"}):
        m = model()
        steps(Loop(m, optimizer := torch.optim.SGD(m.parameters(), lr=1.0), run_dir=tmp_path, **options), optimizer)
    assert "_metadata" in checkpoints(tmp_path)[2].load()["model"]


@pytest.mark.parametrize("wanted", [5, "all", [1.5], None])
def test_a_keep_that_is_no_set_of_steps_is_refused_with_its_value(wanted):
    with pytest.raises(ValueError, match=r"Keep: steps=.* is no set of whole numbers"):
        Keep(wanted)


def test_a_keep_takes_any_collection_of_steps():
    assert Keep([2, 1]) == Keep(range(1, 3)) == Keep(frozenset({1, 2}))


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({"run_dir": ""}, "run_dir='' names no folder"),
        ({"run_dir": 0}, "run_dir=0 is no path"),
        ({"run_dir": "x", "overwrite": "no"}, "overwrite='no' must be True or False"),
    ],
)
def test_a_wrong_argument_of_the_folder_is_named_with_its_value(options, text, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((TypeError, ValueError), match=text):
        made(options.pop("run_dir"), **options)
    assert not list(tmp_path.iterdir())


def test_a_saver_that_cannot_say_what_it_wants_is_a_failure_and_not_silence(tmp_path, caplog):
    class Bad:
        def on_checkpoint_saved(self, event, state):
            return Keep(event.step)

    loop = count(tmp_path, Bad(), ModelCheckpoint(every_steps=1), max_steps=3)
    assert loop.result.failure_counts == {"Bad": 3}
    assert sorted(checkpoints(tmp_path)) == [2, 3] or said(caplog)


@pytest.mark.parametrize(("was", "now"), [(False, True), (True, False)])
def test_a_scaler_that_is_switched_on_or_off_is_refused_and_the_model_is_as_it_was(tmp_path, was, now):
    """Fails if the scaler is not asked before: torch refuses it when the model is loaded already."""

    def scaled(enabled, **options):
        model = Count()
        optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
        loop = Loop(model, optimizer, run_dir=tmp_path, scaler=torch.amp.GradScaler("cpu", enabled=enabled), **options)
        with loop:
            for _ in loop.updates():
                loop.backward(model())
                loop.update()
        return model

    scaled(was, max_steps=1)
    words = {True: "enabled", False: "disabled"}
    with pytest.raises(CheckpointError, match=f"was {words[was]}, this one is {words[now]}"):
        scaled(now, max_steps=2, resume="auto")


def test_a_checkpoint_that_no_loop_has_made_is_not_gone_on_from(tmp_path):
    model = Count()
    checkpoint.save(tmp_path, {"model": model}, step=840)
    with pytest.raises(CheckpointError, match=r"step-00000840 was not made by a Loop.*init_from="):
        count(tmp_path, max_steps=2, resume="auto")
