"""How requests become decisions that every rank shares. Here with one process; more ranks come behind the same methods.

Every request passes through an agreement before it is carried out, so that the loop is the same on one rank or many.
"""

from __future__ import annotations

from typing import Protocol, TypeVar

T = TypeVar("T")


class Agreement(Protocol):
    """What the loop asks before it carries requests out. No handler ever calls a collective; these do."""

    def now(self, asked: list[T]) -> list[T]:
        """Agree at once, before the next update: requests from evaluations, epoch ends, train_begin."""
        ...

    def later(self, update: int, asked: list[T]) -> list[T]:
        """Let requests ride on the next vote; returns those decided by now."""
        ...

    def drain(self) -> list[T]:
        """At the natural end: what the pending vote still holds."""
        ...


class Alone:
    """The agreement of a single process: whatever is asked is decided at once."""

    def now(self, asked: list[T]) -> list[T]:
        """Everything."""
        return asked

    def later(self, update: int, asked: list[T]) -> list[T]:
        """Everything, at the update that asked."""
        return asked

    def drain(self) -> list[T]:
        """Nothing is pending."""
        return []
