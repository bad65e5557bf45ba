"""What a handler may ask of the loop: it returns one of these, or a tuple or list of them."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Set
from dataclasses import dataclass
from types import MappingProxyType
from typing import Any, NamedTuple


class Request:
    """Base of every request. Subclass it for your own and register who obeys with ``loop.carry_out``.

    In a raw loop read ``control.requests``. Make a subclass a frozen dataclass.
    """

    __slots__ = ()


@dataclass(frozen=True, slots=True, repr=False)
class Stop(Request):
    """End the run after the update in hand; ``reason`` is a clause that may follow "because".

    ``within``: the process will be killed in so many seconds. Then the run is cut short rather than finished: no
    minimum holds it, an evaluation in hand is given up, the last save is made if it fits, the status is ``preempted``,
    and a resumed run goes on from there.

    Raises:
        ValueError: ``within`` is no finite number >= 0.
    """

    reason: str = ""
    within: float | None = None

    def __post_init__(self) -> None:
        seconds = self.within
        number = isinstance(seconds, int | float) and not isinstance(seconds, bool)
        if seconds is not None and not (number and 0 <= seconds < math.inf):
            raise ValueError(f"Stop: within={seconds!r} must be seconds >= 0, or None")

    def __repr__(self) -> str:
        return f"Stop(reason={self.reason!r}" + (")" if self.within is None else f", within={self.within!r})")


@dataclass(frozen=True, slots=True, repr=False)
class Save(Request):
    """Write a checkpoint when the dispatch is over, so that it holds the state of every handler after this event.

    ``may_skip``: under ``Loop(saves="skip")`` it may be left out while another is still being written.
    """

    tag: str = "asked"
    may_skip: bool = True

    def __post_init__(self) -> None:
        if not isinstance(self.tag, str) or not self.tag:
            raise ValueError(f"Save: tag={self.tag!r} is not a text")

    def __repr__(self) -> str:
        return f"Save(tag={self.tag!r}" + (")" if self.may_skip else ", may_skip=False)")


@dataclass(frozen=True, slots=True)
class Keep(Request):
    """The checkpoints that this saver wants kept, by step.

    A checkpoint goes when none of those who asked for it wants it any more; the newest always stays, and so does one
    whose asker never sent a Keep.

    ``make_room``: said along with a Save, with the steps that will be wanted when that is there: what is not among them
    is removed before it is written, the newest too. One whose files match their hashes always stays.

    Raises:
        ValueError: ``steps`` is no collection of whole numbers.
    """

    steps: frozenset[int] = frozenset()
    make_room: bool = False

    def __post_init__(self) -> None:
        steps = self.steps if isinstance(self.steps, Set | list | tuple | range) else None
        if steps is None or not all(type(step) is int for step in steps):
            raise ValueError(f"Keep: steps={self.steps!r} is no set of whole numbers, such as frozenset({{100, 200}})")
        object.__setattr__(self, "steps", frozenset(steps))


@dataclass(frozen=True, slots=True)
class Evaluate(Request):
    """Run the loop's evaluation before the next update."""


@dataclass(frozen=True, slots=True)
class SkipUpdate(Request):
    """At gradients_ready: drop the gradients, change no weight, advance no counter but ``skipped``."""

    reason: str = ""


class SetLR(Request):
    """Set learning rates: one number for every group, or a mapping of group name to number.

    Raises:
        ValueError: a rate is no finite number >= 0.
    """

    __slots__ = ("lr",)
    lr: float | Mapping[str, float]

    def __init__(self, lr: float | Mapping[str, float]) -> None:
        if lr.__class__ is dict and all(map(_is_rate, lr.values())):  # the schedules' path, at each update
            rates: Any = MappingProxyType(lr.copy())
        elif isinstance(lr, Mapping):
            rates = MappingProxyType({str(group): _rate(value, group) for group, value in lr.items()})
        else:
            rates = _rate(lr, None)
        _set(self, "lr", rates)

    def by_group(self, groups: Iterable[str]) -> Mapping[str, float]:
        """The rate of each group named, a single number being spread over all of ``groups``."""
        return dict.fromkeys(groups, self.lr) if isinstance(self.lr, float) else self.lr

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"SetLR is frozen: {name} cannot be set")

    def __eq__(self, other: object) -> bool:
        return self.lr == other.lr if isinstance(other, SetLR) else NotImplemented

    def __hash__(self) -> int:
        return hash(tuple(sorted(self.lr.items())) if isinstance(self.lr, Mapping) else self.lr)

    def __repr__(self) -> str:
        return f"SetLR({dict(self.lr) if isinstance(self.lr, Mapping) else self.lr!r})"


_set = object.__setattr__


def _is_rate(value: Any) -> bool:
    return value.__class__ is float and 0.0 <= value < math.inf


def _rate(value: Any, group: object) -> float:
    try:
        rate = float(value)
    except (TypeError, ValueError):
        rate = math.nan
    if isinstance(value, str | bytes | bool) or not 0.0 <= rate < math.inf:
        where = f" of group {group!r}" if group is not None else ""
        raise ValueError(f"SetLR: the learning rate{where} must be a finite number >= 0, not {value!r}")
    return rate


class Report(Request):
    """Add metrics to the snapshot that the handlers behind this one see, and the loggers among them.

    Values are single real numbers or one-element tensors, nested mappings are flattened with ``/``. The mapping is
    copied; reading a value back is ``state.metrics[key]``.
    """

    __slots__ = ("metrics",)
    metrics: Mapping[str, Any]

    def __init__(self, metrics: Mapping[str, Any] | None = None, /, **more: Any) -> None:
        if metrics is not None and not isinstance(metrics, Mapping):
            raise TypeError(f"Report takes a mapping of names to numbers, not {metrics!r}")
        _set(self, "metrics", MappingProxyType({**metrics, **more} if metrics else more))

    def __setattr__(self, name: str, value: object) -> None:
        raise AttributeError(f"Report is frozen: {name} cannot be set")

    def __repr__(self) -> str:
        return f"Report({', '.join(map(str, self.metrics))})"  # names alone: a repr never asks for a number


class Reply(NamedTuple):
    """One request and ``who`` made it (the subscription's name)."""

    who: str
    request: Request

    @property
    def reason(self) -> str:
        """The request's reason, or nothing."""
        return str(getattr(self.request, "reason", ""))

    def __str__(self) -> str:
        kind = type(self.request).__name__
        return f"{kind} by {self.who}" + (f": {self.reason}" if self.reason else "")
