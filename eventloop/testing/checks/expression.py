"""The Python that makes a callback again, and what a constructor was given."""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any, Final, NamedTuple

from ...settings import arguments_of, changed_arguments
from ..reproduce import CannotTell, Expressions


class Expression(NamedTuple):
    """``call`` makes the callback where ``imports`` and ``definitions`` were executed.

    An empty ``call`` is one that is not known; ``why`` says what is in the way.
    """

    imports: tuple[str, ...]
    call: str
    definitions: tuple[str, ...] = ()
    why: str = ""


UNKNOWN: Final = Expression((), "", why="nobody knows how the factory makes it")


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
        if kind.__module__ == "__main__" or "<locals>" in kind.__qualname__:
            return _written_out(thing)
        changed = changed_arguments(thing)
    except LookupError as error:
        return UNKNOWN._replace(why=str(error.args[0]))
    lines: set[str] = set()
    arguments = ", ".join(f"{name}={_shown(value, lines)}" for name, value in changed.items())
    lines.add(f"from {kind.__module__} import {kind.__qualname__.partition('.')[0]}")
    found = Expression(tuple(sorted(lines)), f"{kind.__qualname__}({arguments})")
    if _works(found, kind, Expressions(())):
        return found
    return UNKNOWN._replace(why=f"{found.call} does not make it")


def _written_out(thing: object) -> Expression:
    """The same for a class that nobody can import: with its source, and whatever that uses."""
    kind = type(thing)
    try:
        names = Expressions([thing])
        code = names.factory("FakeLoop")
    except CannotTell as error:
        return UNKNOWN._replace(why=str(error))
    *body, factory = _statements(code)
    imports = [line for line in body if line.startswith(("import ", "from "))]
    call = factory.partition(" = ")[2].rpartition("\n")[0]
    found = Expression(tuple(imports), call, tuple(text for text in body if text not in imports))
    return (
        found
        if _works(found, kind, names)
        else UNKNOWN._replace(why=f"{kind.__name__} cannot be made outside its place")
    )


def _statements(code: str) -> list[str]:
    """The statements of a module, each with its decorators."""
    lines, nodes = code.splitlines(), ast.parse(code).body
    starts = [min([node.lineno, *(d.lineno for d in getattr(node, "decorator_list", ()))]) for node in nodes]
    return ["\n".join(lines[start - 1 : node.end_lineno]) for start, node in zip(starts, nodes, strict=True)]


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


def _works(expression: Expression, kind: type, names: Expressions) -> bool:
    space: dict[str, Any] = {"__name__": "pasted"}
    try:
        code = "\n".join([*expression.imports, *expression.definitions])
        names.execute(code, space)
        made = eval(expression.call, space)  # of reprs, or of the source that was read
    except Exception:
        return False
    return type(made) is kind or bool(expression.definitions)
