"""``eventloop check-callback``: find the class, check it, print the table."""

from __future__ import annotations

import ast
import difflib
import inspect
import sys
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from functools import partial
from importlib import import_module
from pathlib import Path
from types import ModuleType
from typing import Any

from tabulate import tabulate

from .battery import CHECKS, Verdict, examine, promise_of


def listed() -> str:
    """Every check with what it promises."""
    return tabulate([(name, promise_of(name)) for name in CHECKS], headers=["check", "promise"])


def check_place(place: str, arguments: Iterable[str], skip: Iterable[str]) -> tuple[str, bool]:
    """Check the class at ``module:Class`` or ``path/to/file.py:Class``.

    Args:
        place: where the class is; the current folder counts.
        arguments: its constructor's, each as ``name=value``; a value that is no Python literal is a text.
        skip: checks to leave out, each as ``name=reason``.

    Returns:
        The report, and whether nothing failed.

    Raises:
        ValueError: there is no such module, class, argument or check; the message says what there is.
    """
    kind = _found(place)
    given = {name: _literal(text) for name, text in _pairs("--arg", arguments)}
    try:
        inspect.signature(kind).bind(**given)
        kind(**given)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{kind.__name__}{inspect.signature(kind)} with {given or 'no --arg'}: {error}") from error
    words = ", ".join(f"{name}={value!r}" for name, value in given.items())
    verdicts = examine(partial(kind, **given), skip=dict(_pairs("--skip", skip)), expression=f"{place}({words})")
    return _report(verdicts), all(verdict.outcome != "failed" for verdict in verdicts)


def _report(verdicts: Sequence[Verdict]) -> str:
    rows = [(v.name, v.outcome, f"{v.seconds:.2f}", v.note.partition("\n")[0]) for v in verdicts]
    table = tabulate(rows, headers=["check", "verdict", "seconds", "note"], disable_numparse=True)
    counts = Counter(verdict.outcome for verdict in verdicts)
    told = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
    return "\n\n".join([table, *(str(v) for v in verdicts if v.outcome == "failed"), told])


def _pairs(option: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, value in pairs:
        if not (name and equals):
            raise ValueError(
                f"{option} {name or value!r}: write {option} name={'value' if option == '--arg' else 'reason'}"
            )
    return [(name, value) for name, _, value in pairs]


def _literal(text: str) -> Any:
    try:
        return ast.literal_eval(text)
    except (ValueError, SyntaxError):
        return text


def _found(place: str) -> type:
    name, _, class_name = place.rpartition(":")
    if not name or not class_name:
        raise ValueError(f"{place!r}: write module:Class or path/to/file.py:Class")
    module = _module(name)
    found = getattr(module, class_name, None)
    if not isinstance(found, type):
        there = _callbacks(module)
        near = difflib.get_close_matches(class_name, there, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"{name} has no class {class_name!r}; {hint}callbacks there: {', '.join(there) or 'none'}")  # noqa: TRY004  # of all that is wrong on the command line
    return found


def _module(name: str) -> ModuleType:
    path = Path(name)
    is_file = path.suffix == ".py"
    if is_file and not path.is_file():
        there = sorted(other.name for other in path.parent.glob("*.py"))
        raise ValueError(f"there is no file {name}; in {path.parent}: {', '.join(there) or 'no .py file'}")
    sys.path.insert(0, str(path.parent.resolve()) if is_file else str(Path.cwd()))
    wanted = path.stem if is_file else name
    try:
        module = import_module(wanted)
    except ModuleNotFoundError as error:
        if error.name and (wanted == error.name or wanted.startswith(f"{error.name}.")):
            there = sorted(other.stem for other in Path.cwd().glob("*.py"))
            raise ValueError(f"there is no module {name!r}; in this folder: {', '.join(there) or 'none'}") from None
        raise ValueError(f"importing {name} raised {error}") from error
    except Exception as error:
        raise ValueError(f"importing {name} raised {type(error).__name__}: {error}") from error
    if is_file and Path(module.__file__ or "").resolve() != path.resolve():
        raise ValueError(f"{name} cannot be imported as {wanted!r}: that is {module.__file__}; give it another name")
    return module


def _callbacks(module: ModuleType) -> list[str]:
    """The classes there that have handlers; a package may load its own when asked."""
    members: Mapping[str, Any] = {name: getattr(module, name, None) for name in dir(module)}
    return [name for name, kind in members.items() if isinstance(kind, type) and _is_callback(kind)]


def _is_callback(kind: type) -> bool:
    return kind.__name__ != "Callback" and any(name.startswith("on_") for name in dir(kind))
