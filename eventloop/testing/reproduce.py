"""The Python that builds a set of callbacks again, so that a fault that was found can be pasted and run."""

from __future__ import annotations

import ast
import builtins
import inspect
import math
import re
import symtable
import sys
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from enum import Enum
from pathlib import Path
from typing import Any

import eventloop

from ..errors import told
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
    import them, written out with the helpers and constants that they use. Whether that shows the fault is tried; if it
    does not, the snippet takes the names of what the test has, and says why.

    Args:
        function: what it calls, with the callbacks and what was ``given``.
        things: the callbacks, as their factory made them, in order of registration.
        given: the keywords.
        shows: whether a factory and keywords show the fault.
        otherwise: lines that define ``callbacks`` by a name of the test's.
        source: that name.
        end: what stands behind the call.
    """
    names = Expressions(things)
    options, lacks = names.options(given)
    code, why = _working(names, function, options, given, shows)
    if not code:
        names = Expressions(())
        options, lacks = names.options(given)
        code = names.module(function, otherwise)
    reasons = "".join(f"\n# it cannot be pasted as it stands: {reason}" for reason in (why, lacks) if reason)
    taken = [source] * bool(why) + ["options"] * bool(lacks)
    told = "the keywords that the test has" if taken == ["options"] else "what the test has"
    note = f"{reasons}\n# {' and '.join(taken)}: {told}" if taken else ""
    return f"{code}\n{note}\n{function}(callbacks{options}){end}\n"


def _working(
    names: Expressions, function: str, options: str, given: Mapping[str, Any], shows: Shows
) -> tuple[str, str]:
    """The code that builds the callbacks, or nothing if there is none that shows the fault, and why."""
    try:
        code = names.factory(function)
    except CannotTell as error:
        return "", str(error)
    try:
        space: dict[str, Any] = {"__name__": "snippet", "options": given}
        whole = f"{code}\ntold = dict({options.removeprefix(', ')})"
        names.execute(whole, space)
        shown = shows(space["callbacks"], space["told"])
    except Exception as error:  # whatever a class does when it is built at another place than its own
        return "", f"built anew, the callbacks raise {told(error)}"
    return (code, "") if shown else ("", "built anew from these arguments, the callbacks do not show it")


class Expressions:
    """Expressions for callbacks, and for what they were given; each callback has a variable."""

    def __init__(self, things: Sequence[object]) -> None:
        self._things = things
        self._variables: dict[int, str] = {}
        self._imports: dict[str, set[str]] = {}
        self._modules: dict[str, None] = {}
        self._sources: dict[str, None] = {}
        self._written: dict[str, Any] = {}
        self._lines: list[str] = []

    def factory(self, function: str) -> str:
        """Imports, that of the test kit's function among them, classes, and ``callbacks``, which builds them."""
        made = ", ".join([self._variable(thing) for thing in self._things])
        lines = "".join(f"    {line}\n" for line in self._lines)
        return self.module(function, f"def callbacks():\n{lines}    return [{made}]\n")

    def module(self, function: str, body: str) -> str:
        """Imports, that of the test kit's function among them, classes and helpers, and some lines more."""
        own = {"eventloop.testing": {*self._imports.get("eventloop.testing", ()), function}}
        imports = {**self._imports, **own, **({"eventloop": {"*"}} if self._sources else {})}
        head = "".join(
            f"from {module} import {', '.join(sorted(names))}\n" for module, names in sorted(imports.items())
        )
        return "\n\n".join(["".join(self._modules) + head, *self._sources, body])

    def execute(self, code: str, space: dict[str, Any]) -> None:
        """Execute what `factory` gave, in a namespace.

        A class of an event, or with one in it, is not defined again but taken as it is: with two of a name no bus
        knows which is meant.
        """
        taken = {what.__name__: what for what in self._written.values() if _has_event(what)}
        tree = ast.parse(code)
        tree.body = [node for node in tree.body if not (isinstance(node, ast.ClassDef) and node.name in taken)]
        space.update(taken)
        exec(compile(tree, space["__name__"], "exec", dont_inherit=True), space)  # without this module's annotations

    def options(self, given: Mapping[str, Any]) -> tuple[str, str]:
        """Keywords as they are written behind another argument, or ``**options`` and what stands in the way."""
        try:
            return "".join(f", {name}={self.told(value)}" for name, value in given.items()), ""
        except CannotTell as error:
            return ", **options", str(error)

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
        name, module = str(what.__qualname__), what.__module__
        if module in ("builtins", None):
            if getattr(builtins, name, None) is not what:
                raise CannotTell(f"{name} stands in no module")
            return name
        if "<lambda>" in name:
            raise CannotTell("a lambda is among what was given")
        if "<locals>" not in name and module != "__main__":
            self._imports.setdefault(module, set()).add(name.partition(".")[0])
            return name
        if name not in self._written:
            self._written[name] = what  # before what it uses: two may use each other
            for base in getattr(what, "__bases__", ()):
                if base is not object:
                    self._known(base)
            source = _source(what)
            space = _space(what)
            for used in _free(source):
                if used in space:
                    self._define(used, space[used], what.__name__)
            self._sources[source] = None
        return str(what.__name__)

    def _define(self, name: str, value: Any, user: str) -> None:
        """A name that the source of ``user`` takes from its module, or from the function around it."""
        home = sys.modules.get(getattr(value, "__module__", None) or "")
        if inspect.ismodule(value):
            self._modules[f"import {value.__name__}{'' if value.__name__ == name else f' as {name}'}\n"] = None
        elif name in eventloop.__all__ and getattr(eventloop, name) is value:
            return  # imported wherever sources are
        elif home and home.__name__ != "__main__" and getattr(home, name, None) is value:
            self._imports.setdefault(home.__name__, set()).add(name)
        else:
            try:
                told = self._constant(value)
            except CannotTell as error:
                raise CannotTell(f"{user} uses {name}, and {error}") from None
            if told != name:
                self._sources[f"{name} = {told}\n"] = None

    def _constant(self, value: Any) -> str:
        if any(value is thing for thing in self._things):
            raise CannotTell("that is one of the callbacks")
        return self.told(value)

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
        if isinstance(value, Enum):
            return f"{self._known(type(value))}.{value.name}"
        if isinstance(value, BaseException):
            return f"{self._known(type(value))}({', '.join(self.told(one) for one in value.args)})"
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


