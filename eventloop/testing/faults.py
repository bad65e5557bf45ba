"""Faults to inject: a handler that raises at its n-th call, is slow, or hangs; a disk that is full."""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from ..events import Event, event_class, known_events
from ..limits import whole
from ..watch import Around
from .arguments import check_bus, check_callable
from .crowd import Deliberate

if TYPE_CHECKING:
    from ..bus import Bus
    from .clock import Clock


@contextlib.contextmanager
def inject(bus: Bus, name: str, fault: Around, event: type[Event] | str | None = None) -> Iterator[None]:
    """Inside the block the fault is in the handlers of the subscription of this name; afterwards it is gone.

    A `Deliberate` that fails a handler inside the block is logged without its traceback.

    Args:
        bus: the bus.
        name: the name of the subscription: the class of an attached object, if it was given no other.
        fault: what happens: ``raising(at=2)``, `slow`, `hanging`, or a function of (who, call, event, state).
        event: where it happens. Without it every ``on_`` method of the object has the fault, and ``at=`` counts the
            calls of all of them: on_train_begin may be the first.

    Raises:
        TypeError: ``bus`` is no Bus, or ``fault`` no fault.
        ValueError: nobody on the bus has that name, there is no such event, or nobody of that name hears it.
    """
    check_bus(bus, "inject(bus)")
    check_callable(fault, "inject: fault", "one such as raising(at=2), or a function of (who, call, event, state)", 4)
    if bus.find(name) is None:
        there = ", ".join(dict.fromkeys(title for title, _ in bus.objects)) or "no object"
        raise ValueError(f"inject: nobody on the bus is called {name!r}; attached: {there}")
    kind = Event if event is None else event_class(event)
    if event is not None and not _hears(bus, name, kind):
        heard = (
            ", ".join(sorted(one for one, kinds in known_events().items() if _hears(bus, name, *kinds))) or "nothing"
        )
        raise ValueError(f"inject: {name} does not hear {kind.name}; it hears {heard}")

    def around(who: Any, call: Any, event: Any, state: Any) -> Any:
        return fault(who, call, event, state) if who.name == name and isinstance(event, kind) else call(event, state)

    log = logging.getLogger("eventloop")
    log.addFilter(_without_traceback)
    try:
        with bus.watch(around):
            yield
    finally:
        log.removeFilter(_without_traceback)


def _hears(bus: Bus, name: str, *kinds: type[Event]) -> bool:
    return any(one.name == name for kind in kinds for one in bus.order(kind))


def _without_traceback(record: logging.LogRecord) -> bool:
    if record.exc_info and isinstance(record.exc_info[1], Deliberate):
        record.exc_info = None
    return True


def raising(at: int | Collection[int] = 1, error: BaseException | None = None) -> Around:
    """A fault: instead of the ``at``-th call (of each of these calls) the handler raises.

    The calls are those of every handler that has the fault: give ``inject(..., event=)`` to count those at one event.

    Args:
        at: calls, from 1.
        error: what is raised, else a `Deliberate`.
    """
    places = {at} if isinstance(at, int) else {*at}
    if any(isinstance(n, bool) or not isinstance(n, int) or n < 1 for n in places):
        raise ValueError(f"raising: at={at!r} must be whole numbers >= 1")
    calls = 0

    def around(who: Any, call: Any, event: Any, state: Any) -> Any:
        nonlocal calls
        calls += 1
        if calls in places:
            raise error or Deliberate(f"{who.name} at call {calls}")
        return call(event, state)

    return around


def slow(clock: Clock, seconds: float) -> Around:
    """A fault: each call takes so many seconds of a virtual clock.

    Without ``inject(..., event=)`` that is each call of every handler of the subscription.
    """

    def around(who: Any, call: Any, event: Any, state: Any) -> Any:
        clock.advance(seconds)
        return call(event, state)

    return around


def hanging(until: threading.Event, timeout: float = 60.0) -> Around:
    """A fault: the call does not come back before ``until`` is set, by another thread, or after ``timeout`` seconds.

    Raises:
        TimeoutError: in the handler's place, so that a test that forgot to set it does not hang for ever.
    """

    def around(who: Any, call: Any, event: Any, state: Any) -> Any:
        if not until.wait(timeout):
            raise TimeoutError(f"{who.name} has hung for {timeout:g} s")
        return call(event, state)

    return around


@contextlib.contextmanager
def full_disk(size: int = 0) -> Iterator[None]:
    """Inside the block no file of this process may grow beyond ``size`` bytes: writes fail as on a full disk.

    The operating system's limit does it (``RLIMIT_FSIZE``, POSIX alone), so it is no mock and holds in every thread. It
    is a limit on each file, not on all together, and on every file of the process, not on those of the run alone. The
    write itself fails with ``OSError``, but with EFBIG ("File too large") and not with a full disk's ENOSPC. Python
    ignores the signal that comes with it.

    Args:
        size: bytes a file.

    Raises:
        ValueError: ``size`` is no whole number >= 0.
    """
    import resource

    whole("size", size)
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
