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
    from .machine import BusMachine
    from .order import assert_before, assert_order
    from .recorder import Recorder, Trace
    from .scripts import Schedule, Stream
    from .snippets import inf, nan
    from .strategies import metric_series, metric_values, schedules, subscriptions
    from .streams import cut_points, event_streams

_HOME: Final = {
    "BusMachine": "machine",
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
    "Schedule": "scripts",
    "Stream": "scripts",
    "Subscriber": "crowd",
    "Trace": "recorder",
    "Verdict": "checks",
    "assert_any_order": "any_order",
    "assert_before": "order",
    "assert_order": "order",
    "callback_checks": "checks",
    "check_callback": "checks",
    "cut_points": "streams",
    "event_streams": "streams",
    "examine": "checks",
    "full_disk": "faults",
    "hanging": "faults",
    "inf": "snippets",
    "inject": "faults",
    "metric_series": "strategies",
    "metric_values": "strategies",
    "nan": "snippets",
    "order_report": "dependencies",
    "raising": "faults",
    "schedules": "strategies",
    "slow": "faults",
    "subscriptions": "strategies",
}

__all__ = [
    "CHECKS",
    "BusMachine",
    "CallbackCheckError",
    "Clock",
    "Crowd",
    "Deliberate",
    "Dependency",
    "FakeLoop",
    "MadeUpEvent",
    "OrderReport",
    "Recorder",
    "Schedule",
    "Stream",
    "Subscriber",
    "Trace",
    "Verdict",
    "assert_any_order",
    "assert_before",
    "assert_order",
    "callback_checks",
    "check_callback",
    "cut_points",
    "event_streams",
    "examine",
    "full_disk",
    "hanging",
    "inf",
    "inject",
    "metric_series",
    "metric_values",
    "nan",
    "order_report",
    "raising",
    "schedules",
    "slow",
    "subscriptions",
]

__getattr__ = lazy(__name__, _HOME)
