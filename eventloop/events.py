"""What happened. An event's class is its identity; its ``name`` is the stable, snake_case word for it.

The order of life::

    train_begin ( epoch_begin ( step_begin, gradients_ready, step_end )* eval_begin eval_end epoch_end )* train_end

An evaluation may come after any ``step_end``, with an ``eval_step`` for each of its batches; ``checkpoint_saved``,
``handler_failed`` and ``run_failed`` come when they happen. ``step_begin`` opens an *update* with all its
micro-batches, not a micro-batch. Every begin has its end; only after an exception nothing but ``run_failed`` and
``train_end`` follows.

Events carry no metrics: numbers have one place, the snapshot. Subclass `Event` for your own.
"""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any, ClassVar

_BUILT_IN: dict[str, str] = {}  # filled below, once they are there


class Event:
    """Base of every event. Subscribing to a class hears its subclasses too; `Event` itself hears everything.

    A subclass is an event of its own, known by its class and, for ``bus.on("my_event")`` and ``on_my_event`` methods,
    by ``name``: the class name in snake_case unless the class body sets another. Make it a frozen dataclass.
    """

    __slots__ = ()
    name: ClassVar[str] = "event"
    counter: ClassVar[str] = "step"
    """The counter of `TrainState` that a bare ``every=n`` counts on this event."""
    folds_lr: ClassVar[bool] = False
    """Whether a `SetLR` reply changes ``state.lr`` at once; on other events it is held until the next step_begin."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if "name" not in cls.__dict__:
            cls.name = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", cls.__name__).lower()
        owner = _BUILT_IN.get(cls.name)
        if owner not in (None, f"{cls.__module__}.{cls.__qualname__}"):
            raise TypeError(f"{cls.__qualname__} would be called {cls.name!r}, the name of the built-in {owner}")


@dataclass(frozen=True, slots=True)
class TrainBegin(Event):
    """The run starts; ``resumed`` if it goes on from a checkpoint, so that handlers keep what they have loaded."""

    folds_lr: ClassVar[bool] = True
    resumed: bool = False


@dataclass(frozen=True, slots=True)
class EpochBegin(Event):
    """An epoch starts; epochs count from 1."""

    counter: ClassVar[str] = "epoch"


@dataclass(frozen=True, slots=True)
class StepBegin(Event):
    """An update opens. Schedules reply `SetLR` here, from the number of finished updates."""

    counter: ClassVar[str] = "update"
    folds_lr: ClassVar[bool] = True


@dataclass(frozen=True, slots=True)
class GradientsReady(Event):
    """The window's last backward is done: gradients are unscaled and reduced, not yet clipped."""

    counter: ClassVar[str] = "update"


@dataclass(frozen=True, slots=True)
class StepEnd(Event):
    """An update is finished; ``skipped`` if no weight was changed (overflow, SkipUpdate, an abandoned window)."""

    skipped: bool = False


@dataclass(frozen=True, slots=True)
class EvalBegin(Event):
    """An evaluation starts."""

    counter: ClassVar[str] = "evals"


@dataclass(frozen=True, slots=True)
class EvalStep(Event):
    """An evaluation that draws its batches by ``loop.eval_batches`` has drawn one: the ``batch``-th of ``total``.

    A `Stop` that says ``within`` ends the evaluation here; any other request waits for the next boundary.
    """

    counter: ClassVar[str] = "evals"
    batch: int = 0
    total: int | None = None


@dataclass(frozen=True, slots=True)
class EvalEnd(Event):
    """An evaluation is done; its metrics are the fresh ones of the snapshot. Each is one verdict for deciders.

    Not ``completed`` if the run had to end in the midst of it: then it is no evaluation, nothing is fresh, and a
    resumed run makes it again.
    """

    counter: ClassVar[str] = "evals"
    completed: bool = True


@dataclass(frozen=True, slots=True)
class EpochEnd(Event):
    """An epoch ends; not ``completed`` if it was left before its loader was exhausted (then requests are refused)."""

    counter: ClassVar[str] = "epoch"
    completed: bool = True


@dataclass(frozen=True, slots=True)
class CheckpointSaved(Event):
    """A checkpoint is durable: ``path`` of its folder, the ``step`` it holds, the ``tags`` it was asked for under.

    It is told between two updates, at the first boundary behind that moment, which may be some updates after the save
    was asked for, and before another save begins. ``seconds``: from then until it was durable.
    """

    path: str = ""
    step: int = 0
    tags: tuple[str, ...] = ()
    seconds: float = 0.0


@dataclass(frozen=True, slots=True)
class HandlerFailed(Event):
    """A handler raised: the ``subscription`` by name, the ``event`` it was given, the ``error``."""

    subscription: str = ""
    event: Event | None = None
    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class RunFailed(Event):
    """The loop's own code raised ``error``. Requests are refused from here on."""

    error: BaseException | None = None


@dataclass(frozen=True, slots=True)
class TrainEnd(Event):
    """The run is over. ``status``: completed, stopped, interrupted, preempted or failed."""

    status: str = "completed"
    reason: str = ""


def _qualified(kind: type[Event]) -> str:
    return f"{kind.__module__}.{kind.__qualname__}"


_BUILT_IN |= dict.fromkeys(("request", "missing", "truncated"), "kind of row of the journal")
_BUILT_IN[Event.name] = _qualified(Event)
_BUILT_IN.update((kind.name, _qualified(kind)) for kind in Event.__subclasses__())


def known_events() -> dict[str, list[type[Event]]]:
    """Every event class alive, by name, in order of definition.

    A class that was defined again in the same place (a notebook cell run twice, ``slots=True``, which builds the class
    twice) replaces the older one.
    """
    found: dict[str, type[Event]] = {_qualified(Event): Event}
    pending = [Event]
    while pending:
        for kind in pending.pop(0).__subclasses__():
            if _BUILT_IN.get(kind.name, _qualified(kind)) != _qualified(kind):
                continue  # a class that was refused, and is still there
            found[_qualified(kind)] = kind
            pending.append(kind)
    names: dict[str, list[type[Event]]] = {}
    for kind in found.values():
        names.setdefault(kind.name, []).append(kind)
    return names


def event_class(kind: object) -> type[Event]:
    """The event class that ``kind`` (a class or a name) stands for.

    Raises:
        TypeError: it is neither.
        ValueError: no event, or more than one, has that name.
    """
    if isinstance(kind, type) and issubclass(kind, Event):
        return kind
    if not isinstance(kind, str):
        hint = "; as a decorator write @bus.on(StepEnd)" if callable(kind) and not isinstance(kind, type) else ""
        raise TypeError(f"{kind!r} is no event: give an Event class or a name such as 'step_end'{hint}")
    names = known_events()
    classes = names.get(kind, [])
    if len(classes) == 1:
        return classes[0]
    if classes:
        places = ", ".join(f"{c.__module__}.{c.__qualname__}" for c in classes)
        raise ValueError(f"{len(classes)} events are called {kind!r}: {places}; subscribe by class")
    near = difflib.get_close_matches(kind, names, 1)
    hint = f"did you mean {near[0]!r}? " if near else ""
    raise ValueError(f"there is no event {kind!r}; {hint}known events: {', '.join(sorted(names))}")
