"""The Python that makes a callback again, and what a constructor was given."""

from __future__ import annotations

import ast
from importlib import import_module
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...settings import arguments_of, changed_arguments


class Expression(NamedTuple):
    """``call`` makes the callback where ``imports`` were executed; an empty ``call`` is one that is not known."""

    imports: tuple[str, ...]
    call: str


UNKNOWN: Final = Expression((), "")


def parsed(text: str) -> Expression:
    """What ``module:Class(args)``, or ``path/to/file.py:Class(args)``, stands for.

    Raises:
        ValueError: it has another form.
    """
    place, bracket, rest = text.strip().partition("(")
    module, _, name = place.rpartition(":")
    if not module or not name.isidentifier():
        raise ValueError(f"expression={text!r}: write module:Class(arguments), or path/to/file.py:Class(arguments)")
    lines: list[str] = []
    if module.endswith(".py"):
        lines, module = ["import sys", f"sys.path.insert(0, {str(Path(module).parent)!r})"], Path(module).stem
    return Expression((*lines, f"from {module} import {name}"), f"{name}{bracket}{rest}" if bracket else f"{name}()")


def expression_of(thing: object) -> Expression:
    """How to make such an object again, if its constructor's arguments can be read from it."""
    kind = type(thing)
    try:
        changed = changed_arguments(thing)
    except LookupError:
        return UNKNOWN
    lines: set[str] = set()
    arguments = ", ".join(f"{name}={_shown(value, lines)}" for name, value in changed.items())
    call = f"{kind.__qualname__}({arguments})"
    if kind.__module__ != "__main__":
        lines.add(f"from {kind.__module__} import {kind.__qualname__.partition('.')[0]}")
    found = Expression(tuple(sorted(lines)), call)
    return found if _works(found, thing) else UNKNOWN


def variants_of(thing: object) -> dict[str, Any]:
    """Other values for those of its settings that are numbers or truths, each accepted by the constructor."""
    given, found = arguments_of(thing), {}
    for name, value in given.items():
        for other in _others(value):
            try:
                type(thing)(**{**given, name: other})
            except (TypeError, ValueError):
                continue
            found[name] = other
            break
    return found


def is_literal(value: Any) -> bool:
    """Whether the value's repr is the value."""
    try:
        ast.literal_eval(repr(value))
    except (ValueError, SyntaxError):
        return False
    return True


def _others(value: Any) -> list[Any]:
    if isinstance(value, bool):
        return [not value]
    if isinstance(value, int):
        return [value + 3, value - 1]
    if isinstance(value, float):
        return [value * 2.0 + 0.25, value / 2.0]
    return []


def _shown(value: Any, imports: set[str]) -> str:
    if isinstance(value, Path):
        imports.add("from pathlib import Path")
        return f"Path({str(value)!r})"
    return repr(value)


def _works(expression: Expression, thing: object) -> bool:
    kind = type(thing)
    try:
        if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
            compile(expression.call, "", "eval")  # it cannot be imported; at least it can be read
            return "<" not in kind.__qualname__
        names = dict(vars(import_module(kind.__module__)), Path=Path)
        return type(eval(expression.call, names)) is kind  # made of reprs, a line above
    except Exception:
        return False
