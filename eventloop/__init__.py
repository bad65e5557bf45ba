"""A training event bus: your loop publishes typed events, handlers reply with requests.

Not asyncio's event loop. `Bus`, the events, the requests and `TrainState` are here at once; `Loop`, `fit` and the rest
are loaded at first use, so that importing this package loads no torch.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .bus import Bus
from .callback import Callback
from .errors import (
    BusyBusError,
    CheckpointError,
    ConflictError,
    EventLoopError,
    PublishCycleError,
    ReplyError,
    ResumeError,
    StaleMetricError,
)
from .events import (
    CheckpointSaved,
    EpochBegin,
    EpochEnd,
    EvalBegin,
    EvalEnd,
    EvalStep,
    Event,
    GradientsReady,
    HandlerFailed,
    RunFailed,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainEnd,
)
from .failures import Failure
from .fold import Control
from .lazy import lazy
from .metrics import Metrics
from .requests import Evaluate, Keep, Reply, Report, Request, Save, SetLR, SkipUpdate, Stop
from .state import TrainState
from .subscription import Handle, Priority

if TYPE_CHECKING:
    from .evaluation import mean_over
    from .fit import fit
    from .loop import Loop
    from .model import unwrap
    from .result import Result
    from .resume import Resumed
    from .rows import read_metrics
    from .stream import read_stream
    from .totals import Totals

__version__ = "0.1.0"

_LAZY = {
    "Loop": "loop",
    "fit": "fit",
    "Result": "result",
    "Resumed": "resume",
    "read_metrics": "rows",
    "read_stream": "stream",
    "Totals": "totals",
    "mean_over": "evaluation",
    "unwrap": "model",
}

__all__ = [
    "Bus",
    "BusyBusError",
    "Callback",
    "CheckpointError",
    "CheckpointSaved",
    "ConflictError",
    "Control",
    "EpochBegin",
    "EpochEnd",
    "EvalBegin",
    "EvalEnd",
    "EvalStep",
    "Evaluate",
    "Event",
    "EventLoopError",
    "Failure",
    "GradientsReady",
    "Handle",
    "HandlerFailed",
    "Keep",
    "Loop",
    "Metrics",
    "Priority",
    "PublishCycleError",
    "Reply",
    "ReplyError",
    "Report",
    "Request",
    "Result",
    "ResumeError",
    "Resumed",
    "RunFailed",
    "Save",
    "SetLR",
    "SkipUpdate",
    "StaleMetricError",
    "StepBegin",
    "StepEnd",
    "Stop",
    "Totals",
    "TrainBegin",
    "TrainEnd",
    "TrainState",
    "fit",
    "mean_over",
    "read_metrics",
    "read_stream",
    "unwrap",
]

__getattr__ = lazy(__name__, _LAZY)
