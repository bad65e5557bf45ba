"""`Clock`: seconds that pass when the test says so."""

from __future__ import annotations


class Clock:
    """A clock for ``Bus(clock=)`` and `FakeLoop`: it stands still until it is told to go on.

    Args:
        now: seconds at the start.
    """

    def __init__(self, now: float = 0.0) -> None:
        self.now = now

    def __call__(self) -> float:
        """The seconds now, as ``time.monotonic()`` would tell them."""
        return self.now

    def advance(self, seconds: float) -> None:
        """Let so many seconds pass; also what to give code that wants to sleep.

        Raises:
            ValueError: ``seconds`` is below 0: no clock that the bus takes runs back.
        """
        if not seconds >= 0.0:
            raise ValueError(f"Clock.advance({seconds!r}): seconds must be a number >= 0")
        self.now += seconds

    def __repr__(self) -> str:
        return f"Clock({self.now:g})"
