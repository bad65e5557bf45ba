"""When there is a row, what is in it, and where it goes."""

import io
import itertools
import math
import re
from datetime import datetime, timedelta

import pytest
import torch
from raw_runs import RawRun
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from callbacks import ConsoleLogger, JSONLLogger, TensorBoardLogger
from callbacks.loggers.rows import Row
from callbacks.loggers.tensorboard import EventFile
from eventloop import Bus, Loop, Report, StepEnd, TrainState, read_metrics

LOGGERS = [JSONLLogger, TensorBoardLogger, ConsoleLogger]


def rows_of(folder, *keys):
    return [tuple(row.get(key) for key in keys) for row in read_metrics(folder)]


def series(folder, tag):
    events = EventAccumulator(str(folder), purge_orphaned_data=True)
    events.Reload()
    return [(event.step, event.value) for event in events.Scalars(tag)]


def tags(folder):
    events = EventAccumulator(str(folder))
    events.Reload()
    return sorted(events.Tags()["scalars"])


def tiny_loop(run_dir, *callbacks, **options):
    model = torch.nn.Linear(1, 1)
    return Loop(model, torch.optim.SGD(model.parameters(), lr=0.1), run_dir=run_dir, callbacks=callbacks, **options)


def train(loop, losses):
    one = torch.ones((), requires_grad=True)
    for _ in loop.epochs():
        for loss in loop.batches(losses):
            loop.backward(one * loss)
            loop.update()


@pytest.mark.parametrize("logger", LOGGERS)
@pytest.mark.parametrize("every", [0, -1, 2.0, True, "5", None])
def test_an_interval_that_is_no_whole_number_is_refused_at_construction(logger, every):
    with pytest.raises(ValueError, match=rf"{logger.__name__}: every={every!r} must be a whole number >= 1"):
        logger(every=every)


def test_a_row_at_each_multiple_and_one_for_the_rest(tmp_path):
    run = RawRun(JSONLLogger(every=4), run_dir=tmp_path)
    run.epoch()
    run.steps(1, 10, loss=float)
    run.end()
    assert rows_of(tmp_path, "event", "step", "epoch", "loss") == [
        ("step_end", 4, 1, 2.5),
        ("step_end", 8, 1, 6.5),
        ("train_end", 10, 1, 9.5),
    ]


@pytest.mark.parametrize(("status", "last"), [("completed", 3), ("stopped", 3), ("interrupted", 2), ("failed", 2)])
def test_the_rest_is_written_only_if_the_run_is_completed_or_stopped(tmp_path, status, last):
    run = RawRun(JSONLLogger(every=2), run_dir=tmp_path)
    run.steps(1, 3, loss=float)
    run.end(status)
    assert read_metrics(tmp_path)[-1]["step"] == last


def test_a_run_with_nothing_left_to_do_writes_no_row_and_no_file(tmp_path):
    run = RawRun(JSONLLogger(), TensorBoardLogger(), run_dir=tmp_path)
    run.end()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("every", "steps"), [(1, [1, 2, 3]), (2, [1, 2, 3]), (50, [1, 3])])
def test_the_first_update_has_a_row_of_its_own_if_asked_for_and_never_two(tmp_path, every, steps):
    run = RawRun(JSONLLogger(every=every, first=True), run_dir=tmp_path)
    run.steps(1, 3, loss=float)
    run.end()
    assert [row["step"] for row in read_metrics(tmp_path)] == steps


def test_an_evaluation_has_a_row_with_its_own_keys_alone(tmp_path):
    run = RawRun(JSONLLogger(every=2), run_dir=tmp_path)
    run.steps(1, 3, loss=float)
    run.evaluate(eval_loss=0.5)
    run.evaluate(eval_acc=0.25)
    run.end()
    assert rows_of(tmp_path, "event", "step", "evals", "loss", "eval_loss", "eval_acc") == [
        ("step_end", 2, None, 1.5, None, None),
        ("eval_end", 3, 1, None, 0.5, None),
        ("eval_end", 3, 2, None, None, 0.25),
        ("train_end", 3, None, 3.0, None, None),
    ]


