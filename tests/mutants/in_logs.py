"""Faults of logs: rows that are torn, repaired, repeated or lost."""

from __future__ import annotations

from typing import Final

from .mutant import Mutant

ROWS: Final = "eventloop/rows.py"
WRITER: Final = "eventloop/writer.py"
LOGGER: Final = "callbacks/loggers/rows.py"
JSONL: Final = "callbacks/loggers/jsonl.py"
TENSORBOARD: Final = "callbacks/loggers/tensorboard.py"
CONSOLE: Final = "callbacks/loggers/console.py"

MUTANTS: Final = (
    Mutant(
        "NaN is repaired in the log",
        ROWS,
        'return "NaN"',
        "return 0.0",
        ("cases/test_log_cases.py::test_c25_a_strict_reader_takes_the_rows_of_a_run_that_diverges",),
    ),
    Mutant(
        "half a row of a killed writer stays in the log",
        ROWS,
        "            self._file.truncate(start)\n",
        "            pass\n",
        ("test_rows.py::test_a_file_cut_anywhere_is_repaired_by_whoever_appends",),
    ),
    Mutant(
        "rows of the part of a run that was lost stay",
        ROWS,
        "        self._file.truncate(end)",
        "        pass",
        ("test_rows.py::test_rows_of_later_steps_are_cut_and_no_others",),
    ),
    Mutant(
        "a full disk leaves half a row",
        ROWS,
        "            file.truncate(start + whole)",
        "            pass",
        ("test_rows.py::test_a_write_that_the_disk_takes_in_part_leaves_the_whole_rows_that_fitted",),
    ),
    Mutant(
        "the row for the rest is written after a failure too",
        LOGGER,
        'if event.status in ("completed", "stopped"):',
        "if True:",
        ("test_loggers.py::test_the_rest_is_written_only_if_the_run_is_completed_or_stopped",),
    ),
    Mutant(
        "the last row is written twice",
        LOGGER,
        "if state.step != self._last:",
        "if True:",
        ("test_loggers.py::test_a_run_with_nothing_left_to_do_writes_no_row_and_no_file",),
    ),
    Mutant(
        "an evaluation's row repeats the training loss",
        LOGGER,
        "self._write(event, state, {key: state.metrics[key] for key in state.metrics.fresh})",
        "self._write(event, state, dict(state.metrics))",
        ("test_loggers.py::test_an_evaluation_has_a_row_with_its_own_keys_alone",),
    ),
    Mutant(
        "rows before a checkpoint may be lost by a kill",
        LOGGER,
        "            output.flush(1.0)",
        "            pass",
        ("test_loggers.py::test_a_resumed_run_goes_on_with_the_open_window",),
    ),
    Mutant(
        "a resume forgets the open window",
        LOGGER,
        'self._loaded = state.get("window")',
        "self._loaded = None",
        ("test_loggers.py::test_a_resumed_run_goes_on_with_the_open_window",),
    ),
    Mutant(
        "a fresh run adds its rows to the log of another",
        JSONL,
        "if keep is None and path.exists() and path.stat().st_size:",
        "if False:",
        ("test_loggers.py::test_a_fresh_run_moves_the_log_of_an_earlier_one_aside",),
    ),
    Mutant(
        "a resumed log loses the row of the checkpoint's own step",
        JSONL,
        'row.get("step", 0) <= step',
        'row.get("step", 0) < step',
        ("cases/test_log_cases.py::test_c11_the_rows_of_the_lost_part_are_gone_and_each_step_is_there_once",),
    ),
    Mutant(
        "a resume does not purge the points of the lost part",
        TENSORBOARD,
        "        if resumed_at is not None:\n",
        "        if False:\n",
        ("cases/test_log_cases.py::test_c11_the_rows_of_the_lost_part_are_gone_and_each_step_is_there_once",),
    ),
    Mutant(
        "event files of one second are read in any order",
        TENSORBOARD,
        "max(time.time_ns(), last + 1)",
        "time.time_ns()",
        ("test_loggers.py::test_the_file_of_a_resumed_run_is_read_last_also_if_the_clock_is_behind",),
    ),
    Mutant(
        "every rank prints",
        CONSOLE,
        "silent=state.rank > 0",
        "silent=False",
        ("test_loggers.py::test_the_console_goes_to_stderr_and_on_rank_0_alone",),
    ),
    Mutant(
        "a forked worker starts a writer of its own",
        WRITER,
        "        if os.getpid() != self._pid:\n            return\n",
        "",
        ("test_writer.py::test_a_record_of_a_forked_child_starts_no_thread_there",),
    ),
    Mutant(
        "rows that wait at the end are lost",
        WRITER,
        "waiting = len(self._records)",
        "waiting = 0 if last else len(self._records)",
        ("test_writer.py::test_every_record_is_written_once_in_order",),
    ),
    Mutant(
        "a dead disk is told to nobody who logs",
        WRITER,
        "                raise self._failure() from self._error\n            return",
        "            return",
        ("test_writer.py::test_a_dead_sink_is_told_once_by_the_log_once_by_the_next_row_and_at_close",),
    ),
)
