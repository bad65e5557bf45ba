"""Faults to inject: a handler that raises at its n-th call, is slow, or hangs; a disk that is full."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Collection, Iterator
from typing import TYPE_CHECKING, Any

from ..watch import Around
from .crowd import Deliberate

if TYPE_CHECKING:
    from ..bus import Bus
    from .clock import Clock


@contextlib.contextmanager
def inject(bus: Bus, name: str, fault: Around) -> Iterator[None]:
    """Inside the block the fault is in every handler of the subscription of this name; afterwards it is gone.

    Raises:
        ValueError: nobody on the bus has that name.
    """
    if bus.find(name) is None:
        there = ", ".join(dict.fromkeys(title for title, _ in bus.objects)) or "no object"
        raise ValueError(f"inject: nobody on the bus is called {name!r}; attached: {there}")

    def around(who: Any, call: Any, event: Any, state: Any) -> Any:
        return fault(who, call, event, state) if who.name == name else call(event, state)

    with bus.watch(around):
        yield


def raising(at: int | Collection[int] = 1, error: BaseException | None = None) -> Around:
    """A fault: instead of the ``at``-th call (of each of these calls) the handler raises.

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
    """A fault: each call takes so many seconds of a virtual clock."""

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

    The operating system's limit does it (``RLIMIT_FSIZE``, POSIX alone), so it is no mock, holds in every thread and is
    an ``OSError`` (EFBIG) of the write itself. Python ignores the signal that comes with it.
    """
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
