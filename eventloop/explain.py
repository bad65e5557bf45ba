"""What a bus can tell of itself: the running order and why, and what each handler has cost."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

from .errors import told
from .events import Event
from .subscription import Priority, Subscription


class Explanation(str):
    """A text that shows itself as it is, also where only its repr is asked for."""

    __slots__ = ()

    def __repr__(self) -> str:
        return str(self)


class HandlerCost(NamedTuple):
    """One handler's calls and its time in seconds: sampled ``mean`` and ``worst`` of a call, and the estimated sum."""

    name: str
    event: str
    calls: int
    mean: float
    worst: float
    seconds: float


def cost_of(subscription: Subscription, unsampled: int) -> HandlerCost:
    """What a subscription has cost, with the calls since its last sample."""
    cost = subscription.cost
    calls, mean, worst = cost.calls + unsampled, cost.mean * 1e-9, cost.worst * 1e-9
    return HandlerCost(subscription.name, subscription.event.name, calls, mean, worst, calls * mean)


def explain(kind: type[Event], order: Sequence[Subscription], off: Iterable[Subscription]) -> Explanation:
    """One line a handler: place, priority and its band, name, and what else decides when it is called."""
    many = "1 handler" if len(order) == 1 else f"{len(order)} handlers"
    lines = [f"{kind.name}: {many}; higher priority first, ties in order of registration"]
    width = max((len(s.name) for s in order), default=0)
    for place, s in enumerate(order, 1):
        number, band = (s.priority, _band(s.priority))
        lines.append(f"{place:>3}. {number:>5} {band:<10} {s.name:<{width}}  {_facts(s, kind)}".rstrip())
    lines += [f"   -  {s.name} is {s.state}" for s in off]
    return Explanation("\n".join(lines))


def _band(priority: int) -> str:
    try:
        return Priority(priority).name
    except ValueError:
        return ""


def _facts(s: Subscription, kind: type[Event]) -> str:
    facts = [str(s.filter)] if s.filter is not None else []
    if s.when is not None:
        facts.append("when=")
    if s.event is not kind:
        facts.append(f"through {s.event.__name__}")
    facts.append(f"failure={s.failure}")
    if s.state != "active":
        facts.append(s.state)
    if getattr(s.owner, "touches_model", False):
        facts.append("touches the model")
    return ", ".join(facts + described(s.owner))


def described(thing: object) -> list[str]:
    """What an object says of its settings, if it says anything; never an error of its own."""
    describe = getattr(thing, "describe", None)
    try:
        return [] if describe is None else [str(describe())]
    except Exception as error:
        return [f"describe() failed: {told(error)}"]
