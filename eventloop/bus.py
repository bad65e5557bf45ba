"""`Bus`: subscribe, attach, explain; publishing is in `dispatch`."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NoReturn, TypeVar, overload

from .callback import Answer, handlers_of
from .channel import Channel, key_of, silent
from .dispatch import Dispatcher
from .events import Event, TrainBegin, event_class
from .explain import Explanation, HandlerCost, cost_of, explain
from .failures import Failure, Policy
from .roster import Attached, LoadReport, Names, Roster
from .state import TrainState
from .subscription import Handle, Subscription, caller, check_handler, name_of

E = TypeVar("E", bound=Event)
H = TypeVar("H", bound=Callable[..., Any])


class Bus(Dispatcher):
    """Typed events out, requests back, through blinker signals in one total order.

    Promised: handlers are called by priority, higher first, ties in order of registration; one that raises keeps no
    other from being called, nor loses another's request; nobody can change the event or the state of another. Not
    promised: that a handler which blocks is interrupted.

    Args:
        failure: the policy of subscriptions that name none; ``Bus(failure="raise")`` suits tests.
        clock: seconds, for filters on time; any monotonic clock.

    Attributes:
        failures: the last 1,000 failures of the run, with counts by subscription.
        signals: the `blinker.Namespace`.
    """

    def __init__(self, failure: Policy = "isolate", clock: Callable[[], float] = time.monotonic) -> None:
        super().__init__(failure, clock)
        self._roster = Roster()
        self._names = Names()
        self._handles: list[Handle] = []
        self.run: object = None  # the run of a Loop that this bus is in
        self._filters: dict[str, Any] = {}  # where loaded filters looked last, by subscription

    # -- subscribe -----------------------------------------------------------------------------------------------------

    @overload
    def on(self, kind: type[E], handler: Callable[[E, TrainState], Answer], **options: Any) -> Handle: ...
    @overload
    def on(self, kind: str, handler: Callable[..., Any], **options: Any) -> Handle: ...
    @overload
    def on(
        self, kind: type[E], handler: None = None, **options: Any
    ) -> Callable[[Callable[[E, TrainState], Answer]], Callable[[E, TrainState], Answer]]: ...
    @overload
    def on(self, kind: str, handler: None = None, **options: Any) -> Callable[[H], H]: ...
    def on(self, kind: Any, handler: Any = None, *, name: str | None = None, **options: Any) -> Any:
        """Subscribe a function to an event class, a base class or an event name; also a decorator.

        Checked at once, and nothing is registered on error.

        Args:
            kind: the event; a base class hears its subclasses too.
            handler: called with (event, state); held strongly.
            name: how it is called everywhere, unique on this bus; else its ``__qualname__``.
            **options: ``priority`` (an int, higher first, default `Priority.NORMAL`); the filters ``every``,
                ``after``, ``before`` and ``once``, each a whole number of the event's own counter or ``{counter:
                amount}``, seconds included; ``when(event, state)``; ``failure``: isolate, disable (after
                ``disable_after=3`` failures), stop or raise.

        Returns:
            The handle; as a decorator, the function.
        """
        kind = event_class(kind)
        if handler is None:
            return lambda function: (self.on(kind, function, name=name, **options), function)[1]
        check_handler(handler)
        with self.signals.lock:
            self._refuse_twice(kind, handler)
            same = [s for s in self._subscriptions() if key_of(s.handler) == key_of(handler)]
            known = same[0].name if same and name is None else None  # one function on several events has one name
            title = known or self._names.claim(name, name_of(handler), caller())
            try:
                origin = same[0].origin if known else None
                return self._connect([Subscription(kind, handler, title, self._policied(options), origin=origin)])
            except BaseException:
                if known is None:
                    self._names.release(title)
                raise

    def attach(
        self, thing: Any, *, name: str | None = None, options: Mapping[str, Any] | None = None, **keywords: Any
    ) -> Handle:
        """Subscribe every ``on_<event>`` method of an object.

        Attached in mid-run it is bound, then gets the next event.

        Options come, each over the one before, from the object's ``priority`` and ``failure``, its ``options()`` for
        that event, ``keywords``, and ``options`` for that event; None in place of options leaves the event out.

        Returns:
            One handle for all of them. `detach` takes the object itself.
        """
        if isinstance(thing, type):
            raise TypeError(f"attach takes an object: write {thing.__name__}(...)")
        with self.signals.lock:
            if (there := self._roster.find(thing)) is not None:
                raise ValueError(f"{there.name} is attached already, at {there.place}")
            place = caller()
            title = self._names.claim(name, type(thing).__name__, place)
            try:
                handle = self._connect(list(self._methods(thing, title, options or {}, keywords)))
            except BaseException:
                self._names.release(title)
                raise
            try:
                self._roster.add(thing, title, name is not None, handle, place)
            except BaseException:
                handle.cancel()
                raise
            return handle

    def _methods(
        self, thing: Any, title: str, options: Mapping[str, Any], keywords: Mapping[str, Any]
    ) -> Iterator[Subscription]:
        methods = {_event_of(title, event): method for event, method in handlers_of(thing).items()}
        if not methods:
            hint = f"; subscribe a function with bus.on(StepEnd, {title})" if callable(thing) else ""
            raise TypeError(f"{title} has no on_<event> method, so there is nothing to attach{hint}")
        own = {event_class(event): value for event, value in getattr(thing, "options", dict)().items()}
        given = {event_class(event): value for event, value in options.items()}
        if strangers := [kind.name for kind in (*own, *given) if kind not in methods]:
            there = ", ".join(kind.name for kind in methods)
            raise ValueError(f"{title} has options for {', '.join(strangers)}, but handlers only for {there}")
        defaults = {"priority": getattr(thing, "priority", 0), "failure": getattr(thing, "failure", None)}
        origin = object()
        for kind, method in methods.items():
            mine, last = own.get(kind, {}), given.get(kind, {})
            if mine is not None and last is not None:
                check_handler(method)
                self._refuse_twice(kind, method)
                merged = self._policied({**defaults, **mine, **keywords, **last})
                yield Subscription(kind, method, title, merged, thing, origin)

    def _policied(self, options: Mapping[str, Any]) -> dict[str, Any]:
        return {**options, "failure": self.failure if options.get("failure") is None else options["failure"]}

    def _refuse_twice(self, kind: type[Event], handler: Any) -> None:
        for s in self._subscriptions():
            if s.event is kind and key_of(s.handler) == key_of(handler):
                raise ValueError(f"{s.name} is subscribed to {kind.name} already, at {s.place}")

    def detach(self, thing: object) -> None:
        """Cancel all subscriptions of an attached object; it is still closed at the end of the run.

        Raises:
            ValueError: the object is not attached.
        """
        attached = self._roster.find(thing)
        if attached is None:
            raise ValueError(f"{thing!r} is not attached to this bus")
        attached.handle.cancel()

    def _connect(self, subscriptions: list[Subscription]) -> Handle:
        try:
            for subscription in subscriptions:  # all of them are checked by now
                subscription.connect(self.signals.channel(subscription.event))
        except BaseException:  # somebody who listens to receiver_connected
            for subscription in subscriptions:
                subscription.leave("cancelled")
            raise
        handle = Handle(subscriptions, self._forget)
        self._handles.append(handle)
        return handle

    def _forget(self, handle: Handle) -> None:
        with self.signals.lock:
            if handle in self._handles:
                self._handles.remove(handle)
                self._roster.forget(handle)
                still = {s.name for s in self._subscriptions()}
                for name in {s.name for s in handle.subscriptions} - still:
                    self._names.release(name)

    def _subscriptions(self) -> Iterator[Subscription]:
        return (s for handle in tuple(self._handles) for s in handle.subscriptions)

    def signal(self, kind: type[Event] | str) -> Channel:
        """The live `blinker.NamedSignal` of an event: whatever blinker code does with it acts on this bus."""
        return self.signals.channel(event_class(kind))

    # -- look ----------------------------------------------------------------------------------------------------------

    def order(self, kind: type[Event] | str) -> tuple[Subscription, ...]:
        """The subscriptions that hear an event, in running order."""
        kind = event_class(kind)
        table = self._tables.get(kind)
        if table is None or any(slot.call is silent for slot in table.slots):  # a weak receiver has died
            table = self._compile(kind)
        return tuple(slot.owner for slot in table.slots)

    def explain(self, kind: type[Event] | str) -> Explanation:
        """The running order of an event and why it is so; a text that prints itself."""
        kind = event_class(kind)
        off = [s for s in self._subscriptions() if s.event in kind.__mro__ and s.state != "active"]
        return explain(kind, self.order(kind), off)

    def costs(self) -> list[HandlerCost]:
        """What each handler has cost in this run, the dearest first: calls, sampled mean and worst."""
        calls = {s: s.cost.unsampled for s in self._subscriptions()}
        for table in list(self._tables.values()):
            for slot in table.slots:
                calls.setdefault(slot.owner, 0)
            for slot in table.always or table.current:
                calls[slot.owner] += table.unsampled
        return sorted((cost_of(s, n) for s, n in calls.items()), key=lambda c: -c.seconds)

    @property
    def objects(self) -> tuple[tuple[str, Any], ...]:
        """The attached objects with their names, in order of attachment."""
        return tuple((a.name, a.thing) for a in self._roster)

    def key_of(self, name: str) -> str:
        """What the state of the object of this name is stored under; the name itself if no object has it."""
        return next((a.key for a in self._roster if a.name == name), name)

    def find(self, name: str) -> Subscription | None:
        """A subscription by its name; of an object, the first of its subscriptions."""
        return next((s for s in self._subscriptions() if s.name == name), None)

    def name_of(self, thing: object) -> str:
        """The name of an attached object.

        Raises:
            ValueError: the object is not attached.
        """
        attached = self._roster.find(thing)
        if attached is None:
            raise ValueError(f"{thing!r} is not attached to this bus")
        return attached.name

    # -- live ----------------------------------------------------------------------------------------------------------

    def bind(self, **live: Any) -> None:
        """Hand each attached object the live parts that its ``bind`` names; call it before train_begin.

        Raises:
            TypeError: an object asks for a name that is not among them.
        """
        self._roster.bind({"bus": self, **live})

    def begin_run(self, event: TrainBegin, state: TrainState) -> None:
        """A run starts: everything counts from here, or from what was loaded."""
        super().begin_run(event, state)
        self._roster.start()
        if not event.resumed:
            self._roster.forget_orphans()
        seconds, loaded = self._seconds(), self._filters if event.resumed else {}
        self._filters = {}
        for s in self._subscriptions():
            s.begin_run()
            if s.filter is not None:
                s.filter.rebase(state, seconds)
                s.filter.load_state_dict(loaded.get(_key(s), ()))
        self.signals.invalidate()  # the tables' windows are those of the last run

    def close(self, step: int = 0) -> None:
        """Close every object that was started, in reverse order, each once; an error there is a failure, not raised."""
        self._roster.close(lambda name, error: self.record(Failure(name, "close", step, error)))

    def persist(self) -> None:
        """Ask every object that has ``persist()`` to see to it that what it was told by now is on disk.

        A checkpoint asks for this before it is committed, from the thread that writes it; an error in one is logged.
        """
        self._roster.persist()

    def state_dict(self) -> dict[str, Any]:
        """The state of every attached object under its key, and where each filter looked last."""
        filters = {_key(s): s.filter.state_dict() for s in self._subscriptions() if s.filter is not None}
        return {"callbacks": self._roster.state_dict(self._state_failed), "filters": filters}

    def _state_failed(self, attached: Attached, error: Exception) -> None:
        """An object cannot give its state: by the policy of its subscriptions the others' are taken all the same."""
        error.add_note(f"while taking the state of {attached.name}")
        policies = {s.failure for s in attached.handle.subscriptions}
        if "raise" in policies:
            raise error
        self.record(Failure(attached.name, "state_dict", 0, error))

    def load_state_dict(self, state: Mapping[str, Any]) -> LoadReport:
        """Load what `state_dict` gave, in place; publish ``TrainBegin(resumed=True)`` afterwards."""
        self._filters = dict(state.get("filters", {}))
        report = self._roster.load_state_dict(state.get("callbacks", {}))
        if self.run is None:  # a loop tells of it, and of all its other parts, in one report
            report.log()
        return report

    def match(self, state: Mapping[str, Any]) -> LoadReport:
        """What would come of loading a state, the handlers whose ``every`` goes on among the restored."""
        found = self._roster.match(state.get("callbacks", {}))
        filters = [key for s in self._subscriptions() if s.filter is not None and (key := _key(s)) in state["filters"]]
        return found._replace(restored=(*found.restored, *filters))

    def __repr__(self) -> str:
        names = ", ".join(dict.fromkeys(s.name for s in self._subscriptions()))
        return f"<Bus of {names or 'nobody'}>"

    def __reduce__(self) -> NoReturn:
        raise TypeError("a live Bus cannot be copied or pickled; build a new one and load its state_dict")

    def __copy__(self) -> NoReturn:
        self.__reduce__()

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__reduce__()


def _event_of(owner: str, event: str) -> type[Event]:
    try:
        return event_class(event)
    except ValueError as error:
        message = str(error).replace("mean '", "mean 'on_", 1)
        raise ValueError(f"{owner}.on_{event}: {message}") from None


def _key(subscription: Subscription) -> str:
    return f"{subscription.name}/{subscription.event.name}"
