"""What a run is told of the checkpoint that it goes on from, and what it may refuse before anything is touched."""

import contextlib
import logging

import pytest
import torch
from small_runs import EVERY_UPDATE, Cut, Recipe, checkpoints, count, cut_at, said, stop_at, train
from torch import nn

from callbacks import EarlyStopping, JSONLLogger, ModelCheckpoint, WarmupCosine
from eventloop import CheckpointError, EvalEnd, Loop, ResumeError, SetLR
from eventloop.settings import Settings

SCORES = {step: 1.0 / step for step in range(1, 20)}


def folders(run_dir):
    """Every file of a run with its time, so that a write shows."""
    return {path: path.stat().st_mtime_ns for path in run_dir.rglob("*") if path.name != ".lock"}


def reports(caplog):
    return [text for text in said(caplog) if text.startswith("resumed from")]


# -- the report --------------------------------------------------------------------------------------------------------


def test_a_fresh_run_has_none(tmp_path):
    assert count(None, max_steps=1).resumed is None
    assert count(tmp_path, max_steps=1, resume="auto").resumed is None


def test_it_says_where_the_run_goes_on_and_what_came_back(tmp_path, caplog):
    """Fails if a part or a callback is left out, or if a clean resume is a warning."""
    caplog.set_level(logging.INFO, logger="eventloop")
    stopper = {"scores": SCORES, "max_steps": 3}
    first = count(tmp_path, EarlyStopping("eval_loss"), **stopper)
    report = count(tmp_path, EarlyStopping("eval_loss"), resume="auto", **stopper).resumed
    assert (report.step, report.epoch, report.run_id) == (3, 1, first.state.run_id)
    assert report.path == checkpoints(tmp_path)[3].path
    parts = ("model", "optimizer", "progress", "position", "ledger", "bus", "random", "EarlyStopping(eval_loss)")
    assert (report.restored, report.differs) == (parts, False)
    (record,) = [r for r in caplog.records if r.getMessage().startswith("resumed from")]
    assert record.levelno == logging.INFO


def test_a_filter_that_goes_on_is_among_the_restored(tmp_path):
    """Fails if only whole objects are looked at: a plain handler with ``every=`` has a state too."""

    def run(**options):
        loop = Loop(model := nn.Linear(1, 1), torch.optim.SGD(model.parameters()), run_dir=tmp_path, **options)
        loop.bus.on("step_end", lambda event, state: None, every=2, name="mine")
        with loop:
            for _ in loop.updates():
                loop.step_end()
        return loop

    run(max_steps=1)
    assert "mine/step_end" in run(max_steps=2, resume="auto").resumed.restored


def test_missing_and_unknown_states_and_settings_that_differ_stand_in_one_warning(tmp_path, caplog):
    """Fails if one of the three is not looked at, or if a part says it once more by itself."""
    count(tmp_path, EarlyStopping("eval_loss", patience=3), scores=SCORES, max_steps=2, clip_norm=1.0)
    caplog.clear()
    stopper, schedule = EarlyStopping("eval_loss", patience=5, min_delta=0.5), WarmupCosine(1)
    report = count(tmp_path, stopper, schedule, scores=SCORES, max_steps=4, resume="auto").resumed
    assert (report.missing, report.unknown) == (("WarmupCosine",), ())
    assert set(map(str, report.settings)) == {
        "EarlyStopping(eval_loss): patience is 5 now, was 3 in the checkpoint",
        "EarlyStopping(eval_loss): min_delta is 0.5 now, was 0.0 in the checkpoint",
        "Loop: max_steps is 4 now, was 2 in the checkpoint",
        "Loop: clip_norm is None now, was 1.0 in the checkpoint",
    }
    (text,) = reports(caplog)
    assert text.startswith(str(report).splitlines()[0])
    assert all(f"\n  {difference}" in text for difference in report.settings)
    assert "\n  no state of WarmupCosine; it starts fresh" in text
    assert [text for text in said(caplog) if "starting fresh" in text] == []


