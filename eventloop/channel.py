"""The one module that knows blinker: ordered, compiled signals that are still blinker's own.

`Channel` is a `blinker.NamedSignal` and `Space` a `blinker.Namespace`, so whatever ordinary blinker code does with
them (``connect``, ``connect_via``, ``connected_to``, ``muted``, ``receiver_connected``, ``send``) acts on this bus.
Only public members are overridden: ``connect``, ``disconnect``, ``receivers_for``, ``is_muted`` and
``Namespace.signal``. blinker 1.9 builds its receiver set anew at each send, in an order that differs between
processes, resolves each weak reference and inspects each receiver for being a coroutine. None of that need be done
more than once a connection. So:

* Each receiver has a `Slot`: what to call, and its place ``(-priority, ticket)``. Tickets come from one counter for
  the whole space, taken at the first connection, so the order is total and the same for ``bus.publish`` and for
  blinker's ``send``, which asks ``receivers_for``.
* The bus compiles the slots of an event class into one tuple and keeps it in ``Space.tables``. Every connect,
  disconnect and mute clears that dict inside the lock that compiling holds too: no stale table can be stored. A
  publish reads without the lock, a dict lookup and an immutable tuple.
* A disconnect swaps the slot's ``call`` for `silent`, so it acts inside the dispatch that is running without a test
  in its loop. Connecting an existing receiver again changes its slot in place and must not silence it.
* A weak receiver never sits in a table: its slot goes through the reference. A receiver that dies only stores
  `silent`, one attribute, which is safe in any thread and inside the lock; the slot is swept at the next compile.
* The lock is re-entrant: blinker fires ``receiver_connected`` inside ``connect``, and the collector may run a weak
  callback anywhere.

One bus has one sender, the bus itself. blinker keeps its sender filtering, which is asked when a table is compiled.
"""

from __future__ import annotations

import inspect
import itertools
import threading
import weakref
from collections.abc import Callable, Generator
from typing import Any, NoReturn

from blinker import ANY, NamedSignal, Namespace

from .events import Event, event_class


def silent(event: Any, state: Any) -> None:
    """What a slot calls when its receiver is gone."""


def paused(event: Any, state: Any) -> None:
    """What a slot calls when a failure policy has switched off a receiver that blinker still holds."""


class Slot:
    """One receiver's place on the channel of ``kind``. ``owner`` is whatever the bus hangs on it."""

    __slots__ = ("__weakref__", "call", "kind", "order", "owner", "weak")

    def __init__(self, kind: type[Event], order: tuple[int, int]) -> None:
        self.call: Callable[[Any, Any], Any] = silent
        self.kind = kind
        self.order = order
        self.owner: Any = None
        self.weak = False


class Adapter:
    """What blinker stores for a typed handler: speaks blinker's convention, holds the bare function."""

    __slots__ = ("__weakref__", "function")

    def __init__(self, function: Callable[[Any, Any], Any]) -> None:
        self.function = function

    def __call__(self, sender: Any, *, event: Any, state: Any) -> Any:
        """Called by blinker's ``send``."""
        return self.function(event, state)