def test_what_is_reported_at_an_epochs_end_has_a_row_of_its_own(tmp_path):
    run = RawRun(JSONLLogger(every=50), run_dir=tmp_path)
    run.epoch()
    run.steps(1, 2, loss=float)
    run.end_epoch(train_acc=0.5)
    run.epoch()
    run.steps(3, 4, loss=float)
    run.end_epoch()
    run.end()
    assert rows_of(tmp_path, "event", "step", "epoch", "train_acc", "loss") == [
        ("epoch_end", 2, 1, 0.5, None),
        ("train_end", 4, 2, None, 2.5),
    ]


def test_a_row_says_when_it_was_and_a_metric_of_that_name_is_kept_beside(tmp_path):
    run = RawRun(JSONLLogger(every=1), run_dir=tmp_path, state=TrainState(elapsed=2.5))
    run.step(time=0.125, epoch=7.0)
    run.end()
    (row,) = read_metrics(tmp_path)
    when = datetime.fromisoformat(row["time"])
    assert when.utcoffset() == timedelta(0)
    assert abs(when.timestamp() - (tmp_path / "metrics.jsonl").stat().st_mtime) < 60
    assert (row["elapsed"], row["epoch"], row["metric/time"], row["metric/epoch"]) == (2.5, 0, 0.125, 7.0)


def test_reports_of_handlers_reach_the_row(tmp_path):
    run = RawRun(JSONLLogger(every=2), run_dir=tmp_path)
    run.bus.on(StepEnd, lambda event, state: Report(norm=state.step))
    run.steps(1, 2, loss=torch.tensor)
    run.end()
    assert rows_of(tmp_path, "loss", "norm") == [(1.5, 1.5)]


@pytest.mark.parametrize("logger", [JSONLLogger, TensorBoardLogger])
def test_a_logger_without_a_place_says_so_when_it_is_bound(logger):
    with pytest.raises(ValueError, match=f"{logger.__name__} has no place for its .*run_dir"):
        RawRun(logger())


def test_two_loggers_of_one_file_are_refused(tmp_path):
    with pytest.raises(ValueError, match=r"JSONLLogger#2 and JSONLLogger both write to .*metrics\.jsonl"):
        RawRun(JSONLLogger(), JSONLLogger(every=1), run_dir=tmp_path)


def test_a_logger_that_is_not_bound_says_what_to_do():
    bus = Bus(failure="raise")
    bus.attach(ConsoleLogger(every=1))
    with pytest.raises(RuntimeError, match=r"ConsoleLogger is not bound: call bus\.bind\(\)"):
        bus.publish(StepEnd(), TrainState(step=1))


def test_each_rank_but_the_first_writes_to_a_place_of_its_own(tmp_path):
    for rank in (0, 1):
        logged = RawRun(
            JSONLLogger(every=1), TensorBoardLogger(every=1), run_dir=tmp_path, state=TrainState(rank=rank, world=2)
        )
        logged.steps(1, 2, loss=float)
        logged.end()
    assert rows_of(tmp_path, "step") == rows_of(tmp_path / "metrics.rank_1.jsonl", "step") == [(1,), (2,)]
    assert sorted(path.name for path in (tmp_path / "tb").iterdir()) == ["rank_0", "rank_1"]
    assert [len(list((tmp_path / "tb" / rank).iterdir())) for rank in ("rank_0", "rank_1")] == [1, 1]


def test_the_tags_are_the_names_behind_the_group_of_their_event(tmp_path):
    run = RawRun(TensorBoardLogger(tmp_path, every=2))
    run.steps(1, 3, loss=float, **{"lr/head": lambda n: 0.5})
    run.evaluate(loss=9.0, eval_loss=0.5)
    run.end_epoch(train_acc=0.25)
    run.end()
    names = ["epoch/train_acc", "eval/eval_loss", "eval/loss", "train/loss", "train/lr/head"]
    assert tags(tmp_path) == names
    assert series(tmp_path, "train/loss") == [(2, 1.5), (3, 3.0)]
    assert series(tmp_path, "eval/loss") == [(3, 9.0)]


