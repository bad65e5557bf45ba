"""The first event at which two recorded runs differ, and who made the difference."""

from __future__ import annotations

import json
import math
from collections import deque
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import zip_longest
from os import PathLike
from pathlib import Path
from typing import Any, Final, NamedTuple

from .journal import LIFE
from .stream import Stream, read_stream
from .stream_saves import Row

ASIDE: Final = frozenset({"time", "elapsed", "run_id", "after", "loop", "handlers"})
"""What may differ between two runs that are equal, or is compared by itself."""
SHORT: Final = frozenset({kind.name for kind in LIFE} | {"request", "missing"})
FULL_ONLY: Final = frozenset({"counters", "lr", "asked", "failed", "nested", "fields", "interrupted"})
NOTHING: Final = "nothing"
LOOP: Final = "the loop"
UNKNOWN: Final = "the loop or a handler that reported it (a short journal does not say which)"


class Difference(NamedTuple):
    """``who`` made it, in ``what``; the values in the two runs."""

    who: str
    what: str
    a: Any
    b: Any


@dataclass
class Comparison:
    """What two runs have in common, and where they part; prints itself.

    Attributes:
        names: how the runs are called.
        settings: sentences on how callbacks, their order and settings, and the loop's options differ.
        remarks: sentences on what differs around the runs: the seed, versions.
        coarse: whether only what a short journal has could be compared.
        rows: how many rows are equal.
        before: the last of these.
        first: the first difference, or None; ``row`` and ``other`` are the rows it is in.
    """

    names: tuple[str, str]
    settings: list[str]
    remarks: list[str]
    coarse: bool
    rows: int = 0
    before: list[Row] = field(default_factory=list)
    first: Difference | None = None
    row: Row = field(default_factory=dict)
    other: Row = field(default_factory=dict)

    @property
    def equal(self) -> bool:
        """Whether the runs have the same settings and the same events."""
        return self.first is None and not self.settings

    def __str__(self) -> str:
        lines = [f"settings differ: {sentence}" for sentence in self.settings] + self.remarks
        if self.coarse:
            lines.append("compared coarsely, for a journal is short: lifecycle, requests and failures alone")
        if self.first is None:
            return "\n".join([*lines, f"no difference in {self.rows} rows"])
        place = " / ".join(dict.fromkeys(_place(row) for row in (self.row, self.other) if row))
        lines.append(f"first difference at {place}: {self.first.what}, by {self.first.who}")
        lines += [f"  {name}: {_shown(value)}" for name, value in zip(self.names, self.first[2:], strict=True)]
        if self.before:
            lines += ["before it, in both:", *(f"  {_line(row)}" for row in self.before)]
        return "\n".join(lines)


def diff_runs(a: str | PathLike[str], b: str | PathLike[str], *, rtol: float = 0.0, context: int = 5) -> Comparison:
    """Compare two runs row by row; wall time, run names and paths apart.

    Args:
        a: a run's folder, or its journal.
        b: another.
        rtol: numbers no farther apart than this, relative to the larger one, are equal.
        context: rows before the first difference to keep.

    Raises:
        FileNotFoundError: one has no journal.
        ValueError: a journal lacks rows, and no difference was found before them.
    """
    streams = read_stream(a), read_stream(b)
    coarse = not all(stream.full for stream in streams)
    settings, remarks = _around(*streams, coarse)
    result = Comparison((str(a), str(b)), settings, remarks, coarse)
    before: deque[Row] = deque(maxlen=context)
    for row, other in zip_longest(*(_rows(stream, coarse) for stream in streams), fillvalue={}):
        result.first = _first(row, other, rtol, coarse)
        if result.first is not None:
            result.row, result.other = row, other
            break
        result.rows += 1
        before.append(row)
    result.before = list(before)
    return result


def _rows(stream: Stream, coarse: bool) -> Iterator[Row]:
    for row in stream:
        if row["event"] == "missing" or (row["event"] == "truncated" and not coarse):
            raise ValueError(f"{stream.path} lacks rows from here on, and nothing differs before: {_line(row)}")
        if not coarse:
            yield row
        elif row["event"] in SHORT:
            yield _as_short(row)


def _as_short(row: Row) -> Row:
    short = {key: value for key, value in row.items() if key not in FULL_ONLY}
    metrics = {**short.pop("metrics", {}), **short.pop("reported", {})}
    return short | {"metrics": metrics} if row["event"] == "eval_end" else short


