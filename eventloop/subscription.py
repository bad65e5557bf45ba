"""One handler's subscription to one event: checked when it is made, and never half made."""

from __future__ import annotations

import enum
import functools
import inspect
import itertools
import sys
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, Final, Self

from .channel import Adapter, Channel, Slot, Space, is_coroutine, silent
from .cost import Cost
from .errors import shown
from .events import Event
from .failures import POLICIES, Policy
from .filters import Amount, Filter, condition


class Priority(enum.IntEnum):
    """The bands of the running order, higher first, with room between them. Ties go by order of registration.

    A band belongs to (callback, event). ``NORMAL`` is the default: such a handler sees what was measured, and what it
    reports still reaches the loggers.
    """

    FIRST = 1000
    SCHEDULE = 300
    MEASURE = 200
    NORMAL = 0
    LOG = -100
    DECIDE = -200
    SAVE = -300
    LAST = -1000


class Subscription:
    """A handler with its place, its filters, its failure policy and what it has cost."""

    __slots__ = (
        "_ticket",
        "adapter",
        "channel",
        "cost",
        "disable_after",
        "event",
        "failed",
        "failure",
        "filter",
        "handler",
        "name",
        "origin",
        "owner",
        "place",
        "priority",
        "slot",
        "state",
        "when",
    )

    def __init__(
        self,
        event: type[Event],
        handler: Callable[..., Any],
        name: str,
        options: Mapping[str, Any],
        owner: Any = None,
        origin: object = None,
    ) -> None:
        unknown = set(options) - KEYWORDS
        if unknown:
            raise TypeError(f"{name}: no option {sorted(unknown)}; there are {', '.join(sorted(KEYWORDS))}")
        self.event, self.handler, self.name, self.owner = event, handler, name, owner
        self.origin = origin or object()  # shared by all subscriptions of one object or function
        self.priority = _priority(options.get("priority", 0), name)
        self.failure: Policy = checked_policy(options["failure"], name)
        self.disable_after = _whole("disable_after", options.get("disable_after", 3), name)
        self.filter = _filter(options, event, name)
        self.when: Callable[[Any, Any], bool] | None = options.get("when")
        if self.when is not None:
            check_handler(self.when, f"{name}: when=")
        self.adapter = Adapter(handler if self.when is None else _guarded(self.when, handler))
        self.cost = Cost()
        self.failed = 0
        self.state = "new"  # active, disabled (by hand), switched off (by its policy), cancelled
        self.place = caller()
        self.slot: Slot | None = None
        self.channel: Channel | None = None
        self._ticket: int | None = None

    @property
    def foreign(self) -> bool:
        """Whether plain blinker code connected it."""
        return self.handler is silent

    @classmethod
    def of_receiver(cls, slot: Slot, space: Space, receiver: Any, failure: Policy) -> Subscription:
        """The subscription that a plain blinker receiver is given when it is first compiled."""
        taken = {other.owner.name for other in space.live_slots() if other.owner is not None}
        base = name_of(receiver)
        name = next(n for i in itertools.count(1) if (n := base if i == 1 else f"{base}#{i}") not in taken)
        self = cls(slot.kind, silent, name, {"failure": failure, "priority": -slot.order[0]})
        self.slot, self.channel = slot, space.channels[slot.kind]
        self.state, self.place = "active", "connected through blinker"
        return self

    def connect(self, channel: Channel) -> None:
        """Take the place on the channel: the old one after a pause, else the next."""
        self.channel = channel
        self.slot = channel.place(self.adapter, self.priority, self._ticket, self)
        self._ticket = self.slot.order[1]
        self.state = "active"

    def leave(self, state: str) -> None:
        """Leave the channel at once, also in a dispatch that is running. Harmless if it is gone already."""
        if self.state == "active" and self.channel is not None and self.slot is not None:
            if self.foreign:
                self.channel.pause(self.slot)  # blinker's user connected it, and blinker keeps it
            else:
                self.channel.remove(self.slot)
        if self.state != "cancelled":
            self.state = state

    def begin_run(self) -> None:
        """Forget the failures and the cost of the run before; what its policy has switched off goes on."""
        self.failed = 0
        self.cost.reset()
        if self.state == "switched off" and self.channel is not None and self.slot is not None:
            if self.foreign:
                self.channel.go_on(self.slot)
                self.state = "active"
            else:
                self.connect(self.channel)

    def __repr__(self) -> str:
        return f"<{self.name} on {self.event.name}, {self.state}>"


