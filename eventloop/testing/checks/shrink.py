"""A script that shows a fault, cut to what is needed for it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

Script = dict[str, Any]
Shows = Callable[[Script], bool]


def shrunk(script: Script, shows: Shows) -> Script:
    """The script without the metrics and the turns that the fault does not need; each cut is tried."""
    for of in ("metrics", "evaluations"):
        for name in [*(script[of] or ())]:
            fewer = {**script, of: {key: series for key, series in script[of].items() if key != name}}
            script = fewer if shows(fewer) else script
    script = _least(script["max_steps"], script, lambda n, whole: {**whole, "max_steps": n}, shows)
    for of in ("metrics", "evaluations"):
        longest = max((len(s) for s in (script[of] or {}).values() if isinstance(s, list)), default=0)
        script = _least(longest, script, lambda n, whole, of=of: _cut(whole, of, n), shows)  # type: ignore[misc]
    return script


def _cut(script: Script, of: str, n: int) -> Script:
    series = script[of] or {}
    return {**script, of: {key: s[:n] if isinstance(s, list) else s for key, s in series.items()}} if series else script


def _least(high: int, script: Script, cut: Callable[[int, Script], Script], shows: Shows) -> Script:
    """The shortest script that still shows it, by halving."""
    low, best = 0, script
    while low < high:
        half = (low + high) // 2
        if shows(shorter := cut(half, script)):
            high, best = half, shorter
        else:
            low = half + 1
    return best
