"""What an object was made with, read from the object itself, and what differs from what a checkpoint has of it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final, NamedTuple

PLAIN: Final = (bool, int, float, str, list, tuple, dict)
_ABSENT: Final = object()


def parameters_of(kind: type) -> Mapping[str, inspect.Parameter]:
    """The arguments of a constructor by name, without ``*args`` and ``**kwargs``; none of one that does not tell."""
    try:
        found = inspect.signature(kind).parameters
    except (TypeError, ValueError):  # a class in C, say
        return {}
    return {name: p for name, p in found.items() if p.kind not in (p.VAR_POSITIONAL, p.VAR_KEYWORD)}


def arguments_of(thing: object) -> dict[str, Any]:
    """The constructor's arguments as the object keeps them: ``limit`` is what is called ``limit``, or ``_limit``."""
    found = {}
    for name in parameters_of(type(thing)):
        value = getattr(thing, name, _ABSENT)
        if value is _ABSENT:
            value = getattr(thing, f"_{name}", _ABSENT)
        if value is not _ABSENT:
            found[name] = value
    return found


def changed_arguments(thing: object) -> dict[str, Any]:
    """Those that are not as the constructor's defaults have them.

    Raises:
        LookupError: one without a default is not kept.
    """
    kept, changed = arguments_of(thing), {}
    for name, parameter in parameters_of(type(thing)).items():
        if name in kept:
            value, default = kept[name], parameter.default
            if value is not default and not (type(value) is type(default) and value == default):
                changed[name] = value
        elif parameter.default is parameter.empty:
            raise LookupError(f"{type(thing).__name__} keeps no {name}")
    return changed


def settings_of(thing: object) -> dict[str, Any]:
    """The arguments that are plain values."""
    return {name: value for name, value in arguments_of(thing).items() if value is None or isinstance(value, PLAIN)}


class Difference(NamedTuple):
    """A setting that is another one than in the checkpoint; the new one counts."""

    who: str
    setting: str
    was: Any
    now: Any

    def __str__(self) -> str:
        return f"{self.who}: {self.setting} is {self.now!r} now, was {self.was!r} in the checkpoint"


def same(a: Any, b: Any) -> bool:
    """Whether two values are equal, NaN and NaN among them; also of tensors, which have no single answer."""
    try:
        return bool(a == b) or repr(a) == repr(b)
    except Exception:
        return repr(a) == repr(b)


def _is_plain(value: Any) -> bool:
    if isinstance(value, Mapping):
        return all(isinstance(key, str) and _is_plain(item) for key, item in value.items())
    if isinstance(value, list | tuple):
        return all(map(_is_plain, value))
    return value is None or isinstance(value, bool | int | float | str)


def _kept(value: Any) -> Any:
    """A copy, with lists in place of tuples and plain numbers in place of an enum's."""
    if isinstance(value, Mapping):
        return {key: _kept(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [_kept(item) for item in value]
    return next((kind(value) for kind in (bool, int, float, str) if isinstance(value, kind)), value)


class Settings:
    """What the loop and the attached objects were made with, as a part of a checkpoint that is compared, never loaded.

    Args:
        own: the loop's own settings.
        objects: gives the attached objects with the keys of their states.
    """

    def __init__(self, own: Mapping[str, Any], objects: Callable[[], Iterable[tuple[str, object]]]) -> None:
        self._noted: dict[str, dict[str, Any]] = {"Loop": dict(own)}
        self._objects = objects

    def note(self) -> None:
        """Keep the settings as they are before an object is bound, for it may fill them in by what it is given."""
        for key, thing in self._objects():
            if key not in self._noted:
                self._noted[key] = self._of(thing)

    def _of(self, thing: object) -> dict[str, Any]:
        try:
            return {name: _kept(value) for name, value in settings_of(thing).items() if _is_plain(value)}
        except Exception:  # a property that cannot answer yet
            return {}

    def state_dict(self) -> dict[str, Any]:
        """The settings by owner."""
        self.note()
        return dict(self._noted)

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The script's count."""

    def differences(self, state: Mapping[str, Mapping[str, Any]]) -> list[Difference]:
        """Those that the script has changed, of owners that both sides know."""
        self.note()
        return [
            Difference(who, name, was, self._noted[who][name])
            for who, settings in state.items()
            for name, was in settings.items()
            if name in self._noted.get(who, {}) and not same(was, self._noted[who][name])
        ]
