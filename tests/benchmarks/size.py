"""How much is measured: enough for a verdict, or just enough to see that it runs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple


class Saved(NamedTuple):
    """A state to save: a model and two moments of each parameter."""

    name: str
    parameters: int
    floats: tuple[int, ...]  # of the parameters, in turn
    rounds: int
    judged: bool = True  # the design has targets for it


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
        saved: the states of which checkpoints are made.
    """

    rounds: int
    calls: int
    pairs: int
    updates: int
    logged: int
    events: int
    saved: tuple[Saved, ...]


_MIXED: Final = (250_000, 500_000, 1_000_000)  # 1, 2 and 4 MB each
_SMALL: Final = Saved("3,000 tensors of 256 B", 1000, (64,), rounds=6, judged=False)
FULL: Final = Size(
    rounds=40,
    calls=20_000,
    pairs=20,
    updates=500,
    logged=600,
    events=1_000_000,
    saved=(Saved("200 MB", 29, _MIXED, rounds=12), Saved("1 GB", 143, _MIXED, rounds=6), _SMALL),
)
QUICK: Final = Size(
    rounds=7,
    calls=5_000,
    pairs=4,
    updates=50,
    logged=150,
    events=100_000,
    saved=(Saved("200 MB", 29, _MIXED, rounds=3), _SMALL._replace(rounds=2)),
)
