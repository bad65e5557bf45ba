"""What the kit is given, checked before anything is done with it; each message names the argument and its value."""

from __future__ import annotations

import inspect
import math
import numbers
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Any

from ..bus import Bus
from ..errors import shown
from ..limits import whole
from .clock import Clock

Series = float | Sequence[float | None] | Callable[[int], float | None]
"""One metric over a run: a number, one value a turn (None: it is not reported then), or a function of the turn."""


def callbacks_in(things: Any, told: str, form: str) -> list[object]:
    """The callbacks that somebody gave, as a list.

    Args:
        things: what was given.
        told: how the message calls it.
        form: what would be right.

    Raises:
        TypeError: it is no list of objects.
    """
    if isinstance(things, str | Mapping) or not isinstance(things, Iterable):
        raise TypeError(f"{told} {shown(things)}: give {form}")
    found = list(things)
    for thing in found:
        if isinstance(thing, type):
            raise TypeError(f"{told} [{thing.__name__}]: that is a class; write {thing.__name__}(...)")
    return found


def check_bus(bus: Any, told: str) -> Bus:
    """A bus.

    Raises:
        TypeError: it is none; of a loop, the message says where its bus is.
    """
    if not isinstance(bus, Bus):
        hint = "; of a loop give loop.bus" if isinstance(getattr(bus, "bus", None), Bus) else ""
        raise TypeError(f"{told}: {shown(bus)} is no Bus{hint}")
    return bus


def check_callable(function: Any, told: str, form: str, arguments: int) -> None:
    """A function of so many positional arguments.

    Raises:
        TypeError: it cannot be called with them; the message says what would be right.
    """
    if callable(function):
        try:
            inspect.signature(function).bind(*[None] * arguments)
        except TypeError:
            pass
        except ValueError:
            return  # a builtin that does not tell its signature
        else:
            return
    raise TypeError(f"{told}={shown(function)}: give {form}")


# -- the script of a FakeLoop ------------------------------------------------------------------------------------------


def check_script(argument: str, script: Mapping[str, Series] | None) -> dict[str, Series]:
    """Metrics by name.

    Raises:
        ValueError: they are something else.
    """
    if script is not None and not isinstance(script, Mapping):
        raise ValueError(f"{argument}={script!r} must be a mapping of names to a number, a list or a function")
    for name, series in (script or {}).items():
        if isinstance(series, str) or not (callable(series) or isinstance(series, int | float | Sequence)):
            raise ValueError(f"{argument}[{name!r}]={series!r} must be a number, a list or a function of the turn")  # noqa: TRY004  # as for every argument
    return dict(script or {})


def check_turns(argument: str, turns: Any) -> frozenset[int]:
    """Turns, which count from 1.

    Raises:
        ValueError: one is no whole number >= 1.
    """
    if isinstance(turns, str) or not isinstance(turns, Collection):
        raise ValueError(f"{argument}={turns!r} must be a set of turns, such as {{3}}; turns count from 1")  # noqa: TRY004  # as for every argument
    for turn in turns:
        _turn(argument, turn, turns)
    return frozenset(turns)


def _turn(argument: str, turn: Any, given: Any) -> None:
    if isinstance(turn, bool) or not isinstance(turn, int) or turn < 1:
        raise ValueError(f"{argument}={given!r}: {turn!r} is no turn; turns are whole numbers, the first is 1")


def check_fails(fails: Any) -> dict[int, BaseException]:
    """Errors by turn.

    Raises:
        ValueError: a key is no turn, or what it has is no error.
    """
    if fails is not None and not isinstance(fails, Mapping):
        raise ValueError(f"fails={fails!r} must be a mapping of turns to errors, such as {{7: KeyboardInterrupt()}}")
    for turn, error in (fails or {}).items():
        _turn("fails", turn, fails)
        if not isinstance(error, BaseException):
            raise ValueError(f"fails[{turn}]={error!r} must be an error that can be raised, such as OSError('gone')")  # noqa: TRY004  # as for every argument
    return dict(fails or {})


def check_time(seconds: Any, clock: Any) -> None:
    """How long an update takes, and the clock that tells it.

    Raises:
        ValueError: ``seconds`` is no number >= 0, or ``clock`` is no `Clock`.
    """
    if not _real(seconds):
        raise ValueError(f"seconds={seconds!r} must be a number >= 0")
    if clock is not None and not isinstance(clock, Clock):
        raise ValueError(f"clock={clock!r} must be a Clock of eventloop.testing")


def check_rates(lr: Any) -> None:
    """A learning rate, or one for each group.

    Raises:
        ValueError: one is no finite number >= 0.
    """
    for name, rate in lr.items() if isinstance(lr, Mapping) else [("", lr)]:
        if not _real(rate):
            where = f"lr[{name!r}]" if isinstance(lr, Mapping) else "lr"
            valid = "a finite number >= 0" if isinstance(lr, Mapping) else "a finite number >= 0, or one for each group"
            raise ValueError(f"{where}={rate!r} must be {valid}")


def check_leaves(turn: Any) -> int | None:
    """The turn at which the body leaves the run.

    Raises:
        ValueError: it is none.
    """
    return whole("leaves", turn, least=1, optional=True)


def _real(value: Any) -> bool:
    return (
        isinstance(value, numbers.Real) and not isinstance(value, bool) and math.isfinite(value) and float(value) >= 0.0
    )
