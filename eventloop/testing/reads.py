"""What a handler reads of the snapshot that it is given: noted, and otherwise as it always is."""

from __future__ import annotations

from collections.abc import Callable, Iterator, KeysView, Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple, TypeVar

from ..metrics import Metrics
from ..state import TrainState

V = TypeVar("V")
ALL: Final = "*"
"""The key of a read that goes over every name there is."""
_ABSENT: Final = object()


class Read(NamedTuple):
    """One read.

    Attributes:
        of: metrics, lr or held.
        key: the metric or the group, or `ALL`.
        how: asked, raw, in, in fresh, listed, fresh listed, step_of.
        value: what came of it: a number, a tensor, whether the name is there, or the names.
    """

    of: str
    key: str
    how: str
    value: Any


class Reads(list[Read]):
    """The reads of one call of a handler, in order."""

    def noting(self, state: TrainState) -> TrainState:
        """The same snapshot for the handler; what it reads of its metrics and rates is noted here."""
        metrics = _NotedMetrics(state.metrics, self)
        lr, held = (_noted_rates(name, getattr(state, name), self) for name in ("lr", "held"))
        return state._replace(metrics=metrics, lr=lr, held=held)

    def note(self, of: str, key: object, how: str, value: Any) -> None:
        """One more read."""
        self.append(Read(of, str(key), how, value))

    @property
    def told(self) -> str:
        """The reads for people and for comparing: ``loss=0.5, no grad_norm``; a value says more than its name."""
        seen: dict[tuple[str, str], str] = {}
        for of, key, how, value in self:
            if key == ALL:
                for name in value:
                    seen.setdefault((of, name), _spelled(of, name, how, True))
            elif how in ("asked", "raw") or (of, key) not in seen:
                seen[of, key] = _spelled(of, key, how, value)
        return ", ".join(sorted(seen.values())) or "no metric"


def _spelled(of: str, key: str, how: str, value: Any) -> str:
    name = key if of == "metrics" else f"{of}[{key}]"
    if value is _ABSENT or value is False:
        return f"no fresh {name}" if how == "in fresh" else f"no {name}"
    return name if value is True else f"{name}={number(value)}"


def number(value: Any) -> str:
    """A metric, whatever holds it: to six digits if that is all of it, else all, for traces are compared by this."""
    exact = float(value)
    short = f"{exact:.6g}"
    return short if float(short) == exact or exact != exact else repr(exact)


class _NotedMetrics(Metrics):
    """The metrics of one snapshot, for one handler. Whatever a new snapshot is made of is not a read."""

    __slots__ = ("_note", "_plain")

    def __init__(self, plain: Metrics, reads: Reads) -> None:
        super().__init__(plain._now, plain._old, plain._live)
        self._plain = plain
        self._note: Callable[[object, str, Any], None] = lambda key, how, value: reads.note("metrics", key, how, value)

    def __getitem__(self, key: str) -> float:
        return self._read(key, "asked", self._plain.__getitem__)

    def raw(self, key: str) -> Any:
        return self._read(key, "raw", self._plain.raw)

    def step_of(self, key: str) -> int:
        return self._read(key, "step_of", self._plain.step_of)

    def _read(self, key: str, how: str, read: Callable[[str], V]) -> V:
        if key not in self._plain:
            self._note(key, how, _ABSENT)
            return read(key)  # raises, saying what there is
        value = read(key)
        self._note(key, how, value)
        return value

    @property
    def fresh(self) -> KeysView[str]:
        return _NotedNames(self._plain, self._note)

    def __iter__(self) -> Iterator[str]:
        self._note(ALL, "listed", [*self._plain])
        return iter(self._plain)

    def __len__(self) -> int:
        self._note(ALL, "listed", [*self._plain])
        return len(self._plain)

    def __contains__(self, key: object) -> bool:
        there = key in self._plain
        self._note(key, "in", there)
        return there


class _NotedNames(KeysView[str]):
    """The fresh names of one snapshot, for one handler."""

    def __init__(self, plain: Metrics, note: Callable[[object, str, Any], None]) -> None:
        super().__init__(plain)
        self._names, self._note = plain.fresh, note

    def __iter__(self) -> Iterator[str]:
        self._note(ALL, "fresh listed", [*self._names])
        return iter(self._names)

    def __len__(self) -> int:
        self._note(ALL, "fresh listed", [*self._names])
        return len(self._names)

    def __contains__(self, key: object) -> bool:
        there = key in self._names
        self._note(key, "in fresh", there)
        return there


class _NotedRates(dict[str, float]):
    """The learning rates of one snapshot, for one handler; what it does not override is read without a note."""

    def __init__(self, of: str, rates: Mapping[str, float], reads: Reads) -> None:
        super().__init__(rates)
        self._of, self._reads = of, reads

    def _one(self, key: str) -> None:
        self._reads.note(self._of, key, "asked", dict.get(self, key, _ABSENT))

    def _all(self) -> None:
        for key in dict.keys(self):
            self._one(key)
        self._reads.note(self._of, ALL, "listed", [*dict.keys(self)])

    def __getitem__(self, key: str) -> float:
        self._one(key)
        return super().__getitem__(key)

    def __contains__(self, key: object) -> bool:
        self._one(str(key))
        return super().__contains__(key)

    def __iter__(self) -> Iterator[str]:
        self._all()
        return super().__iter__()

    def __len__(self) -> int:
        self._all()
        return super().__len__()

    def get(self, key: str, default: Any = None) -> Any:
        self._one(key)
        return super().get(key, default)

    def keys(self) -> Any:
        self._all()
        return super().keys()

    def values(self) -> Any:
        self._all()
        return super().values()

    def items(self) -> Any:
        self._all()
        return super().items()

    def __eq__(self, other: object) -> bool:
        self._all()
        return super().__eq__(other)

    __hash__ = None  # as of any dict


def _noted_rates(of: str, rates: Mapping[str, float], reads: Reads) -> Mapping[str, float]:
    return MappingProxyType(_NotedRates(of, rates, reads))
