"""Reading a journal back: `read_stream` gives what happened in a run, in order, as one history.

Each row is a flat mapping: ``event`` (a name, or "request": the fate of a request), ``time`` (seconds since the epoch),
``step``, ``epoch``, ``elapsed`` and what the event says of itself (``skipped``, ``completed``, ``checkpoint``,
``tags``, ``status``, ``reason``, ``handler``, ``at``, ``error``; of a class of the user's own ``fields``). Those of a
full journal also have:

``counters``
    update, micro, samples, evals, skipped and total, as the handlers saw them.
``lr``
    the rate of each group when the dispatch was over.
``metrics``, ``reported``
    values that are fresh since the row before: what the loop itself gave, and what handlers reported at this event. A
    name in both was given by the loop and replaced by a handler. At step_begin what was fresh before is so no more; at
    eval_end the row has all that is.
``asked``
    ``[who, class name, content]`` of every reply in order. The content of Stop and SkipUpdate is the reason, of Save
    the tag, of Keep the steps (with ``make_room`` both by name), of SetLR the rates by group, of Report the names; of a
    user's class its fields.
``failed``
    ``[who, event, error, policy]`` of every handler that failed.
``nested``
    the event was published inside a handler, and its row stands before that of the publish around it, which has what
    was asked for; or it was published past the loop. Its ``metrics`` are all that is fresh.
``interrupted``
    a KeyboardInterrupt or the like ended the dispatch; nobody knows what else was asked for.

The row of ``train_begin`` also has ``loop`` (its limits and other options) and ``handlers``: for each event who hears
it, in running order.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Final, NamedTuple

from .journal import JOURNAL
from .journal_file import NUMBER
from .rows import decode
from .stream_saves import Place, Row, Span, Taken, Takings

MARK: Final = f'"{NUMBER}": '.encode()
UNMARKED: Final = (b'{"event": "step_begin"', b'{"event": "step_end"', b'{"event": "gradients_ready"')
"""How the rows begin that say nothing about where a sitting or a checkpoint begins; most of a file is such rows."""
COUNTED: Final = ("update", "micro", "evals")


class Line(NamedTuple):
    """A line of the file, by its place in bytes."""

    start: int
    end: int
    text: bytes


class Sitting(NamedTuple):
    """One process's part of a run: from ``start`` to the end of the file or the next sitting."""

    start: int
    resumed: bool
    full: bool


def read_stream(run: str | PathLike[str]) -> Stream:
    """The journal of a run.

    Args:
        run: the run's folder, or the file itself.

    Raises:
        FileNotFoundError: there is no such run, or it has none.
        ValueError: a line of it is no row, or it does not begin with a run.
    """
    path = Path(run)
    if path.is_dir():
        path = path / JOURNAL
    if not path.is_file():
        if not Path(run).exists():
            raise FileNotFoundError(f"there is no run at {run}")
        raise FileNotFoundError(f"{run} has no journal ({path.name}); a Loop with a run_dir writes one")
    return Stream(path)


