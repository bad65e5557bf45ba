"""Replays of runs that were interrupted, killed or resumed, and of journals that lack what came in between."""

import contextlib
import json
import logging

import pytest
import torch
from small_runs import Count, on_disk

from callbacks import EarlyStopping, ModelCheckpoint
from eventloop import Loop, read_stream
from eventloop.replay import replay


@pytest.fixture(autouse=True)
def quiet(monkeypatch):
    monkeypatch.setattr(logging.getLogger("eventloop"), "disabled", True)


def record(run_dir, *callbacks, scores=(1.0, 0.9, 0.95), until=99, resume=None, **options):
    """Up to three epochs of four updates; an interrupt comes behind the update ``until``, or in an evaluation of
    None."""

    def evaluate():
        score = scores[loop.state.epoch - 1]
        if score is None:
            raise KeyboardInterrupt
        return {"eval_loss": score}

    model = Count()
    optimizer = torch.optim.SGD(model.parameters(), lr=1.0)
    options = {"max_epochs": 3, "evaluate": evaluate, "journal": "full", **options}
    loop = Loop(model, optimizer, run_dir=run_dir, callbacks=callbacks, resume=resume, **options)
    with contextlib.suppress(KeyboardInterrupt), loop:
        for _ in loop.epochs():
            for _ in loop.batches(range(4)):
                loop.backward(model())
                loop.update()
                if loop.state.step == until:
                    raise KeyboardInterrupt


def rows_of(run_dir):
    return (run_dir / "journal.jsonl").read_text().splitlines(keepends=True)


def rewrite(run_dir, rows):
    """Without numbers, as where rows were never written."""
    plain = [{name: value for name, value in json.loads(row).items() if name != "n"} for row in rows]
    (run_dir / "journal.jsonl").write_text("".join(json.dumps(row) + "\n" for row in plain))


@pytest.mark.parametrize("until", [5, 9, 11])
@pytest.mark.parametrize(("top_k", "mode"), [(1, "wait"), (2, "wait"), (2, "sync")])
def test_what_a_resumed_run_keeps_is_what_is_in_its_folder(tmp_path, until, top_k, mode):
    """Broken by losing, with the process, what was asked to be kept at its last checkpoint."""
    for number in range(2):
        savers = ModelCheckpoint("eval_loss", save_top_k=top_k), ModelCheckpoint(every_epochs=2)
        options = {"until": 99 if number else until, "resume": "auto", "saves": mode}
        record(tmp_path, EarlyStopping("eval_loss", patience=9), *savers, **options)
    played = replay(tmp_path)
    assert played.reproduced, played
    assert {*played.kept} == on_disk(tmp_path)


@pytest.mark.parametrize("every", [2, 3, 4])
def test_an_interrupt_in_an_epochs_evaluation_leaves_the_save_that_waits_undone(tmp_path, every):
    """Broken by carrying out at a boundary what waited for the epoch's end."""
    record(tmp_path, EarlyStopping("eval_loss"), ModelCheckpoint(every_steps=every), scores=(1.0, None))
    played = replay(tmp_path)
    assert played.reproduced, played
    assert {*played.kept} == on_disk(tmp_path)
    assert any((entry.request, entry.fate) == ("Save", "expired") for entry in played.ledger) == (every != 3)


@pytest.mark.parametrize("saves", ["sync", "wait"])
def test_a_record_may_end_at_any_row_but_between_a_save_and_its_fate(tmp_path, saves):
    """Broken by passing over the rows behind the last turn, and by deciding more than they tell."""
    savers = EarlyStopping("eval_loss", patience=1), ModelCheckpoint("eval_loss")
    record(tmp_path, *savers, scores=(1.0, 2.0), saves=saves)
    rows = rows_of(tmp_path)
    assert sum('"Stop"' in row for row in rows) == 2
    ends = [end for end in range(2, len(rows)) if '"checkpoint_saved"' not in rows[end - 1]]  # the save's fate follows
    for end in ends:
        rewrite(tmp_path, rows[:end])
        played = replay(tmp_path)
        assert played.reproduced, (rows[end - 1], played)
        assert played.open


@pytest.mark.parametrize(("update", "counter"), [(6, "update 6"), (8, "evals 1")])
def test_a_journal_that_was_not_written_for_a_while_is_refused(tmp_path, update, counter):
    """Broken by taking the sitting's own rows for what came before them."""
    for until in (9, 99):
        record(tmp_path, ModelCheckpoint("eval_loss"), until=until, resume="auto")
    rows = rows_of(tmp_path)
    full = next(i for i, row in enumerate(rows) if '"step_end"' in row and json.loads(row)["step"] == update) + 1
    again = next(i for i, row in enumerate(rows) if json.loads(row).get("resumed"))
    begin = json.loads(rows[again])
    rewrite(tmp_path, [*rows[:full], json.dumps({**begin, "after": None}), *rows[again + 1 :]])
    assert not read_stream(tmp_path).whole
    with pytest.raises(ValueError, match=f"lacks the rows between {counter} and the resume at update 8"):
        replay(tmp_path)


@pytest.mark.parametrize("saves", ["sync", "wait"])
def test_a_record_killed_between_the_commit_and_the_rows_of_a_checkpoint_is_replayed(tmp_path, saves):
    """Broken by taking the end that the checkpoint knows for that of the history."""
    for until in (9, 99):
        record(tmp_path, ModelCheckpoint("eval_loss"), until=until, resume="auto", saves=saves)
    rows = rows_of(tmp_path)
    again = next(i for i, row in enumerate(rows) if json.loads(row).get("resumed"))
    after = json.loads(rows[again])["after"]
    text = "".join(rows[:again])
    assert '"Save"' in text[after:]
    (tmp_path / "journal.jsonl").write_text(text[:after] + "".join(rows[again:]))
    assert read_stream(tmp_path).whole
    played = replay(tmp_path)
    assert played.verified, played
    assert sum((entry.request, entry.decided) == ("Save", 8) for entry in played.ledger) == 1


def test_another_metric_does_not_take_over_the_mode_of_the_one_before(tmp_path):
    """Broken by the mode that run.json has of the recorded one."""
    record(tmp_path, EarlyStopping("eval_loss", mode="max", patience=1))
    with pytest.raises(ValueError, match="mode"):
        replay(tmp_path, {"EarlyStopping.monitor": "other"})
    assert replay(tmp_path, {"EarlyStopping.monitor": "loss"}).mode == "min"
    assert replay(tmp_path, {"EarlyStopping.monitor": "other", "EarlyStopping.mode": "max"}).mode == "max"
