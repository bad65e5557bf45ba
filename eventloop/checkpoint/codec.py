"""States as plain JSON plus a flat mapping of tensors, and back.

JSON has no tuples, no keys but text and no NaN; each of these is written as an object with one reserved key. Whatever
else is met (an object, a function, bytes) is an error that names the place.
"""

from __future__ import annotations

import math
from typing import Any, Final

TENSOR: Final = "__tensor__"
TUPLE: Final = "__tuple__"
ITEMS: Final = "__items__"
FLOAT: Final = "__float__"


def pack(value: Any, place: str, tensors: dict[str, Any]) -> Any:
    """``value`` as JSON; its tensors are put into ``tensors`` under their place.

    Raises:
        TypeError: something in it is neither JSON nor a tensor; the message names its place and type.
    """
    import torch

    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {FLOAT: repr(float(value))}
    if isinstance(value, torch.Tensor):
        tensors[place] = value
        return {TENSOR: place}
    if isinstance(value, list):
        return [pack(item, f"{place}.{i}", tensors) for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {TUPLE: [pack(item, f"{place}.{i}", tensors) for i, item in enumerate(value)]}
    if isinstance(value, dict):
        items = {key: pack(item, f"{place}.{key}", tensors) for key, item in value.items()}
        if all(isinstance(key, str) for key in items) and not items.keys() & {TENSOR, TUPLE, ITEMS, FLOAT}:
            return items
        return {ITEMS: [[pack(key, f"{place}.key", tensors), item] for key, item in items.items()]}
    if hasattr(value, "dtype") and hasattr(value, "tolist"):  # NumPy
        return pack(value.tolist(), place, tensors)
    kind = f"{type(value).__module__}.{type(value).__name__}"
    raise TypeError(f"{place} is a {kind}; a state is None, bool, int, float, str, list, dict, tuple or a tensor")


def unpack(value: Any, tensors: dict[str, Any]) -> Any:
    """What `pack` was given."""
    if isinstance(value, list):
        return [unpack(item, tensors) for item in value]
    if not isinstance(value, dict):
        return value
    if len(value) == 1:
        key, item = next(iter(value.items()))
        if key == TENSOR:
            return tensors[item]
        if key == TUPLE:
            return tuple(unpack(part, tensors) for part in item)
        if key == FLOAT:
            return float(item)
        if key == ITEMS:
            return {unpack(k, tensors): unpack(v, tensors) for k, v in item}
    return {key: unpack(item, tensors) for key, item in value.items()}