def test_a_state_that_nobody_owns_is_named_and_travels_on(tmp_path):
    count(tmp_path, EarlyStopping("eval_loss"), scores=SCORES, max_steps=1)
    report = count(tmp_path, max_steps=2, resume="auto").resumed
    assert report.unknown == ("EarlyStopping(eval_loss)",)
    assert "EarlyStopping(eval_loss)" in checkpoints(tmp_path)[2].load()["bus"]["callbacks"]


def test_checkpoints_that_were_passed_over_are_named_with_the_reason(tmp_path):
    """Fails if the report has only the one that was taken."""
    count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), max_steps=3)
    (checkpoints(tmp_path)[3].path / "state.json").write_text("{}")
    report = count(tmp_path, max_steps=4, resume="auto").resumed
    assert report.step == 2
    (why,) = report.skipped
    assert "step-00000003 is damaged: state.json" in why
    assert f"passed over: {why}" in str(report)


def test_a_setting_that_an_object_fills_in_by_itself_is_no_difference(tmp_path):
    """Fails if settings are read when the checkpoint is written: by then the object may have changed them."""

    class Fills:
        def __init__(self, every=None):
            self.every = every

        def bind(self, run_dir):
            self.every = 50

        def on_step_end(self, event, state):
            return None

    count(tmp_path, Fills(), max_steps=1)
    assert count(tmp_path, Fills(), max_steps=1, resume="auto").resumed.settings == ()


def test_settings_are_compared_as_plain_values_and_nothing_else_is_kept():
    """Fails if a tuple and the list that JSON has of it differ, or NaN and NaN, or if an object is stored."""

    class Made:
        def __init__(self, shape, floor, loss, more):
            self.shape, self.floor, self.loss, self.more = shape, floor, loss, more

    settings = Settings({}, lambda: [("Made", Made((1, (2, 3)), float("nan"), nn.MSELoss(), {"x": object()}))])
    told = settings.state_dict()
    assert told["Made"].keys() == {"shape", "floor"}
    assert settings.differences({"Made": {"shape": [1, [2, 3]], "floor": float("nan")}, "gone": {"a": 1}}) == []
    assert [d.setting for d in settings.differences({"Made": {"shape": [1, [2, 4]], "floor": 0.0}})] == [
        "shape",
        "floor",
    ]


def test_a_run_that_had_ended_says_so_in_its_report(tmp_path):
    """Fails if the report of a run with nothing to do looks like that of one that goes on."""
    count(tmp_path / "ended", max_steps=2)
    ended = count(tmp_path / "ended", max_steps=2, resume="auto").resumed
    assert ended.ended == "max_steps=2, max_epochs=None"
    count(tmp_path / "stopped", stop_at(2), max_steps=5)
    stopped = count(tmp_path / "stopped", stop_at(2), max_steps=5, resume="auto").resumed
    assert str(stopped).endswith("nothing left to do: Stopper has stopped this run")
    assert count(tmp_path / "stopped", stop_at(2), max_steps=6, resume="auto").resumed.ended == ""


def test_how_the_data_was_found_again_is_said(tmp_path):
    """Fails if the report is not looked at again when the loader is there."""
    train(Recipe(), tmp_path, stop_at(2))
    report = train(Recipe(), tmp_path, stop_at(4, rule="later"), resume="auto").loop.resumed
    assert report.loader == "wound the loader forward over 2 batches of epoch 1"
    assert "\n  data: wound the loader forward" in str(report)


# -- learning rates ----------------------------------------------------------------------------------------------------


def jumps(run_dir, *callbacks, lr=1.0, **options):
    """Run with SGD; returns what the report has of the learning rates."""
    model = nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=lr)
    loop = Loop(model, optimizer, run_dir=run_dir, callbacks=callbacks, **options)
    with contextlib.suppress(Cut), loop:
        for _ in loop.updates():
            loop.step_end()
    return loop.resumed and [tuple(jump) for jump in loop.resumed.lr]


