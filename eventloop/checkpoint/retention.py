"""Which checkpoints may go: what each saver wants, and what nobody wants any more."""

from __future__ import annotations

from collections.abc import Sequence

from .manifest import Checkpoint


class Retention:
    """The wishes of the savers of one run, by step."""

    def __init__(self) -> None:
        self._wanted: dict[str, frozenset[int]] = {"Loop": frozenset()}

    def keep(self, saver: str, steps: frozenset[int]) -> None:
        """What this saver wants kept from now on."""
        self._wanted[saver] = steps

    def unwanted(self, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        """Those of one run, by rising step, that may go: not the newest, nor one whose asker never said what it wants.

        A checkpoint goes when no saver wants it.
        """
        wanted = frozenset().union(*self._wanted.values())
        told = [c for c in checkpoints[:-1] if all(who in self._wanted for who in c.asked_by)]
        return [c for c in told if c.step not in wanted]
