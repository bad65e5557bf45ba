"""Who touches whose attributes: noted without the objects knowing it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from typing import Any, Final

Note = Callable[[object, str], None]
"""Called with an object and the name of its attribute that somebody asks for."""
_SIMPLE: Final = (bool, int, float, complex, str, bytes, type(None))
_DEEP: Final = 4


class Watched:
    """Objects whose attributes are watched; `release` makes them what they were.

    Each gets, for the time, a class derived from its own that notes and does nothing else. One whose class cannot be
    derived from is left alone.
    """

    def __init__(self, note: Note) -> None:
        self._note = note
        self._seen: dict[int, tuple[object, type | None]] = {}  # with its own class, None if it was left alone

    def add(self, things: Iterable[object]) -> None:
        """Watch these too."""
        for thing in things:
            if id(thing) not in self._seen:
                self._seen[id(thing)] = thing, self._change(thing)

    def _change(self, thing: object) -> type | None:
        kind = type(thing)
        try:
            # past a __setattr__ of its own: it may be frozen
            object.__setattr__(thing, "__class__", _noting(kind, self._note))
        except (TypeError, AttributeError):
            return None
        return kind

    def release(self) -> None:
        """Watch none of them any longer."""
        for thing, kind in self._seen.values():
            if kind is not None:
                object.__setattr__(thing, "__class__", kind)
        self._seen = {}


def _noting(kind: type, note: Note) -> type:
    plain: Any = kind.__getattribute__

    def noted(self: object, name: str) -> Any:
        note(self, name)
        return plain(self, name)

    same = {"__module__": kind.__module__, "__qualname__": kind.__qualname__, "__doc__": kind.__doc__}
    return type(kind)(kind.__name__, (kind,), {**same, "__slots__": (), "__getattribute__": noted})


def values(thing: object) -> dict[str, Any]:
    """The attributes of an object in a form that is equal as long as nothing has changed, in containers neither."""
    held = {name: getattr(thing, name) for name in _slots(type(thing)) if hasattr(thing, name)}
    return {name: _frozen(value, _DEEP) for name, value in {**held, **getattr(thing, "__dict__", {})}.items()}


def _slots(kind: type) -> list[str]:
    listed = [getattr(one, "__slots__", ()) for one in kind.__mro__]
    names = [name for slots in listed for name in ((slots,) if isinstance(slots, str) else slots)]
    return [name for name in names if name not in ("__dict__", "__weakref__")]


def changed(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """The names of the attributes that are new, gone or others."""
    return [name for name in {**before, **after} if before.get(name, before) != after.get(name, after)]


def _frozen(value: Any, deep: int) -> Any:
    if isinstance(value, _SIMPLE):
        return type(value), repr(value)  # NaN is not equal to itself
    if deep and isinstance(value, dict):
        return id(value), [(_frozen(key, deep - 1), _frozen(item, deep - 1)) for key, item in value.items()]
    if deep and isinstance(value, list | tuple | set | frozenset | deque):
        return id(value), [_frozen(item, deep - 1) for item in value]
    try:
        return id(value), getattr(value, "_version", 0)  # a tensor counts how often it was written to in place
    except RuntimeError:  # but an inference tensor does not
        return id(value), 0