def test_the_next_rate_of_the_same_plan_is_no_jump_and_that_of_another_plan_is(tmp_path):
    """Fails if two rates of a schedule are compared instead of the rate with the plan's own next one."""
    for name, total, expected in (("same", 4, []), ("longer", 8, [("group_0", 0.75, pytest.approx(0.8117449009))])):
        jumps(tmp_path / name, WarmupCosine(1, 4), max_steps=3)
        assert jumps(tmp_path / name, WarmupCosine(1, total), max_steps=4, resume="auto") == expected


def test_a_longer_run_on_a_curve_of_its_own_length_is_no_jump(tmp_path):
    jumps(tmp_path, WarmupCosine(1, 10), max_steps=3)
    assert jumps(tmp_path, WarmupCosine(1, 10), max_steps=6, resume="auto") == []


def test_a_longer_plan_is_a_jump_though_no_setting_of_the_schedule_is_another(tmp_path):
    """Fails if the settings alone decide whether the plan is another one."""
    jumps(tmp_path, WarmupCosine(1), cut_at(3), ModelCheckpoint(**EVERY_UPDATE), max_steps=4)
    (jump,) = jumps(tmp_path, WarmupCosine(1), max_steps=8, resume="auto")
    assert jump == ("group_0", 0.75, pytest.approx(0.8117449009))


def test_a_setting_of_the_schedule_that_changes_no_rate_makes_no_jump(tmp_path):
    """Fails if the plan that the schedule has kept is not asked."""
    jumps(tmp_path, WarmupCosine(1, 4), max_steps=3)
    assert jumps(tmp_path, WarmupCosine(1, 4, on_change="keep"), max_steps=4, resume="auto") == []


def test_without_a_schedule_another_base_is_a_jump(tmp_path):
    jumps(tmp_path, max_steps=2)
    assert jumps(tmp_path, lr=0.5, max_steps=3, resume="auto") == [("group_0", 1.0, 0.5)]


def test_a_schedule_of_ones_own_jumps_only_if_its_settings_are_others(tmp_path):
    """Fails if every rate that changes over a resume counts as a jump."""

    class Divide:
        def __init__(self, by):
            self.by = by

        def on_step_begin(self, event, state):
            return SetLR(1.0 / (self.by * state.update))

    jumps(tmp_path, Divide(1), max_steps=2)
    assert jumps(tmp_path, Divide(1), max_steps=3, resume="auto") == []
    assert jumps(tmp_path, Divide(2), max_steps=4, resume="auto") == [("group_0", 1 / 3, 1 / 8)]


# -- refusing ----------------------------------------------------------------------------------------------------------


def test_on_mismatch_error_lists_everything_before_anything_is_written_or_loaded(tmp_path):
    """Fails if it refuses at the first difference, or only after the folder was opened or the model filled."""
    count(tmp_path, EarlyStopping("eval_loss"), ModelCheckpoint(), scores=SCORES, max_steps=2, clip_norm=1.0)
    before = folders(tmp_path)
    with pytest.raises(ResumeError) as caught:
        count(tmp_path, WarmupCosine(1), JSONLLogger(), max_steps=3, resume="auto", on_mismatch="error")
    told = str(caught.value)
    assert "on_mismatch='error'" in told
    for words in ("no state of WarmupCosine", "a state of EarlyStopping(eval_loss)",
                  "Loop: clip_norm is None now, was 1.0", "Loop: max_steps is 3 now, was 2"):  # fmt: skip
        assert words in told
    assert folders(tmp_path) == before


def test_on_mismatch_error_lets_a_run_go_on_where_nothing_differs(tmp_path):
    with pytest.raises(Cut):
        count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), cut_at(2), max_steps=3)
    options = {"max_steps": 3, "resume": "auto", "on_mismatch": "error"}
    assert count(tmp_path, ModelCheckpoint(**EVERY_UPDATE), **options).result.step == 3


def test_any_other_word_is_no_way_to_take_a_mismatch():
    with pytest.raises(ValueError, match="on_mismatch='warn' must be 'report' or 'error'"):
        count(None, max_steps=1, on_mismatch="warn")


