"""The command ``eventloop replay``: what it understands and what it prints."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ..literal import literals
from ..rows import plain
from .outcome import Replayed, table
from .player import Player

MANY: Final = 4


def run_replay(run: Path, settings: Sequence[str], *, as_json: bool) -> tuple[str, list[Replayed]]:
    """What to print, and what it tells of.

    Raises:
        FileNotFoundError: there is no such run, or it has no journal.
        ValueError: a setting is not understood, or see `replay`.
    """
    grid: dict[str, list[Any]] = {}
    for setting, values in map(parsed, settings):
        grid.setdefault(setting, []).extend(values)
    if (
        here := str(Path.cwd())
    ) not in sys.path:  # for callbacks in a script of the user's, as ``python -m`` finds them
        sys.path.append(here)
    player = Player(run)
    count = math.prod(map(len, grid.values()))
    if count == 1:
        played = player.play({setting: values[0] for setting, values in grid.items()})
        return (_json(played.as_json()) if as_json else str(played)), [played]
    from tqdm import tqdm

    bar = tqdm(player.sweep(grid), total=count, unit="replay", leave=False, disable=None if count >= MANY else True)
    all_played = list(bar)
    return (_json([p.as_json() for p in all_played]) if as_json else table(all_played)), all_played


def verdict(all_played: Sequence[Replayed]) -> tuple[int, str]:
    """The exit code, and the error if there is one: a callback that fails with the settings it was given."""
    failed = [failure for played in all_played for failure in played.failures if played.settings]
    if failed:
        return 2, f"with these settings {failed[0]}"
    return (0 if all(played.verified for played in all_played) else 1), ""


def parsed(text: str) -> tuple[str, list[Any]]:
    """``EarlyStopping.patience=2,3`` as the setting and its values; see `literals`.

    Raises:
        ValueError: it has another form.
    """
    setting, equals, values = text.partition("=")
    if not equals or not values or not all(setting.rpartition(".")):
        raise ValueError(f"--set {text}: write it as CALLBACK.SETTING=VALUE, such as EarlyStopping.patience=5")
    try:
        return setting, literals(values)
    except ValueError as error:
        raise ValueError(f"--set {text}: {error}") from None


def _json(told: Any) -> str:
    return json.dumps(plain(told), indent=1, allow_nan=False)