# -- one row -----------------------------------------------------------------------------------------------------------


def _first(row: Row, other: Row, rtol: float, coarse: bool) -> Difference | None:
    """The first difference of two rows, causes before consequences."""
    kinds = [_kind(r) if r else "the rows end here" for r in (row, other)]
    if kinds[0] != kinds[1]:
        who = next((actor for r in (row, other) if (actor := _actor(r)) != LOOP), LOOP)
        return Difference(who, "another event", *kinds)
    giver = UNKNOWN if coarse else "whoever published it" if row.get("nested") else LOOP
    found = [
        *_unequal(row.get("metrics", {}), other.get("metrics", {}), rtol, giver, "metric "),
        *_answers(row, other, rtol),
        *_rates(row, other, rtol),
        *_unequal(*_counters(row, other), rtol, LOOP, "counter "),
        *_unequal(_facts(row), _facts(other), rtol, _actor(row), ""),
    ]
    return found[0] if found else None


def _kind(row: Row) -> str:
    inner = ", inside a handler" if row.get("nested") else ""
    what = f"{row['request']} by {row['who']} {row['fate']}" if row["event"] == "request" else row["event"]
    return f"{what} of step {row.get('step')}{inner}"


def _actor(row: Row) -> str:
    """Who is behind a row, as far as the row itself says."""
    return str(row.get("who") or row.get("handler") or LOOP)


def _unequal(a: Mapping[str, Any], b: Mapping[str, Any], rtol: float, who: str, kind: str) -> Iterator[Difference]:
    for key in sorted({**a, **b}, key=lambda key: key != "loss"):  # what else an update has follows from its loss
        one, another = a.get(key, NOTHING), b.get(key, NOTHING)
        if not same(one, another, rtol):
            yield Difference(who, f"{kind}{key}", one, another)


def _answers(row: Row, other: Row, rtol: float) -> Iterator[Difference]:
    """What handlers asked for, reported, or failed with, in their order."""
    for one, another in zip_longest(row.get("asked", []), other.get("asked", [])):
        if not same(one, another, rtol):
            yield _asked_otherwise(one, another, row, other)
        elif one[1] == "Report":
            values = [{key: r.get("reported", {}).get(key, NOTHING) for key in one[2]} for r in (row, other)]
            yield from _unequal(values[0], values[1], rtol, one[0], "metric ")
    yield from _unequal(row.get("reported", {}), other.get("reported", {}), rtol, "a handler", "metric ")
    for one, another in zip_longest(row.get("failed", []), other.get("failed", [])):
        if one != another:
            yield Difference((one or another)[0], "failure", *(answer and answer[2] for answer in (one, another)))


def _asked_otherwise(one: list[Any] | None, another: list[Any] | None, row: Row, other: Row) -> Difference:
    """Of two answers in one place that differ: the one that the other run lacks, if only one of them is lacking."""
    mine, theirs = ([answer[:2] for answer in r.get("asked", [])] for r in (row, other))
    if one is not None and another is not None and one[:2] != another[:2]:
        if one[:2] in theirs and another[:2] not in mine:
            one = None
        elif another[:2] in mine and one[:2] not in theirs:
            another = None
    who, what = (one or another or [LOOP, NOTHING])[:2]
    return Difference(who, what, _said(one), _said(another))


def _said(answer: list[Any] | None) -> str:
    if answer is None:
        return NOTHING
    who, what, content = answer
    return f"{what} by {who}" + ("" if content in (None, "") else f": {_shown(content)}")


def _rates(row: Row, other: Row, rtol: float) -> Iterator[Difference]:
    setters = {group: who for who, kind, content in row.get("asked", []) if kind == "SetLR" for group in content}
    for d in _unequal(row.get("lr", {}), other.get("lr", {}), rtol, LOOP, ""):
        yield Difference(setters.get(d.what, LOOP), f"learning rate of {d.what}", d.a, d.b)


def _counters(row: Row, other: Row) -> tuple[Row, Row]:
    """The counters; a sitting learns anew how many updates are planned, so ``total`` counts only where both know it."""
    a, b = row.get("counters", {}), other.get("counters", {})
    if a.get("total") is None or b.get("total") is None:
        a, b = ({name: n for name, n in counters.items() if name != "total"} for counters in (a, b))
    return a, b


