"""Running the user's evaluation: eval mode, no gradients, and random states as if it had never run."""

from __future__ import annotations

import contextlib
import inspect
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, TypeVar

from .rng import untouched

if TYPE_CHECKING:
    from torch.nn import Module

B = TypeVar("B")


class Evaluation:
    """``function`` takes no argument and returns metrics under their finished names."""

    def __init__(self, model: Module, function: Callable[[], Mapping[str, Any] | None] | None) -> None:
        if function is not None and not callable(function):
            raise TypeError(f"evaluate={function!r} cannot be called; it takes no argument and returns metrics")
        if function is not None:
            _check_no_argument(function)
        self.function = function
        self._model = model

    def run(self) -> Mapping[str, Any]:
        """The metrics.

        Raises:
            TypeError: the function did not return a mapping.
        """
        import torch

        if self.function is None:
            return {}
        with evaluating(self._model), torch.no_grad(), untouched():
            metrics = self.function()
        if metrics is not None and not isinstance(metrics, Mapping):
            raise TypeError(f"evaluate() returned {type(metrics).__name__}; it returns metrics as a mapping of names")
        return metrics or {}


def _check_no_argument(function: Callable[[], object]) -> None:
    try:
        inspect.signature(function).bind()
    except TypeError as error:
        raise TypeError(f"evaluate takes no argument, but this one: {error}; close over what it needs") from None
    except ValueError:
        pass  # a builtin that does not tell its signature


@contextlib.contextmanager
def evaluating(model: Module) -> Iterator[None]:
    """Eval mode; afterwards each submodule is in its own mode again."""
    modes = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        yield
    finally:
        for module, training in modes:
            module.training = training


def mean_over(loader: Iterable[B], function: Callable[[B], Mapping[str, Any]]) -> dict[str, Any]:
    """The mean over all samples of what ``function(batch)`` returns for each batch, weighted by batch size.

    Tensors stay where they are: nothing is read from a device here.

    Raises:
        ValueError: the loader gave no batch.
    """
    sums: dict[str, Any] = {}
    seen: dict[str, int] = {}
    for batch in loader:
        n = batch_size(batch)
        for key, value in function(batch).items():
            sums[key] = sums[key] + value * n if key in sums else value * n
            seen[key] = seen.get(key, 0) + n
    if not sums:
        raise ValueError("mean_over: the loader gave no batch, so there is no mean")
    return {key: total / seen[key] for key, total in sums.items()}


def batch_size(batch: Any) -> int:
    """How many samples a batch holds: the first dimension of the first array in it, else its length, else 1."""
    kind = type(batch)
    if kind is tuple or kind is list:
        first = batch[0] if batch else None
        shape = getattr(first, "shape", None)
        if shape is None:
            return batch_size(first) if isinstance(first, tuple | list | Mapping) else len(batch)
    else:
        shape = getattr(batch, "shape", None)
    if shape is not None:
        return shape[0] if shape else 1
    if isinstance(batch, Mapping) and batch:
        return batch_size(next(iter(batch.values())))
    return batch_size(tuple(batch)) if isinstance(batch, tuple | list) else 1
