"""A granted stop as a resumed run sees it: under the same terms the run counts as finished."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .bus import Bus
from .explain import described
from .ledger import Asked
from .limits import Limits
from .log import logger
from .requests import Stop


def verdict(asked: Asked, bus: Bus, limits: Limits) -> dict[str, Any] | None:
    """What a checkpoint holds of a stop; None of one that says nothing about the run: by a failure, or from outside."""
    if asked.within is not None:
        return None
    who = bus.find(asked.who)
    if who is not None and who.failure == "stop" and bus.failures.counts[who.name]:
        return None
    place = {"who": asked.who, "event": asked.event, "step": asked.step}
    return {**place, "reason": getattr(asked.request, "reason", ""), "terms": _terms(asked.who, bus, limits)}


def still_stands(known: Mapping[str, Any] | None, bus: Bus, limits: Limits) -> Asked | None:
    """The stop that has ended the run before, as long as no limit and no setting of who asked for it is another."""
    if known is None or known["terms"] != _terms(known["who"], bus, limits):
        return None
    who, step, reason = known["who"], known["step"], known["reason"]
    because = f": {reason}" if reason else ""
    logger().warning(
        f"{who} stopped this run at step {step}{because}; it counts as finished until a limit or a setting of {who} "
        f"changes"
    )
    return Asked(who, Stop(reason), known["event"], step)


def _terms(name: str, bus: Bus, limits: Limits) -> dict[str, Any]:
    told = [fact for known, thing in bus.objects if known == name for fact in described(thing)]
    return {"limits": dict(vars(limits)), "there": bus.find(name) is not None, "settings": told}