def go_on(run_dir, model, optimizer, *callbacks, steps=2):
    loop = Loop(model, optimizer, run_dir=run_dir, callbacks=callbacks, max_steps=steps, resume="auto")
    with loop:
        for _ in loop.updates():
            loop.backward(sum(p.sum() for p in model.parameters()))
            loop.update()
    return loop


def test_another_model_is_refused_with_every_name_and_is_left_as_it_was(tmp_path):
    """Fails if tensors are copied one by one until the first that does not fit."""
    first = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(2, 1), "old": nn.Linear(1, 1)})
    go_on(tmp_path, first, torch.optim.SGD(first.parameters(), lr=0.1), steps=1)
    second = nn.ModuleDict({"a": nn.Linear(2, 2), "b": nn.Linear(3, 2), "new": nn.Linear(1, 1)})
    before, files = {n: p.clone() for n, p in second.state_dict().items()}, folders(tmp_path)
    with pytest.raises(CheckpointError) as caught:
        go_on(tmp_path, second, torch.optim.SGD(second.parameters(), lr=0.1))
    for words in ("missing: new.bias, new.weight", "unexpected: old.bias, old.weight", "size mismatch for b.bias",
                  "size mismatch for b.weight: (1, 2) in the checkpoint, (2, 3) in the model",
                  "for another model take another run_dir"):  # fmt: skip
        assert words in str(caught.value)
    assert all(torch.equal(value, before[name]) for name, value in second.state_dict().items())
    assert folders(tmp_path) == files


def test_a_callback_that_cannot_take_its_state_leaves_the_model_as_it_was(tmp_path):
    """Fails if the model is loaded before the states that code of the user's own must take."""

    class Refuses:
        def on_step_end(self, event, state):
            return None

        def state_dict(self):
            return {"n": 1}

        def load_state_dict(self, state):
            raise KeyError("m")

    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    go_on(tmp_path, first, torch.optim.SGD(first.parameters(), lr=0.1), Refuses(), steps=1)
    before = second.weight.clone()
    with pytest.raises(KeyError) as caught:
        go_on(tmp_path, second, torch.optim.SGD(second.parameters(), lr=0.1), Refuses())
    assert torch.equal(second.weight, before)
    assert "while loading the state of Refuses" in caught.value.__notes__


def test_an_optimizer_of_another_kind_is_refused_before_the_model_is_touched(tmp_path):
    first, second = nn.Linear(1, 1), nn.Linear(1, 1)
    go_on(tmp_path, first, torch.optim.SGD(first.parameters(), lr=0.1), steps=1)
    before = second.weight.clone()
    with pytest.raises(CheckpointError, match="holds the state of a SGD, the optimizer is a Adam"):
        go_on(tmp_path, second, torch.optim.Adam(second.parameters()))
    assert torch.equal(second.weight, before)


def test_a_module_that_loads_in_its_own_way_is_not_judged_by_its_names(tmp_path):
    """Fails if every module's names are compared: only the module knows what its older states were called."""

    class Renames(nn.Linear):
        def _load_from_state_dict(self, state, prefix, *rest):
            if f"{prefix}old" in state:
                state[f"{prefix}bias"] = state.pop(f"{prefix}old")
            super()._load_from_state_dict(state, prefix, *rest)

    from eventloop.model import Model

    model = nn.Sequential(Renames(1, 1))
    Model(model).load_state_dict({"0.weight": torch.ones(1, 1), "0.old": torch.tensor([3.0])})
    assert (model[0].weight.item(), model[0].bias.item()) == (1.0, 3.0)


def test_evaluations_are_heard_as_ever(tmp_path):
    """The report subscribes to nothing: the running order of a resumed run is that of a fresh one."""
    count(tmp_path, EarlyStopping("eval_loss"), scores=SCORES, max_steps=1)
    loop = count(tmp_path, EarlyStopping("eval_loss"), scores=SCORES, max_steps=2, resume="auto")
    assert str(loop.bus.explain(EvalEnd)).startswith("eval_end: 1 handler")
