"""ModelCheckpoint asks each n updates, epochs or seconds, by crossing, over every sitting of a run."""

import itertools

import pytest
import torch
from small_runs import count, on_disk

from callbacks import ModelCheckpoint
from eventloop import (
    Bus,
    CheckpointSaved,
    EpochEnd,
    EvalEnd,
    Loop,
    StepEnd,
    TrainBegin,
    TrainState,
)


def saves_of_epochs(run_dir, saver):
    """The saves, step and tags, of six epochs of two updates."""
    saves, model = [], torch.nn.Linear(1, 1)
    loop = Loop(model, torch.optim.SGD(model.parameters()), run_dir=run_dir, callbacks=[saver], max_epochs=6)
    loop.bus.on(CheckpointSaved, lambda event, state: saves.append((event.step, event.tags)), name="note")
    with loop:
        for _ in loop.epochs():
            for x in loop.batches(torch.ones(2, 1, 1)):
                loop.backward(model(x).sum())
                loop.update()
    return saves


def test_without_monitor_and_every_it_asks_at_each_epochs_end(tmp_path):
    assert [step for step, _ in saves_of_epochs(tmp_path, ModelCheckpoint(save_top_k=-1))] == [2, 4, 6, 8, 10, 12]


def test_each_n_epochs_and_each_n_steps_may_be_combined(tmp_path):
    saves = saves_of_epochs(tmp_path, ModelCheckpoint(save_top_k=-1, every_epochs=2, every_steps=3))
    assert saves == [
        (3, ("step",)), (4, ("epoch",)), (6, ("step",)), (8, ("epoch",)), (9, ("step",)), (12, ("epoch", "step"))
    ]  # fmt: skip


def test_seconds_are_those_of_the_bus_clock(tmp_path):
    now = itertools.count(0.0, 4.0)  # each look at the clock is four seconds later
    bus = Bus(clock=lambda: next(now))
    count(tmp_path, ModelCheckpoint(save_top_k=-1, every_seconds=60), bus=bus, max_steps=40)
    steps = sorted(on_disk(tmp_path) - {40})
    assert len(steps) >= 2
    gaps = {b - a for a, b in itertools.pairwise(steps)}
    assert max(gaps) - min(gaps) <= 1


def looks(saver, states, *, resumed=False, state=None):
    bus = Bus(failure="raise")
    bus.attach(saver)
    if state is not None:
        bus.load_state_dict(state)
    bus.publish(TrainBegin(resumed), states[0])
    return bus, [s.step for s in states[1:] if bus.publish(StepEnd(), s).save]


def test_steps_and_seconds_together_each_fire_by_crossing():
    states = [TrainState(step=n, elapsed=7.0 * n) for n in range(12)]
    _, asked = looks(ModelCheckpoint(every_steps=4, every_seconds=20), states)
    assert asked == [3, 4, 6, 8, 9]


def test_steps_beside_seconds_fire_by_crossing_whatever_the_counter_does():
    """Fails if a multiple is told by its remainder: after skipped updates the counter stands, elsewhere it may jump."""
    states = [TrainState(step=n) for n in (0, 0, 9, 10, 10, 21, 29)]
    _, asked = looks(ModelCheckpoint(every_steps=10, every_seconds=1e6), states)
    assert asked == [10, 21]


def test_steps_and_seconds_together_go_on_from_the_last_look():
    states = [TrainState(step=n, elapsed=7.0 * n) for n in range(24)]
    _, whole = looks(ModelCheckpoint(every_steps=4, every_seconds=20), states)
    for cut in range(1, 23):
        first = ModelCheckpoint(every_steps=4, every_seconds=20)
        bus, before = looks(first, states[: cut + 1])
        second = ModelCheckpoint(every_steps=4, every_seconds=20)
        _, after = looks(second, states[cut:], resumed=True, state=bus.state_dict())
        assert before + after == whole


@pytest.mark.parametrize("options", [{"every_steps": 100}, {"every_steps": 100, "every_seconds": 1e6}])
def test_a_saver_that_is_new_in_a_resumed_run_counts_from_there(options):
    saver = ModelCheckpoint(**options)
    states = [TrainState(step=n, elapsed=10.0 * n) for n in range(840, 905)]
    _, asked = looks(saver, states, resumed=True, state={"callbacks": {}, "filters": {}})
    assert asked == [900]


def test_a_saver_that_is_new_in_a_resumed_run_counts_seconds_from_its_begin():
    saver = ModelCheckpoint(every_steps=1000, every_seconds=100)
    states = [TrainState(step=n, elapsed=10.0 * n - 8305) for n in range(840, 850)]
    _, asked = looks(saver, states, resumed=True, state={"callbacks": {}, "filters": {}})
    assert asked == [841]


def test_seconds_that_are_new_in_a_resumed_run_count_from_there():
    first, second = ModelCheckpoint(every_steps=100), ModelCheckpoint(every_steps=100, every_seconds=1e6)
    bus, asked = looks(first, [TrainState(step=n) for n in range(251)])
    _, more = looks(second, [TrainState(step=n) for n in range(250, 305)], resumed=True, state=bus.state_dict())
    assert (asked, more) == ([100, 200], [300])


def test_a_counter_that_went_back_fires_nothing():
    saver = ModelCheckpoint(every_steps=10, every_seconds=1e6)
    bus, _ = looks(saver, [TrainState(step=n) for n in range(25)])
    assert not bus.publish(StepEnd(), TrainState(step=12)).save
    assert bus.publish(StepEnd(), TrainState(step=20)).save


def test_an_epoch_that_was_left_early_is_not_saved_as_one():
    bus = Bus(failure="raise")
    bus.attach(ModelCheckpoint())
    state = TrainState().begin_epoch()
    assert not bus.publish(EpochEnd(completed=False), state).save
    assert bus.publish(EpochEnd(), state.begin_epoch()).save == {"epoch"}


def test_a_score_counts_at_an_epochs_end_only_if_it_is_fresh():
    bus, saver = Bus(failure="raise"), ModelCheckpoint("eval_loss", save_top_k=2, every_epochs=1)
    bus.attach(saver)
    state = TrainState(step=3, epoch=1).end_evaluation({"eval_loss": 0.5})
    bus.publish(EvalEnd(), state)
    bus.publish(CheckpointSaved("checkpoints/step-00000003", 3), state)
    state = state.begin_update().end_update().replace(epoch=2)
    assert bus.publish(EpochEnd(), state).save == {"epoch"}  # the score is of step 3
    bus.publish(CheckpointSaved("checkpoints/step-00000004", 4), state)
    assert (saver.best_step, saver.best_score) == (3, 0.5)


def test_a_score_is_kept_though_an_evaluation_comes_between_it_and_the_save():
    bus, saver = Bus(failure="raise"), ModelCheckpoint("loss", save_top_k=2, every_steps=1, every_epochs=1)
    bus.attach(saver)
    state = TrainState(epoch=1).begin_update().end_update().report(loss=0.5)
    assert bus.publish(StepEnd(), state).save == {"step"}
    state = state.end_evaluation({"eval_acc": 0.9})
    assert bus.publish(EpochEnd(), state).save == {"epoch"}
    bus.publish(CheckpointSaved("checkpoints/step-00000001", 1), state)
    assert (saver.best_step, saver.best_score) == (1, 0.5)