class Stream:
    """The journal of a run, read from its file whenever its rows are asked for.

    Iterating gives the one history that led to where the run stands: what came after the checkpoint from which a later
    sitting went on is left out, and so is the beginning of that sitting. Each checkpoint_saved stands where the state
    was taken, with the step and the counters of that moment, however much later it was told; ``time`` is when that was.

    Attributes:
        path: the file.
        full: whether every sitting recorded every publish.
        sittings: how many processes have worked on the run.
        missing: rows that a slow disk has cost.
        cut: rows that were written and are gone from the midst of the file.
        truncated: whether a full journal has come to its limit, so that only lifecycle and requests follow.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.missing, self.cut, self.truncated = 0, 0, False
        self._sittings: list[Sitting] = []
        self._spans: list[Span] = []
        self._takings = Takings()
        self._scan()
        if not self._sittings:
            raise ValueError(f"{path} tells of no run: it has no train_begin")
        self.full = all(sitting.full for sitting in self._sittings)
        self.sittings = len(self._sittings)

    @property
    def whole(self) -> bool:
        """Whether the rows lack no publish from the run's beginning to where they end: then a replay is exact."""
        from_the_beginning = self._sittings[0].start < self._spans[0].end and not self._sittings[0].resumed
        return self.full and from_the_beginning and not (self.missing or self.cut or self.truncated or self.lacks)

    @functools.cached_property
    def lacks(self) -> str:
        """What the history lacks where a sitting goes on, in words; empty if nothing."""
        before: Row | None = None
        for span, rows in zip(self._spans, self.parts(), strict=True):
            begin = next(rows, None)
            if before is not None and begin is not None and (unlike := _unlike(before, begin)):
                return f"the rows between {unlike} and the resume at update {begin['step']}"
            if begin is not None and span is not self._spans[-1]:
                told = (row for row in rows if "counters" in row and not row.get("nested"))
                before = functools.reduce(lambda _, row: row, told, begin)
        return ""

    def __iter__(self) -> Iterator[Row]:
        """The history, as one run."""
        history = ((i, row) for i, part in enumerate(map(self._in_order, self._spans)) for row in part)
        open_epoch: int | None = None
        before: list[Row] = []  # published inside the next one
        for i, row in history:
            before.append(row)
            if _is_inner(row):
                continue
            again = row["event"] == "epoch_begin" and row["epoch"] == open_epoch
            if i and (again or row["event"] == "train_begin"):
                before = []
                continue
            if row["event"] in ("epoch_begin", "epoch_end"):
                open_epoch = row["epoch"] if row["event"] == "epoch_begin" else None
            yield from before
            before = []
        yield from before

    def parts(self) -> Iterator[Iterator[Row]]:
        """The history, sitting by sitting, each from its train_begin to the checkpoint that the next went on from.

        In the order in which it was told, but for that checkpoint, which stands where its state was taken.
        """
        return (self._rows(span, []) for span in self._spans)

    def _in_order(self, span: Span) -> Iterator[Row]:
        return self._rows(span, list(self._takings.late(span.start, span.end)))

    def sitting(self, number: int) -> Iterator[Row]:
        """All rows of one sitting, from 0, as they were told, whatever became of them later."""
        starts = [*(sitting.start for sitting in self._sittings), self._size]
        return self._rows(Span(starts[number], starts[number + 1]), [])

    # -- the file ------------------------------------------------------------------------------------------------------

    def _lines(self, start: int = 0, end: int | None = None) -> Iterator[Line]:
        with self.path.open("rb") as file:
            file.seek(start)
            for text in file:
                if end is not None and start >= end:
                    return
                yield Line(start, start + len(text), text)
                start += len(text)

    def _row(self, line: Line) -> Row | None:
        """The row; None for a torn last line, which is being written or never was."""
        try:
            row: Row = decode(line.text)
        except ValueError:
            if line.text.endswith(b"\n"):
                raise ValueError(f"{self.path}, at byte {line.start}: {line.text[:80]!r} is not a row") from None
            return None
        row.pop(NUMBER, None)
        return row

    def _rows(self, span: Span, late: list[Taken]) -> Iterator[Row]:
        """The rows of a part; those ``late`` are put where they belong, and so is the one that was gone on from."""
        place, passing = Place(), 0
        put = {taken.start: taken for taken in late}
        told = {taken.told[0]: taken.told[1] for taken in late if taken.told is not None}
        last = span.taken if span.taken is not None and span.taken.late else None
        if last is not None:
            put[last.start] = last
        for line in self._lines(span.start, span.end):
            if line.start in put:
                yield from self._put(put.pop(line.start), place, span)
            row = self._row(line)
            if row is None:
                continue
            place.fill(row)
            passing = told.get(line.start, passing)
            if line.start >= passing:
                yield row
        for taken in put.values():
            yield from self._put(taken, place, span)
        if span.taken is not None and not span.taken.fates:
            yield from place.granted(span.taken.step)

    def _put(self, taken: Taken, place: Place, span: Span) -> Iterator[Row]:
        """What is told of a checkpoint, where its state was taken."""
        if taken.told is None:
            yield place.saved(taken.step, taken.fates or place.granted(taken.step), span.begin)
            return
        for line in self._lines(*taken.told):
            row = self._row(line)
            if row is not None:
                yield place.put(row, taken.step)

    def _scan(self) -> None:
        """Find the sittings, where each goes on, and what is missing."""
        inner: int | None = None  # where rows began that belong to the next one
        self._size = number = dropped = 0
        for line in self._lines():
            self._size = line.end
            if (told := _number(line.text)) is not None:
                before = (number if told > number else 0) + self.missing - dropped  # each process counts from 1
                self.cut += 0 if self.truncated else max(told - before - 1, 0)
                number, dropped = told, self.missing
            row = None if line.text.startswith(UNMARKED) and b'"nested"' not in line.text else self._row(line)
            if row is not None and _is_inner(row):
                inner = line.start if inner is None else inner
                continue
            start, inner = line.start if inner is None else inner, None
            if row is not None:
                self._note(row, start, line)
        if self._spans:
            self._spans[-1] = self._spans[-1]._replace(end=self._size)

    def _note(self, row: Row, start: int, line: Line) -> None:
        event = row["event"]
        if event == "train_begin":
            self._begin(row, start)
        elif event == "checkpoint_saved":
            self._takings.saved(row, start, line.start, line.end)
        elif event == "request" and row["request"] == "Save":
            self._takings.fate(row, start, line.start, line.end)
        elif event == "missing":
            self.missing += row["rows"]
        elif event == "truncated":
            self.truncated = True

    def _begin(self, row: Row, start: int) -> None:
        self._sittings.append(Sitting(start, row["resumed"], "loop" in row))
        self._takings.begin()
        if not row["resumed"]:
            self._spans = []
        elif self._spans:
            self._spans[-1] = self._spans[-1]._replace(end=start)
            cut, taken = self._went_on(row, start)
            self._spans = [span._replace(end=min(span.end, cut)) for span in self._spans if span.start < cut]
            if self._spans:
                self._spans[-1] = self._spans[-1]._replace(taken=taken, begin=row)
        self._spans.append(Span(start, start))

    def _went_on(self, row: Row, start: int) -> tuple[int, Taken | None]:
        """Where the history ends that a resumed sitting goes on from, and the state that was taken there."""
        step, after = row["step"], row.get("after")  # the journal ended there when the state was taken
        taken = self._takings.find(step, after)
        if taken is not None:
            return taken.end, taken
        end = after
        if end is None:
            before = ((line.end, self._row(line)) for line in self._lines(0, start))
            end = max((end for end, told in before if told is not None and told.get("step", 0) <= step), default=0)
        known = after is not None or "loop" not in row  # of a short journal nothing else was written there
        return end, Taken(step, end, end, end) if known else None


def _number(line: bytes) -> int | None:
    """The number of a row; None where it has none: one of an older file, or that is no record of the run's."""
    _, mark, number = line.rpartition(MARK)
    return int(number[:-2]) if mark and number.endswith(b"}\n") and number[:-2].isdigit() else None


def _unlike(before: Row, begin: Row) -> str:
    """Which counter of a train_begin does not follow from the last row before it, with its value there."""
    if before["step"] != begin["step"]:
        return f"update {before['step']}"
    counts = ((name, before.get("counters", {}).get(name), begin.get("counters", {}).get(name)) for name in COUNTED)
    return next((f"{name} {was}" for name, was, now in counts if None not in (was, now) and was != now), "")


def _is_inner(row: Row) -> bool:
    """Whether the row belongs to the next one: what happened inside a dispatch is told before it."""
    return bool(row.get("nested", row["event"] == "handler_failed"))
