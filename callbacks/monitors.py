"""Measurements of the training itself, reported early in an update so that loggers and deciders see them."""

from __future__ import annotations

from typing import Any

from eventloop import Callback, GradientsReady, Priority, Report, StepEnd, TrainState

from .arguments import flag, whole
from .optimizers import param_groups


class LearningRateMonitor(Callback):
    """Reports ``lr/<group>``, the rate that the finished update used.

    Args:
        log_momentum: also report ``momentum/<group>``: momentum or the first of betas, as it stands; groups that have
            neither are left out. Needs the optimizer, through ``bind``.
    """

    priority = Priority.MEASURE
    gauges = ("lr/", "momentum/")

    def __init__(self, log_momentum: bool = False) -> None:
        self.log_momentum = flag(self, "log_momentum", log_momentum)
        self._optimizer: Any = None
        self._keys: dict[str, str] = {}

    def bind(self, *, optimizer: Any = None) -> None:
        """Take hold of the optimizer, for its momentum."""
        self._optimizer = optimizer

    def on_step_end(self, event: StepEnd, state: TrainState) -> Report | None:
        """Report the rates of the update."""
        keys = self._keys
        if keys.keys() != state.lr.keys():
            keys = self._keys = {group: f"lr/{group}" for group in state.lr}
        report: dict[str, Any] = {keys[group]: rate for group, rate in state.lr.items()}
        if self.log_momentum:
            report |= self._momentum(state)
        return Report(report) if report else None

    def _momentum(self, state: TrainState) -> dict[str, Any]:
        groups = param_groups(self._optimizer)
        if len(groups) != len(state.lr):
            raise ValueError(
                f"LearningRateMonitor: log_momentum=True needs the optimizer, by bus.bind(optimizer=...): that "
                f"has {len(groups)} groups, state.lr has {len(state.lr)} ({', '.join(state.lr)})"
            )
        found = {}
        for name, group in zip(state.lr, groups, strict=True):
            momentum = group["betas"][0] if "betas" in group else group.get("momentum")
            if momentum is not None:
                found[f"momentum/{name}"] = momentum
        return found

    def describe(self) -> str:
        """What is reported."""
        return "lr and momentum of each group" if self.log_momentum else "lr of each group"


class GradNormMonitor(Callback):
    """Reports ``grad_norm``, the 2-norm of all gradients together, as a tensor: nothing waits for the device.

    The norm is taken before clipping. Where the loop clips, its norm is there already and nothing is computed again.
    Otherwise it is one more pass over the gradients, so by default every tenth update has it: a logger that writes each
    50 updates still averages five, and its own update is among them.

    Args:
        every: updates from one norm to the next.

    Raises:
        ValueError: ``every`` is no whole number >= 1.
    """

    priority = Priority.MEASURE

    def __init__(self, every: int = 10) -> None:
        self.every = whole(self, "every", every, 1)
        self._model: Any = None

    def options(self) -> dict[str, dict[str, Any]]:
        """Only every so many updates."""
        return {"gradients_ready": {"every": self.every}}

    def bind(self, *, model: Any) -> None:
        """Take hold of the model whose gradients are measured."""
        self._model = model

    def on_gradients_ready(self, event: GradientsReady, state: TrainState) -> Report | None:
        """Report the norm, unless somebody has."""
        if "grad_norm" in state.metrics.fresh:
            return None
        if self._model is None:
            raise ValueError("GradNormMonitor needs the model: call bus.bind(model=...) before train_begin")
        import torch

        grads = [p.grad for p in self._model.parameters() if p.grad is not None]
        if not grads:
            return None
        if any(hasattr(grad, "full_tensor") for grad in grads):  # their norm takes a collective, which no handler calls
            raise TypeError("GradNormMonitor: the gradients are sharded; let the loop clip, which reports their norm")
        return Report(grad_norm=torch.nn.utils.get_total_norm(grads))
