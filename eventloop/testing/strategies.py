"""Hypothesis strategies for subscribers, metrics and learning-rate plans: the awkward ones first."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

from hypothesis import strategies as st

from ..failures import POLICIES, Policy
from ..subscription import Priority
from .crowd import BEHAVIOURS, Behaviour, Subscriber
from .scripts import Schedule

if TYPE_CHECKING:
    from collections.abc import Sequence

FEW: Final = 8  # a list strategy alone keeps near its least size, and hardly ever draws its greatest
_EDGES: Final = [band + step for band in Priority for step in (0, -1, 1)]


def subscriptions(
    *,
    does: Sequence[Behaviour] = BEHAVIOURS,
    failures: Sequence[Policy] = POLICIES,
    filters: bool = True,
    min_size: int = 0,
    max_size: int = 30,
) -> st.SearchStrategy[list[Subscriber]]:
    """Lists of made-up subscribers for a `Crowd`: ties, band edges, filters, every policy, every behaviour.

    Args:
        does: the behaviours to draw from.
        failures: the failure policies to draw from.
        filters: whether some have filters.
        min_size: the fewest in a list.
        max_size: the most in a list.
    """
    one = st.builds(
        Subscriber,
        does=st.sampled_from(does),
        priority=st.integers(-1, 1) | st.sampled_from(_EDGES) | st.integers(-2000, 2000),
        filters=_filters() if filters else st.just({}),
        failure=st.sampled_from(failures),
        target=st.integers(0, max(max_size - 1, 0)),
    )
    few = st.lists(one, min_size=min_size, max_size=max(min_size, min(max_size, FEW)))
    return few if max_size <= FEW else few | st.lists(one, min_size=max(min_size, max_size - FEW), max_size=max_size)


def _filters() -> st.SearchStrategy[dict[str, Any]]:
    amount = st.integers(1, 4)
    words = {"every": amount, "after": amount, "before": amount, "once": amount}
    return st.just({}) | st.fixed_dictionaries({}, optional=words)


def metric_values() -> st.SearchStrategy[float]:
    """One real number: a few that will tie, any finite one, NaN, both infinities; ints and bools as well as floats."""
    ties = st.sampled_from([1.0, 0.5, 0.0, -0.0])
    odd = st.sampled_from([float("nan"), float("inf"), float("-inf"), True, 0])
    return ties | st.floats(allow_nan=False, allow_infinity=False) | odd


@st.composite
def metric_series(
    draw: st.DrawFn,
    name: str = "eval_loss",
    values: st.SearchStrategy[float] | None = None,
    *,
    min_size: int = 0,
    max_size: int = 12,
) -> list[dict[str, float]]:
    """The metrics of one evaluation after the other, each a mapping: plateaus, ties, NaN, inf, and the key missing.

    Args:
        draw: hypothesis gives it.
        name: the key.
        values: what to draw its values from; else `metric_values`.
        min_size: the fewest evaluations.
        max_size: the most evaluations.
    """
    one = st.none() | (metric_values() if values is None else values)
    plateaus = draw(st.lists(st.tuples(one, st.integers(1, 4)), min_size=min_size, max_size=max_size))
    return [{} if value is None else {name: value} for value, n in plateaus for _ in range(n)][:max_size]


@st.composite
def schedules(
    draw: st.DrawFn,
    groups: Sequence[str] = ("group_0", "group_1"),
    *,
    max_updates: int = 12,
    max_sittings: int = 3,
) -> list[Schedule]:
    """The plan of a run's learning rate, and what later sittings make of it: one `Schedule` for each sitting.

    One group or several, each with its own base; warmup and ``eta_min`` for all groups or for each; no warmup, nothing
    but warmup; an end before, at or behind the end of the run, or none. Each plan is valid in itself. A later sitting
    begins where the one before was over; it keeps the plan, or changes one number of it as a user edits a script.

    Args:
        draw: hypothesis gives it.
        groups: the names of parameter groups; the first is always there.
        max_updates: the most updates of the whole run.
        max_sittings: the most sittings.
    """
    used = groups[: draw(st.integers(1, len(groups)))]
    ends = sorted(draw(st.lists(st.integers(0, max_updates), min_size=1, max_size=max_sittings)))
    plan = Schedule(base={group: draw(_rates()) for group in used}, updates=ends[0])
    for word in ("total_steps", "warmup_steps", "eta_min"):
        plan = _changed(draw, plan, word, ends[-1])
    plans = [plan]
    for end in ends[1:]:
        plan = replace(plan, updates=end)
        plan = _changed(draw, plan, draw(st.sampled_from(["", "base", *plan.options])), ends[-1])
        plans.append(plan)
    return plans


def _changed(draw: st.DrawFn, plan: Schedule, word: str, end: int) -> Schedule:
    """The plan of a run of ``end`` updates with one number drawn anew, within what the others allow."""
    groups, least = plan.base, max(_all(plan.warmup_steps))
    if word == "base":
        floors = plan.eta_min if isinstance(plan.eta_min, Mapping) else dict.fromkeys(groups, plan.eta_min)
        return replace(plan, base={group: draw(_rates(floors[group])) for group in groups})
    if word == "total_steps":
        some = st.integers(max(least, 1), max(least, 1, 2 * end))
        return replace(plan, total_steps=draw(some if least > end else st.none() | some))
    if word == "warmup_steps":
        one = st.integers(0, end if plan.total_steps is None else plan.total_steps)
        return replace(plan, warmup_steps=draw(one | st.fixed_dictionaries(dict.fromkeys(groups, one))))
    if word == "eta_min":
        each = st.fixed_dictionaries({group: _up_to(base) for group, base in groups.items()})
        return replace(plan, eta_min=draw(_up_to(min(groups.values())) | each))
    return plan


def _all(value: int | Mapping[str, int]) -> list[int]:
    return [*value.values()] if isinstance(value, Mapping) else [value]


def _rates(least: float = 0.0) -> st.SearchStrategy[float]:
    return st.sampled_from([max(rate, least) for rate in (0.1, 1.0, 1e-3)]) | st.floats(max(least, 1e-8), 1.0)


def _up_to(base: float) -> st.SearchStrategy[float]:
    return st.sampled_from([0.0, base / 10, base]) | st.floats(0.0, base)
