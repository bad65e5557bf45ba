"""Rows of a log: strict JSON, one a line, each written whole or not at all, and read back as they were."""

from __future__ import annotations

import contextlib
import json
import math
import numbers
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from datetime import date
from io import FileIO
from os import PathLike
from pathlib import Path
from typing import Any, Final, cast

METRICS: Final = "metrics.jsonl"
"""The name of the metric log in a run's folder."""
LISTED: Final = 1000  # an array of more elements is told by its shape: a log is not a place for weights
BLOCK: Final = 4096
_TEXTS: Final = {"NaN": math.nan, "Infinity": math.inf, "-Infinity": -math.inf}


def plain(value: Any) -> Any:
    """The value as strict JSON can hold it; never an error, never dropped.

    NaN and the infinities become the texts "NaN", "Infinity" and "-Infinity"; NumPy scalars, tensors and small arrays
    their numbers; anything that JSON has no form for, a text.
    """
    if value is None or isinstance(value, bool | int | str):
        return value
    if isinstance(value, numbers.Real):
        return _text(float(value))
    if isinstance(value, Mapping):
        return _named(value)
    if isinstance(value, AbstractSet):
        return [plain(item) for item in sorted(value, key=repr)]
    if isinstance(value, Sequence) and not isinstance(value, bytes | bytearray | memoryview):
        return [plain(item) for item in value]
    if hasattr(value, "tolist") and hasattr(value, "dtype"):
        return _array(value)
    if isinstance(value, date):
        return value.isoformat()
    if isinstance(value, BaseException):
        return f"{type(value).__name__}: {value}"
    return str(value) if isinstance(value, PathLike) else repr(value)


def _text(number: float) -> float | str:
    if math.isnan(number):
        return "NaN"
    if math.isinf(number):
        return "Infinity" if number > 0 else "-Infinity"
    return number


def _named(mapping: Mapping[Any, Any]) -> dict[str, Any]:
    named: dict[str, Any] = {}
    for key, value in mapping.items():
        name = key if isinstance(key, str) else repr(key)
        while name in named:  # 1 and "1" are two keys, and both are kept
            name += "_"
        named[name] = plain(value)
    return named


def _array(value: Any) -> Any:
    shape = tuple(value.shape)
    if math.prod(shape) > LISTED:
        return f"{type(value).__name__} of shape {shape}, {value.dtype}"
    items = value.tolist()
    return repr(items) if isinstance(items, complex) else plain(items)


def number_of(value: Any) -> Any:
    """What `plain` made of a value, with the three texts turned back to floats."""
    if isinstance(value, str):
        return _TEXTS.get(value, value)
    if isinstance(value, list):
        return [number_of(item) for item in value]
    if isinstance(value, dict):
        return {name: number_of(item) for name, item in value.items()}
    return value


def encode(row: Mapping[Any, Any]) -> str:
    """A row as one line of strict JSON, without its line end."""
    return json.dumps(_named(row), allow_nan=False)


def decode(line: str | bytes) -> dict[str, Any]:
    """The row that `encode` made the line of.

    Raises:
        ValueError: the line is no row.
    """
    row = json.loads(line)
    if not isinstance(row, dict):
        raise ValueError(f"{line[:80]!r} is not a row")  # noqa: TRY004  # a text of another content, not another type
    texts = (b"NaN", b"Infinity") if isinstance(line, bytes) else ("NaN", "Infinity")
    odd = any(text in line for text in texts)  # type: ignore[operator]  # both are of one type
    return cast("dict[str, Any]", number_of(row)) if odd else row  # looking at each value takes longer than parsing


def append_whole(file: FileIO, pieces: Sequence[bytes]) -> None:
    """Append the pieces to an unbuffered file in one write.

    Raises:
        OSError: it failed, on a full disk for example; those pieces that fitted whole are in the file, and no half one.
    """
    start = file.seek(0, 2)
    left = memoryview(b"".join(pieces))
    size = len(left)
    try:
        while left:
            left = left[file.write(left) :]  # a raw write may take a part only
    except OSError:
        done, whole = size - len(left), 0
        for piece in pieces:
            if whole + len(piece) > done:
                break
            whole += len(piece)
        with contextlib.suppress(OSError):
            file.truncate(start + whole)
        raise


