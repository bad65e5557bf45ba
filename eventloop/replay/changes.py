"""The settings of a replay as they are given: their form, and the callback and argument that each means."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from typing import Any, Final

FORM: Final = "CALLBACK.SETTING, such as EarlyStopping.patience"
SHOWN: Final = 12


def checked_settings(settings: Any) -> dict[str, Any]:
    """A mapping of settings to values.

    Raises:
        TypeError: it is none.
        ValueError: a key has another form.
    """
    if not isinstance(settings, Mapping):
        raise TypeError(f'settings={settings!r} must be a mapping such as {{"EarlyStopping.patience": 5}}')
    for key in settings:
        if not isinstance(key, str) or not all(key.rpartition(".")):
            raise ValueError(f"{key!r} names no setting: write it as {FORM}")
    return dict(settings)


def checked_grid(grid: Any) -> dict[str, list[Any]]:
    """A mapping of settings to lists of values.

    Raises:
        TypeError: it is none, or what should be a list of values is no list.
        ValueError: a key has another form, or a list is empty.
    """
    if not isinstance(grid, Mapping):
        raise TypeError(f'grid={grid!r} must be a mapping such as {{"EarlyStopping.patience": [2, 3, 5]}}')
    for key, values in checked_settings(grid).items():
        if isinstance(values, str | bytes | Mapping) or not isinstance(values, Iterable):
            raise TypeError(f"grid[{key!r}]={values!r} must be a list of values, such as [{values!r}]")
    lists = {key: list(values) for key, values in grid.items()}
    for key, values in lists.items():
        if not values:
            raise ValueError(f"grid[{key!r}] is empty: give at least one value")
    return lists


def nearest(word: str, words: Iterable[str]) -> str:
    """The words, the most similar first."""
    by_likeness = sorted(words, key=lambda other: -difflib.SequenceMatcher(None, word.lower(), other.lower()).ratio())
    more = len(by_likeness) - SHOWN
    return ", ".join(by_likeness[:SHOWN]) + (f" and {more} more" if more > 0 else "")
