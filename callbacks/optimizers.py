"""The parameter groups of whatever was passed as optimizer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


def param_groups(optimizer: Any) -> list[dict[str, Any]]:
    """The groups of one optimizer, a mapping of several, or None, in the order in which ``state.lr`` names them."""
    if optimizer is None:
        return []
    several = optimizer.values() if isinstance(optimizer, Mapping) else (optimizer,)
    return [group for one in several for group in one.param_groups]
