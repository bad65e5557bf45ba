"""The window of one update: its backward passes, its gradients, its optimizer step. It knows no bus."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .progress import Groups

if TYPE_CHECKING:
    from torch import Tensor
    from torch.optim import Optimizer


class Window:
    """Micro-batches until the next optimizer step.

    Args:
        optimizers: stepped together.
        groups: their parameter groups.
        accumulate: micro-batches a window; each loss is divided by it.
        scaler: a ``torch.amp.GradScaler`` or None.
        clip_norm: the largest total gradient norm, or None.
    """

    def __init__(
        self,
        optimizers: Mapping[str, Optimizer],
        groups: Groups,
        accumulate: int,
        scaler: Any,
        clip_norm: float | None,
    ) -> None:
        self.accumulate = accumulate
        self.open = False
        self.micro = 0
        self._optimizers, self._groups = tuple(optimizers.values()), groups
        self._scaler, self._clip_norm = scaler, clip_norm
        self._norm: Tensor | None = None

    def backward(self, loss: Tensor) -> None:
        """One micro-batch's gradients, scaled for accumulation and mixed precision."""
        if self.accumulate > 1:
            loss = loss / self.accumulate
        if self._scaler is not None:
            loss = self._scaler.scale(loss)
        loss.backward()  # type: ignore[no-untyped-call]  # torch leaves it untyped
        self.micro += 1

    def gradients(self) -> Tensor | None:
        """Make the gradients those of the whole window, unscaled; returns their norm if clipping will need it."""
        if self._scaler is not None:
            for optimizer in self._optimizers:
                self._scaler.unscale_(optimizer)
        short = 0 < self.micro < self.accumulate
        if not short and self._clip_norm is None:
            return None
        import torch

        gradients = [p.grad for p in self._groups.parameters() if p.grad is not None]
        if short and gradients:  # each loss was divided by accumulate, but there are fewer
            torch._foreach_mul_(gradients, self.accumulate / self.micro)
        if self._clip_norm is not None:
            self._norm = torch.nn.utils.get_total_norm(gradients)
        return self._norm

    def step(self) -> bool:
        """Clip, step and clear the gradients; False if the scaler skipped the step for an overflow."""
        if self._clip_norm is not None and self._norm is not None:
            import torch

            torch.nn.utils.clip_grads_with_norm_(list(self._groups.parameters()), self._clip_norm, self._norm)
        done = True
        if self._scaler is None:
            for optimizer in self._optimizers:
                optimizer.step()
        else:
            before = self._scaler.get_scale()
            for optimizer in self._optimizers:
                self._scaler.step(optimizer)
            self._scaler.update()
            done = self._scaler.get_scale() >= before
        self._clear()
        return done

    def drop(self) -> None:
        """Throw the window's gradients away; they would leak into the next."""
        if self._scaler is not None and self.micro:
            self._scaler.update(self._scaler.get_scale())
        self._clear()

    def _clear(self) -> None:
        for optimizer in self._optimizers:
            optimizer.zero_grad(set_to_none=True)
        self._norm = None
