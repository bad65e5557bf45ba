"""The runs that a callback is put through: what they report, and how they go."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import inf, nan
from typing import Any, Final

from ..crowd import Deliberate
from .standins import SCRIPTED

VERDICTS: Final = [
    *[1.0, 0.9, 0.9, 0.7, 0.7, nan, 0.8, None, 0.75, 0.7, inf, 0.71],
    *[0.9, 1.2, 0.5, -inf],
]
"""Improvement, plateaus, no number, a value that is missing, a long rise, and at last an improvement."""
_PLATEAU: Final = [0.9, 0.8, 0.75, 0.7]
_ODD: Final[Mapping[int, float | None]] = {7: None, 20: nan, 21: nan, 27: inf}
ROUNDS: Final = len(VERDICTS)
FEW: Final = 8
"""Evaluations of a run whose checkpoints are files; all that is odd but infinity is among them."""


def losses(n: int, first: int = 1) -> list[float | None]:
    """Falling values of ``n`` turns from the ``first``, some of them missing or no number."""
    return [_ODD.get(turn, round(2.0 / (1.0 + 0.1 * turn), 3)) for turn in range(first, first + n)]


def verdicts(rounds: int) -> list[float | None]:
    """`VERDICTS`, and then numbers that are better than none before, whichever way is better: for a long patience."""
    return [VERDICTS[i] if i < ROUNDS else _PLATEAU[i % len(_PLATEAU)] for i in range(rounds)]


def main_script(
    monitors: Sequence[str], metrics: Mapping[str, Any], evaluations: Mapping[str, Any], rounds: int
) -> dict[str, Any]:
    """The run that most checks make, as keywords of a `FakeLoop`: epochs of two updates, each with an evaluation.

    ``loss`` is reported at each update, each of ``monitors`` at each evaluation and at each update; what the caller
    has given counts.
    """
    return {
        "metrics": {**dict.fromkeys(("loss", *monitors), losses(2 * rounds)), **metrics},
        "evaluations": {**dict.fromkeys(monitors or ("eval_loss",), verdicts(rounds)), **evaluations},
        "updates": 2,
        "max_steps": 2 * rounds,
    }


LIMIT: Final = 12
"""Updates of a run that is cut everywhere, in all courses but the main one."""


def courses(updates: int) -> dict[str, dict[str, Any]]:
    """Every way in which a run of so many updates may go, as what it changes in the main script."""
    failed, interrupted = Deliberate(*SCRIPTED), KeyboardInterrupt(*SCRIPTED)
    return {
        "a whole run": {},
        "skipped updates, evaluations in between": {"updates": 5, "eval_every": 3, "skipped": [2, 3, 7]},
        "several micro-batches an update, the last window short": {"updates": 5, "accumulate": 2},
        "a run that is left": {"leaves": min(5, updates), "updates": 3},
        "a run that fails": {"fails": {min(6, updates): failed}},
        "a run that is interrupted": {"fails": {min(6, updates): interrupted}},
        "a run with nothing left to do": {"max_epochs": 0},
        "a run that may not stop early": {"min_steps": updates},
        "a run that cannot evaluate": {"evaluations": None},
        "a run without any metric": {"metrics": {}, "evaluations": {}},
    }
