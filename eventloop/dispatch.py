"""One publish: one loop over a compiled tuple of slots, each handler isolated, each reply folded.

What the loop pays for is a dictionary lookup, one comparison with the calendar's window and a countdown to the next
timed sample, then a ``try`` a handler, which is free on 3.11+ while nothing raises. Everything else (nested publishes,
a second thread, failures, circles) is found out where it happens, off this path.
"""

from __future__ import annotations

import contextlib
import sys
import threading
import weakref
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import Any, Final

from .channel import Space
from .errors import BusyBusError, PublishCycleError, forget_frames, told
from .events import Event, HandlerFailed, TrainBegin
from .failures import Failure, FailureLog, Policy
from .filters import Table
from .fold import NOTHING, Control, Fold
from .log import logger
from .requests import Reply, Request, Stop
from .state import TrainState
from .subscription import Subscription, checked_policy
from .watch import Around, watched_by

BLANK: Final = TrainState()
CYCLE: Final = 16  # so many publishes inside each other, where a RecursionError comes up, are a circle
CIRCLES: Final = 50  # and so many of one event inside each other are one before the stack is full


class Dispatcher:
    """The publishing half of a `Bus`."""

    def __init__(self, failure: Policy, clock: Callable[[], float]) -> None:
        self.failure = checked_policy(failure, "Bus")
        self.clock = clock
        self.signals = Space(weakref.ref(self))
        self.failures = FailureLog()
        self._tables: dict[type[Event], Table] = self.signals.tables
        self.writers: dict[str, tuple[object, str]] = {}  # who sets each group's learning rate: origin and name
        self._origin = clock()
        self._busy = False
        self._watchers: tuple[Around, ...] = ()
        self.inner: list[Control] = []  # answers to publishes inside the one that runs, not yet merged

    def publish(self, event: Event, state: TrainState = BLANK, _raising: bool = True, _nested: bool = False) -> Control:
        """Call every handler that is due, in order, and return their requests.

        Raises:
            Exception: a handler under the policy ``raise`` failed: its own error, unchanged, after all were called.
            BusyBusError: another thread is publishing on this bus.
        """
        try:
            table = self._tables[type(event)]
        except KeyError:
            table = self._compile(type(event))
        slots = table.always
        if slots is None:
            index = table.index
            if index >= 0 and table.low <= state[index] < table.high:  # type: ignore[operator]  # a counter's field
                slots = table.current
        if slots is not None and not slots:
            return NOTHING  # nobody hears it, or nobody is due
        if self._busy and not _nested:
            return self._inside(event, state, _raising)
        self._busy = True  # right behind the test, so that no other thread can slip in between
        fold = None
        try:
            if slots is None:
                slots = table.due(event, state)
                if not slots:
                    return NOTHING
            left = table.left
            if left:
                table.left = left - 1
            else:
                slots = table.timed(slots)
            for slot in slots:
                call = slot.call  # a local: a method load from a slot is not specialised on 3.11
                try:
                    answer = call(event, state)
                except Exception as error:
                    fold = fold or self._fold(event, state)
                    state = fold.failed(slot.owner, error)
                    continue
                if answer is not None:
                    fold = fold or self._fold(event, state)
                    state = fold.take(slot.owner, answer)
            if fold is None and not self.inner:
                return NOTHING
            return self._answer(fold or self._fold(event, state), _raising)
        except BaseException:  # an interrupt: what was asked for in it must not reach the next publish
            self.inner = []
            raise
        finally:
            self._busy = _nested  # a publish inside another leaves that one busy

    def dispatch(self, event: Event, state: TrainState = BLANK) -> Control:
        """`publish` without raising: failures are in ``control.failures``."""
        return self.publish(event, state, False)

    def _answer(self, fold: Fold, raising: bool) -> Control:
        control = fold.control()
        if raising and control.failures:
            control.raise_failures()
        return control

    def hears(self, kind: type[Event], counters: Sequence[Any] = BLANK) -> bool:
        """Whether anybody would be called; takes counters alone, so that no snapshot need be built to ask."""
        try:
            table = self._tables[kind]
        except KeyError:
            table = self._compile(kind)
        if table.always is not None:
            return bool(table.always)
        return bool(table.current) or not table.quiet(counters)

    def _fold(self, event: Event, state: TrainState) -> Fold:
        return Fold(self, event, state)

    def _compile(self, kind: type[Event]) -> Table:
        if not (isinstance(kind, type) and issubclass(kind, Event)):
            what = "a class, which is no event yet" if kind is type else f"a {kind.__name__}, which is no event"
            raise TypeError(f"publish was given {what}: it takes an instance of an Event class, such as StepEnd()")
        with self.signals.lock:
            slots = []
            for slot, receiver in self.signals.slots(kind):
                if slot.owner is None:
                    slot.owner = Subscription.of_receiver(slot, self.signals, receiver, self.failure)
                slots.append(slot)
            ready = watched_by(slots, self._watchers)
            if issubclass(kind, TrainBegin):
                table: Table = _BeginTable(kind, ready, self._seconds, self._begin_table)
            else:
                table = Table(kind, ready, self._seconds)
            self._tables[kind] = table
            return table

    @contextlib.contextmanager
    def watch(self, around: Around) -> Iterator[None]:
        """Inside the block every call of a handler goes through ``around(who, call, event, state)``.

        It calls ``call(event, state)`` and returns what that returned; ``who`` is the `Subscription`. What it raises is
        that handler's failure. For tests and traces: a bus that nobody watches pays nothing for it.
        """
        with self.signals.lock:
            self._watchers = (*self._watchers, around)
            self.signals.invalidate()
        try:
            yield
        finally:
            with self.signals.lock:
                self._watchers = tuple(other for other in self._watchers if other is not around)
                self.signals.invalidate()

    def _inside(self, event: Event, state: TrainState, raising: bool) -> Control:
        """A publish while publishing: runs at once, on its own table, and its requests reach the outer one too."""
        above = _publishing(self, sys._getframe())
        if not above:
            raise BusyBusError(self._busy_text(event))
        if sum(type(e) is type(event) for e in above) > CIRCLES:
            raise self._circle(above)
        outer, self.inner = self.inner, []
        try:
            control = self.publish(event, state, False, True)
        finally:
            self.inner = outer
        if control is not NOTHING:
            outer.append(control)
            if raising:
                control.raise_failures()
        return control

    def _busy_text(self, event: Event) -> str:
        frames = sys._current_frames()
        for thread in threading.enumerate():
            frame = frames.get(thread.ident or 0)
            if thread is not threading.current_thread() and frame and (events := _publishing(self, frame)):
                other = f"thread {thread.name!r} publishes {events[0].name}"
                break
        else:
            other = "another thread was publishing"
        mine = f"thread {threading.current_thread().name!r} published {event.name}"
        return f"{mine} while {other}: a bus belongs to one thread at a time, give the other a Bus of its own"

    def fail(self, who: Subscription, event: Event, state: TrainState, error: Exception) -> Control:
        """Treat an error outside a dispatch, such as a save's, as this handler's failure.

        Returns:
            What its policy and the handlers of ``handler_failed`` ask for.
        """
        _, request, told = self.failed(who, event, state, error)
        return Control(() if request is None else (Reply(who.name, request),)) | told

    def failed(
        self, who: Subscription, event: Event, state: TrainState, error: Exception
    ) -> tuple[list[Failure], Request | None, Control]:
        """Record a failure, tell the others, and do what the policy says; see `fold.Publisher`."""
        if isinstance(error, RecursionError | PublishCycleError):
            error = self._cycle(error)
        who.failed += 1
        note, request, told_others = "", None, NOTHING
        if who.failure == "disable" and who.failed >= who.disable_after and who.state == "active":
            who.leave("switched off")
            note = f"; switched off after {who.failed} failures"
        elif who.failure == "stop":
            request = Stop(f"it failed: {told(error)}")
        failure = Failure(who.name, event.name, max(state.step, state.update), error, who.failure, note)
        failures = [failure]
        self.record(failure)
        if not isinstance(event, HandlerFailed):
            try:
                told_others = self.dispatch(HandlerFailed(who.name, event, error), state)
            except PublishCycleError as circle:
                self._cycle(circle)  # goes on to the outermost publish, unless this is it
                failures.append(Failure(who.name, HandlerFailed.name, failure.step, circle))
                self.record(failures[-1])
        if who.failure != "raise":
            forget_frames(error)
        return failures, request, told_others

    def record(self, failure: Failure) -> None:
        """Keep a failure, and write one log record with its traceback the first time this handler fails."""
        first = not self.failures.counts[failure.subscription]
        self.failures.append(failure)
        if first or failure.note:  # the same handler failing at every step would only bury the first traceback
            facts = {"handler": failure.subscription, "event_name": failure.event, "step": failure.step}
            logger().error(str(failure), exc_info=failure.error, **facts)

    def _cycle(self, error: Exception) -> Exception:
        events = _publishing(self, sys._getframe())
        if isinstance(error, PublishCycleError):
            if len(events) > 1:
                raise error  # on its way to the outermost publish
            return error
        if len(events) < CYCLE:
            return error  # a handler of its own recursion
        raise self._circle(events) from None

    def _circle(self, events: list[Event]) -> PublishCycleError:
        names = [e.name for e in events[:CYCLE]]
        size = next((n for n in range(1, CYCLE) if names[:-n] == names[n:]), CYCLE)
        circle = " > ".join([*reversed(names[:size]), names[size - 1]])
        return PublishCycleError(f"handlers publish in a circle: {circle}")

    def _seconds(self) -> float:
        return self.clock() - self._origin

    def _begin_table(self, event: TrainBegin, state: TrainState) -> Table:
        self.begin_run(event, state)
        return self._tables.get(type(event)) or self._compile(type(event))  # the run may have brought handlers back

    def begin_run(self, event: TrainBegin, state: TrainState) -> None:
        """A run starts clean: failures, costs, claims on learning rates, and filters unless they were loaded."""
        self.failures.clear()
        self.writers.clear()
        self._origin = self.clock() - state.elapsed
        for slot in self.signals.live_slots():
            if slot.owner is not None and slot.owner.foreign:
                slot.owner.begin_run()


class _BeginTable(Table):
    """The table of train_begin, which is never quiet: the bus begins the run before the first handler."""

    __slots__ = ("_begin",)

    def __init__(
        self,
        kind: type[Event],
        slots: tuple[Any, ...],
        clock: Callable[[], float],
        begin: Callable[[Any, Any], Table],
    ) -> None:
        super().__init__(kind, slots, clock)
        self.always, self.index, self._begin = None, -1, begin

    def due(self, event: Event, state: Any) -> tuple[Any, ...]:
        return Table.due(self._begin(event, state), event, state)

    def quiet(self, state: Sequence[Any]) -> bool:
        return False


def _publishing(bus: Dispatcher, frame: FrameType | None) -> list[Event]:
    """The events that this bus is publishing in the stack of ``frame``, innermost first."""
    events = []
    while frame is not None:
        if frame.f_code is Dispatcher.publish.__code__:
            here = frame.f_locals
            if here["self"] is bus and "fold" in here:  # one without a fold was refused, or goes through _inside
                events.append(here["event"])
        frame = frame.f_back
    return events