def _facts(row: Row) -> Row:
    apart = ASIDE | {"metrics", "reported", "asked", "failed", "lr", "counters"}
    return {key: value for key, value in row.items() if key not in apart}


def same(a: Any, b: Any, rtol: float = 0.0) -> bool:
    """Whether two values of rows are equal; NaN equals NaN, and numbers may be ``rtol`` apart."""
    if isinstance(a, float) and isinstance(b, float):
        return a == b or (math.isnan(a) and math.isnan(b)) or math.isclose(a, b, rel_tol=rtol, abs_tol=0.0)
    if isinstance(a, dict) and isinstance(b, dict):
        return a.keys() == b.keys() and all(same(a[key], b[key], rtol) for key in a)
    if isinstance(a, list) and isinstance(b, list):
        return len(a) == len(b) and all(same(x, y, rtol) for x, y in zip(a, b, strict=True))
    return bool(a == b)


# -- around the rows ---------------------------------------------------------------------------------------------------


def _around(a: Stream, b: Stream, coarse: bool) -> tuple[list[str], list[str]]:
    """How settings differ, and what else is not the same."""
    runs = [_sitting(stream.path) for stream in (a, b)]
    settings = list(_callbacks(*(run.get("callbacks", []) for run in runs)))
    if not coarse:
        first = [next(stream.sitting(0)) for stream in (a, b)]
        settings += [f"{d.what}: {_against(d)}" for d in _unequal(first[0]["loop"], first[1]["loop"], 0.0, LOOP, "")]
        settings += _handlers(*(row["handlers"] for row in first))
    told = [{"seed": run.get("seed"), **run.get("versions", {})} for run in runs]
    remarks = [f"{d.what}: {_against(d)}" for d in _unequal(told[0], told[1], 0.0, LOOP, "")]
    return settings, remarks


def _against(difference: Difference) -> str:
    return f"{_shown(difference.a)} against {_shown(difference.b)}"


def _sitting(journal: Path) -> dict[str, Any]:
    """What ``run.json`` says of the newest sitting; nothing if there is none beside the journal."""
    path = journal.with_name("run.json")
    if not path.is_file():
        return {}
    sitting: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))["sittings"][-1]
    return sitting


def _callbacks(a: list[dict[str, Any]], b: list[dict[str, Any]]) -> Iterator[str]:
    names = [[callback["name"] for callback in callbacks] for callbacks in (a, b)]
    if names[0] != names[1]:
        yield f"callbacks: {_shown(names[0])} against {_shown(names[1])}"
    others = {callback["name"]: callback for callback in b}
    for callback in a:
        other = others.get(callback["name"])
        if other is not None:
            pair = [{"class": c.get("path", c["type"]), **c["settings"]} for c in (callback, other)]
            yield from (
                f"{callback['name']}: {d.what} {_against(d)}" for d in _unequal(pair[0], pair[1], 0.0, LOOP, "")
            )


def _handlers(a: dict[str, list[Row]], b: dict[str, list[Row]]) -> Iterator[str]:
    for event in {**a, **b}:
        one, another = a.get(event, []), b.get(event, [])
        names = [[handler["name"] for handler in order] for order in (one, another)]
        if names[0] != names[1]:
            yield f"handlers of {event}: {_shown(names[0])} against {_shown(names[1])}"
            continue
        for handler, other in zip(one, another, strict=True):
            for d in _unequal(handler, other, 0.0, LOOP, ""):
                yield f"{handler['name']} at {event}: {d.what} {_against(d)}"


# -- words -------------------------------------------------------------------------------------------------------------


def _place(row: Row) -> str:
    return f"{row['event']} of step {row['step']}" if "step" in row else str(row["event"])


def _shown(value: Any) -> str:
    if isinstance(value, dict):
        return ", ".join(f"{key}={_shown(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(_shown, value)) or NOTHING
    return NOTHING if value is None else str(value)


def _line(row: Row) -> str:
    metrics = {**row.get("metrics", {}), **row.get("reported", {})}
    parts = [_kind(row) if row["event"] == "request" else _place(row), _shown(metrics)]
    parts += [_said(answer) for answer in row.get("asked", []) if answer[1] != "Report"]
    return "; ".join(part for part in parts if part)
