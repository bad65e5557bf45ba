"""The commands ``eventloop checkpoints`` and ``eventloop export``: what they print."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from ..rows import plain
from .catalog import Inspected, Which, best_of, document_of, inside, inspect, judges_of, root_of
from .manifest import Checkpoint
from .plain_file import export
from .store import Store


@dataclass(frozen=True, slots=True)
class Shelf:
    """The checkpoints of a run, and what each of them is.

    Attributes:
        root: their folder.
        found: whole and broken ones, the oldest first.
        verified: whether their files have been read.
    """

    root: Path
    found: Sequence[Inspected]
    verified: bool

    @property
    def broken(self) -> bool:
        """Whether one is."""
        return any(entry.problem for entry in self.found)

    def standing(self) -> list[Checkpoint]:
        """Those that nothing is known against."""
        return [entry.checkpoint for entry in self.found if entry.checkpoint is not None and not entry.problem]

    def rows(self) -> Iterator[dict[str, Any]]:
        """One of each, for machines."""
        standing, latest = self.standing(), Store(self.root, "").latest()
        best = best_of(standing) if standing else {}
        for entry in self.found:
            one = entry.checkpoint
            marks = ["newest"] if standing and one is standing[-1] else []
            marks += [f"best {monitor}".strip() for monitor, found in best.items() if found is one]
            marks += ["latest"] if entry.path.name == latest else []
            yield {
                "step": None if one is None else one.step,
                "epoch": None if one is None else inside(document_of(one), "progress").get("epoch"),
                "is": marks,
                "tags": [] if one is None else [*one.tags],
                "metrics": {} if one is None else dict(one.metrics),
                "bytes": None if one is None else one.size,
                "time": None if one is None else datetime.fromtimestamp(one.time, UTC).isoformat(timespec="seconds"),
                "run_id": None if one is None else one.run_id,
                "path": str(entry.path),
                "state": "broken" if entry.problem else "whole" if self.verified else "listed",
                "problem": entry.problem,
            }

    def __str__(self) -> str:
        from tabulate import tabulate

        if not self.found:
            return f"no checkpoints in {self.root}"
        shown = self._metrics()
        table = tabulate([_row(told, shown) for told in self.rows()], headers="keys", disable_numparse=True)
        size = sum(entry.checkpoint.size for entry in self.found if entry.checkpoint is not None)
        broken = sum(bool(entry.problem) for entry in self.found)
        count = f"{len(self.found)} checkpoint{'s' if len(self.found) > 1 else ''}"
        return f"{table}\n{count}, {human(size)}" + (f", {broken} broken" if broken else "")

    def _metrics(self) -> list[str]:
        """Those that savers judge by; of a run without such savers all that there are."""
        read = [entry.checkpoint for entry in self.found if entry.checkpoint is not None]
        judged = [judge.monitor for judge in judges_of(read)]
        return [*dict.fromkeys(judged or [name for one in read for name in one.metrics])]


def _row(told: Mapping[str, Any], metrics: Sequence[str]) -> dict[str, str]:
    when = "" if told["time"] is None else f"{datetime.fromisoformat(told['time']).astimezone():%Y-%m-%d %H:%M:%S}"
    return {
        "step": Path(told["path"]).name if told["step"] is None else str(told["step"]),
        "epoch": "" if told["epoch"] is None else str(told["epoch"]),
        "is": ", ".join(told["is"]),
        "tags": ", ".join(told["tags"]),
        **{name: f"{told['metrics'][name]:.6g}" if name in told["metrics"] else "" for name in metrics},
        "size": "" if told["bytes"] is None else human(told["bytes"]),
        "written": when,
        "state": f"broken: {_why(told)}" if told["problem"] else told["state"],
    }


def _why(told: Mapping[str, Any]) -> str:
    path = told["path"]
    return str(told["problem"]).removeprefix(f"{path} is damaged: ").replace(path, Path(path).name)


def human(size: int) -> str:
    """Bytes, as one says them."""
    if size < 1000:
        return f"{size} B"
    number, units = size / 1000, iter(("kB", "MB", "GB", "TB", "PB"))
    unit = next(units)
    while number >= 999.5:
        number, unit = number / 1000, next(units)
    return f"{number:.3g} {unit}"


def look(run: Path, *, verify: bool) -> Shelf:
    """The checkpoints of a run, verified with a bar if stderr is a terminal.

    Raises:
        CheckpointError: there is no run.
    """
    root = root_of(run)
    if not verify:
        return Shelf(root, inspect(run), verified=False)
    size = sum(entry.checkpoint.size for entry in inspect(run) if entry.checkpoint is not None)
    with _bar(size) as progress:
        return Shelf(root, inspect(run, verify=True, progress=progress), verified=True)


@contextmanager
def _bar(size: int) -> Iterator[Callable[[int], object]]:
    from tqdm import tqdm

    with tqdm(total=size, unit="B", unit_scale=True, leave=False, disable=None, desc="verifying") as bar:
        yield bar.update


def as_json(shelf: Shelf) -> str:
    """The rows, strictly."""
    return json.dumps(plain([*shelf.rows()]), indent=1, allow_nan=False)


def run_export(run: Path, file: Path, step: int | None, *, best: bool, dtype: str | None, overwrite: bool) -> str:
    """Export, and say what was exported.

    Raises:
        Exception: see `export`.
    """
    which: Which = "best" if best else "newest" if step is None else step
    checkpoint = export(run, file, which=which, dtype=dtype, overwrite=overwrite)
    return f"{file}: {human(file.stat().st_size)}, the weights of step {checkpoint.step}, from {checkpoint.path}"
