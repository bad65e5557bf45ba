"""`ConsoleLogger`: one plain line a row."""

from __future__ import annotations

import sys
from contextlib import nullcontext
from typing import Any, Final, TextIO

from eventloop import TrainState

from .rows import Output, Row, RowLogger

WHERE: Final = {"step_end": "", "train_end": "", "eval_end": "  eval", "epoch_end": "  epoch end"}


class ConsoleLogger(RowLogger):
    """Prints rows as plain lines: ``step 50/200  epoch 1  loss 0.6931``. Rank 0 alone prints.

    Lines go out at once and in the training thread, so that they stand in order with what the script prints itself.
    See `RowLogger` for when there is a row.

    Args:
        every: updates a row.
        file: where to; by default what ``sys.stderr`` is when a line is printed.
        first: a row for update 1 too.

    Raises:
        ValueError: an argument is out of range.
    """

    def __init__(self, every: int = 50, file: TextIO | None = None, first: bool = False) -> None:
        super().__init__(every, first)
        self.file = file

    def open(self, state: TrainState, resumed: bool) -> Output:
        """The terminal, or nothing on other ranks."""
        return _Lines(self.file, silent=state.rank > 0)


class _Lines:
    def __init__(self, file: TextIO | None, silent: bool) -> None:
        self._file, self._silent, self._written = file, silent, 0

    def put(self, record: Row) -> None:
        if self._silent:
            return
        total = f"/{record.total}" if record.total is not None else ""
        numbers = "".join(f"  {key} {value:.4g}" for key, value in record.values.items())
        line = f"step {record.step}{total}  epoch {record.epoch}{WHERE[record.event]}{numbers}"
        file = sys.stderr if self._file is None else self._file
        bars = sys.modules.get("tqdm")  # a bar that stands there moves below the line
        with nullcontext() if bars is None else bars.tqdm.external_write_mode(file=file):
            print(line, file=file, flush=True)
        self._written += 1

    def flush(self, timeout: float) -> bool:
        return True

    def close(self) -> None:
        pass

    def summary(self) -> dict[str, Any]:
        return {"written": self._written, "dropped": 0, "failed": None}
