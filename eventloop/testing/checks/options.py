"""The options of `check_callback`, checked before anything is run."""

from __future__ import annotations

import difflib
from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final


def _is_names(value: Any) -> bool:
    names = [value] if isinstance(value, str) else value
    return isinstance(names, list | tuple) and bool(names) and all(isinstance(n, str) and n.strip() for n in names)


def _is_mapping(value: Any) -> bool:
    return isinstance(value, Mapping)


def _is_rounds(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1


def _is_time(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool) and value > 0.0


FORMS: Final[Mapping[str, tuple[Callable[[Any], bool], str]]] = {
    "monitor": (_is_names, "the name of a metric, or a list of names"),
    "bind": (
        lambda value: _is_mapping(value) or callable(value),
        "a mapping of live objects, or a function that makes one",
    ),
    "metrics": (_is_mapping, "a mapping of names to a number, a list or a function of the turn"),
    "evaluations": (_is_mapping, "a mapping of names to a number, a list or a function of the evaluation"),
    "rounds": (_is_rounds, "a whole number >= 1"),
    "budget_ms": (_is_time, "a number of milliseconds > 0"),
    "expression": (lambda value: isinstance(value, str), "a text like 'module:Class(arguments)'"),
}
"""Each option, whether a value will do, and what it must be. None leaves an option as it is."""


def check_options(options: Mapping[str, Any]) -> None:
    """Refuse what is no option, and a value that is none.

    Raises:
        TypeError: there is no such option.
        ValueError: a value has another form; the message names the option, the value and the form.
    """
    for name, value in options.items():
        if name not in FORMS:
            near = difflib.get_close_matches(name, FORMS, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise TypeError(f"check_callback has no option {name!r}; {hint}there are skip, {', '.join(FORMS)}")
        holds, form = FORMS[name]
        if value is not None and not holds(value):
            raise ValueError(f"{name}={value!r} must be {form}")


def check_skip(skip: Any, checks: Iterable[str]) -> dict[str, str]:
    """The checks to leave out, each with its reason.

    Raises:
        ValueError: it is no mapping, names no check, or gives no reason.
    """
    if skip is not None and not isinstance(skip, Mapping):
        raise ValueError(f"skip={skip!r} must be a mapping of checks to reasons, as {{'resume': 'it has no state'}}")
    for name, reason in (skip or {}).items():
        if name not in checks:
            near = difflib.get_close_matches(str(name), checks, 1)
            hint = f"did you mean {near[0]!r}? " if near else ""
            raise ValueError(f"skip: there is no check {name!r}; {hint}there are {', '.join(checks)}")
        if not isinstance(reason, str) or not reason.strip():
            raise ValueError(f"skip: {name}={reason!r} is no reason; say why the promise is not kept")
    return dict(skip or {})
