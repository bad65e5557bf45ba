"""Checks of a callback's arguments, made when it is constructed: ValueError with argument, value and what is valid."""

from __future__ import annotations

import math
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any, TypeVar

if TYPE_CHECKING:
    from collections.abc import Collection

T = TypeVar("T")


def whole(owner: object, argument: str, value: Any, least: int = 0) -> int:
    """A whole number of at least ``least``.

    Raises:
        ValueError: it is none; True and 2.0 are none either.
    """
    if isinstance(value, bool) or not isinstance(value, Integral) or value < least:
        raise ValueError(f"{type(owner).__name__}: {argument}={value!r} must be a whole number >= {least}")
    return int(value)


def not_negative(owner: object, argument: str, value: Any) -> float:
    """A finite number of at least 0.

    Raises:
        ValueError: it is none.
    """
    if isinstance(value, bool) or not isinstance(value, Real) or not 0.0 <= float(value) < math.inf:
        raise ValueError(f"{type(owner).__name__}: {argument}={value!r} must be a finite number >= 0")
    return float(value)


def flag(owner: object, argument: str, value: Any) -> bool:
    """True or False, and nothing that merely counts as one of them.

    Raises:
        ValueError: it is neither.
    """
    if value is not True and value is not False:
        raise ValueError(f"{type(owner).__name__}: {argument}={value!r} must be True or False")
    return value


def one_of(owner: object, argument: str, value: T, choices: Collection[T]) -> T:
    """One of the choices.

    Raises:
        ValueError: it is none of them.
    """
    if value not in choices:
        there = " or ".join(map(repr, choices))
        raise ValueError(f"{type(owner).__name__}: {argument}={value!r} must be {there}")
    return value


def name(owner: object, argument: str, value: Any) -> str:
    """A text that is not empty.

    Raises:
        ValueError: it is none.
    """
    if not isinstance(value, str) or not value:
        raise ValueError(f"{type(owner).__name__}: {argument}={value!r} must be a name")
    return value