def _has_event(what: Any) -> bool:
    """Whether this is the class of an event, or a class with one in it."""
    kinds = [what, *vars(what).values()] if isinstance(what, type) else []
    return any(isinstance(kind, type) and issubclass(kind, eventloop.Event) for kind in kinds)


def _source(what: Any) -> str:
    """The source of a class or function, as it stands at the top of a module."""
    try:
        return textwrap.dedent(inspect.getsource(what)).rstrip() + "\n"
    except (OSError, TypeError):  # typed into an interpreter, say
        raise CannotTell(f"the source of {what.__name__} is not there") from None


def _space(what: Any) -> dict[str, Any]:
    """The names that the source of a class or function can use: those of its module, and of functions around it."""
    space = {**vars(sys.modules.get(what.__module__, builtins))}
    for member in [*vars(what).values()] if isinstance(what, type) else [what]:
        function = getattr(member, "fget", None) or getattr(member, "__func__", member)
        if inspect.isfunction(function):
            space |= function.__globals__ if what.__module__ not in sys.modules else {}
            space |= inspect.getclosurevars(function).nonlocals
    return {name: value for name, value in space.items() if vars(builtins).get(name, space) is not value}


def _free(source: str) -> Iterator[str]:
    """The names that a source uses and does not define."""
    tables = [symtable.symtable(source, "source", "exec")]
    for table in tables:
        yield from (one.get_name() for one in table.get_symbols() if one.is_global() and one.is_referenced())
        tables += table.get_children()


def chosen(places: Iterable[int]) -> str:
    """``callbacks``, as some of what ``make()`` of the test gives; for `snippet`."""
    taken = ", ".join(f"made[{i}]" for i in places)
    return f"def callbacks():\n    made = list(make())\n    return [{taken}]\n"
