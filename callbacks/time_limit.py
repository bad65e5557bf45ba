"""`TimeLimit`: end the run in good order before the wall clock of a cluster does."""

from __future__ import annotations

import math
import os
import re
import time
from collections import deque
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, Final

from eventloop import Bus, Callback, CheckpointSaved, EvalEnd, EvalStep, Priority, StepEnd, Stop, TrainBegin, TrainState

from .arguments import not_negative

FORM: Final = re.compile(r"(?:(?P<days>\d+)-)?(?P<first>\d+)(?P<rest>(?::[0-5]\d){0,2})")
RECENT: Final = 32  # turns between two looks that count, so that a first one which compiled is forgotten in time


class TimeLimit(Callback):
    """Asks for a stop before the wall clock ends: the run ends ``preempted``, and a resume goes on exactly there.

    It looks at each step_end, eval_step and eval_end. As soon as what is left is less than the longest recent turn
    between two looks, plus one and a half times the slowest of the last three saves, plus ``margin``, it asks for a
    stop, which says how much is left.

    The time counts from the start of the process, for that is what a cluster counts: where the system does not tell it,
    from train_begin, and so too on a bus whose clock is not ``time.monotonic``. A new process has a new wall clock:
    nothing of this is state.

    Args:
        limit: seconds, a ``timedelta``, or text as SLURM has it: "MM:SS", "HH:MM:SS", "D-HH", "D-HH:MM", "D-HH:MM:SS".
        margin: seconds to spare; None: 2 % of the limit, at least 10 s, at most half of it.
        since: the Unix time from which to count instead, as of the job, which began before the process.

    Raises:
        ValueError: an argument is out of range, or ``limit`` is no such text.
    """

    priority = Priority.LAST  # the time that the others take counts at that event already
    failure = "raise"  # a run that counts on its end must not go on without it
    from_outside = True

    def __init__(self, limit: float | str | timedelta, margin: float | None = None, since: float | None = None) -> None:
        self.limit = limit
        self.margin = None if margin is None else not_negative(self, "margin", margin)
        self.since = None if since is None else not_negative(self, "since", since)
        self._limit = _seconds(self, limit)
        self._spare = min(max(10.0, 0.02 * self._limit), self._limit / 2) if margin is None else float(margin)
        self._clock: Callable[[], float] = time.monotonic
        self._forget()

    def _forget(self) -> None:
        self._end: float | None = None  # by the clock
        self._looked = 0.0
        self._turns: dict[str, deque[float]] = {}
        self._saves: deque[float] = deque(maxlen=3)

    def bind(self, *, bus: Bus) -> None:
        """Go by the clock of the bus."""
        self._clock = bus.clock

    def on_train_begin(self, event: TrainBegin, state: TrainState) -> None:
        """Find out when the end is."""
        self._forget()
        self._begin()

    def _begin(self) -> float:
        self._looked = self._clock()
        self._end = self._looked + self._limit - self._age()
        return self._end

    def _age(self) -> float:
        """Seconds that are gone already."""
        if self.since is not None:
            return max(time.time() - self.since, 0.0)
        return process_age() if self._clock is time.monotonic else 0.0

    def on_checkpoint_saved(self, event: CheckpointSaved, state: TrainState) -> None:
        """Note how long a save takes."""
        self._saves.append(event.seconds)

    def on_step_end(self, event: StepEnd, state: TrainState) -> Stop | None:
        """Look after an update."""
        return self._look(event)

    def on_eval_step(self, event: EvalStep, state: TrainState) -> Stop | None:
        """Look after a batch of an evaluation."""
        return self._look(event)

    def on_eval_end(self, event: EvalEnd, state: TrainState) -> Stop | None:
        """Look after an evaluation, which may draw its batches by itself."""
        return self._look(event) if event.completed else None

    def _look(self, event: StepEnd | EvalStep | EvalEnd) -> Stop | None:
        end = self._begin() if self._end is None else self._end  # attached in mid-run
        now = self._clock()
        turns = self._turns.setdefault(event.name, deque(maxlen=RECENT))
        turns.append(now - self._looked)
        self._looked = now
        needed = max(map(max, self._turns.values())) + 1.5 * max(self._saves, default=0.0) + self._spare
        rest = end - now
        if rest >= needed:
            return None
        return Stop(f"the time limit of {self._limit_in_words()} is near", within=max(rest, 0.0))

    def _limit_in_words(self) -> str:
        return self.limit if isinstance(self.limit, str) else f"{self._limit:g} s"

    def describe(self) -> str:
        """The rule in words."""
        return f"{self._limit_in_words()}, {self._spare:g} s to spare"


def process_age() -> float:
    """Seconds since this process was started; 0 where the system does not tell."""
    try:
        fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
        started = int(fields[19]) / os.sysconf("SC_CLK_TCK")  # field 22 of proc(5), since boot
        return max(time.clock_gettime(time.CLOCK_BOOTTIME) - started, 0.0) if started else 0.0
    except (OSError, AttributeError, ValueError, IndexError):
        return 0.0


def _seconds(owner: object, limit: Any) -> float:
    if isinstance(limit, str):
        seconds = _read(limit)
    else:
        seconds = limit.total_seconds() if isinstance(limit, timedelta) else limit
    if isinstance(seconds, bool) or not isinstance(seconds, int | float) or not 0.0 < seconds < math.inf:
        forms = "seconds above 0, a timedelta, or text: 'MM:SS', 'HH:MM:SS', 'D-HH', 'D-HH:MM', 'D-HH:MM:SS'"
        raise ValueError(f"{type(owner).__name__}: limit={limit!r} must be {forms}")
    return float(seconds)


def _read(text: str) -> float | None:
    """Seconds of a time as SLURM writes it; None if it is none. A number alone, minutes in SLURM, is none either."""
    found = FORM.fullmatch(text.strip())
    if found is None:
        return None
    parts = [int(part) for part in (found["first"] + found["rest"]).split(":")]
    if found["days"] is not None:
        hours, minutes, seconds = (*parts, 0, 0)[:3]
        return ((int(found["days"]) * 24 + hours) * 60 + minutes) * 60.0 + seconds if hours < 24 else None
    if len(parts) == 1:
        return None
    hours, minutes, seconds = (0, *parts)[-3:]
    return (hours * 60 + minutes) * 60.0 + seconds
