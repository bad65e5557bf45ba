"""Events, requests and the running order in plain form, as a full journal has them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any, Final

from . import events
from .bus import Bus
from .errors import told
from .events import Event
from .failures import Failure
from .fold import Control
from .requests import Evaluate, Keep, Reply, Report, Request, Save, SetLR, SkipUpdate, Stop
from .rows import plain
from .state import TrainState

BUILT_IN: Final = tuple(kind for kind in vars(events).values() if isinstance(kind, type) and issubclass(kind, Event))


def running_order(bus: Bus, but: object) -> dict[str, list[dict[str, Any]]]:
    """For every event that somebody ``but`` this one hears: who, in running order, and how each is subscribed."""
    kinds = dict.fromkeys((*BUILT_IN, *bus.signals.channels))
    orders = {kind.name: [s for s in bus.order(kind) if s.owner is not but] for kind in kinds if kind is not Event}
    return {
        name: [
            {
                "name": s.name,
                "event": s.event.name,
                "priority": s.priority,
                "failure": s.failure,
                "filter": ", ".join([str(s.filter)] * (s.filter is not None) + ["when="] * (s.when is not None)),
            }
            for s in order
        ]
        for name, order in orders.items()
        if order
    }


def own_fields(thing: Event) -> dict[str, Any]:
    """What an event of a class of the user's own holds."""
    return {} if type(thing) in BUILT_IN else {"fields": _fields(thing)}


def _fields(thing: object) -> dict[str, Any]:
    """What a user's event or request holds, in plain form."""
    names = (
        [f.name for f in fields(thing)] if is_dataclass(thing) else vars(thing) if hasattr(thing, "__dict__") else []
    )
    return {name: _plain(getattr(thing, name)) for name in names}


def _plain(value: Any) -> Any:
    if getattr(value, "is_cpu", True):
        return plain(value)
    return f"{type(value).__name__} of shape {tuple(value.shape)}, {value.dtype}"  # to read it would be to wait for it


def answers_of(control: Control, state: TrainState) -> dict[str, Any]:
    """Every reply and every failure of one dispatch, in order."""
    facts: dict[str, Any] = {}
    if control.requests:
        facts["asked"] = [_asked(reply, state) for reply in control.requests]
    if control.failures:
        facts["failed"] = [_failed(failure) for failure in control.failures]
    return facts


def _asked(reply: Reply, state: TrainState) -> list[Any]:
    who, request = reply
    return [who, type(request).__name__, _content(request, state)]


def _failed(failure: Failure) -> list[str]:
    return [failure.subscription, failure.event, told(failure.error) + failure.note, failure.policy]


CONTENTS: Final[Mapping[type[Request], Callable[[Any, TrainState], Any]]] = {
    Report: lambda request, state: list(_names(request.metrics)),
    SetLR: lambda request, state: dict(request.by_group(state.lr or ("group_0",))),
    Stop: lambda request, state: _fields(request) if request.within is not None else request.reason,
    SkipUpdate: lambda request, state: request.reason,
    Save: lambda request, state: request.tag,
    Keep: lambda request, state: _wish(request),
    Evaluate: lambda request, state: None,
}


def _content(request: Request, state: TrainState) -> Any:
    """What a request asks for, in plain form: of a Report the names alone, for the row has the values."""
    kind = next((folded for folded in (Report, SetLR) if isinstance(request, folded)), type(request))
    content = CONTENTS.get(kind)
    return _fields(request) if content is None else content(request, state)


def _wish(request: Keep) -> Any:
    steps = sorted(request.steps)
    return {"steps": steps, "make_room": True} if request.make_room else steps


def _names(report: Mapping[Any, Any]) -> list[str]:
    names: list[str] = []
    for key, value in report.items():
        names += [f"{key}/{inner}" for inner in _names(value)] if isinstance(value, Mapping) else [str(key)]
    return names
