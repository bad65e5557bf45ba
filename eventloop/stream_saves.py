"""Where in a journal the state of each checkpoint was taken, and where it was told that this is durable.

A checkpoint that is written while the training goes on has its Saves granted when its state is taken, and its own row
comes later, or never if the process ends before. A reader wants one history: each checkpoint where its state was taken.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

Row = dict[str, Any]
Key = tuple[Any, ...]
PREFIX: Final = "step-"
PLACE: Final = ("step", "epoch", "elapsed", "counters", "lr")
"""What a row says of where the run stands."""
REFUSED_AT: Final = ("checkpoint_saved", "handler_failed", "run_failed", "train_end")


@dataclass
class Taken:
    """A state that was taken for a checkpoint, by places in the file.

    Attributes:
        step: of the checkpoint.
        start: where it was taken: here begins what is told of it at that moment.
        row: the first row of that which is the loop's own.
        end: behind the fates of those who asked for it.
        told: from where to where its checkpoint_saved is told; None if the process has not come to that.
        fates: the fate rows of those who asked.
    """

    step: int
    start: int
    row: int
    end: int
    told: tuple[int, int] | None = None
    fates: list[Row] = field(default_factory=list)

    @property
    def late(self) -> bool:
        """Whether its checkpoint_saved stands elsewhere, or nowhere."""
        return self.told is None or self.told[0] != self.start


class Span(NamedTuple):
    """A part of the file that belongs to the history.

    ``taken``: the state from which the next sitting went on, and ``begin`` is the train_begin of that.
    """

    start: int
    end: int
    taken: Taken | None = None
    begin: Row = {}  # noqa: RUF012  # never changed


class Takings:
    """All that were taken, in order."""

    def __init__(self) -> None:
        self.all: list[Taken] = []
        self._open: Taken | None = None  # not yet told of

    def begin(self) -> None:
        """Another process: what was not told of by now never will be."""
        self._open = None

    def saved(self, row: Row, start: int, at: int, end: int) -> None:
        """A checkpoint_saved, with what was published inside it from ``start`` on."""
        step = checkpoint_step(row)
        if self._open is not None and self._open.step == step:
            self._open.told, self._open = (start, end), None
        else:
            self.all.append(Taken(step, start, at, end, (start, end)))

    def fate(self, row: Row, start: int, at: int, end: int) -> None:
        """The fate of a Save."""
        last = self.all[-1] if self.all else None
        if row["fate"] == "granted":
            if last is None or last.end != start or last.step != row["decided"]:
                last = self._open = Taken(row["decided"], start, at, end)
                self.all.append(last)
            last.fates.append(row)
            last.end = end
        elif row["fate"] == "refused" and self._open is not None and key_of(row) in map(key_of, self._open.fates):
            self._open = None  # it has failed since

    def find(self, step: int, after: int | None) -> Taken | None:
        """The one of this step; ``after`` is where the journal ended at that moment, if that is known."""
        for taken in reversed(self.all):
            if taken.step == step and (after is None or taken.start <= after <= taken.row):
                return taken
        return None

    def late(self, start: int, end: int) -> Iterator[Taken]:
        """Those within a part of the file of which is told later in that part."""
        for taken in self.all:
            if taken.late and taken.told is not None and start <= taken.start and taken.told[1] <= end:
                yield taken


def checkpoint_step(row: Row) -> int:
    """Of which step the checkpoint is; the run may stand elsewhere by the time it is told of."""
    number = str(row.get("checkpoint", "")).removeprefix(PREFIX)
    return int(number) if number.isdigit() else int(row["step"])


def key_of(fate: Row) -> Key:
    """Which request it is the fate of."""
    return tuple(fate[name] for name in ("who", "at", "step", "detail"))


class Place:
    """Follows the rows of a part of the file: where the run stands, and who has asked for a save."""

    def __init__(self) -> None:
        self.now: Row = {}
        self.time = 0.0
        self.tags: dict[int, set[str]] = {}
        self._asked: dict[Key, Row] = {}

    def fill(self, row: Row) -> None:
        """Go on to this row, which is told in full where it says only what has changed."""
        self.time = row["time"]
        if "elapsed" in row:
            for name in ("counters", "lr") if self.now.get("counters") or "counters" in row else ():
                row[name] = {**self.now.get(name, {}), **row.get(name, {})}
            if not row.get("nested"):
                self.now = {name: row[name] for name in PLACE if name in row}
        if row["event"] == "checkpoint_saved":
            self.tags.setdefault(checkpoint_step(row), set()).update(row["tags"])
        elif row["event"] == "request" and row["request"] == "Save" and row["fate"] != "deferred":
            self._asked.pop(key_of(row), None)
        self._note_asked(row)

    def _note_asked(self, row: Row) -> None:
        if row["event"] in REFUSED_AT or row.get("completed") is False:
            return
        for who, kind, tag in row.get("asked", ()):
            if kind == "Save":
                step = max(row["step"], row["counters"]["update"])
                fate = {"event": "request", "at": row["event"], "who": who, "request": kind, "detail": tag}
                self._asked[who, row["event"], step, tag] = {**fate, "step": step, "fate": "granted", "note": ""}

    def put(self, row: Row, step: int) -> Row:
        """The row as it is told here; of a short journal the row before may be of an earlier step."""
        return {**row, **self.now, "step": step}

    def granted(self, step: int) -> list[Row]:
        """The fates, which nobody has told, of those who asked for the state that is taken here."""
        asked = [fate for fate in self._asked.values() if fate["step"] >= step]
        return [{"event": "request", "time": self.time, **fate, "decided": step} for fate in asked]

    def saved(self, step: int, fates: list[Row], begin: Row) -> Row:
        """A checkpoint_saved that nobody has told, from the train_begin of the process that went on from there.

        What its savers wanted kept then is what they want when they hear of it.
        """
        mine = {fate["detail"] for fate in fates} or ({"last"} if "loop" in begin else set())
        whose = {fate["who"] for fate in fates}
        tags = sorted(mine | self.tags.get(step, set()))
        row = {"event": "checkpoint_saved", "time": self.time, "checkpoint": f"{PREFIX}{step:08d}", "tags": tags}
        keeps = [asked for asked in begin.get("asked", ()) if asked[1] == "Keep" and asked[0] in whose]
        return self.put(row | ({"asked": keeps} if keeps else {}), step)
