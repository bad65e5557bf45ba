"""States as plain JSON plus a flat mapping of tensors, and back.

JSON has no tuples, no keys but text and no NaN; each of these is written as an object with one reserved key. Whatever
else is met (an object, a function, bytes) is an error that names the place.
"""

from __future__ import annotations

import contextlib
import math
import sys
from typing import Any, Final

TENSOR: Final = "__tensor__"
ARRAY: Final = "__array__"
TUPLE: Final = "__tuple__"
ITEMS: Final = "__items__"
FLOAT: Final = "__float__"
FLAT: Final = frozenset({str, int, bool, type(None)})
RESERVED: Final = frozenset({TENSOR, ARRAY, TUPLE, ITEMS, FLOAT})


def pack(value: Any, place: str, tensors: dict[str, Any]) -> Any:
    """``value`` as JSON; its tensors and NumPy arrays are put into ``tensors`` under their place.

    Raises:
        TypeError: something in it is neither JSON nor a tensor; the message names its place and type.
    """
    torch = sys.modules.get("torch")  # where nobody has loaded it there are no tensors
    if value is None or isinstance(value, bool | str):
        return value
    if isinstance(value, int):
        return int(value)
    if isinstance(value, float):
        return float(value) if math.isfinite(value) else {FLOAT: repr(float(value))}
    if torch is not None and isinstance(value, torch.Tensor):
        return {TENSOR: _store(value, place, tensors)}
    if isinstance(value, list | tuple) and FLAT.issuperset(map(type, value)):  # long ones are: random states, ledgers
        return list(value) if isinstance(value, list) else {TUPLE: list(value)}
    if isinstance(value, list):
        return [pack(item, f"{place}.{i}", tensors) for i, item in enumerate(value)]
    if isinstance(value, tuple):
        return {TUPLE: [pack(item, f"{place}.{i}", tensors) for i, item in enumerate(value)]}
    if isinstance(value, dict):
        items = {key: pack(item, f"{place}.{key}", tensors) for key, item in value.items()}
        if all(isinstance(key, str) for key in items) and not items.keys() & RESERVED:
            return items
        return {ITEMS: [[pack(key, f"{place}.key", tensors), item] for key, item in items.items()]}
    return _pack_numpy(value, place, tensors)


def _pack_numpy(value: Any, place: str, tensors: dict[str, Any]) -> Any:
    numpy: Any = sys.modules.get("numpy")
    if numpy is not None and isinstance(value, numpy.generic):
        item = value.item()
        if not isinstance(item, numpy.generic):  # a long double stays what it is
            return pack(item, place, tensors)
    if numpy is not None and isinstance(value, numpy.ndarray):
        with contextlib.suppress(TypeError):  # of objects, of texts
            import torch

            native = value.astype(value.dtype.newbyteorder("="))
            return {ARRAY: _store(torch.from_numpy(native), place, tensors)}
    kind = f"{type(value).__module__}.{type(value).__name__}"
    raise TypeError(
        f"{place} is a {kind}; a state is plain JSON (None, bool, int, float, str, list, tuple, dict) plus tensors and "
        f"NumPy arrays"
    )


def _store(tensor: Any, place: str, tensors: dict[str, Any]) -> str:
    name, n = place, 1
    while name in tensors:  # {1: a, "1": b}, or a key with a dot in it
        n += 1
        name = f"{place}#{n}"
    tensors[name] = tensor
    return name


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
        if key == ARRAY:
            return tensors[item].numpy()
        if key == TUPLE:
            return tuple(unpack(part, tensors) for part in item)
        if key == FLOAT:
            return float(item)
        if key == ITEMS:
            return {unpack(k, tensors): unpack(v, tensors) for k, v in item}
    return {key: unpack(item, tensors) for key, item in value.items()}
