"""Comparing two pieces of code on a machine that also does other things.

Both are timed in every round, in shuffled order, by the CPU time of this thread; the figure is the median over the
rounds of the ratio within a round, so what slows a whole round down cancels. The baseline is timed twice a round: the
ratio of these two, A/A, is what the measurement makes of no difference at all.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from statistics import median, quantiles

Work = Callable[[], float]
"""Does a piece of work and returns the nanoseconds of CPU time that one unit of it took."""


@dataclass(frozen=True)
class Times:
    """Nanoseconds a unit: the smallest and the median of all rounds."""

    least: float
    median: float

    @classmethod
    def of(cls, values: list[float]) -> Times:
        """Of the values of all rounds."""
        return cls(min(values), median(values))


@dataclass(frozen=True)
class Comparison:
    """Ours against a baseline.

    Attributes:
        ours: times of ours.
        base: times of the baseline.
        ratio: the median ratio.
        same: the median ratio of the baseline to itself.
        spread: half of the range that holds the middle half of those.
        noise: twice the standard error of ``ratio``, had the ratios the spread of A/A.
    """

    ours: Times
    base: Times
    ratio: float
    same: float
    spread: float
    noise: float


def per_unit(work: Callable[[int], object], units: int) -> Work:
    """``work(units)`` as a `Work`."""

    def timed() -> float:
        start = time.thread_time_ns()
        work(units)
        return (time.thread_time_ns() - start) / units

    return timed


class Samples:
    """What was measured in each round, by name: ours, base, and base again."""

    def __init__(self) -> None:
        self._ours: list[float] = []
        self._base: list[float] = []
        self._again: list[float] = []

    def add(self, times: Mapping[str, float]) -> None:
        """One round."""
        self._ours.append(times["ours"])
        self._base.append(times["base"])
        self._again.append(times["again"])

    def comparison(self) -> Comparison:
        """What they come to."""
        pairs = list(zip(self._base, self._again, strict=True))
        same = [again / first for first, again in pairs]
        ratios = [mine / (sum(pair) / 2) for mine, pair in zip(self._ours, pairs, strict=True)]
        low, _, high = quantiles(same, n=4) if len(same) > 1 else (same[0],) * 3
        spread = (high - low) / 2
        noise = 2 * 1.86 * spread / len(same) ** 0.5  # of a median, by the middle half of a normal spread
        ours, base = Times.of(self._ours), Times.of(self._base + self._again)
        return Comparison(ours, base, median(ratios), median(same), spread, noise)


def compare(ours: Work, base: Work, rounds: int) -> Comparison:
    """Time both in every round, the baseline twice, after one run of each that does not count."""
    works = {"ours": ours, "base": base, "again": base}
    ours()
    base()
    samples = Samples()
    for _ in range(rounds):
        times = {}
        for name in random.sample(list(works), len(works)):
            gc.collect()
            times[name] = works[name]()
        samples.add(times)
    return samples.comparison()
