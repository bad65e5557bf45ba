"""A warning, once, that names the handler which takes too large a share of step time."""

from __future__ import annotations

from time import perf_counter

from .bus import Bus
from .log import logger

STEP_EVENTS = ("step_begin", "gradients_ready", "step_end")


class Budget:
    """Looks at the sampled costs after 64 updates, then whenever their number has doubled.

    Args:
        bus: whose handlers.
        share: of the time since the first update; None for never.
    """

    def __init__(self, bus: Bus, share: float | None) -> None:
        if share is not None and not 0 < share < 1:
            raise ValueError(f"handler_budget={share!r} must be a share between 0 and 1, or None")
        self._bus, self._share = bus, share
        self._next = 0 if share is None else 64
        self._since = perf_counter()
        self._updates = 0

    def start(self) -> None:
        """The first update is about to begin."""
        self._since = perf_counter()

    def check(self, step: int) -> None:
        """After an update."""
        self._updates += 1
        if self._updates != self._next or self._share is None:
            return
        self._next *= 2
        spent = perf_counter() - self._since
        worst = max((c for c in self._bus.costs() if c.event in STEP_EVENTS), key=lambda c: c.seconds, default=None)
        if worst is not None and worst.seconds > self._share * spent:
            self._next = 0
            logger().warning(
                f"{worst.name} takes {100 * worst.seconds / spent:.0f} % of step time at {worst.event} "
                f"({worst.mean * 1e6:.0f} us a call, worst {worst.worst * 1e6:.0f} us); give it every=n or less work"
            )
