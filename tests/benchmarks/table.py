"""The rows of the benchmark, as a table to read and as JSON to keep."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import asdict, dataclass
from typing import Any

from tabulate import tabulate

from .timing import Comparison

HEADERS = ("what", "ours", "limit (baseline)", "ratio", "target", "met?", "A/A")


@dataclass(frozen=True)
class Row:
    """One line: what was measured, beside what, and what the design wants.

    Attributes:
        what: in words.
        ours: the figure, None if there is nothing to measure here.
        base: the baseline's, if there is one.
        unit: of both.
        ratio: of ours to the baseline.
        target: the largest ratio, or without a ratio the largest figure, that the design allows.
        noise: by how much the ratio may be off.
        same: the baseline against itself, with the spread.
        note: said in place of the verdict.
    """

    what: str
    ours: float | None = None
    base: float | None = None
    unit: str = "ns"
    ratio: float | None = None
    target: float | None = None
    noise: float = 0.0
    same: tuple[float, float] | None = None
    note: str = ""

    @classmethod
    def of(cls, what: str, found: Comparison, target: float | None = None, unit: str = "ns") -> Row:
        """The row of a comparison, in one of three units; the figures are medians."""
        scale = {"ns": 1, "us": 1e3, "ms": 1e6}[unit]
        ours, base = found.ours.median / scale, found.base.median / scale
        same = (found.same, found.spread)
        return cls(what, ours, base, unit, found.ratio, target, found.noise, same)

    @property
    def verdict(self) -> str:
        """Whether the target is met, as far as the noise lets us say."""
        value = self.ours if self.ratio is None else self.ratio
        if self.note or self.target is None or value is None:
            return self.note
        if abs(value - self.target) < self.noise:
            return "within noise"
        return "yes" if value <= self.target else "NO"

    def cells(self) -> tuple[str, ...]:
        """The row as texts, in the order of `HEADERS`."""
        unit = f" {self.unit}" if self.ratio is None else "x"
        target = "" if self.target is None else f"{self.target:g}{unit}"
        ratio = "" if self.ratio is None else f"{self.ratio:.3f}x"
        same = "" if self.same is None else f"{self.same[0]:.3f} ± {self.same[1]:.3f}"
        return self.what, self._figure(self.ours), self._figure(self.base), ratio, target, self.verdict, same

    def _figure(self, value: float | None) -> str:
        if value is None:
            return ""
        return f"{value:.0f} {self.unit}" if value >= 100 or value == int(value) else f"{value:.2f} {self.unit}"


def render(rows: Iterable[Row]) -> str:
    """The table."""
    align = ("left", "right", "right", "right", "right", "left", "right")
    return tabulate([row.cells() for row in rows], HEADERS, colalign=align, disable_numparse=True)


def as_json(rows: Iterable[Row], facts: dict[str, Any]) -> dict[str, Any]:
    """Rows and verdicts with the facts about the machine."""
    return {"machine": facts, "rows": [asdict(row) | {"met": row.verdict} for row in rows]}
