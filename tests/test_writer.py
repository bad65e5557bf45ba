"""The training thread never waits for a sink: not for a slow one, not for a full disk, not for a dead one."""

import logging
import subprocess
import sys
import threading
import time

import pytest

from eventloop import read_metrics
from eventloop.writer import Writer

HOUR = 3600.0


class Box:
    """A sink in memory; writing waits while ``gate`` is shut."""

    def __init__(self, gate=None):
        self.batches, self.gate, self.closed = [], gate, 0
        self.busy = threading.Event()

    def write(self, records):
        self.busy.set()
        if self.gate is not None:
            assert self.gate.wait(30)
        self.batches.append(records)

    def close(self):
        self.closed += 1

    @property
    def records(self):
        return [record for batch in self.batches for record in batch]


class Broken(Box):
    def write(self, records):
        if records[0] > 0:
            raise OSError(28, "No space left on device")
        super().write(records)


def writer(sink, **options):
    return Writer("Test to box", lambda: sink, **{"pause": HOUR, **options})


def test_every_record_is_written_once_in_order():
    box = Box()
    out = writer(box, limit=100_000)
    for n in range(30_000):
        out.put(n)
    out.close()
    assert box.records == list(range(30_000))
    assert (box.closed, out.summary()) == (1, {"written": 30_000, "dropped": 0, "failed": None})


def test_the_thread_is_not_woken_for_each_record():
    box = Box()
    out = writer(box)
    for n in range(100):
        out.put(n)
    assert out.flush()
    assert box.batches == [list(range(100))]
    out.close()


def test_a_queue_that_is_half_full_wakes_the_thread():
    box = Box()
    out = writer(box, limit=100)
    for n in range(50):
        out.put(n)
    assert box.busy.wait(30)
    out.close()
    assert box.records == list(range(50))


def test_a_sink_that_hangs_costs_the_oldest_records_and_no_time(caplog):
    gate = threading.Event()
    box = Box(gate)
    out = writer(box, limit=10)
    out.put(0)
    assert not out.flush(0)
    assert box.busy.wait(30)  # record 0 is under way
    for n in range(1, 101):
        out.put(n)
    assert out.summary() == {"written": 0, "dropped": 90, "failed": None}
    gate.set()
    out.close()
    assert box.records == [0, *range(91, 101)]
    assert "90 records were dropped" in caplog.text


def test_on_a_disk_of_50_ms_a_write_a_row_costs_the_training_thread_under_20_us():
    class Slow(Box):
        def write(self, records):
            threading.Event().wait(0.05)
            super().write(records)

    box = Slow()
    out = writer(box, pause=0.001)
    out.put(0)
    start = time.thread_time()  # that it never waits is shown above
    for n in range(1, 5000):
        out.put(n)
    spent = time.thread_time() - start
    out.close(30)
    assert len(box.records) == 5000
    assert spent < 5000 * 20e-6


def test_a_dead_sink_is_told_once_by_the_log_once_by_the_next_row_and_at_close(caplog):
    box = Broken()
    out = writer(box)
    out.put(0)
    assert out.flush()
    out.put(1)
    assert not out.flush()
    with pytest.raises(OSError, match=r"Test to box failed: .*No space left on device; 1 records written") as caught:
        out.put(2)
    assert caught.value.errno == 28
    for n in range(3, 10):
        out.put(n)
    with pytest.raises(OSError, match="Test to box failed"):
        out.close()
    assert [r.levelno for r in caplog.records] == [logging.WARNING]
    assert "Test to box writes no more: OSError: [Errno 28] No space left on device" in caplog.text
    summary = out.summary()
    assert (summary["written"], summary["dropped"], box.closed) == (1, 9, 1)
    assert "No space left" in summary["failed"]


def test_a_sink_that_cannot_be_opened_is_a_dead_one(caplog):
    def refuse():
        raise PermissionError(13, "Permission denied", "/var/log/run")

    out = Writer("Test", refuse, pause=HOUR)
    out.put(1)
    assert not out.flush()
    with pytest.raises(PermissionError, match="Test failed: PermissionError"):
        out.close()
    assert out.summary()["dropped"] == 1
    assert len(caplog.records) == 1


def test_closing_is_bounded_and_says_what_was_left():
    gate = threading.Event()
    out = writer(Box(gate))
    for n in range(7):
        out.put(n)
    with pytest.raises(TimeoutError, match=r"Test to box: 7 records are still not written 0.01 s after closing"):
        out.close(0.01)
    gate.set()


