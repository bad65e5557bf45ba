"""Who runs live in a replay, built anew from what ``run.json`` says, and who is played from the record."""

from __future__ import annotations

import importlib
import inspect
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from ..bus import Bus
from ..errors import told
from ..events import EvalStep, Event, HandlerFailed, event_class
from ..state import TrainState
from ..subscription import Subscription
from .moments import Moment, RecordedEvent
from .record import Record
from .stage import Stage

USUAL: Final = ("EarlyStopping", "ModelCheckpoint")
"""Deciders that run live also where they have asked for nothing."""
DECISIONS: Final = ("Stop", "Save", "Evaluate", "Keep", "SkipUpdate")
ON_TOP: Final = 1 << 30


class NotRebuiltError(ValueError):
    """A recorded callback cannot be built anew."""


class Unheard(Event):
    """Never published: a stand-in subscribes to it to have its name and its policy on the bus."""


class NoModel:
    """For deciders that look after a model: there are no parameters and no buffers."""

    def named_parameters(self) -> Iterable[Any]:
        """None."""
        return ()

    def named_buffers(self) -> Iterable[Any]:
        """None."""
        return ()


@dataclass(frozen=True)
class Role:
    """A decider that runs live.

    Attributes:
        name: as it was called in the run.
        kind: its class.
        settings: what it is constructed with.
        options: its priority and failure policy at each event, as they were.
    """

    name: str
    kind: type
    settings: Mapping[str, Any]
    options: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)

    def make(self, changes: Mapping[str, Any]) -> Any:
        """A new one, with some settings changed.

        Raises:
            ValueError: what the class says of its arguments.
        """
        kept = dict(self.settings)
        if "mode" not in changes and changes.get("monitor", kept.get("monitor")) != kept.get("monitor"):
            kept.pop("mode", None)  # it was that of the other metric
        try:
            return self.kind(**{**kept, **changes})
        except ValueError:
            raise
        except Exception as error:
            raise ValueError(
                f"{self.name} cannot be made with {changes or dict(self.settings)}: {told(error)}"
            ) from error

    def attach(self, bus: Bus, thing: Any) -> tuple[Subscription, ...]:
        """Attach it in its place."""
        heard = {name for name in self.options if hasattr(thing, f"on_{name}")}
        own = {event_class(event): value for event, value in getattr(thing, "options", dict)().items()}
        left_out = {kind.name for kind, value in own.items() if value is None}
        options = {name: self.options[name] for name in heard - left_out}
        return bus.attach(thing, name=self.name, options=options).subscriptions


def role_of(record: Record, name: str, *, changed: bool) -> Role:
    """The decider of this name, as it was.

    Args:
        record: the run.
        name: of the callback.
        changed: whether its settings will be changed, so that they need not be the same over all sittings.

    Raises:
        NotRebuiltError: saying why it cannot run live.
    """
    described = [sitting[name] for sitting in record.callbacks if name in sitting]
    if not record.described:
        raise NotRebuiltError("run.json is missing, which tells its class and its settings")
    if not described:
        raise NotRebuiltError("run.json does not name it: it is a function, or was attached in mid-run")
    if not changed and any(one["settings"] != described[-1]["settings"] for one in described):
        raise NotRebuiltError("its settings were changed when the run was resumed")
    kind = _imported(described[-1].get("path", ""))
    if getattr(kind, "from_outside", False):
        raise NotRebuiltError("what it asks comes from outside the run, by a signal or a clock")
    settings = described[-1]["settings"]
    try:
        inspect.signature(kind).bind(**settings)
    except (TypeError, ValueError) as error:
        raise NotRebuiltError(f"{kind.__name__} does not keep its arguments under their own names: {error}") from None
    options: dict[str, dict[str, Any]] = {}
    heard: dict[str, str] = {}
    for sitting in record.sittings:
        for event, order in sitting.handlers.items():
            for handler in order:
                if handler["name"] == name:
                    options[handler["event"]] = {w: handler[w] for w in ("priority", "failure")}
                    heard[event] = handler["filter"]
    role = Role(name, kind, settings, options)
    _check(record, role, heard)
    return role


def _imported(path: str) -> type:
    module, _, qualified = path.partition(":")
    try:
        found: Any = importlib.import_module(module)
        for part in qualified.split("."):
            found = getattr(found, part)
    except Exception as error:  # a module of the user's may raise anything
        raise NotRebuiltError(f"{path or 'its class'} cannot be imported: {told(error)}") from None
    if not isinstance(found, type):
        raise NotRebuiltError(f"{path} is no class")
    return found


