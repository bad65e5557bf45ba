"""How long a run may be, and how long it must be."""

from __future__ import annotations

from collections.abc import Sized
from typing import Any


class Limits:
    """``max_steps`` and ``max_epochs``: whole numbers >= 0, None is no limit, the first reached ends the run.

    Before ``min_steps`` and ``min_epochs`` a Stop is refused and must be asked for again.

    Raises:
        ValueError: naming the argument and the value.
    """

    def __init__(self, max_epochs: Any, max_steps: Any, min_epochs: Any, min_steps: Any) -> None:
        self.max_epochs = whole("max_epochs", max_epochs, optional=True)
        self.max_steps = whole("max_steps", max_steps, optional=True)
        self.min_epochs = whole("min_epochs", min_epochs) or 0
        self.min_steps = whole("min_steps", min_steps) or 0
        for word in ("epochs", "steps"):
            least, most = getattr(self, f"min_{word}"), getattr(self, f"max_{word}")
            if most is not None and least > most:
                raise ValueError(f"min_{word}={least} is above max_{word}={most}")

    def reached(self, step: int) -> bool:
        """Whether no further update may begin."""
        return self.max_steps is not None and step >= self.max_steps

    def another_epoch(self, epoch: int) -> bool:
        """Whether an epoch may follow this one."""
        return self.max_epochs is None or epoch < self.max_epochs

    def too_early(self, step: int, epochs: int) -> str | None:
        """Why a stop is refused now, or None."""
        if step < self.min_steps:
            return f"before min_steps={self.min_steps}"
        if epochs < self.min_epochs:
            return f"before min_epochs={self.min_epochs}"
        return None

    def total(self, loader: object, accumulate: int) -> int | None:
        """Planned updates, as far as the loader's length tells; a short window is an update of its own."""
        totals = [] if self.max_steps is None else [self.max_steps]
        length = sized(loader)
        if self.max_epochs is not None and length is not None:
            totals.append(self.max_epochs * -(-length // accumulate))
        return min(totals, default=None)


def sized(loader: object) -> int | None:
    """The length, or None: a loader over an iterable dataset has ``__len__`` and refuses it."""
    try:
        return len(loader) if isinstance(loader, Sized) else None
    except (TypeError, NotImplementedError):
        return None


def whole(word: str, value: Any, *, least: int = 0, optional: bool = False) -> int | None:
    """A checked whole number.

    Raises:
        ValueError: naming the argument and the value.
    """
    if value is None and optional:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or value < least:
        raise ValueError(f"{word}={value!r} must be a whole number >= {least}" + (" or None" if optional else ""))
    return value
