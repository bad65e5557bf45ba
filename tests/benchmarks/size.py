"""How much is measured: enough for a verdict, or just enough to see that it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True)
class Size:
    """How often, and how much at a time.

    Attributes:
        rounds: of the short measurements; in each, everything compared is timed once.
        calls: handler calls in one of them.
        pairs: of pieces of training runs.
        updates: of each run in a pair.
        logged: steps logged to a slow disk.
        events: published while memory is watched.
    """

    rounds: int
    calls: int
    pairs: int
    updates: int
    logged: int
    events: int


FULL: Final = Size(rounds=40, calls=20_000, pairs=20, updates=500, logged=600, events=1_000_000)
QUICK: Final = Size(rounds=7, calls=5_000, pairs=4, updates=50, logged=150, events=100_000)
