"""A recorded run as the script of a replay: what its loop did, turn by turn, and where its boundaries were."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Final

from ..events import CheckpointSaved, EvalBegin, EvalEnd, EvalStep, Event, TrainBegin
from ..ledger import Entry
from ..saving import NO_TIME
from ..stream import Stream, read_stream
from ..stream_saves import Key, checkpoint_step
from .moments import Moment, Row
from .saves import Outcome, SaveLog
from .turns import LATE, Turn, Turns

REACTIONS: Final = (EvalBegin, EvalStep, EvalEnd, CheckpointSaved)
"""What the loop publishes when it carries something out; all else is a turn."""
LIMITS: Final = ("max_epochs", "max_steps", "min_epochs", "min_steps")


@dataclass
class Sitting:
    """What the history has of one process.

    Attributes:
        begin: its train_begin.
        loop: limits and other options of the loop.
        handlers: for each event who hears it, in running order.
        turns: what the loop did, in order.
        rest: the rows behind the last turn.
        closing: whether they came of closing an epoch whose epoch_end is not there.
        reactions: evaluations and checkpoints by event class and step.
        saves: for each step how its saves went.
        left_out: for each step why saves were left out for want of time.
    """

    begin: Moment
    loop: Mapping[str, Any]
    handlers: Mapping[str, list[dict[str, Any]]]
    turns: list[Turn] = field(default_factory=list)
    rest: list[Row] = field(default_factory=list)
    closing: bool = False
    reactions: dict[tuple[type[Event], int], list[Moment]] = field(default_factory=dict)
    saves: dict[int, list[Outcome]] = field(default_factory=dict)
    left_out: dict[int, list[str]] = field(default_factory=dict)

    @property
    def limits(self) -> dict[str, Any]:
        """The limits of its loop."""
        return {name: self.loop[name] for name in LIMITS}

    @property
    def ended(self) -> bool:
        """Whether it has come to its train_end."""
        return bool(self.turns) and self.turns[-1].moment.name == "train_end"

    def moments(self) -> Iterator[Moment]:
        """Every one, turns and reactions."""
        yield self.begin
        yield from (turn.moment for turn in self.turns)
        for moments in self.reactions.values():
            yield from moments


class Record:
    """One run, as its full journal and ``run.json`` tell it.

    Attributes:
        sittings: the parts of the history, in order.
        ledger: the recorded fates, in order.
        steps: recorded updates.
        described: whether there is a ``run.json``.
        callbacks: what it says of each callback of each process, by name.
        requests: the classes of what each handler has asked for, by its name.
        metrics: the names of all metrics.
        failures: how often a handler failed at an event of a step, as ``(who, event, step)``.
        ended: whether it ends with the run's end.
        inner: names of events that were published inside a handler, or past the loop.
        evaluations: the metrics of each evaluation by step.
        skips: what was said of saves that were left out while another was being written; empty if none was.
        granted: the requests for a save that were.

    Raises:
        FileNotFoundError: the run has no journal.
        ValueError: the journal is a short one, or incomplete, or begins in the midst of a run.
    """

    def __init__(self, run: str | PathLike[str]) -> None:
        stream = read_stream(run)
        _refuse_incomplete(stream)
        self.path = stream.path
        self.ledger: list[Entry] = []
        self.inner: set[str] = set()
        self.failures: Counter[tuple[str, str, int]] = Counter()
        self.sittings: list[Sitting] = []
        self.skips, self._publishes = "", 0
        self.granted: set[Key] = set()
        for rows in stream.parts():
            self._read(rows)
        described = self.path.parent / "run.json"
        self.described = described.exists()
        self.callbacks = _callbacks(described) if self.described else []
        moments = [moment for sitting in self.sittings for moment in sitting.moments()]
        self.steps = max(moment.step for moment in moments)
        self.evaluations = {m.step: {**m.own, **m.reported} for m in moments if _is_evaluation(m)}
        self.metrics = {name for m in moments for name in (*m.own, *m.reported)}
        self.requests: dict[str, set[str]] = {}
        for who, kind, _ in (asked for moment in moments for asked in moment.asked):
            self.requests.setdefault(who, set()).add(kind)
        self.ended = self.sittings[-1].ended

    def _read(self, rows: Iterable[Row]) -> None:
        turns: Turns | None = None
        lr: Mapping[str, float] | None = None
        before: int | None = None
        saves = SaveLog(self._publishes)
        for row in rows:
            name = row["event"]
            if name == "request":
                self._note_left_out(row)
                self.ledger.append(_entry(row))
                late = saves.fate(row)
                if turns is not None:
                    turns.between({**row, LATE: True} if late else row)
                continue
            if row.get("nested", name == "handler_failed"):
                self.inner.add(name)
                if name == "handler_failed":
                    step = max(row["step"], row.get("counters", {}).get("update", 0))
                    self.failures[row["handler"], row["at"], step] += 1
                saves.failed(row)
                continue
            self._publishes += 1
            moment = Moment(row, lr, self._publishes)
            lr = row["lr"]
            if before is not None and moment.step > before + 1:
                raise ValueError(f"{self.path} lacks the rows between update {before} and update {moment.step}")
            before = moment.step
            late = saves.told(moment, row)
            if moment.kind is TrainBegin:
                self._begin(moment, row, saves.outcomes)
                turns = Turns(self.sittings[-1].loop, moment)
                self.sittings[-1].turns = turns.done
            elif turns is None:
                raise ValueError(f"{self.path} does not begin with a train_begin, but with a {name}")
            elif moment.kind in REACTIONS:
                step = checkpoint_step(dict(row)) if moment.kind is CheckpointSaved else moment.step
                self.sittings[-1].reactions.setdefault((moment.kind, step), []).append(moment)
                turns.between({**row, LATE: True} if late else row)
            else:
                turns.add(moment)
        self.skips = self.skips or saves.skips
        self.granted |= saves.granted
        if turns is not None:
            self.sittings[-1].rest, self.sittings[-1].closing = turns.close(), turns.closing()

    def _note_left_out(self, row: Row) -> None:
        """One save has a fate for each who asked for it, one behind the other; the loop asks alone."""
        why, last = row["note"], self.ledger[-1].note if self.ledger else ""
        if row["request"] == "Save" and why.startswith(NO_TIME) and (why != last or row["who"] == "Loop"):
            self.sittings[-1].left_out.setdefault(row["decided"], []).append(why)

    def _begin(self, moment: Moment, row: Row, saves: dict[int, list[Outcome]]) -> None:
        if row["resumed"] and not self.sittings:
            raise ValueError(
                f"{self.path} begins at update {moment.step}: the run was resumed from another folder, and what its "
                f"callbacks knew by then is not in this one"
            )
        self.sittings.append(Sitting(moment, row["loop"], row.get("handlers", {}), saves=saves))

    def own_events(self) -> set[str]:
        """The names of the published events that are not built in."""
        kinds = {m.kind: m for s in self.sittings for m in s.moments()}
        return {m.name for kind, m in kinds.items() if kind.__name__ == "RecordedEvent"}

    def asked(self, *kinds: str) -> set[str]:
        """Who has replied a request of these classes."""
        return {who for who, asked in self.requests.items() if not asked.isdisjoint(kinds)}


def _is_evaluation(moment: Moment) -> bool:
    return isinstance(moment.event, EvalEnd) and moment.event.completed


def _entry(row: Row) -> Entry:
    told = (row[name] for name in ("who", "request", "detail", "at", "step", "fate", "decided", "note"))
    return Entry(*told)


def _refuse_incomplete(stream: Stream) -> None:
    if not stream.full:
        raise ValueError(
            f"{stream.path} is a short journal, which has no metrics of the updates; to replay a run, record it by "
            f"Loop(..., journal='full')"
        )
    if stream.missing:
        raise ValueError(f"{stream.path} lacks {stream.missing} rows that a slow disk has cost: a replay would guess")
    if stream.cut:
        raise ValueError(f"{stream.path}: {stream.cut} rows are missing, which somebody has taken out of it")
    if stream.truncated:
        raise ValueError(f"{stream.path} was truncated at its size limit: a replay would guess what came after")
    if stream.lacks:
        raise ValueError(f"{stream.path} lacks {stream.lacks}: a replay would guess")


def _callbacks(path: Path) -> list[dict[str, dict[str, Any]]]:
    sittings = json.loads(path.read_text(encoding="utf-8"))["sittings"]
    return [{told["name"]: told for told in sitting["callbacks"]} for sitting in sittings]
