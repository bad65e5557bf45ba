"""What went wrong in handlers: kept, counted, never silent."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Final, Literal, get_args, overload

from .errors import told

Policy = Literal["isolate", "disable", "stop", "raise"]
POLICIES: Final[tuple[Policy, ...]] = get_args(Policy)
KEPT: Final = 1000


@dataclass(frozen=True, slots=True)
class Failure:
    """One failure of one handler: its ``subscription``, the name of the ``event``, the ``step``, the ``error``.

    The error of a policy other than raise has lost its traceback, which would keep alive every local of the frames it
    went through; the log record has it as text.
    """

    subscription: str
    event: str
    step: int
    error: BaseException
    policy: Policy = "isolate"
    note: str = field(default="", compare=False)

    def __str__(self) -> str:
        at = f"at {self.event} of step {self.step}"
        return f"{self.subscription} failed {at}: {told(self.error)}{self.note}"


class FailureLog(Sequence[Failure]):
    """The last 1,000 failures, and how many there were in all, by subscription."""

    def __init__(self) -> None:
        self._last: deque[Failure] = deque(maxlen=KEPT)
        self.counts: Counter[str] = Counter()

    def append(self, failure: Failure) -> None:
        """Keep one more."""
        self._last.append(failure)
        self.counts[failure.subscription] += 1

    def clear(self) -> None:
        """Begin anew."""
        self._last.clear()
        self.counts.clear()

    @property
    def total(self) -> int:
        """All failures, also those no longer kept."""
        return self.counts.total()

    @overload
    def __getitem__(self, index: int) -> Failure: ...
    @overload
    def __getitem__(self, index: slice) -> list[Failure]: ...
    def __getitem__(self, index: int | slice) -> Failure | list[Failure]:
        return list(self._last)[index] if isinstance(index, slice) else self._last[index]

    def __iter__(self) -> Iterator[Failure]:
        return iter(tuple(self._last))

    def __len__(self) -> int:
        return len(self._last)

    def __repr__(self) -> str:
        return f"FailureLog({self.total} in all: {dict(self.counts)})"
