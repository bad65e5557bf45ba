"""`eventloop diff`: the first event at which two recorded runs differ, and who made the difference."""

import contextlib

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from small_runs import Cut, Recipe, count, cut_at, train

from callbacks import EarlyStopping, GradNormMonitor, ModelCheckpoint, WarmupCosine
from eventloop import Bus, Priority, Report, Save, SetLR, Stop
from eventloop.cli import main
from eventloop.diff import diff_runs, same

SCORES = {1: 0.5, 2: 0.4, 3: 0.6, 4: 0.7, 5: 0.8, 6: 0.9, 7: 1.0, 8: 1.0}


def run(folder, *callbacks, scores=SCORES, bus=None, journal="full", max_steps=8):
    count(folder, *callbacks, scores=scores, bus=bus, journal=journal, max_steps=max_steps)
    return folder


def rewrite(folder, rows, *more):
    """Leave the first rows of a journal alone."""
    path = folder / "journal.jsonl"
    path.write_bytes(b"".join([*path.read_bytes().splitlines(keepends=True)[:rows], *more]))


def command(*arguments):
    done = CliRunner().invoke(main, ["diff", *map(str, arguments)])
    return done.exit_code, done.output.splitlines()


def test_equal_runs_have_no_difference(tmp_path):
    runs = [run(tmp_path / name, EarlyStopping("eval_loss")) for name in "ab"]
    assert command(*runs) == (0, ["no difference in 31 rows"])


def test_another_patience_is_named_and_so_is_the_stop_that_it_made(tmp_path):
    runs = [run(tmp_path / f"p{patience}", EarlyStopping("eval_loss", patience=patience)) for patience in (3, 2)]
    code, lines = command(*runs, "--context", 2)
    assert code == 1
    assert lines == [
        "settings differ: EarlyStopping: patience 3 against 2",
        "first difference at eval_end of step 4: Stop, by EarlyStopping",
        f"  {runs[0]}: nothing",
        f"  {runs[1]}: Stop by EarlyStopping: eval_loss has not improved on 0.4 for 2 evaluations",
        "before it, in both:",
        "  step_end of step 4",
        "  eval_begin of step 4",
    ]


def test_another_seed_shows_in_a_loss_that_is_the_loops_own(tmp_path):
    for seed in (0, 1):
        train(Recipe(), tmp_path / str(seed), GradNormMonitor(), seed=seed, journal="full")
    told = diff_runs(tmp_path / "0", tmp_path / "1")
    assert told.remarks == ["seed: 0 against 1"]
    assert told.settings == []
    assert (told.first.who, told.first.what) == ("the loop", "metric loss")
    assert (told.row["event"], told.row["step"]) == ("gradients_ready", 0)
    assert told.first.a != told.first.b


def test_a_value_that_a_handler_reported_is_that_handlers_difference(tmp_path):
    for value in (1.0, 2.0):
        bus = Bus()
        bus.on("step_end", lambda event, state, value=value: Report(steady=0.5, x=value), name="meter", every=4)
        run(tmp_path / str(value), bus=bus)
    told = diff_runs(tmp_path / "1.0", tmp_path / "2.0")
    assert told.first == ("meter", "metric x", 1.0, 2.0)
    assert (told.row["event"], told.row["step"]) == ("step_end", 4)


def test_another_learning_rate_is_named_with_its_schedule(tmp_path):
    runs = [run(tmp_path / str(steps), WarmupCosine(2, steps)) for steps in (8, 9)]
    told = diff_runs(*runs)
    assert told.settings == ["WarmupCosine: total_steps 8 against 9"]
    assert (told.first.who, told.first.what) == ("WarmupCosine", "SetLR")
    assert (told.row["event"], told.row["step"]) == ("step_begin", 3)


def test_a_rate_that_the_body_has_set_is_the_loops_own(tmp_path):
    for rate in (1.0, 0.5):
        bus = Bus()
        bus.on("train_begin", lambda event, state, rate=rate: SetLR(rate) if rate < 1 else None, name="setter")
        run(tmp_path / str(rate), bus=bus)
    told = diff_runs(tmp_path / "1.0", tmp_path / "0.5")
    assert (told.first.who, told.first.a) == ("setter", "nothing")


def test_a_failure_is_its_handlers_difference(tmp_path):
    for name in ("well", "ill"):
        bus = Bus()
        bus.on("step_end", lambda event, state, ill=name == "ill": 1 / 0 if ill else None, name="logger", once=3)
        run(tmp_path / name, bus=bus)
    told = diff_runs(tmp_path / "well", tmp_path / "ill")
    assert told.first.who == "logger"
    assert told.other["event"] == "handler_failed"
    assert "handler_failed of step 3" in str(told)


def test_another_order_of_handlers_is_told_first(tmp_path):
    two = [EarlyStopping("eval_loss", patience=9), WarmupCosine(1)]
    run(tmp_path / "a", *two)
    run(tmp_path / "b", *reversed([EarlyStopping("eval_loss", patience=9), WarmupCosine(1)]))
    told = diff_runs(tmp_path / "a", tmp_path / "b")
    assert "callbacks: EarlyStopping, WarmupCosine against WarmupCosine, EarlyStopping" in told.settings
    assert (told.first, told.equal) == (None, False)


