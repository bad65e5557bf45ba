"""Guards against a run that has gone wrong."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

from eventloop import Callback, GradientsReady, Priority, SkipUpdate, StepEnd, Stop, TrainBegin, TrainState

from .arguments import name, one_of, whole
from .improvement import say_missing

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

Verdict = tuple[int, bool]
"""The update whose value was judged, and whether it was bad."""


class NaNGuard(Callback):
    """Stops the run, or skips the update, when a metric is NaN or infinite.

    ``action="stop"`` costs no device sync: at each step_end a copy of the value to the host is started, and the one
    started an update earlier is judged, so the stop comes one update late and names the right one. A value that is a
    plain float is judged at once. The value of the run's last update is not judged.

    ``action="skip"`` has to know before the weights change: it judges at gradients_ready, which costs one device sync
    per update, and asks to skip each update whose value is bad. What it monitors has to be there by then: the loss, or
    "grad_norm".

    Args:
        monitor: the metric's name.
        action: "stop" or "skip".
        patience: so many bad values in a row ask for a stop. None is 1 for "stop", and never for "skip".

    Raises:
        ValueError: an argument is out of range.
    """

    priority = Priority.DECIDE

    def __init__(
        self, monitor: str = "loss", action: Literal["stop", "skip"] = "stop", patience: int | None = None
    ) -> None:
        self.monitor = name(self, "monitor", monitor)
        self.action = one_of(self, "action", action, ("stop", "skip"))
        default = 1 if action == "stop" else None
        self.patience = default if patience is None else whole(self, "patience", patience, 1)
        self._forget()

    def _forget(self) -> None:
        self._late = _LateVerdict()
        self._row = 0
        self._said_missing = False

    def options(self) -> dict[str, None]:
        """Only the event that the action needs."""
        return {"gradients_ready" if self.action == "stop" else "step_end": None}

    def on_train_begin(self, event: TrainBegin, state: TrainState) -> None:
        """A fresh run has no history."""
        if not event.resumed:
            self._forget()

    def on_step_end(self, event: StepEnd, state: TrainState) -> Stop | None:
        """Judge the value of one update ago, and send for this one's."""
        stop = self._judge(self._late.take())
        if not self._there(event, state):
            return stop
        value = state.metrics.raw(self.monitor)
        if isinstance(value, float):
            return self._judge((state.update, not math.isfinite(value))) or stop
        self._late.send(value, state.update)
        return stop

    def on_gradients_ready(self, event: GradientsReady, state: TrainState) -> tuple[SkipUpdate | Stop, ...] | None:
        """Judge the value of the update in hand: one device sync."""
        if not self._there(event, state):
            return None
        bad = not math.isfinite(state.metrics[self.monitor])
        stop = self._judge((state.update, bad))
        if not bad:
            return None
        skip = SkipUpdate(f"{self.monitor} was NaN/inf at step {state.update}")
        return (skip,) if stop is None else (skip, stop)

    def _there(self, event: StepEnd | GradientsReady, state: TrainState) -> bool:
        there = self.monitor in state.metrics.fresh
        if not there and not self._said_missing:
            self._said_missing = True
            say_missing(self, self.monitor, event, state)
        return there

    def _judge(self, verdict: Verdict | None) -> Stop | None:
        if verdict is None:
            return None
        step, bad = verdict
        self._row = self._row + 1 if bad else 0
        if not bad or self.patience is None or self._row < self.patience:
            return None
        if self._row == 1:
            return Stop(f"{self.monitor} was NaN/inf at step {step}")
        return Stop(f"{self.monitor} was NaN/inf {self._row} times in a row, the last at step {step}")

    def state_dict(self) -> dict[str, Any]:
        """How many bad values in a row there were, and the verdict that is still to be heard."""
        return {"row": self._row, "late": self._late.peek()}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        self._row = state["row"]
        self._late = _LateVerdict(state["late"])

    def describe(self) -> str:
        """The rule in words."""
        words = ["skip"] if self.action == "skip" else []
        if self.patience is not None:
            words.append("stop" if self.patience == 1 else f"stop after {self.patience} in a row")
        return f"{self.monitor} NaN/inf: {', '.join(words)}"


class _LateVerdict:
    """A one-element tensor on its way to the host.

    The same host memory is used again and again: pinned, with an event behind the copy, where the device can copy while
    the host goes on. Waiting for that event keeps the host at most an update ahead of the device, which is not kept
    waiting, and makes the verdict independent of how fast the device is. The memory is read through NumPy, for reading
    the tensor itself would be a sync in torch's eyes.
    """

    def __init__(self, verdict: Sequence[Any] | None = None) -> None:
        self._known: Verdict | None = None if verdict is None else (verdict[0], verdict[1])
        self._step: int | None = None
        self._source: Any = None  # what the memory was prepared for
        self._buffer: Any = None
        self._view: Any = None
        self._copied: Any = None  # the event behind the copy
        self._stream: Any = None

    def send(self, value: Any, step: int) -> None:
        """Start the copy of ``value``, which belongs to ``step``."""
        if self._source != (value.device, value.dtype, value.shape):
            self._prepare(value)
        self._buffer.copy_(value, non_blocking=self._copied is not None)
        if self._copied is not None:
            self._copied.record(self._stream(value.device))
        self._step = step

    def _prepare(self, value: Any) -> None:
        import torch

        self._source = value.device, value.dtype, value.shape
        pinned = value.device.type in ("cuda", "xpu")
        wide = torch.float64 if value.dtype == torch.float64 else torch.float32  # NumPy has no bfloat16
        self._buffer = torch.empty(value.shape, dtype=wide, pin_memory=pinned)
        self._view = self._buffer.numpy()
        module = torch.get_device_module(value.device) if pinned else None
        self._copied, self._stream = (None, None) if module is None else (module.Event(), module.current_stream)

    def peek(self) -> Verdict | None:
        """The verdict on what was sent last; waits until it has arrived."""
        if self._step is not None:
            if self._copied is not None:
                self._copied.synchronize()
            self._known, self._step = (self._step, not math.isfinite(self._view.item())), None
        return self._known

    def take(self) -> Verdict | None:
        """The same, and not twice."""
        verdict, self._known = self.peek(), None
        return verdict
