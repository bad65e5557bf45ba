"""Resuming as it has gone wrong elsewhere: cases C07 (a), C11, C17, C21 and C79, each through a real checkpoint."""

import pytest
import torch
from small_runs import Count, checkpoints, count, on_disk

from callbacks import EarlyStopping, ModelCheckpoint, WarmupCosine
from callbacks.loggers.jsonl import JSONLLogger
from callbacks.loggers.tensorboard import TensorBoardLogger
from eventloop import Event, Loop, Report, read_metrics


class Died(BaseException):
    """The end of the process, as far as the run can tell."""


def test_c07_patience_goes_on_counting_after_a_resume(tmp_path):
    scores = {1: 1.0, 2: 1.1, 3: 1.2, 4: 1.3, 5: 0.5}
    count(tmp_path, EarlyStopping("eval_loss", patience=3), scores=scores, max_steps=3)
    stopper = EarlyStopping("eval_loss", patience=3)
    result = count(tmp_path, stopper, scores=scores, max_steps=5, resume="auto").result
    assert (result.status, result.stopped_by, result.step) == ("stopped", "EarlyStopping", 4)
    assert (stopper.best, stopper.count) == (1.0, 3)


@pytest.mark.parametrize("kill_in", [11, 16])
def test_c11_each_step_is_logged_once_and_the_rows_are_those_of_the_run_that_counts(tmp_path, kill_in):
    class Noisy:
        """Reports which sitting it is, and ends the first one."""

        priority = 200

        def __init__(self, sitting):
            self.sitting = sitting

        def on_step_end(self, event, state):
            return Report(sitting=self.sitting)

        def on_step_begin(self, event, state):
            if self.sitting == 1 and state.update == kill_in:
                raise Died

    def loggers():
        return JSONLLogger(every=1), TensorBoardLogger(every=1), ModelCheckpoint(save_top_k=0, every_steps=10)

    with pytest.raises(Died):
        count(tmp_path, Noisy(1), *loggers(), max_steps=20)
    count(tmp_path, Noisy(2), *loggers(), max_steps=20, resume="auto")
    rows = [row for row in read_metrics(tmp_path) if row["event"] == "step_end"]
    expected = [(step, 1.0 if step <= 10 else 2.0) for step in range(1, 21)]
    assert [(row["step"], row["sitting"]) for row in rows] == expected
    assert tensorboard_series(tmp_path / "tb", "train/sitting") == expected


def tensorboard_series(folder, tag):
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    (files,) = {path.parent for path in folder.rglob("events*")}
    reader = EventAccumulator(str(files))
    reader.Reload()
    return [(point.step, point.value) for point in reader.Scalars(tag)]


def three_epochs(run_dir, dies_in_epoch=None, **options):
    """Epochs of four updates, each of which adds 1 to the weight; returns the events, the steps made and the weight."""
    model, heard = Count(), []

    class Ear:
        def on_event(self, event: Event, state):
            heard.append((event.name, state.epoch))
            if heard[-1] == ("epoch_begin", dies_in_epoch):
                raise Died

    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    loop = Loop(model, optimizer, run_dir=run_dir, max_epochs=3, callbacks=[ModelCheckpoint(), Ear()], **options)
    try:
        with loop:
            for _ in loop.epochs():
                for _ in loop.batches([1, 2, 3, 4]):
                    loop.backward(model())
                    loop.update()
    except Died:
        pass
    return heard, loop.result.step, model.w.item()


def test_c17_a_checkpoint_of_an_epochs_end_does_not_repeat_the_epoch(tmp_path):
    first, step, _ = three_epochs(tmp_path, dies_in_epoch=2)
    assert step == 4
    second, step, weight = three_epochs(tmp_path, resume="auto")
    assert next(epoch for name, epoch in second if name == "epoch_begin") == 2
    assert sum(name == "step_end" for name, _ in second) == 8
    assert (weight, step) == (12, 12)
    assert [epoch for name, epoch in first + second if name == "epoch_end"] == [1, 2, 3]


L = [0.05, 0.1, 0.1, 0.096193976626, 0.085355339059, 0.069134171618, 0.05, 0.030865828382, 0.014644660941]


def rates(run_dir, optimizer=torch.optim.SGD, **options):
    """The rates that the updates used, by the truth of the optimizer itself."""
    model, used = Count(), []
    made = optimizer(model.parameters(), lr=0.1)
    made.register_step_post_hook(lambda optimizer, *_: used.append(optimizer.param_groups[0]["lr"]))
    loop = Loop(model, made, run_dir=run_dir, callbacks=[WarmupCosine(2, total_steps=10)], **options)
    with loop:
        for _ in loop.updates():
            loop.backward(model())
            loop.update()
    return used


@pytest.mark.parametrize("optimizer", [torch.optim.SGD, torch.optim.AdamW])
def test_c21_the_base_is_the_scripts_not_the_decayed_rate_in_the_checkpoint(tmp_path, optimizer):
    whole = rates(None, optimizer, max_steps=10)
    assert whole[:9] == pytest.approx(L, abs=1e-9)  # C71: our warmup begins at base/W, the cosine is the seed's
    before = rates(tmp_path, optimizer, max_steps=6)
    after = rates(tmp_path, optimizer, max_steps=10, resume="auto")
    assert before + after == whole
    assert checkpoints(tmp_path)[10].load()["optimizer"][""]["bases"] == [0.1]


def stopped_early(run_dir, patience, **options):
    """Epochs of two updates under early stopping; returns the loop, its stopper and the names of its events."""
    series = [1.0, 0.9, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    model, heard = Count(), []

    class Ear:
        def on_event(self, event: Event, state):
            heard.append(event.name)

    stopper = EarlyStopping("eval_loss", patience=patience)
    loop = Loop(
        model,
        torch.optim.SGD(model.parameters(), lr=1.0),
        run_dir=run_dir,
        max_epochs=10,
        evaluate=lambda: {"eval_loss": series[loop.state.evals]},
        callbacks=[stopper, Ear()],
        **options,
    )
    with loop:
        for _ in loop.epochs():
            for _ in loop.batches([1, 2]):
                loop.backward(model())
                loop.update()
    return loop, stopper, heard


def test_c79_a_run_that_had_stopped_early_does_not_train_on(tmp_path, caplog):
    loop, _, _ = stopped_early(tmp_path, patience=2)
    assert (loop.result.stopped_by, loop.result.epoch, on_disk(tmp_path)) == ("EarlyStopping", 4, {8})
    loop, stopper, heard = stopped_early(tmp_path, patience=2, resume="auto")
    assert heard == ["train_begin", "train_end"]
    assert (loop.result.status, loop.result.stopped_by, loop.result.step) == ("stopped", "EarlyStopping", 8)
    assert (
        "EarlyStopping stopped this run at step 8: eval_loss has not improved on 0.9 for 2 evaluations" in caplog.text
    )
    assert stopper.count == 2


def test_c79_with_more_patience_it_goes_on_from_the_count_it_had(tmp_path):
    stopped_early(tmp_path, patience=2)
    loop, stopper, heard = stopped_early(tmp_path, patience=4, resume="auto")
    assert heard.count("epoch_begin") == 2
    assert (loop.result.stopped_by, loop.result.epoch, stopper.count) == ("EarlyStopping", 6, 4)


def test_c79_a_longer_plan_goes_on_too(tmp_path):
    stopped_early(tmp_path, patience=2)
    loop, stopper, _ = stopped_early(tmp_path, patience=2, resume="auto", max_steps=10)
    assert (loop.result.step, stopper.count) == (10, 3)
