"""The Python that builds a set of callbacks again, so that a fault that was found can be pasted and run."""

from __future__ import annotations

import ast
import inspect
import math
import re
import textwrap
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

from ..settings import changed_arguments, parameters_of


class CannotTell(Exception):  # noqa: N818  # no error: the snippet then takes what the test has
    """There is no expression for something."""


Shows = Callable[[Callable[[], list[object]], dict[str, Any]], bool]
"""Whether a factory and keywords show the fault."""


def snippet(
    function: str,
    things: Sequence[object],
    given: Mapping[str, Any],
    shows: Shows,
    otherwise: str,
    source: str,
    end: str,
) -> str:
    """A few lines that call a function of the test kit on a set of callbacks.

    The callbacks are built by what their constructors' parameters are called, of classes imported or, where nobody can
    import them, written out. Whether that shows the fault is tried; if it does not, the snippet takes the names of what
    the test has.

    Args:
        function: what it calls, with the callbacks and what was ``given``.
        things: the callbacks, as their factory made them, in order of registration.
        given: the keywords.
        shows: whether a factory and keywords show the fault.
        otherwise: lines that define ``callbacks`` by a name of the test's.
        source: that name.
        end: what stands behind the call.
    """
    names = _Names(things)
    try:
        options = "".join(f", {name}={names.told(value)}" for name, value in given.items())
    except CannotTell:
        options = ", **options"
    if code := _working(names, function, options, given, shows):
        note = "\n# options: the keywords that the test has" if options == ", **options" else ""
    else:
        code, options = f"from eventloop.testing import {function}\n\n\n{otherwise}", ", **options"
        note = f"\n# {source} and options: what the test has"
    return f"{code}\n{note}\n{function}(callbacks{options}){end}\n"


def _working(names: _Names, function: str, options: str, given: Mapping[str, Any], shows: Shows) -> str:
    """The code that builds the callbacks, or nothing if there is none that shows the fault."""
    try:
        code = names.factory(function)
        space: dict[str, Any] = {"__name__": "snippet", "options": given}
        exec(f"{code}\ntold = dict({options.removeprefix(', ')})", space)
        return code if shows(space["callbacks"], space["told"]) else ""
    except Exception:  # whatever a class does when it is built at another place than its own
        return ""


class _Names:
    """Expressions for callbacks, and for what they were given; each callback has a variable."""

    def __init__(self, things: Sequence[object]) -> None:
        self._things = things
        self._variables: dict[int, str] = {}
        self._imports: dict[str, set[str]] = {}
        self._sources: dict[str, None] = {}
        self._lines: list[str] = []

    def factory(self, function: str) -> str:
        """Imports, that of the test kit's function among them, classes, and ``callbacks``, which builds them."""
        made = ", ".join([self._variable(thing) for thing in self._things])
        lines = "".join(f"    {line}\n" for line in self._lines)
        imports = {**self._imports, "eventloop.testing": {function}, **({"eventloop": {"*"}} if self._sources else {})}
        head = "".join(
            f"from {module} import {', '.join(sorted(names))}\n" for module, names in sorted(imports.items())
        )
        return "\n\n".join([head, *self._sources, f"def callbacks():\n{lines}    return [{made}]\n"])

    def _variable(self, thing: object) -> str:
        if id(thing) not in self._variables:
            call = self._call(thing)  # first, for it may need others
            word = re.sub(r"(?<=[a-z0-9])(?=[A-Z])", "_", type(thing).__name__).lower().strip("_") or "callback"
            taken = sum(known.rstrip("_0123456789") == word for known in self._variables.values())
            name = self._variables[id(thing)] = f"{word}_{taken + 1}" if taken else word
            self._lines.append(f"{name} = {call}")
        return self._variables[id(thing)]

    def _call(self, thing: object) -> str:
        kind, arguments = type(thing), []
        try:
            changed = changed_arguments(thing)
        except LookupError as error:
            raise CannotTell(str(error)) from None
        for name, value in changed.items():
            one = parameters_of(kind)[name]
            told = self.told(value)
            arguments.append(told if one.kind is one.POSITIONAL_ONLY else f"{name}={told}")
        return f"{self._known(kind)}({', '.join(arguments)})"

    def _known(self, what: Any) -> str:
        """The name of a class or function, imported or written out."""
        name, module = what.__qualname__, what.__module__
        if "<locals>" not in name and "<lambda>" not in name and module != "__main__":
            self._imports.setdefault(module, set()).add(name.partition(".")[0])
            return str(name)
        if not isinstance(what, type):
            raise CannotTell(f"{name} is a function inside another")
        for base in what.__bases__:
            if base is not object:
                self._known(base)
        self._sources[textwrap.dedent(inspect.getsource(what)).rstrip() + "\n"] = None
        return what.__name__

    def told(self, value: Any) -> str:
        """An expression for a value.

        Raises:
            CannotTell: there is none.
        """
        if any(value is thing for thing in self._things):
            return self._variable(value)
        if isinstance(value, float) and not math.isfinite(value):
            return f"float('{value}')"
        if isinstance(value, Path):
            return repr(str(value))
        if type(value) in (list, tuple):
            items = ", ".join(self.told(item) for item in value)
            return f"[{items}]" if type(value) is list else f"({items},)"
        if type(value) is dict:
            return "{" + ", ".join(f"{self.told(k)}: {self.told(v)}" for k, v in value.items()) + "}"
        if isinstance(value, type) or inspect.isfunction(value):
            return self._known(value)
        text = repr(value)
        try:
            ast.literal_eval(text)
        except (ValueError, SyntaxError):
            raise CannotTell(f"{text} is no literal") from None
        return text


def chosen(places: Iterable[int]) -> str:
    """``callbacks``, as some of what ``make()`` of the test gives; for `snippet`."""
    taken = ", ".join(f"made[{i}]" for i in places)
    return f"def callbacks():\n    made = list(make())\n    return [{taken}]\n"
