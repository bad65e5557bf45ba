"""Comparing two pieces of code on a machine that also does other things.

Both are timed in every round, in shuffled order, by the CPU time of this thread; the figure is the median over the
rounds of the ratio within a round, so what slows a whole round down cancels. The baseline is timed twice a round: the
ratio of these two, A/A, is what the measurement makes of no difference at all.
"""

from __future__ import annotations

import gc
import random
import time
from collections.abc import Callable
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


def compare(ours: Work, base: Work, rounds: int) -> Comparison:
    """Time both in every round, the baseline twice, after one run of each that does not count."""
    works = {"ours": ours, "base": base, "again": base}
    ours()
    base()
    times: dict[str, list[float]] = {name: [] for name in works}
    for _ in range(rounds):
        for name in random.sample(list(works), len(works)):
            gc.collect()
            times[name].append(works[name]())
    pairs = list(zip(times["base"], times["again"], strict=True))
    same = [again / first for first, again in pairs]
    ratios = [mine / (sum(pair) / 2) for mine, pair in zip(times["ours"], pairs, strict=True)]
    low, _, high = quantiles(same, n=4) if rounds > 1 else (same[0],) * 3
    spread = (high - low) / 2
    noise = 2 * 1.86 * spread / rounds**0.5  # the standard error of a median, by the middle half of a normal spread
    both = Times.of(times["base"] + times["again"])
    return Comparison(Times.of(times["ours"]), both, median(ratios), median(same), spread, noise)
