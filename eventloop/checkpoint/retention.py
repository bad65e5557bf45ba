"""Which checkpoints may go: what each saver wants, and what nobody wants any more."""

from __future__ import annotations

from collections.abc import Callable, Sequence

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
        return self._of_nobody(checkpoints[:-1])

    def in_the_way(self, checkpoints: Sequence[Checkpoint], whole: Callable[[Checkpoint], bool]) -> list[Checkpoint]:
        """Those that may go before the next one is written: the newest too, but never the last that is ``whole``.

        Only as many are looked into as it takes to find one, of those that stay the newest first. If none is whole,
        none goes.
        """
        going = self._of_nobody(checkpoints)
        steps = {c.step for c in going}
        if not going or any(whole(c) for c in reversed(checkpoints) if c.step not in steps):
            return going
        spare = next((c for c in reversed(going) if whole(c)), None)
        return [] if spare is None else [c for c in going if c is not spare]

    def _of_nobody(self, checkpoints: Sequence[Checkpoint]) -> list[Checkpoint]:
        wanted = frozenset().union(*self._wanted.values())
        told = [c for c in checkpoints if all(who in self._wanted for who in c.asked_by)]
        return [c for c in told if c.step not in wanted]