def test_a_value_that_is_not_finite_is_a_point_too(tmp_path):
    run = RawRun(TensorBoardLogger(tmp_path, every=1))
    run.steps(1, 2, loss=lambda n: math.inf if n == 1 else 0.5)
    run.end()
    (_, first), second = series(tmp_path, "train/loss")
    assert math.isnan(first)
    assert second == (2, 0.5)


def row(step, **values):
    return Row("step_end", step, 1, 0, None, 0.0, 0.0, values)


def test_what_cannot_be_a_scalar_is_left_out_with_one_warning_a_key(tmp_path, caplog):
    file = EventFile(tmp_path, None)
    file.write([row(n, loss=0.5, t=torch.tensor(2.0), note="abc", hist=[1, 2], none=None) for n in (1, 2)])
    file.close()
    assert tags(tmp_path) == ["train/loss", "train/t"]
    assert series(tmp_path, "train/t") == [(1, 2.0), (2, 2.0)]
    assert [re.search("'(.*?)'", r.getMessage())[1] for r in caplog.records] == ["note", "hist", "none"]


def test_writers_of_the_same_second_have_files_of_their_own(tmp_path):
    files = [EventFile(tmp_path, 0) for _ in range(5)]
    for n, file in enumerate(files):
        file.write([row(n + 1, loss=float(n))])
        file.close()
    assert len(list(tmp_path.iterdir())) == 5
    assert series(tmp_path, "train/loss")[-1] == (5, 4.0)


def test_the_file_of_a_resumed_run_is_read_last_also_if_the_clock_is_behind(tmp_path):
    ahead = "events.out.tfevents.9999999999.123456789.elsewhere.1.0"
    file = EventFile(tmp_path, 3)
    (written,) = tmp_path.iterdir()
    written.rename(tmp_path / ahead)
    file.close()
    EventFile(tmp_path, 3).close()
    assert sorted(path.name for path in tmp_path.iterdir())[0] == ahead


def test_a_fresh_run_moves_the_log_of_an_earlier_one_aside(tmp_path, caplog):
    for first in (1.0, 2.0, 3.0):
        run = RawRun(JSONLLogger(tmp_path / "log.jsonl", every=1), TensorBoardLogger(tmp_path / "tb", every=1))
        run.step(loss=first)
        run.end()
    logs = ["log.jsonl", "log.old-1.jsonl", "log.old-2.jsonl"]
    assert [rows_of(tmp_path / name, "loss") for name in logs] == [[(3.0,)], [(1.0,)], [(2.0,)]]
    folders = ["tb", "tb/events.old-1", "tb/events.old-2"]
    assert [series(tmp_path / name, "train/loss") for name in folders] == [[(1, 3.0)], [(1, 1.0)], [(1, 2.0)]]
    assert "moved aside to log.old-1.jsonl" in caplog.text


def test_files_of_others_in_the_folder_are_left_alone(tmp_path):
    other = tmp_path / "events.out.tfevents.1700000000.host"
    other.write_bytes(b"")
    run = RawRun(TensorBoardLogger(tmp_path, every=1))
    run.step(loss=1.0)
    run.end()
    assert other.exists()


def test_a_resumed_run_goes_on_with_the_open_window(tmp_path):
    run = RawRun(JSONLLogger(every=5), run_dir=tmp_path)
    run.steps(1, 8, loss=torch.tensor, norm=float)
    saved, state = run.bus.state_dict(), run.state
    run.bus.persist()
    run.steps(9, 11, loss=lambda n: 1000.0)
    resumed = RawRun(JSONLLogger(every=5), run_dir=tmp_path, saved=saved, state=state)
    resumed.steps(9, 12, loss=torch.tensor, norm=float)
    resumed.end()
    assert rows_of(tmp_path, "step", "loss", "norm") == [(5, 3.0, 3.0), (10, 8.0, 8.0), (12, 11.5, 11.5)]


def test_a_checkpoints_rows_are_on_disk_before_it_is_committed(tmp_path):
    run = RawRun(JSONLLogger(every=1), TensorBoardLogger(every=1), run_dir=tmp_path)
    run.steps(1, 5, loss=float)
    run.bus.persist()
    assert rows_of(tmp_path, "step") == [(1,), (2,), (3,), (4,), (5,)]
    assert len(series(tmp_path / "tb" / "rank_0", "train/loss")) == 5


