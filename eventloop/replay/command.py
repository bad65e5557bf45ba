"""The command ``eventloop replay``: what it understands and what it prints."""

from __future__ import annotations

import ast
import json
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from ..rows import plain
from .outcome import table
from .player import Player

MANY: Final = 4


def run_replay(run: Path, settings: Sequence[str], *, as_json: bool) -> tuple[str, bool]:
    """What to print, and whether the recorded ledger came out again.

    Raises:
        FileNotFoundError: there is no journal.
        ValueError: a setting is not understood, or see `replay`.
    """
    grid = dict(map(parsed, settings))
    if (
        here := str(Path.cwd())
    ) not in sys.path:  # for callbacks in a script of the user's, as ``python -m`` finds them
        sys.path.append(here)
    player = Player(run)
    count = math.prod(map(len, grid.values()))
    if count == 1:
        played = player.play({setting: values[0] for setting, values in grid.items()})
        return (_json(played.as_json()) if as_json else str(played)), played.reproduced
    from tqdm import tqdm

    bar = tqdm(player.sweep(grid), total=count, unit="replay", leave=False, disable=None if count >= MANY else True)
    all_played = list(bar)
    reproduced = all(played.reproduced for played in all_played)
    return (_json([p.as_json() for p in all_played]) if as_json else table(all_played)), reproduced


def parsed(text: str) -> tuple[str, list[Any]]:
    """``EarlyStopping.patience=2,3`` as the setting and its values; what is no literal of Python is a text.

    Raises:
        ValueError: it has another form.
    """
    setting, equals, values = text.partition("=")
    if not equals or not values or not all(setting.rpartition(".")):
        raise ValueError(f"--set {text}: write it as CALLBACK.SETTING=VALUE, such as EarlyStopping.patience=5")
    try:
        return setting, list(ast.literal_eval(f"[{values}]"))
    except (ValueError, SyntaxError):
        return setting, [_literal(value) for value in values.split(",")]


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _json(told: Any) -> str:
    return json.dumps(plain(told), indent=1, allow_nan=False)
