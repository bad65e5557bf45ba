"""For the tests of your own callbacks: a loop without a model, a clock, a recorder, faults, checks and strategies.

Each name is loaded when it is asked for: the module needs neither torch nor a test runner, its strategies hypothesis.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from ..lazy import lazy

if TYPE_CHECKING:
    from .any_order import assert_any_order
    from .checks import CHECKS, CallbackCheckError, Verdict, callback_checks, check_callback, examine
    from .clock import Clock
    from .crowd import Crowd, Deliberate, MadeUpEvent, Subscriber
    from .dependencies import Dependency, OrderReport, order_report
    from .fake_loop import FakeLoop
    from .faults import full_disk, hanging, inject, raising, slow
    from .order import assert_before, assert_order
    from .recorder import Recorder, Trace
    from .strategies import metric_series, metric_values, subscriptions
    from .streams import event_streams

_HOME: Final = {
    "CHECKS": "checks",
    "CallbackCheckError": "checks",
    "Clock": "clock",
    "Crowd": "crowd",
    "Deliberate": "crowd",
    "Dependency": "dependencies",
    "FakeLoop": "fake_loop",
    "MadeUpEvent": "crowd",
    "OrderReport": "dependencies",
    "Recorder": "recorder",
    "Subscriber": "crowd",
    "Trace": "recorder",
    "Verdict": "checks",
    "assert_any_order": "any_order",
    "assert_before": "order",
    "assert_order": "order",
    "callback_checks": "checks",
    "check_callback": "checks",
    "event_streams": "streams",
    "examine": "checks",
    "full_disk": "faults",
    "hanging": "faults",
    "inject": "faults",
    "metric_series": "strategies",
    "metric_values": "strategies",
    "order_report": "dependencies",
    "raising": "faults",
    "slow": "faults",
    "subscriptions": "strategies",
}

__all__ = [
    "CHECKS",
    "CallbackCheckError",
    "Clock",
    "Crowd",
    "Deliberate",
    "Dependency",
    "FakeLoop",
    "MadeUpEvent",
    "OrderReport",
    "Recorder",
    "Subscriber",
    "Trace",
    "Verdict",
    "assert_any_order",
    "assert_before",
    "assert_order",
    "callback_checks",
    "check_callback",
    "event_streams",
    "examine",
    "full_disk",
    "hanging",
    "inject",
    "metric_series",
    "metric_values",
    "order_report",
    "raising",
    "slow",
    "subscriptions",
]

__getattr__ = lazy(__name__, _HOME)
