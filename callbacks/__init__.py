"""Callbacks for an `eventloop.Bus`: schedules, stoppers, savers, monitors, guards, loggers.

Each class is loaded when somebody asks for it, also under its name with ``Callback`` behind. Importing this package
loads no torch. If a ``callbacks.py`` of your own hides it, use ``from eventloop.callbacks import ...``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from eventloop.lazy import lazy

if TYPE_CHECKING:
    from .checkpoint import ModelCheckpoint
    from .early_stopping import EarlyStopping
    from .guards import NaNGuard
    from .loggers.console import ConsoleLogger
    from .loggers.jsonl import JSONLLogger
    from .loggers.tensorboard import TensorBoardLogger
    from .monitors import GradNormMonitor, LearningRateMonitor
    from .progress import ProgressBar
    from .schedules import CosineAnnealingWithWarmup, WarmupCosine
    from .signals import SignalStop
    from .time_limit import TimeLimit

_LAZY = {
    "ConsoleLogger": "loggers.console",
    "CosineAnnealingWithWarmup": "schedules",
    "EarlyStopping": "early_stopping",
    "GradNormMonitor": "monitors",
    "JSONLLogger": "loggers.jsonl",
    "LearningRateMonitor": "monitors",
    "ModelCheckpoint": "checkpoint",
    "NaNGuard": "guards",
    "ProgressBar": "progress",
    "SignalStop": "signals",
    "TensorBoardLogger": "loggers.tensorboard",
    "TimeLimit": "time_limit",
    "WarmupCosine": "schedules",
}

__all__ = [
    "ConsoleLogger",
    "CosineAnnealingWithWarmup",
    "EarlyStopping",
    "GradNormMonitor",
    "JSONLLogger",
    "LearningRateMonitor",
    "ModelCheckpoint",
    "NaNGuard",
    "ProgressBar",
    "SignalStop",
    "TensorBoardLogger",
    "TimeLimit",
    "WarmupCosine",
]

_load = lazy(__name__, _LAZY)


def __getattr__(name: str) -> Any:
    """A callback, loaded when somebody asks."""
    own = name.removesuffix("Callback")
    if own not in _LAZY:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}; there are {', '.join(_LAZY)}")
    return _load(own)


def __dir__() -> list[str]:
    """What there is, loaded or not."""
    return sorted({*globals(), *_LAZY})
