"""``eventloop check-callback``: find the class, check it, print the table."""

from __future__ import annotations

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

from ...literal import literal
from ...settings import parameters_of
from .battery import CHECKS, Verdict, examine, promise_of


def listed() -> str:
    """Every check with what it promises."""
    return tabulate([(name, promise_of(name)) for name in CHECKS], headers=["check", "promise"])


def check_place(place: str, arguments: Iterable[str], skip: Iterable[str], monitors: Sequence[str]) -> tuple[str, bool]:
    """Check the class at ``module:Class`` or ``path/to/file.py:Class``.

    Args:
        place: where the class is; the current folder counts.
        arguments: its constructor's, each as ``name=value``; a value that is no Python literal is a text.
        skip: checks to leave out, each as ``name=reason``.
        monitors: metrics to report.

    Returns:
        The report, and whether nothing failed.

    Raises:
        ValueError: there is no such module, class, argument or check; the message says what there is.
    """
    kind = _found(place)
    given = {name: literal(text) for name, text in _pairs("--arg", arguments)}
    _try(kind, given)
    words = _words(given)
    options = {"expression": f"{place}({words})", "monitor": list(monitors) or None}
    verdicts = examine(partial(kind, **given), skip=dict(_pairs("--skip", skip)), **options)
    return _report(verdicts), all(verdict.outcome != "failed" for verdict in verdicts)


def _words(given: Mapping[str, Any]) -> str:
    return ", ".join(f"{name}={value!r}" for name, value in given.items())


def _try(kind: type, given: Mapping[str, Any]) -> None:
    """Make one, and say what is in the way."""
    known = parameters_of(kind)
    if unknown := [name for name in given if known and name not in known and not _takes_any(kind)]:
        near = difflib.get_close_matches(unknown[0], known, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        raise ValueError(f"{kind.__name__} has no argument {unknown[0]!r}; {hint}it takes {', '.join(known)}")
    open_ = [name for name, p in known.items() if p.default is p.empty and name not in given]
    if open_:
        needed = " ".join(f"--arg {name}=..." for name in open_)
        raise ValueError(f"{kind.__name__} needs {' and '.join(open_)}: give {needed}")
    try:
        kind(**given)
    except Exception as error:
        raise ValueError(f"{kind.__name__}({_words(given)}) raised {type(error).__name__}: {error}") from error


def _takes_any(kind: type) -> bool:
    return any(p.kind is p.VAR_KEYWORD for p in inspect.signature(kind).parameters.values())


def _report(verdicts: Sequence[Verdict]) -> str:
    rows = [(v.name, v.outcome, f"{v.seconds:.2f}", _shown(v)) for v in verdicts]
    table = tabulate(rows, headers=["check", "verdict", "seconds", "note"], disable_numparse=True)
    counts = Counter(verdict.outcome for verdict in verdicts)
    told = ", ".join(f"{n} {outcome}" for outcome, n in counts.items())
    idle = dict.fromkeys(f"not exercised: {v.note}" for v in verdicts if v.outcome == "not exercised")
    return "\n\n".join([table, *(str(v) for v in verdicts if v.outcome == "failed"), *idle, told])


def _shown(verdict: Verdict) -> str:
    first = verdict.note.partition("\n")[0]
    return first.partition(":")[0] if verdict.outcome == "not exercised" else first


def _pairs(option: str, texts: Iterable[str]) -> list[tuple[str, str]]:
    pairs = [text.partition("=") for text in texts]
    for name, equals, value in pairs:
        if not (name and equals):
            raise ValueError(
                f"{option} {name or value!r}: write {option} name={'value' if option == '--arg' else 'reason'}"
            )
    return [(name, value) for name, _, value in pairs]


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
