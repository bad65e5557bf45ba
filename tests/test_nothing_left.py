"""A run at its end, or stopped by a request, has nothing left to do when it is resumed; until something changes."""

import pytest
from small_runs import (
    EVERY_UPDATE,
    Count,
    count,
    cut_at,
    said,
    stop_at,
)
from torch.optim import SGD

from callbacks import ModelCheckpoint
from eventloop import Event, Loop, Save, Stop


def events_of(run_dir, *callbacks, **options):
    """A run of `count`, and its events."""
    heard = []

    class Ear:
        def on_event(self, event: Event, state):
            heard.append((event.name, state.epoch, state.step))

    loop = count(run_dir, Ear(), *callbacks, **options)
    return loop, heard


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


def test_with_a_higher_limit_the_next_epoch_begins_where_the_last_had_come_to_its_end(tmp_path):
    """Fails if an epoch whose last update was the run's last counts as one that was left."""
    epochs = []
    for limit in (4, 6):
        model = Count()
        loop = Loop(model, SGD(model.parameters(), lr=1.0), run_dir=tmp_path, max_steps=limit, resume="auto")
        loop.bus.on("epoch_begin", lambda event, state: epochs.append(state.epoch))
        with loop:
            for _ in loop.epochs():
                for _ in loop.batches([0, 0]):
                    loop.backward(model())
                    loop.update()
    assert epochs == [1, 2, 3]


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


@pytest.mark.parametrize("scores", [None, dict.fromkeys(range(1, 9), 0.5)])
def test_an_epoch_beyond_a_lower_limit_is_not_gone_on_with(tmp_path, scores):
    """Fails if an epoch that was cut goes on whatever max_epochs is now: the run would make updates 3 and 4."""
    run_dir, model = tmp_path, Count()

    def train(**options):
        evaluate = None if scores is None else lambda: {"eval_loss": scores[loop.state.step]}
        options = {"callbacks": [ModelCheckpoint(**EVERY_UPDATE)], "saves": "sync", "evaluate": evaluate, **options}
        loop = Loop(model, SGD(model.parameters(), lr=1.0), run_dir=run_dir, **options)
        with loop:
            for _ in loop.epochs():
                for _ in loop.batches([1, 2]):
                    loop.backward(model())
                    loop.update()
        return loop

    train(max_epochs=2)
    loop = train(max_epochs=1, resume=3)
    assert (loop.result.status, loop.result.step) == ("completed", 3)
    assert loop.resumed.ended == "max_steps=None, max_epochs=1"


def test_from_a_checkpoint_before_the_stop_it_goes_on(tmp_path):
    savers = [ModelCheckpoint(**EVERY_UPDATE), stop_at(3)]
    count(tmp_path, *savers, max_steps=5)
    loop = count(tmp_path, *savers, max_steps=5, resume=1)
    assert (loop.result.stopped_by, loop.result.step) == ("Stopper", 3)


@pytest.mark.parametrize("end", [{"max_steps": 3}, {"max_steps": 9, "stopped": 3}])
def test_a_run_cut_between_its_last_update_and_its_last_evaluation_still_makes_that(end, fake_loop):
    """Fails if a run that may make no update counts as finished whether or not it was evaluated."""

    class SavesAndStops:
        def on_step_end(self, event, state):
            return (Save("cut"), Stop("enough")) if state.step == end.get("stopped") else Save("cut")

    options = {"evaluations": {"eval_loss": lambda n: float(n)}, "updates": 5, "max_steps": end["max_steps"]}
    whole = fake_loop([SavesAndStops()], **options)
    result = whole.run()
    cut = next(checkpoint for checkpoint in whole.checkpoints if checkpoint.step == 3)
    resumed = fake_loop([SavesAndStops()], **options, resume=cut)
    assert str(resumed.run()) == str(result)
    assert resumed.state.evals == whole.state.evals == 1