def test_options_of_the_loop_are_settings(tmp_path):
    told = diff_runs(run(tmp_path / "a"), run(tmp_path / "b", max_steps=5))
    assert told.settings == ["max_steps: 8 against 5"]
    assert (told.first.who, told.first.what) == ("the loop", "counter total")


def test_short_journals_are_compared_coarsely_and_it_says_so(tmp_path):
    runs = [
        run(tmp_path / "a", EarlyStopping("eval_loss", patience=3), journal="short"),
        run(tmp_path / "b", EarlyStopping("eval_loss", patience=2)),
        run(tmp_path / "c", EarlyStopping("eval_loss", patience=3)),
    ]
    code, lines = command(runs[0], runs[1])
    assert code == 1
    assert lines[1] == "compared coarsely, for a journal is short: lifecycle, requests and failures alone"
    assert lines[2].endswith("another event, by EarlyStopping")
    assert command(runs[0], runs[2])[0] == 0


def test_a_run_that_ends_earlier_differs_where_it_ends(tmp_path):
    runs = [run(tmp_path / name) for name in "ab"]
    rewrite(runs[1], 10)
    told = diff_runs(*runs)
    assert (told.rows, told.first.b) == (10, "the rows end here")


def test_numbers_that_are_near_enough_are_equal_if_one_says_so(tmp_path):
    runs = [run(tmp_path / str(i), scores={**SCORES, 5: 0.8 + i * 1e-9}) for i in (0, 1)]
    assert command(*runs)[0] == 1
    assert command(*runs, "--rtol", "1e-6")[0] == 0


@given(st.floats(), st.floats(), st.sampled_from([0.0, 1e-3]))
def test_a_number_is_the_same_as_itself_and_as_what_is_near_it(a, b, rtol):
    """Failed where NaN was unlike NaN."""
    assert same(a, a, rtol)
    assert same(a, b, rtol) == same(b, a, rtol)
    assert same([{"x": a}], [{"x": b}]) == (a == b or (a != a and b != b))


def test_what_cannot_be_compared_is_an_error_that_names_it(tmp_path):
    (tmp_path / "empty").mkdir()
    whole = run(tmp_path / "whole")
    code, (line,) = command(whole, tmp_path / "empty")
    assert (code, line) == (
        2,
        f"error: {tmp_path / 'empty'} has no journal (journal.jsonl); a Loop with a run_dir writes one",
    )
    rewrite(run(tmp_path / "lossy"), 5, b'{"event": "missing", "time": 0.0, "rows": 3}\n')
    code, (*_, line) = command(whole, tmp_path / "lossy")
    assert code == 2
    assert "lacks rows from here on" in line


def test_a_stop_by_another_handler_is_told_from_the_first_ones(tmp_path):
    for name in ("one", "two"):
        bus = Bus()
        bus.on("eval_end", lambda event, state: Stop("same"), name="always", once=4)
        if name == "two":
            bus.on("eval_end", lambda event, state: Stop("same"), name="before", priority=1, once=4)
        run(tmp_path / name, bus=bus)
    told = diff_runs(tmp_path / "one", tmp_path / "two")
    assert told.first.who == "before"
    assert "handlers of eval_end: always against before, always" in told.settings


class Saves:
    priority = Priority.SAVE

    def on_eval_end(self, event, state):
        return Save("also")


def test_a_request_that_one_run_alone_has_is_not_compared_with_another_ones(tmp_path):
    """Fails if the n-th request of one run is held against the n-th of the other, whoever made it."""
    runs = [run(tmp_path / f"p{n}", EarlyStopping("eval_loss", patience=n), Saves()) for n in (3, 2)]
    for pair, nothing in ((runs, 0), (runs[::-1], 1)):
        _, lines = command(*pair, "--context", 0)
        first = next(i for i, line in enumerate(lines) if line.startswith("first difference"))
        assert lines[first] == "first difference at eval_end of step 4: Stop, by EarlyStopping"
        assert lines[first + 1 + nothing] == f"  {pair[nothing]}: nothing"


@pytest.mark.parametrize("saves", ["sync", "wait"])
def test_a_run_cut_and_resumed_is_equal_to_the_whole_one(tmp_path, saves):
    """Fails if the planned total, which each sitting learns anew, is compared where one of two does not know it."""

    def part(name, *cutters, **options):
        saver = ModelCheckpoint(every_epochs=1, save_top_k=-1)
        train(Recipe(evaluate_every=2), tmp_path / name, saver, *cutters, journal="full", saves=saves, **options)

    part("whole")
    with contextlib.suppress(Cut):
        part("cut", cut_at(12))
    part("cut", resume="auto")
    told = diff_runs(tmp_path / "whole", tmp_path / "cut")
    assert told.first is None, told
