"""What counts as better: the rule that deciders on a metric share, and what they say of a metric that is not there.

An improvement is strict: below best - min_delta (min) or above best + min_delta (max), and the first finite value is
one. NaN and inf are never the best, count as not improved and rank below every finite score.
"""

from __future__ import annotations

import difflib
import logging
import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final, Literal

from .arguments import one_of

if TYPE_CHECKING:
    from eventloop import Event, TrainState

Mode = Literal["min", "max"]
MODES: Final[tuple[Mode, ...]] = ("min", "max")


class MissingMetricError(KeyError):
    """The monitored metric is not among those that were reported, and the callback is strict about it."""

    def __str__(self) -> str:
        return str(self.args[0])  # KeyError would show its repr


def resolve_mode(monitor: str, mode: Mode | None, owner: object) -> Mode:
    """The mode given; without one "min", if the name says that it is a loss.

    Raises:
        ValueError: ``mode`` is neither min nor max, or it is left out and the name does not say it.
    """
    if mode is not None:
        return one_of(owner, "mode", mode, MODES)
    if monitor == "loss" or monitor.endswith(("_loss", "/loss")):
        return "min"
    raise ValueError(
        f"{type(owner).__name__}: mode=None, and {monitor!r} does not say whether less or more is better: give "
        f"mode='min' or mode='max' (it may be left out only for 'loss' and names that end in '_loss' or '/loss')"
    )


@dataclass(frozen=True, slots=True)
class Improvement:
    """The rule for one metric."""

    mode: Mode
    min_delta: float = 0.0

    def better(self, value: float, best: float | None) -> bool:
        """Whether ``value`` improves on the best so far (None: there is none yet)."""
        if not math.isfinite(value):
            return False
        if best is None:
            return True
        return value < best - self.min_delta if self.mode == "min" else value > best + self.min_delta

    def rank_key(self, value: float) -> tuple[bool, float]:
        """A sort key, the best first: NaN and inf come last, and are all equal."""
        if not math.isfinite(value):
            return True, 0.0
        return False, value if self.mode == "min" else -value


def say_missing(owner: object, monitor: str, event: Event, state: TrainState, *, strict: bool = False) -> None:
    """Say that nobody has reported ``monitor`` for this event: a warning in the log, or an error if ``strict``.

    Only on rank 0: a metric that one rank alone has is that rank's, and the others need not have it.

    Raises:
        MissingMetricError: ``strict``.
    """
    if state.rank != 0:
        return
    fresh = sorted(state.metrics.fresh)
    text = f"{type(owner).__name__}: no metric {monitor!r} at {event.name} of step {state.step}; "
    text += f"reported there: {', '.join(fresh)}" if fresh else "nothing was reported there"
    if near := difflib.get_close_matches(monitor, fresh, 1, cutoff=0.8):
        text += f" (did you mean {near[0]!r}?)"
    elif monitor in state.metrics:
        text += f" ({monitor!r} is known from step {state.metrics.step_of(monitor)}, but only fresh values are judged)"
    if strict:
        raise MissingMetricError(text)
    logging.getLogger("eventloop").warning(text)