def _check(record: Record, role: Role, heard: Mapping[str, str]) -> None:
    """Try it on a bus of its own.

    Raises:
        NotRebuiltError: it is not what it was.
    """
    strange = (record.inner | record.own_events()) & heard.keys()
    if role.kind.__name__ in USUAL:  # of all failures they look at those of saves alone, which are made again
        strange -= {HandlerFailed.name}
    if strange:
        raise NotRebuiltError(f"it hears {', '.join(sorted(strange))}, which are published inside handlers or by hand")
    if EvalStep.name in role.options:
        raise NotRebuiltError("it hears eval_step, which the record has only where somebody answered")
    bus = Bus()
    try:
        thing = role.make({})
    except ValueError as error:
        raise NotRebuiltError(str(error)) from None
    try:
        subscriptions = role.attach(bus, thing)
        bus.bind(**live_parts([thing]))
    except Exception as error:
        raise NotRebuiltError(f"{role.kind.__name__} has changed since the recording: {error}") from None
    now = {s.event.name: filter_text(s) for s in subscriptions}
    if gone := heard.keys() - now.keys() - _by_base(now):
        events = ", ".join(sorted(gone))
        raise NotRebuiltError(f"{role.kind.__name__} has changed since the recording: it does not hear {events} now")
    if any(now[event] != text for event, text in heard.items() if event in now):
        raise NotRebuiltError("it was attached with filters of its own")


def _by_base(now: Mapping[str, str]) -> set[str]:
    """Every event, for a handler that hears them all."""
    from ..events import known_events

    return set(known_events()) if Event.name in now else set()


def filter_text(subscription: Subscription) -> str:
    """The filter as the journal tells it."""
    when = ["when="] * (subscription.when is not None)
    return ", ".join([str(subscription.filter)] * (subscription.filter is not None) + when)


def live_parts(deciders: Iterable[Any], optimizer: Any = None) -> dict[str, Any]:
    """What deciders may bind; whoever looks after a model is given one without parameters.

    The folder is one that cannot be: whoever is given none takes it that every save is refused.
    """
    model = NoModel() if any(getattr(decider, "touches_model", False) for decider in deciders) else None
    return {"model": model, "optimizer": optimizer, "run_dir": Path(os.devnull) / "replay"}


class Cast:
    """The deciders of a replay in order of attachment, and the stand-ins between them.

    Args:
        record: the run; its moments learn what the stand-ins answer.
        roles: the deciders.
    """

    def __init__(self, record: Record, roles: Sequence[Role]) -> None:
        self.roles = list(roles)
        self._record = record
        names = [role.name for role in roles]
        self._used: set[tuple[type[Event], int]] = set()
        self._lines: dict[str, list[str]] = {}  # the deciders that hear each event, in running order
        for sitting in record.sittings:
            for event, order in sitting.handlers.items():
                live = [handler["name"] for handler in order if handler["name"] in names]
                self._lines[event] = list(dict.fromkeys([*self._lines.get(event, []), *live]))
            for moment in sitting.moments():
                self._answer(moment, sitting.handlers)

    def _answer(self, moment: Moment, handlers: Mapping[str, list[dict[str, Any]]]) -> None:
        live = self._lines.get(moment.name, [])
        if not (moment.asked or moment.failed) or moment.alone(heard=bool(live)):
            return
        order: dict[str, int] = {}
        before = 0
        for handler in handlers.get(moment.name, ()):
            if handler["name"] in live:
                before = live.index(handler["name"]) + 1
            else:
                order.setdefault(handler["name"], before)
        moment.answer(order, live, len(live) + 1)
        self._used.update((moment.kind, i) for i, reply in enumerate(moment.replies) if reply is not None)

    def enter(self, stage: Stage, changes: Mapping[str, Mapping[str, Any]]) -> list[Any]:
        """Everybody takes their place on the bus; returns the deciders.

        Raises:
            Exception: what a class says of the settings that it is given.
        """
        for name, policy in self._policies().items():
            stage.bus.on(Unheard, lambda event, state: None, name=name, failure=policy)
        self._stand(stage, None, {})
        things = []
        for role in self.roles:
            thing = role.make(changes.get(role.name, {}))
            subscriptions = role.attach(stage.bus, thing)
            things.append(thing)
            self._stand(stage, role.name, {s.event.name: s.priority for s in subscriptions})
        return things

    def _stand(self, stage: Stage, after: str | None, priorities: Mapping[str, int]) -> None:
        """The stand-ins that run right behind this decider; with None those before the first."""
        for kind, gap in sorted(self._used, key=lambda used: (used[0].__name__, used[1])):
            line = self._lines.get(_name_of(kind), [])
            if (line[gap - 1] if gap else None) == after:
                recorded = {role.name: role.options for role in self.roles}.get(after or "", {})
                options = recorded.get(_name_of(kind)) or recorded.get(Event.name) or {}
                place = options.get("priority", priorities.get(_name_of(kind), ON_TOP)) if gap else ON_TOP
                title = f"the recorded handlers of {kind.__name__} ({gap + 1})"
                stage.bus.on(kind, _answering(stage, gap), name=title, priority=place)

    def _policies(self) -> dict[str, str]:
        """The policy of each stand-in that asked for a save, for a save may fail."""
        names = self._record.asked("Save") - {role.name for role in self.roles}
        found: dict[str, str] = {}
        for sitting in self._record.sittings:
            for order in sitting.handlers.values():
                found.update((h["name"], h["failure"]) for h in order if h["name"] in names)
        return found


def _name_of(kind: type[Event]) -> str:
    return kind.name if kind is not RecordedEvent else ""


def _answering(stage: Stage, gap: int) -> Any:
    def answer(event: Event, state: TrainState) -> Any:
        moment = stage.moment
        return moment.replies[gap] if moment is not None and moment.replies else None

    return answer
