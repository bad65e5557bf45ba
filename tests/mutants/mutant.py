"""A fault that is put into the library on purpose, and where."""

from __future__ import annotations

import ast
from dataclasses import dataclass


class MisfitError(ValueError):
    """The library has changed, so that a fault can no longer be put where it was meant to be."""


@dataclass(frozen=True, slots=True)
class Mutant:
    """One fault: in one file one text becomes another, and one of a few tests must fail of it.

    Attributes:
        name: the fault as a short phrase.
        file: under the root of the repository.
        old: a text that occurs exactly once in the file.
        new: what stands in its place.
        tests: the smallest files under ``tests`` that tell the fault, or ``file.py::name`` for a single test.
    """

    name: str
    file: str
    old: str
    new: str
    tests: tuple[str, ...]

    def applied_to(self, source: str) -> str:
        """The file's text with the fault in it.

        Raises:
            MisfitError: the old text does not occur exactly once, or what comes out is no Python or the same program.
        """
        found = source.count(self.old)
        if found != 1:
            raise self._misfit(f"the text {self.old!r} occurs {found} times, and must occur once")
        faulty = source.replace(self.old, self.new)
        try:
            same = ast.dump(ast.parse(faulty)) == ast.dump(ast.parse(source))
        except SyntaxError as error:
            raise self._misfit(f"with it the file is no Python: {error}") from error
        if same:
            raise self._misfit("the program is the same as without it")
        return faulty

    def _misfit(self, why: str) -> MisfitError:
        return MisfitError(f"the mutant {self.name!r} no longer fits {self.file}: {why}")
