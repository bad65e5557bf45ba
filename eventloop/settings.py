"""What an object was made with, read from the object itself."""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from typing import Any, Final

PLAIN: Final = (bool, int, float, str, list, tuple, dict)
_ABSENT: Final = object()


def parameters_of(kind: type) -> Mapping[str, inspect.Parameter]:
    """The arguments of a constructor by name, without ``*args`` and ``**kwargs``; none of one that does not tell."""
    try:
        found = inspect.signature(kind).parameters
    except (TypeError, ValueError):  # a class in C, say
        return {}
    return {name: p for name, p in found.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def arguments_of(thing: object) -> dict[str, Any]:
    """The constructor's arguments as the object keeps them: ``limit`` is what is called ``limit``, or ``_limit``."""
    found = {}
    for name in parameters_of(type(thing)):
        value = getattr(thing, name, _ABSENT)
        if value is _ABSENT:
            value = getattr(thing, f"_{name}", _ABSENT)
        if value is not _ABSENT:
            found[name] = value
    return found


def changed_arguments(thing: object) -> dict[str, Any]:
    """Those that are not as the constructor's defaults have them.

    Raises:
        LookupError: one without a default is not kept.
    """
    kept, changed = arguments_of(thing), {}
    for name, parameter in parameters_of(type(thing)).items():
        if name in kept:
            value, default = kept[name], parameter.default
            if value is not default and not (type(value) is type(default) and value == default):
                changed[name] = value
        elif parameter.default is parameter.empty:
            raise LookupError(f"{type(thing).__name__} keeps no {name}")
    return changed


def settings_of(thing: object) -> dict[str, Any]:
    """The arguments that are plain values."""
    return {name: value for name, value in arguments_of(thing).items() if value is None or isinstance(value, PLAIN)}
