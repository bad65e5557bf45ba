"""For the tests of your own callbacks: a recorder, a check of the running order, and hypothesis strategies.

The strategies are loaded when you ask for one, so that this module needs neither hypothesis nor torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .crowd import Crowd, Deliberate, MadeUpEvent, Subscriber
from .order import assert_order
from .recorder import Recorder

if TYPE_CHECKING:
    from .strategies import metric_series, metric_values, subscriptions
    from .streams import event_streams

_LAZY = {
    "event_streams": "streams",
    "metric_series": "strategies",
    "metric_values": "strategies",
    "subscriptions": "strategies",
}

__all__ = [
    "Crowd",
    "Deliberate",
    "MadeUpEvent",
    "Recorder",
    "Subscriber",
    "assert_order",
    "event_streams",
    "metric_series",
    "metric_values",
    "subscriptions",
]


def __getattr__(name: str) -> Any:
    """The strategies, which need hypothesis."""
    if name not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    value = globals()[name] = getattr(import_module(f".{_LAZY[name]}", __name__), name)
    return value
