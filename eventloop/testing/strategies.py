"""Hypothesis strategies for subscribers and metrics: the awkward ones first."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from hypothesis import strategies as st

from ..failures import POLICIES, Policy
from ..subscription import Priority
from .crowd import BEHAVIOURS, Behaviour, Subscriber

if TYPE_CHECKING:
    from collections.abc import Sequence

_EDGES = [band + step for band in Priority for step in (0, -1, 1)]


def subscriptions(
    *,
    does: Sequence[Behaviour] = BEHAVIOURS,
    failures: Sequence[Policy] = POLICIES,
    filters: bool = True,
    min_size: int = 0,
    max_size: int = 8,
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
    return st.lists(one, min_size=min_size, max_size=max_size)


def _filters() -> st.SearchStrategy[dict[str, Any]]:
    amount = st.integers(1, 4)
    words = {"every": amount, "after": amount, "before": amount, "once": amount}
    return st.just({}) | st.fixed_dictionaries({}, optional=words)


def metric_values() -> st.SearchStrategy[float]:
    """One real number: a few that will tie, any finite one, NaN, both infinities; ints and bools as well as floats."""
    ties = st.sampled_from([1.0, 0.5, 0.0, -0.0])
    odd = st.sampled_from([float("nan"), float("inf"), float("-inf"), True, 0])
    return ties | st.floats(allow_nan=False, allow_infinity=False) | odd


def metric_series(
    name: str = "eval_loss",
    values: st.SearchStrategy[float] | None = None,
    *,
    min_size: int = 0,
    max_size: int = 12,
) -> st.SearchStrategy[list[dict[str, float]]]:
    """The metrics of one evaluation after the other, each a mapping: plateaus, ties, NaN, inf, and the key missing.

    Args:
        name: the key.
        values: what to draw its values from; else `metric_values`.
        min_size: the fewest evaluations.
        max_size: the most evaluations.
    """
    one = st.none() | (metric_values() if values is None else values)
    plateaus = st.lists(st.tuples(one, st.integers(1, 4)), min_size=min_size, max_size=max_size)
    return plateaus.map(lambda drawn: [_named(name, value) for value, n in drawn for _ in range(n)][:max_size])


def _named(name: str, value: float | None) -> dict[str, float]:
    return {} if value is None else {name: value}
