"""`TensorBoardLogger`: the rows as scalars in an event file."""

from __future__ import annotations

import itertools
import numbers
import os
import re
import socket
import struct
import time
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Final

from eventloop import TrainState
from eventloop.log import logger
from eventloop.rows import append_whole
from eventloop.writer import Writer

from .aside import beside
from .rows import Row, RowLogger

GROUPS: Final = {"step_end": "train", "train_end": "train", "eval_end": "eval", "epoch_end": "epoch"}
_OURS: Final = re.compile(r"events\.out\.tfevents\.(\d{10,})\.(\d{9})\.")
_count: Final = itertools.count()


class TensorBoardLogger(RowLogger):
    """Writes rows to a TensorBoard event file.

    The tag of a metric is its name behind a group: ``train/`` for the rows of updates, ``eval/`` for evaluations,
    ``epoch/`` for what was reported at an epoch's end. The x axis is the number of finished updates. See `RowLogger`
    for when there is a row.

    A resumed run writes a new file that tells TensorBoard to forget the points of the part that was lost. A fresh run
    moves the files that this logger has written there before to a folder beside them. No two files have one name,
    whoever writes in the same second, and a full disk costs points, never training time: see `Writer`.

    Args:
        log_dir: the folder, for rank 0, and below it ``rank_<n>`` for the others; ``tb/rank_<n>`` in the run's folder
            if left out.
        every: updates a row.
        first: a row for update 1 too.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, log_dir: str | PathLike[str] | None = None, every: int = 50, first: bool = False) -> None:
        super().__init__(every, first)
        self.log_dir = log_dir

    def locate(self, run_dir: Path | None) -> Path:
        """The folder given, else the run folder's."""
        if self.log_dir is not None:
            return Path(self.log_dir)
        if run_dir is None:
            raise ValueError("TensorBoardLogger has no place for its files: give it a log_dir=, or the run a run_dir")
        return run_dir / "tb"

    def open(self, state: TrainState, resumed: bool) -> Writer:
        """A writer to a new event file of this rank."""
        import tensorboardX.proto.event_pb2  # noqa: F401  # half a second, better here than while training

        folder = self.target or self.locate(None)
        if state.rank or self.log_dir is None:
            folder /= f"rank_{state.rank}"
        sink = partial(EventFile, folder, state.step if resumed else None)
        writer = Writer(f"{type(self).__name__} to {folder}", sink)
        if resumed:
            writer.start()
        return writer


class EventFile:
    """The sink: rows as TensorBoard events.

    tensorboardX gives the messages and the checksum. Its own file writer is not used: it names a file by the second,
    so that two writers overwrite each other, and buffers, so that a forked child writes the buffer again.

    Args:
        folder: where the file is made.
        resumed_at: the step that the run goes on from; what TensorBoard knows of later ones it is to forget.
    """

    def __init__(self, folder: Path, resumed_at: int | None) -> None:
        from tensorboardX.proto import event_pb2, summary_pb2

        self._event, self._summary = event_pb2.Event, summary_pb2.Summary
        self._skipped: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)
        earlier = [(path, found) for path in folder.iterdir() if (found := _OURS.match(path.name))]
        first = [self._event(wall_time=time.time(), file_version="brain.Event:2")]
        if resumed_at is not None:
            start = event_pb2.SessionLog(status=event_pb2.SessionLog.START)
            first.append(self._event(wall_time=time.time(), step=resumed_at + 1, session_log=start))
        elif earlier:
            _move_aside(folder, [path for path, _ in earlier])
        # The reader goes through the files by name, so ours must come last, also if this machine's clock is behind.
        last = max((int(found[1] + found[2]) for _, found in earlier), default=0)
        self._file = (folder / _file_name(max(time.time_ns(), last + 1))).open("xb", buffering=0)
        append_whole(self._file, [_frame(event) for event in first])

    def write(self, records: list[Row]) -> None:
        """Append an event a row."""
        events = [self._of(row) for row in records]
        append_whole(self._file, [_frame(event) for event in events if event.summary.value])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _of(self, row: Row) -> Any:
        values = []
        for key, value in row.values.items():
            number = _number(value)
            if number is not None:
                values.append(self._summary.Value(tag=f"{GROUPS[row.event]}/{key}", simple_value=number))
            elif key not in self._skipped:
                self._skipped.add(key)
                logger().warning(f"TensorBoard has no scalar for {key!r}, which is {value!r}; it is left out")
        return self._event(wall_time=row.time, step=row.step, summary=self._summary(value=values))


def _number(value: Any) -> float | None:
    if isinstance(value, numbers.Real):
        return float(value)
    try:
        return float(value.item())  # NumPy and tensors of one element
    except (AttributeError, TypeError, ValueError, RuntimeError):
        return None


def _frame(event: Any) -> bytes:
    from tensorboardX.record_writer import masked_crc32c

    data = event.SerializeToString()
    length = struct.pack("<Q", len(data))
    check, last = struct.pack("<I", masked_crc32c(length)), struct.pack("<I", masked_crc32c(data))
    return length + check + bytes(data) + last


def _file_name(ns: int) -> str:
    seconds, rest = divmod(ns, 10**9)
    return f"events.out.tfevents.{seconds}.{rest:09d}.{socket.gethostname()}.{os.getpid()}.{next(_count)}"


def _move_aside(folder: Path, files: list[Path]) -> None:
    aside = beside(folder / "events")
    aside.mkdir()
    for path in files:
        path.rename(aside / path.name)
    logger().warning(f"{folder} has events of another run; moved aside to {aside.name}")
