"""What a made-up thing prints as: the Python that makes it again, so that a failing example can be pasted and run.

Such a snippet needs ``from eventloop import *`` and ``from eventloop.testing import *``: ``inf`` and ``nan``, as Python
prints these numbers, are among the names of the latter.
"""

from __future__ import annotations

from dataclasses import fields
from enum import Enum
from math import inf, nan
from typing import Any

__all__ = ["Printed", "Snippet", "inf", "nan"]


class Printed:
    """hypothesis prints it as its repr, and not as the calls by which it was drawn."""

    def _repr_pretty_(self, printer: Any, cycle: bool) -> None:
        for i, line in enumerate(repr(self).split("\n")):
            if i:
                printer.break_()
            printer.text(line)


class Snippet(Printed):
    """For a dataclass whose fields all have defaults: its repr leaves out what is as the default has it."""

    def __repr__(self) -> str:
        blank, told = type(self)(), []
        for one in fields(self):  # type: ignore[arg-type]  # of a dataclass, see above
            value = getattr(self, one.name)
            if value != getattr(blank, one.name):
                shown = f"{type(value).__name__}.{value.name}" if isinstance(value, Enum) else repr(value)
                told.append(f"{one.name}={shown}")
        return f"{type(self).__name__}({', '.join(told)})"