def test_a_writer_that_was_given_nothing_opens_nothing():
    opened = []
    out = Writer("Test", lambda: opened.append(1))
    assert out.flush()
    out.close()
    assert opened == []
    assert "Test" not in [thread.name for thread in threading.enumerate()]


def test_what_comes_after_closing_is_counted_as_dropped():
    box = Box()
    out = writer(box)
    out.put(1)
    out.close()
    out.put(2)
    assert out.summary() == {"written": 1, "dropped": 1, "failed": None}


# -- with real files, in processes of their own ------------------------------------------------------------------------

START = """
import os, sys, resource
from pathlib import Path
from eventloop import *
from callbacks import JSONLLogger, TensorBoardLogger
folder = Path(sys.argv[1])
bus = Bus()
logger = {logger}
bus.attach(logger)
bus.bind(run_dir=folder)
bus.publish(TrainBegin())
def step(n):
    bus.publish(StepEnd(), TrainState(step=n, metrics={{"loss": 0.5, "text" * 10: 1.0}}))
"""


def script(tmp_path, body, logger="JSONLLogger(every=1)", prefix=()):
    """Run a loop in a process of its own; returns what it printed."""
    code = START.format(logger=logger) + body
    command = [*prefix, sys.executable, "-W", "ignore", "-c", code, str(tmp_path)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr
    return done.stdout.split()


def test_a_script_that_ends_without_closing_has_all_its_rows(tmp_path):
    script(tmp_path, "[step(n) for n in range(1, 21)]")
    assert [row["step"] for row in read_metrics(tmp_path)] == list(range(1, 21))


FORK = """
step(1)
{before}
if os.fork() == 0:
    step(100)
    bus.close()
    sys.exit(0)
os.wait()
step(2)
bus.close()
"""


@pytest.mark.parametrize("before", ["", "logger.state_dict()"])
def test_a_forked_child_writes_and_closes_nothing(tmp_path, before):
    script(tmp_path, FORK.format(before=before))
    assert [row["step"] for row in read_metrics(tmp_path)] == [1, 2]


ALONE = """
import threading
from eventloop.writer import Writer
shared = Writer("shared", object)
child = os.fork()
if child == 0:
    shared.put(1)
    os._exit(threading.active_count())
print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
"""


def test_a_record_of_a_forked_child_starts_no_thread_there(tmp_path):
    """Fails if a worker, to which the parent's queue has been copied, begins to write by itself."""
    assert script(tmp_path, ALONE) == ["1"]


FULL = """
{limit}
for n in range(1, 20001):
    step(n)
    if n % 5000 == 0:
        logger.state_dict()
bus.close()
told = logger.summary()
print(told["written"] + told["dropped"], told["dropped"] > 0, "Errno" in told["failed"], len(bus.failures))
"""
LIMITED = "resource.setrlimit(resource.RLIMIT_FSIZE, (2**18, 2**18))"


def may_mount():
    """Whether a disk of our own can be made here, in a namespace that goes with the process."""
    test = ["unshare", "--user", "--map-root-user", "--mount", "mount", "-t", "tmpfs", "tmpfs", "/mnt"]
    try:
        return subprocess.run(test, capture_output=True, timeout=30, check=False).returncode == 0
    except OSError:
        return False


DISKS = ["a limit on the file's size", *(["a disk of 256 KB"] if may_mount() else [])]


@pytest.mark.parametrize("disk", DISKS)
@pytest.mark.parametrize("logger", ["JSONLLogger(every=1)", "TensorBoardLogger(every=1)"])
def test_a_full_disk_costs_rows_and_never_the_run(tmp_path, logger, disk):
    real = disk.startswith("a disk")
    mount = 'mount -t tmpfs -o size=256k tmpfs "$0" && exec "$@"'
    shell = ["unshare", "--user", "--map-root-user", "--mount", "sh", "-c", mount, str(tmp_path)] if real else []
    told = script(tmp_path, FULL.format(limit="" if real else LIMITED), logger, shell)
    assert told == ["20000", "True", "True", "2"]


def test_what_fitted_on_the_full_disk_is_whole_rows(tmp_path):
    script(tmp_path, FULL.format(limit=LIMITED))
    steps = [row["step"] for row in read_metrics(tmp_path)]
    assert steps == list(range(1, len(steps) + 1))
    assert len(steps) > 1000
    assert (tmp_path / "metrics.jsonl").stat().st_size <= 2**18