class LineFile:
    """A file of rows, open for append.

    Opening repairs what a killed writer has left: half a row is cut off, a whole one that merely lacks its line end is
    finished. Only the end of the file is read for it. Nothing is buffered here: what it was given is the
    operating system's when it returns, so a kill or a fork finds nothing to lose or to write twice.

    Args:
        path: the file; it and its folders are made.
        keep: rows at the end of the file for which it is false are cut off, back to the last row for which it is
            true. In a log that rises in steps these are the rows of a part of the run that was lost.
    """

    def __init__(self, path: str | PathLike[str], keep: Callable[[Mapping[str, Any]], bool] | None = None) -> None:
        self.path = Path(path)
        self.path.parent.mkdir(parents=True, exist_ok=True)
        self._file = self.path.open("a+b", buffering=0)
        try:
            self._repair()
            if keep is not None:
                self._cut(keep)
        except BaseException:
            self.close()
            raise

    def append(self, row: Mapping[Any, Any]) -> None:
        """Append one row; see `extend`."""
        self.extend([row])

    def extend(self, rows: Iterable[Mapping[Any, Any]]) -> None:
        """Append the rows in one write.

        Raises:
            OSError: the file took not all of them; it ends with a whole row all the same.
        """
        append_whole(self._file, [encode(row).encode() + b"\n" for row in rows])

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _repair(self) -> None:
        end = self._file.seek(0, 2)
        if not end or self._read(end - 1, end) == b"\n":
            return
        start = self._line_start(end)
        if _row(self._read(start, end)) is None:
            self._file.truncate(start)
        else:
            self._file.write(b"\n")

    def _cut(self, keep: Callable[[Mapping[str, Any]], bool]) -> None:
        here = end = self._file.seek(0, 2)
        while here:
            here, line_end = self._line_start(here - 1), here
            row = _row(self._read(here, line_end))
            if row is None:
                continue  # a line that is not ours goes only if a row before it goes
            if keep(row):
                break
            end = here
        self._file.truncate(end)

    def _line_start(self, end: int) -> int:
        """Where the line that ``end`` is in, or just behind, begins."""
        while end:
            start = max(end - BLOCK, 0)
            at = self._read(start, end).rfind(b"\n")
            if at >= 0:
                return start + at + 1
            end = start
        return 0

    def _read(self, start: int, end: int) -> bytes:
        self._file.seek(start)
        parts = []
        while start < end and (part := self._file.read(end - start)):
            parts.append(part)
            start += len(part)
        return b"".join(parts)


def _row(line: bytes) -> dict[str, Any] | None:
    try:
        return decode(line)
    except ValueError:
        return None


def read_rows(path: str | PathLike[str]) -> Iterator[dict[str, Any]]:
    """The rows of a file, in order; a torn last line, which is being written or never was, is passed over.

    Raises:
        ValueError: another line is no row; the message names file and line.
    """
    with Path(path).open("rb") as file:
        for number, line in enumerate(file, 1):
            row = _row(line)
            if row is not None:
                yield row
            elif line.endswith(b"\n"):
                raise ValueError(f"{path}, line {number}: {line[:80]!r} is not a row")


def read_metrics(run: str | PathLike[str]) -> list[dict[str, Any]]:
    """The rows that `JSONLLogger` wrote, as flat mappings with NaN and the infinities as floats.

    ``row["event"]`` tells what a row is of: ``step_end`` (means over the updates since the row before), ``eval_end``
    (one evaluation) or ``epoch_end`` (what was reported at an epoch's end).

    Args:
        run: the run's folder, or the file itself.

    Raises:
        FileNotFoundError: there is none.
        ValueError: the file holds a line that is no row.
    """
    path = Path(run)
    return list(read_rows(path / METRICS if path.is_dir() else path))
