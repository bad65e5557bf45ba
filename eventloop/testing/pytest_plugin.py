"""The fixtures that are there as soon as the package is installed. Loading this loads neither torch nor hypothesis."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from ..bus import Bus
    from .clock import Clock
    from .fake_loop import FakeLoop
    from .recorder import Recorder


@pytest.fixture
def clock() -> Clock:
    """A `Clock` at 0 that stands still."""
    from .clock import Clock

    return Clock()


@pytest.fixture
def bus(clock: Clock) -> Bus:
    """A strict `Bus` (``failure="raise"``) that goes by ``clock``."""
    from ..bus import Bus

    return Bus(failure="raise", clock=clock)


@pytest.fixture
def recorder(bus: Bus) -> Recorder:
    """A `Recorder` of what ``bus`` publishes."""
    from .recorder import Recorder

    return Recorder(bus)


@pytest.fixture
def fake_loop(bus: Bus, clock: Clock) -> Callable[..., FakeLoop]:
    """Makes a `FakeLoop`: ``fake_loop([EarlyStopping(...)], evaluations={...})``.

    The first is on ``bus``, so that ``recorder`` hears it; each further one, for a resume, is on a bus of its own. All
    go by ``clock``.
    """
    from ..bus import Bus
    from .fake_loop import FakeLoop

    buses = [bus]

    def make(callbacks: Iterable[object] = (), **options: Any) -> FakeLoop:
        if "bus" not in options:
            options["bus"] = buses.pop() if buses else Bus(failure="raise", clock=clock)
        return FakeLoop(callbacks, clock=clock, **options)

    return make
