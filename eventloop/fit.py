"""`fit`: the training algorithm on one screen."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, TypeVar

from .loop import Loop
from .result import Result

if TYPE_CHECKING:
    from torch import Tensor
    from torch.nn import Module
    from torch.optim import Optimizer

B = TypeVar("B")


def fit(
    model: Module,
    optimizer: Optimizer,
    train_loader: Iterable[B],
    loss_fn: Callable[[Module, B], Tensor],
    **options: Any,
) -> Result:
    """Train until a limit is reached or a handler asks for a stop.

    Args:
        model: trained in place.
        optimizer: over its parameters.
        train_loader: gives the batches of one epoch each time it is iterated.
        loss_fn: called with (model, batch), returns the scalar loss.
        **options: every option of `Loop`.
    """
    with Loop(model, optimizer, **options) as loop:
        for _ in loop.epochs():
            for batch in loop.batches(train_loader):
                loop.backward(loss_fn(model, batch))
                loop.update()
    return loop.result