class Channel(NamedSignal):
    """The signal of one event class, in priority order."""

    def __init__(self, name: str, space: Space, kind: type[Event]) -> None:
        self.kind = kind
        self._space = space
        self._muted = False
        self._slots: dict[Any, Slot] = {}
        super().__init__(name, kind.__doc__)

    @property
    def is_muted(self) -> bool:
        """Whether publishing skips this channel. blinker's ``muted`` assigns it."""
        return self._muted

    @is_muted.setter
    def is_muted(self, value: bool) -> None:
        with self._space.lock:
            self._muted = value
            self._space.invalidate()

    def connect(self, receiver: Any, sender: Any = ANY, weak: bool = True, *, priority: int = 0) -> Any:
        """Connect as blinker does; higher ``priority`` first, ties in order of first connection.

        A receiver is called ``(sender, event=, state=)`` and the request it returns counts.
        """
        if is_coroutine(receiver):
            raise TypeError(f"{receiver!r} is a coroutine function; handlers are called, not awaited")
        with self._space.lock:
            key = key_of(receiver)
            slot = self._slots.get(key)
            new = slot is None or slot.call is silent
            if slot is None or new:
                slot = self._slots[key] = Slot(self.kind, (-priority, next(self._space.tickets)))
            if new or slot.weak is not weak:
                self._fill(slot, receiver, weak)  # as in blinker, the later flag wins
            slot.order = (-priority, slot.order[1])
            try:
                super().connect(receiver, sender, weak)
            except BaseException:  # a listener to receiver_connected forbids it
                if new:
                    self.disconnect(receiver)
                raise
            finally:
                self._space.invalidate()
        return receiver

    def place(self, adapter: Adapter, priority: int, ticket: int | None, owner: Any) -> Slot:
        """Connect a typed handler strongly, in the place that ``ticket`` (None: the next) gives it."""
        with self._space.lock:
            self.connect(adapter, weak=False, priority=priority)
            slot = self._slots[key_of(adapter)]
            slot.owner = owner
            if ticket is not None:
                slot.order = (-priority, ticket)
            return slot

    def disconnect(self, receiver: Any, sender: Any = ANY) -> None:
        """Disconnect as blinker does; from every sender, it also takes effect in a dispatch that is running."""
        with self._space.lock:
            super().disconnect(receiver, sender)
            if sender is ANY and (slot := self._slots.pop(key_of(receiver), None)) is not None:
                slot.call = silent
            self._space.invalidate()

    def remove(self, slot: Slot) -> None:
        """Disconnect whatever receiver is in this slot."""
        with self._space.lock:
            slot.call = silent
            for receiver in list(super().receivers_for(self._space.source())):
                if self._slots.get(key_of(receiver)) is slot:
                    self.disconnect(receiver)

    def pause(self, slot: Slot) -> None:
        """Publish no more to this receiver, which keeps its connection and its place; see `go_on`."""
        slot.call = paused

    def go_on(self, slot: Slot) -> None:
        """Publish to a paused receiver again, if it is still there."""
        with self._space.lock:
            for receiver in super().receivers_for(self._space.source()):
                if self._slots.get(key_of(receiver)) is slot:
                    self._fill(slot, receiver, slot.weak)

    def live_slots(self) -> list[Slot]:
        """The slots of receivers that are still there."""
        return [slot for slot in self._slots.values() if slot.call is not silent]

    def _fill(self, slot: Slot, receiver: Any, weak: bool) -> None:
        slot.weak = weak
        if isinstance(receiver, Adapter):
            slot.call = receiver.function
        elif weak:
            slot.call = self._through_reference(slot, receiver)
        else:
            source = self._space.source
            slot.call = lambda event, state: receiver(source(), event=event, state=state)

    def _through_reference(self, slot: Slot, receiver: Any) -> Callable[[Any, Any], Any]:
        # The owner's reference with the plain function costs a tenth of weakref.WeakMethod.
        source, me = self._space.source, weakref.ref(slot)
        function = receiver.__func__ if inspect.ismethod(receiver) else None

        def died(_: Any) -> None:
            if (dead := me()) is not None:
                dead.call = silent

        reference = weakref.ref(receiver if function is None else receiver.__self__, died)

        def call(event: Any, state: Any) -> Any:
            target = reference()
            if target is None:
                return None
            if function is None:
                return target(source(), event=event, state=state)
            return function(target, source(), event=event, state=state)

        return call

    def ordered(self, sender: Any) -> list[tuple[Slot, Any]]:
        """The live slots that this sender reaches, with their receivers, in order."""
        with self._space.lock:
            for key in [k for k, s in self._slots.items() if s.call is silent]:
                del self._slots[key]
            pairs = [(self._slots[key_of(r)], r) for r in super().receivers_for(sender) if key_of(r) in self._slots]
        return sorted(pairs, key=lambda pair: pair[0].order)

    def receivers_for(self, sender: Any) -> Generator[Callable[..., Any], None, None]:
        """The receivers that blinker would call for this sender, in order; ``send`` goes through here."""
        for slot, receiver in self.ordered(sender):
            if slot.call is not silent:
                yield receiver

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"the live signal {self.name!r} cannot be copied or pickled; build a new Bus")

    def __copy__(self) -> NoReturn:
        self.__reduce__()

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__reduce__()


class Space(Namespace):
    """All signals of one bus: a `blinker.Namespace` that makes a `Channel` for each event class."""

    def __init__(self, source: Callable[[], Any]) -> None:
        super().__init__()
        self.source = source
        self.lock = threading.RLock()
        self.tickets = itertools.count()
        self.tables: dict[type[Event], Any] = {}
        self.channels: dict[type[Event], Channel] = {}

    def invalidate(self) -> None:
        """Something has changed: forget the compiled tables, after they have said how often they were called."""
        for table in self.tables.values():
            table.settle()
        self.tables.clear()

    def signal(self, name: str, doc: str | None = None) -> Channel:
        """The signal of the event called ``name``.

        Raises:
            ValueError: no event, or more than one, has that name.
        """
        known = self.get(name)
        return known if isinstance(known, Channel) else self.channel(event_class(name))

    def channel(self, kind: type[Event]) -> Channel:
        """The signal of an event class. Two classes of one name are two signals, the later with ``#2`` behind it."""
        with self.lock:
            if kind not in self.channels:
                names = (kind.name if i == 1 else f"{kind.name}#{i}" for i in itertools.count(1))
                name = next(n for n in names if n not in self)
                self[name] = self.channels[kind] = Channel(name, self, kind)
                self.invalidate()
            return self.channels[kind]

    def live_slots(self) -> list[Slot]:
        """The slots of all channels."""
        return [slot for channel in self.channels.values() for slot in channel.live_slots()]

    def slots(self, kind: type[Event]) -> list[tuple[Slot, Any]]:
        """Live slots and receivers of a class and the event classes it derives from, muted ones apart, in order."""
        with self.lock:
            heard = [c for k in kind.__mro__ if (c := self.channels.get(k)) is not None and not c.is_muted]
            pairs = [pair for channel in heard for pair in channel.ordered(self.source())]
        return sorted(pairs, key=lambda pair: pair[0].order)

    def __reduce__(self) -> NoReturn:
        raise TypeError("the live signals of a bus cannot be copied or pickled; build a new Bus")

    def __copy__(self) -> NoReturn:
        self.__reduce__()

    def __deepcopy__(self, memo: object) -> NoReturn:
        self.__reduce__()


def is_coroutine(receiver: Any) -> bool:
    """Whether calling it would only make a coroutine."""
    return inspect.iscoroutinefunction(receiver) or inspect.iscoroutinefunction(getattr(receiver, "__call__", None))  # noqa: B004  # its __call__ is inspected, not tested for


def key_of(receiver: Any) -> Any:
    """What tells one receiver from another: a bound method is a new object at each access."""
    # blinker identifies receivers the same way
    if inspect.ismethod(receiver):
        return id(receiver.__func__), id(receiver.__self__)
    return id(receiver)
