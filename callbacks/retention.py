"""Which of a saver's checkpoints stay: a checkpoint stays if any of the rules wants it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

    from .improvement import Improvement


@dataclass(frozen=True, slots=True)
class Retention:
    """The rules of one saver; they add up, so none removes what another wants.

    Attributes:
        judge: what counts as better; None: there are no scores.
        top_k: so many of the best stay, without a judge of the newest; -1: all.
        last: so many of the newest stay as well.
        every: the first at or after each multiple of so many updates stays for ever.
    """

    judge: Improvement | None
    top_k: int
    last: int | None = None
    every: int | None = None

    def ranked(self, scores: Mapping[int, float | None]) -> list[int]:
        """The scored steps, the best first; of equal scores the earlier."""
        if self.judge is None:
            return []
        keys = {step: self.judge.rank_key(score) for step, score in scores.items() if score is not None}
        return sorted(keys, key=lambda step: (keys[step], step))

    def wanted(self, scores: Mapping[int, float | None]) -> set[int]:
        """Those of these steps that stay.

        What has been removed by these rules changes nothing: the answer is the same for those that stand as it would be
        for all that there ever were.
        """
        if self.top_k == -1:
            return set(scores)
        newest = sorted(scores, reverse=True)
        best = newest if self.judge is None else self.ranked(scores)
        return {*best[: self.top_k], *newest[: self.last or 0], *self._milestones(newest[::-1])}

    def _milestones(self, steps: list[int]) -> list[int]:
        if self.every is None:
            return []
        return [
            step for before, step in zip([0, *steps], steps, strict=False) if step // self.every > before // self.every
        ]

    def __str__(self) -> str:
        if self.top_k == -1:
            return "all"
        parts = [str(self.top_k)] if self.top_k else []
        parts += [] if self.last is None else [f"the last {self.last}"]
        parts += [] if self.every is None else [f"one each {self.every} updates"]
        return " and ".join([", ".join(parts), "the newest"] if parts else ["the newest"])