def test_an_evaluation_that_is_made_again_after_a_resume_has_one_row(tmp_path):
    run = RawRun(JSONLLogger(every=1), run_dir=tmp_path)
    run.step(loss=1.0)
    saved, state = run.bus.state_dict(), run.state
    run.evaluate(eval_loss=0.5)
    run.bus.close()
    resumed = RawRun(JSONLLogger(every=1), run_dir=tmp_path, saved=saved, state=state)
    resumed.evaluate(eval_loss=0.5)
    resumed.end()
    assert rows_of(tmp_path, "event", "step") == [("step_end", 1), ("eval_end", 1)]


def test_a_finished_run_that_is_resumed_adds_nothing(tmp_path):
    run = RawRun(JSONLLogger(every=5), run_dir=tmp_path)
    run.steps(1, 7, loss=float)
    saved, state = run.bus.state_dict(), run.state
    run.end()
    before = (tmp_path / "metrics.jsonl").read_bytes()
    RawRun(JSONLLogger(every=5), run_dir=tmp_path, saved=saved, state=state).end()
    assert (tmp_path / "metrics.jsonl").read_bytes() == before


def test_a_failing_file_follows_the_policy_of_the_subscription(tmp_path):
    (tmp_path / "file").write_text("")
    run = RawRun(JSONLLogger(tmp_path / "file" / "log.jsonl", every=1), failure="stop")
    run.step(loss=1.0)
    run.bus.persist()
    state = run.state.begin_update().end_update().report(loss=2.0)
    control = run.bus.publish(StepEnd(), state)
    assert control.stop.who == "JSONLLogger"
    assert "log.jsonl failed: " in control.stop.reason
    run.bus.close()
    assert [failure.event for failure in run.bus.failures] == ["step_end", "close"]


def test_the_console_has_one_plain_line_a_row():
    file = io.StringIO()
    run = RawRun(ConsoleLogger(every=2, file=file), state=TrainState(total=3))
    run.epoch()
    run.steps(1, 3, loss=lambda n: n / 3, acc=float)
    run.evaluate(eval_loss=0.123456)
    run.end()
    assert file.getvalue().splitlines() == [
        "step 2/3  epoch 1  loss 0.5  acc 1.5",
        "step 3/3  epoch 1  eval  eval_loss 0.1235",
        "step 3/3  epoch 1  loss 1  acc 3",
    ]


def test_the_console_goes_to_stderr_and_on_rank_0_alone(capsys):
    for rank in (0, 1):
        run = RawRun(ConsoleLogger(every=1), state=TrainState(rank=rank, world=2))
        run.step(loss=1.0)
        run.end()
    assert capsys.readouterr() == ("", "step 1  epoch 0  loss 1\n")


def test_a_loop_logs_the_mean_of_its_micro_losses(tmp_path):
    with tiny_loop(tmp_path, JSONLLogger(every=2), max_epochs=1, accumulate=2) as loop:
        train(loop, [1.0, 3.0, 5.0, 7.0, 9.0, 11.0])
    assert rows_of(tmp_path, "step", "loss") == [(2, 4.0), (3, 10.0)]


def test_a_loop_of_two_epochs_has_the_same_rows_in_both_logs(tmp_path):
    evaluations = itertools.count(1)
    callbacks = [JSONLLogger(every=2), TensorBoardLogger(every=2)]
    with tiny_loop(tmp_path, *callbacks, max_epochs=2, evaluate=lambda: {"eval_loss": 1.0 * next(evaluations)}) as loop:
        train(loop, [1.0, 2.0, 3.0])
    assert loop.result.failures == ()
    rows = read_metrics(tmp_path)
    assert [(r["step"], r["loss"]) for r in rows if "loss" in r] == series(tmp_path / "tb/rank_0", "train/loss")
    assert [(r["step"], r["eval_loss"]) for r in rows if "eval_loss" in r] == [(3, 1.0), (6, 2.0)]
    assert series(tmp_path / "tb/rank_0", "eval/eval_loss") == [(3, 1.0), (6, 2.0)]
