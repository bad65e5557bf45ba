"""A dispatch is a fold: each reply changes the snapshot that the handlers behind it see, or is kept for the loop.

`Fold` runs beside the loop of one dispatch, made at the first handler that replies or fails; `Control` is what is left
of it, the bus's answer to a publish.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, Protocol

from .errors import ConflictError, ReplyError, shown
from .events import Event
from .failures import Failure
from .metrics import cells
from .requests import Evaluate, Reply, Report, Request, Save, SetLR, SkipUpdate, Stop
from .state import TrainState

if TYPE_CHECKING:
    from .subscription import Subscription

Folded = tuple[str, dict[str, Any]]
"""("metrics", cells), ("lr", rates) or ("held", rates)."""


def _folded(state: TrainState, change: Folded) -> TrainState:
    what, values = change
    if what == "metrics":
        return state.with_metrics(state.metrics.added(values))
    return state.with_lr(values, held=what == "held")


class Control:
    """Every request of one dispatch, with who made it, merged by one rule: requests add up, absence is no veto.

    What it asks for does not depend on the order of handlers; ``requests`` keeps that order. Also made by ``a | b``.

    Attributes:
        requests: the replies, in the order of the handlers.
        failures: the handlers that failed.
    """

    __slots__ = ("_changes", "_given", "_last", "_parts", "failures", "requests")

    def __init__(
        self,
        requests: Iterable[Reply] = (),
        failures: Iterable[Failure] = (),
        changes: Iterable[Folded] = (),
        given: TrainState | None = None,
        last: TrainState | None = None,
    ) -> None:
        self.requests, self.failures, self._changes = tuple(requests), tuple(failures), tuple(changes)
        self._given, self._last = given, last
        self._parts: tuple[Control, ...] = ()  # what a union was made of

    def apply(self, state: TrainState) -> TrainState:
        """The state with every report and learning rate folded in, those of nested publishes too, in order."""
        if self._last is not None and state is self._given:
            return self._last
        for change in self._changes:
            state = _folded(state, change)
        return state

    def of(self, kind: type[Request]) -> tuple[Reply, ...]:
        """The replies that are requests of this class."""
        if not self.requests:
            return ()
        return tuple(reply for reply in self.requests if isinstance(reply.request, kind))

    @property
    def stop(self) -> Reply | None:
        """The first Stop, or None."""
        return next(iter(self.of(Stop)), None)

    @property
    def skip(self) -> Reply | None:
        """The first SkipUpdate, or None."""
        return next(iter(self.of(SkipUpdate)), None)

    @property
    def evaluate(self) -> bool:
        """Whether anybody asks for an evaluation."""
        return bool(self.of(Evaluate))

    @property
    def save(self) -> frozenset[str]:
        """The tags of all saves asked for."""
        return frozenset(r.request.tag for r in self.requests if isinstance(r.request, Save))

    @property
    def lr(self) -> Mapping[str, float]:
        """The learning rates set, by group."""
        rates: dict[str, float] = {}
        for what, values in self._changes:
            if what != "metrics":
                rates.update(values)
        return MappingProxyType(rates)

    def raise_failures(self) -> None:
        """Raise the first error under the policy ``raise``, unchanged, with the rest of the dispatch as notes."""
        first = next((f for f in self.failures if f.policy == "raise"), None)
        if first is None:
            return
        notes = [f"also: {f}" for f in self.failures if f is not first]
        notes += [f"not carried out: {reply}" for reply in self.requests if not isinstance(reply.request, Report)]
        first.error.add_note(f"raised by {first.subscription} at {first.event} of step {first.step}")
        for note in notes:
            first.error.add_note(note)
        raise first.error

    def __or__(self, other: Control) -> Control:
        if not isinstance(other, Control):
            return NotImplemented
        both = Control(self.requests + other.requests, self.failures + other.failures, self._changes + other._changes)
        both._parts = (*self.parts, *other.parts)
        return both

    @property
    def parts(self) -> tuple[Control, ...]:
        """The controls of single dispatches that this one was made of."""
        return self._parts or (self,)

    def __repr__(self) -> str:
        failed = f", failures={list(self.failures)!r}" if self.failures else ""
        return f"Control({list(self.requests)!r}{failed})"


NOTHING: Final = Control()


def _reply(who: str, request: Request) -> Reply:
    return tuple.__new__(Reply, (who, request))  # a third of what the named constructor costs


class Publisher(Protocol):
    """What a fold needs of the bus that publishes."""

    writers: dict[str, tuple[object, str]]
    inner: list[Control]

    def failed(
        self, who: Subscription, event: Event, state: TrainState, error: Exception
    ) -> tuple[list[Failure], Request | None, Control]:
        """Record a failure; returns it, what its policy asks for, and what the others said to it."""
        ...


class Fold:
    """The replies of one dispatch so far, and the state they have made.

    Args:
        bus: what publishes.
        event: what is published.
        state: the snapshot given to the first handler.
    """

    __slots__ = ("_bus", "_changes", "_event", "_failures", "_given", "_owners", "_replies", "state")

    def __init__(self, bus: Publisher, event: Event, state: TrainState) -> None:
        self._bus, self._event, self._given, self.state = bus, event, state, state
        self._owners: dict[str, Subscription] = {}
        self._replies: list[Reply] = []
        self._failures: list[Failure] = []
        self._changes: list[Folded] = []

    def take(self, who: Subscription, answer: Any) -> TrainState:
        """Fold a handler's answer in; returns the state for the handlers behind it."""
        errors: list[Exception] = []
        kind = type(answer)
        if self._bus.inner:
            self._merge_inner(answer)
        try:
            if kind is Report:  # the two that come at each update, first
                self._report(who, answer, errors)
            elif kind is SetLR:
                self._set_lr(who, answer, errors)
            elif kind is tuple or kind is list:
                for request in answer:
                    self._one(who, request, errors)
            elif isinstance(answer, Control):
                self._merge(answer)
            else:
                self._one(who, answer, errors)
        except Exception as error:  # a value that cannot even be looked at
            errors.append(error)
        if errors:  # one reply is one failure, whatever is wrong with it
            self.failed(who, errors[0] if len(errors) == 1 else type(errors[0])("; ".join(map(str, errors))))
        return self.state

    def _merge_inner(self, answer: Any = None) -> None:
        """Requests made at a publish inside this one count here too, in their place; a returned control only once."""
        returned = {id(part) for part in answer.parts} if isinstance(answer, Control) else ()
        inner, self._bus.inner = self._bus.inner, []
        for control in inner:
            if id(control) not in returned:
                self._merge(control)

    def _one(self, who: Subscription, request: Any, errors: list[Exception]) -> None:
        if isinstance(request, Report):
            self._report(who, request, errors)
        elif isinstance(request, SetLR):
            self._set_lr(who, request, errors)
        elif isinstance(request, Request):
            self._replies.append(_reply(who.name, request))
        else:
            errors.append(ReplyError(_refusal(who.name, request)))

    def _merge(self, control: Control) -> None:
        """Add the answer to a nested publish: requests in the names of those who made them, what they changed."""
        self._replies += control.requests
        self._failures += control.failures
        for what, values in control._changes:
            self._change(what, values)

    def failed(self, who: Subscription, error: Exception) -> TrainState:
        """Record that a handler raised ``error``."""
        self._merge_inner()
        failures, request, _ = self._bus.failed(who, self._event, self.state, error)
        self._failures += failures
        if request is not None:
            self._replies.append(_reply(who.name, request))
        return self.state

    def control(self) -> Control:
        """The answer to the publish."""
        if self._bus.inner:
            self._merge_inner()
        return Control(self._replies, self._failures, self._changes, self._given, self.state)

    def _report(self, who: Subscription, request: Report, errors: list[Exception]) -> None:
        good, bad = cells(request.metrics, max(self.state.step, self.state.update))
        if bad:
            errors.append(ReplyError(f"{who.name}: {'; '.join(bad.values())}"))
        owners = self._owners
        for key in list(good):
            owner = owners.setdefault(key, who)
            if owner is not who and owner.origin is not who.origin:
                del good[key]
                both = f"{owner.name} and {who.name}"
                errors.append(ConflictError(f"{both} both report {key!r} at one {self._event.name}: rename one"))
        self._replies.append(_reply(who.name, request))
        self._change("metrics", good)

    def _set_lr(self, who: Subscription, request: SetLR, errors: list[Exception]) -> None:
        known, writers, rates = self.state.lr, self._bus.writers, {}
        for group, rate in request.by_group(known or ("group_0",)).items():
            if known and group not in known:
                errors.append(ReplyError(f"{who.name} sets the rate of {group!r}; the groups are {', '.join(known)}"))
                continue
            origin, name = writers.get(group) or writers.setdefault(group, (who.origin, who.name))
            if origin is not who.origin:
                errors.append(ConflictError(f"{name} and {who.name} both set the learning rate of group {group!r}"))
            else:
                rates[group] = rate
        if rates:
            self._replies.append(_reply(who.name, request))
            self._change("lr" if self._event.folds_lr else "held", rates)

    def _change(self, what: str, values: dict[str, Any]) -> None:
        if values:
            self._changes.append((what, values))
            self.state = _folded(self.state, (what, values))


def _refusal(name: str, answer: Any) -> str:
    is_class = isinstance(answer, type) and issubclass(answer, Request)
    hint = f"write {answer.__name__}(...): " if is_class else ""
    return (
        f"{name} returned {shown(answer)}: {hint}a handler returns None, a Request (Stop, Save, Evaluate, SetLR, "
        f"Report, SkipUpdate or your own), a tuple or list of them, or the Control of a nested publish"
    )