class Handle:
    """What subscribing returns: cancel, pause, go on. ``with handle:`` cancels at the end of the block."""

    def __init__(self, subscriptions: Iterable[Subscription], forget: Callable[[Handle], None]) -> None:
        self.subscriptions = tuple(subscriptions)
        self._forget = forget

    def cancel(self) -> None:
        """Unsubscribe for good, at once, also in a dispatch that is running. Cancelling twice is harmless."""
        for subscription in self.subscriptions:
            subscription.leave("cancelled")
        self._forget(self)

    def disable(self) -> None:
        """Pause; `enable` gives the same place back."""
        for subscription in self.subscriptions:
            subscription.leave("disabled")

    def enable(self) -> None:
        """Go on after `disable`, or after the policy has switched the handler off.

        Raises:
            ValueError: the subscription was cancelled.
        """
        for subscription in self.subscriptions:
            if subscription.state == "cancelled":
                raise ValueError(f"{subscription.name} was cancelled; subscribe it again")
            if subscription.state != "active" and subscription.channel is not None:
                subscription.connect(subscription.channel)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.cancel()

    def __repr__(self) -> str:
        return f"Handle({', '.join(map(repr, self.subscriptions))})"


KEYWORDS: Final = {"priority", "every", "after", "before", "once", "when", "failure", "disable_after"}


def check_handler(handler: Any, label: str = "") -> None:
    """Refuse what cannot be called with (event, state).

    Raises:
        TypeError: it is a class, no callable, a coroutine or generator function, or takes other arguments.
    """
    if isinstance(handler, type):
        raise TypeError(f"{label}{handler.__name__} is a class; give an instance, or a function")
    if not callable(handler):
        raise TypeError(f"{label}{shown(handler)} cannot be called; a handler is called with (event, state)")
    name = label + name_of(handler)
    if is_coroutine(handler):
        raise TypeError(f"{name} is an async function; handlers are called, not awaited")
    body = handler if inspect.isroutine(handler) else getattr(handler, "func", getattr(handler, "__call__", None))  # noqa: B004  # its __call__ is inspected, not tested for
    if inspect.isgeneratorfunction(body) or inspect.isasyncgenfunction(body):
        raise TypeError(f"{name} is a generator function: calling it runs nothing; return its requests as a tuple")
    try:
        inspect.signature(handler).bind(None, None)
    except TypeError:
        given = f"{name}{inspect.signature(handler)}"
        raise TypeError(f"{given} cannot be called with two arguments; write it as (event, state)") from None
    except ValueError:
        pass  # a builtin that does not tell its signature


def name_of(handler: Any) -> str:
    """A readable name: without ``<locals>``, and through a partial to its function."""
    while isinstance(handler, functools.partial):
        handler = handler.func
    name = getattr(handler, "__qualname__", None) or type(handler).__qualname__
    return str(name).rpartition("<locals>.")[2]


def _priority(value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        bands = ", ".join(f"{b.name} {b.value}" for b in Priority)
        raise TypeError(f"{name}: priority={value!r} is no int; use a number or a Priority: {bands}")
    return int(value)


def checked_policy(value: Any, name: str) -> Policy:
    """The failure policy.

    Raises:
        ValueError: there is no such policy.
    """
    for policy in POLICIES:
        if value == policy:
            return policy
    raise ValueError(f"{name}: failure={value!r}; there are {', '.join(POLICIES)}")


def _whole(word: str, value: Any, name: str) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise ValueError(f"{name}: {word}={value!r} must be a whole number >= 1")
    return value


def _filter(options: Mapping[str, Any], event: type[Event], name: str) -> Filter | None:
    words: dict[str, Amount] = {
        w: options[w] for w in ("every", "after", "before", "once") if options.get(w) is not None
    }
    try:
        conditions = [condition(word, amount, event) for word, amount in words.items()]
    except ValueError as error:
        raise ValueError(f"{name}: {error}") from None
    return Filter(conditions) if conditions else None


def _guarded(when: Callable[[Any, Any], bool], handler: Callable[[Any, Any], Any]) -> Callable[[Any, Any], Any]:
    def call(event: Any, state: Any) -> Any:
        return handler(event, state) if when(event, state) else None

    return call


_HERE: Final = str(Path(__file__).parent)


def caller() -> str:
    """Where the subscription was made: the first frame outside this package."""
    frame = sys._getframe(1)
    while frame.f_back is not None and frame.f_code.co_filename.startswith(_HERE):
        frame = frame.f_back
    return f"{Path(frame.f_code.co_filename).name}:{frame.f_lineno}"
