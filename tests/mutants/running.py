"""Trying mutants: each in a copy of the library, in a process of its own. Needs os.fork."""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from .mutant import Mutant

ROOT: Final = Path(__file__).parents[2]
COPIED: Final = ("eventloop", "callbacks", "tests")
TIMEOUT: Final = 60
PATIENCE: Final = 600  # for all tests together, without a fault
SETTINGS: Final = {"PYTHONDONTWRITEBYTECODE": "1", "HYPOTHESIS_PROFILE": "derandomized", "PYTEST_ADDOPTS": ""}
OPTIONS: Final = (
    *("-x", "-q", "--tb=line"),
    *("-p", "no:cacheprovider"),
    *("-m", "not storm and not integration"),
    *("-W", "ignore::pytest.PytestAssertRewriteWarning"),  # what was loaded before holds no asserts of tests
)
_FAILED: Final = re.compile(r"^(?:FAILED|ERROR) tests/(.+?)(?: - .*)?$", re.MULTILINE)


class Verdict(NamedTuple):
    """What came of a mutant: ``word`` is killed, hung (killed by the clock) or survived; ``by`` names the test."""

    mutant: Mutant
    word: str
    by: str
    seconds: float

    @property
    def survived(self) -> bool:
        """Whether no test has told the fault."""
        return self.word == "survived"


class Copy(contextlib.AbstractContextManager["Copy"]):
    """A copy of the packages and their tests, in which files may be broken; its runs of pytest are forked.

    Args:
        folder: an empty one.
        root: what is copied.
    """

    def __init__(self, folder: Path, root: Path = ROOT) -> None:
        self.folder = folder
        for name in COPIED:
            shutil.copytree(root / name, folder / name, ignore=shutil.ignore_patterns("__pycache__"))
        shutil.copy(root / "pyproject.toml", folder)
        self._warm = subprocess.Popen(
            [sys.executable, "-P", Path(__file__).with_name("warm.py")],  # -P: its own folder holds no package
            cwd=folder,
            env={"OMP_NUM_THREADS": "1", **os.environ, **SETTINGS, "PYTHONPATH": str(folder)},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )

    def __exit__(self, *_: object) -> None:
        self._warm.communicate()

    def require_green(self, tests: Iterable[str]) -> None:
        """Run tests without any fault.

        Raises:
            RuntimeError: one fails, so that its failing would say nothing about a fault; with what pytest has said.
        """
        code, said = self._pytest(sorted(set(tests)), PATIENCE)
        if code != 0:
            raise RuntimeError(f"without any mutant the tests do not pass (exit code {code}):\n{said}")

    def attempt(self, mutant: Mutant, timeout: int = TIMEOUT) -> Verdict:
        """Put the fault in, run its tests, take it out.

        Raises:
            MisfitError: the fault does not fit.
            RuntimeError: pytest ended otherwise than by a test that passes, fails or hangs: the tests of a mutant that
                cannot even be imported say nothing.
        """
        began = time.perf_counter()
        with self._broken(mutant):
            code, said = self._pytest(mutant.tests, timeout)
        seconds = time.perf_counter() - began
        if code == -signal.SIGALRM:
            return Verdict(mutant, "hung", f"no end within {timeout} s", seconds)
        if code not in (0, 1):
            raise RuntimeError(f"the mutant {mutant.name!r} kept the tests from running (exit code {code}):\n{said}")
        failed = _FAILED.search(said)
        return Verdict(mutant, "killed" if code else "survived", failed[1] if failed else "", seconds)

    @contextlib.contextmanager
    def _broken(self, mutant: Mutant) -> Iterator[None]:
        path = self.folder / mutant.file
        whole = path.read_text(encoding="utf-8")
        path.write_text(mutant.applied_to(whole), encoding="utf-8")
        try:
            yield
        finally:
            path.write_text(whole, encoding="utf-8")

    def _pytest(self, tests: Sequence[str], seconds: int) -> tuple[int, str]:
        """The exit code, and what was printed."""
        printed = self.folder / "printed"
        request = {
            "seconds": seconds,
            "printed": str(printed),
            "arguments": [*OPTIONS, "--basetemp", str(self.folder / "tmp"), *(f"tests/{test}" for test in tests)],
        }
        into, out = self._warm.stdin, self._warm.stdout
        assert into is not None
        assert out is not None
        into.write(json.dumps(request) + "\n")
        into.flush()
        answer = out.readline()
        if not answer:
            raise RuntimeError(f"the process that runs pytest has ended with {self._warm.wait()}")
        return json.loads(answer), printed.read_text(encoding="utf-8", errors="replace")


def try_all(mutants: Sequence[Mutant], folder: Path) -> Iterator[Verdict]:
    """Require that the tests pass without a fault, then try one mutant after the other.

    Raises:
        MisfitError: a fault does not fit; found before anything is run.
        RuntimeError: the tests do not pass, or a fault keeps them from running.
    """
    with Copy(folder) as copy:
        for mutant in mutants:
            mutant.applied_to((copy.folder / mutant.file).read_text(encoding="utf-8"))
        copy.require_green(test for mutant in mutants for test in mutant.tests)
        yield from map(copy.attempt, mutants)
