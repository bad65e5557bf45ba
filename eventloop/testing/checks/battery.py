"""The battery: every check by name, run in order, told in one report."""

from __future__ import annotations

import inspect
import time
import unittest
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from textwrap import indent
from typing import Any, Final, Literal

from .cost import asks, budget
from .honesty import keys, names, priority
from .isolation import changes_nothing, isolation
from .life import attaches, closes, every_run, two_runs
from .options import check_options, check_skip
from .order import company, registration, repeats
from .resume import resume, settings
from .state import bounded, state
from .subject import Finding, Subject
from .trial import quiet

Check = Callable[[Subject], Finding | None]
Outcome = Literal["passed", "failed", "skipped", "not run", "not exercised"]

CHECKS: Final[Mapping[str, Check]] = {
    "attaches": attaches,
    "state": state,
    "closes": closes,
    "every_run": every_run,
    "repeats": repeats,
    "keys": keys,
    "names": names,
    "priority": priority,
    "two_runs": two_runs,
    "resume": resume,
    "settings": settings,
    "bounded": bounded,
    "changes_nothing": changes_nothing,
    "isolation": isolation,
    "company": company,
    "registration": registration,
    "budget": budget,
    "asks": asks,
}
"""Each takes a `Subject` and returns what it found broken, or None."""
_COMPARING: Final = {"two_runs", "resume", "isolation", "company", "registration"}
_OF_ANSWERS: Final = {"repeats", "two_runs", "resume", "company", "registration"}
"""Those that say nothing about a callback that never answers."""


@dataclass(frozen=True)
class Verdict:
    """What came of one check.

    Attributes:
        name: the check.
        outcome: passed, failed, skipped, not run, or not exercised: passed, but only because it never answered.
        note: why it was skipped, not run or not exercised, what happened where it failed, or what it cost.
        promise: what the check promises, where it failed.
        snippet: Python to paste that shows it, where it failed.
        seconds: what the check took.
    """

    name: str
    outcome: Outcome
    note: str = ""
    promise: str = ""
    snippet: str = ""
    seconds: float = 0.0

    def __str__(self) -> str:
        told = f"{self.name}: {self.promise}\n\n  What happened: {indent(self.note, '    ').lstrip()}"
        return (
            f"{told}\n\n  To see it:\n\n{indent(self.snippet, '    ')}" if self.snippet else f"{self.name}: {self.note}"
        )


class CallbackCheckError(AssertionError):
    """Some checks have failed.

    Attributes:
        verdicts: those that failed.
    """

    def __init__(self, name: str, failed: list[Verdict], of: int) -> None:
        self.verdicts = tuple(failed)
        told = "\n\n".join(map(str, failed))
        super().__init__(f"{name} fails {len(failed)} of {of} checks: {', '.join(v.name for v in failed)}\n\n{told}")


def promise_of(name: str) -> str:
    """What a check promises, in a sentence: the first of its docstring."""
    return (inspect.getdoc(CHECKS[name]) or "").partition("\n\n")[0].replace("\n", " ")


def check_callback(make: Callable[[], Any], *, skip: Mapping[str, str] | None = None, **options: Any) -> None:
    """Put a callback through every check.

    Args:
        make: makes a new callback at each call, as ``lambda: EarlyStopping("eval_loss")``.
        skip: checks to leave out by name, each with the reason.
        **options: ``monitor``, ``bind``, ``metrics``, ``evaluations``, ``rounds``, ``budget_ms``, ``expression``; see
            `Subject`.

    Raises:
        CallbackCheckError: some checks failed; the message has all of them, each with what was promised, what happened,
            and Python to paste that shows it.
        TypeError: there is no such option.
        ValueError: an option has another form, or ``skip`` names no check, or gives no reason.

    Warns:
        UserWarning: it never answered, so that some checks had nothing to look at.
    """
    __tracebackhide__ = True
    verdicts = examine(make, skip=skip, **options)
    failed = [verdict for verdict in verdicts if verdict.outcome == "failed"]
    idle = [verdict for verdict in verdicts if verdict.outcome == "not exercised"]
    if idle and not failed:
        names = ", ".join(verdict.name for verdict in idle)
        warnings.warn(f"{_name(make)}: {names}: {idle[0].note}", stacklevel=2)
    if failed:
        raise CallbackCheckError(_name(make), failed, len(verdicts))


def examine(make: Callable[[], Any], *, skip: Mapping[str, str] | None = None, **options: Any) -> list[Verdict]:
    """The same, as one verdict a check; nothing is raised for a broken callback."""
    return [check.verdict() for check in callback_checks(make, skip=skip, **options)]


class CallbackCheck:
    """One check of one callback. Calling it raises if it fails; its text is the name of the check."""

    def __init__(self, name: str, subject: Subject, reason: str = "") -> None:
        self.name, self._subject, self._reason = name, subject, reason

    def verdict(self) -> Verdict:
        """Run it."""
        if self._reason:
            return Verdict(self.name, "skipped", self._reason)
        begun = time.perf_counter()
        with quiet():
            try:
                blocked = _blocked(self.name, self._subject)
                finding = None if blocked else self._finding()
                idle = "" if blocked or finding or self.name not in _OF_ANSWERS else self._subject.idle
            finally:
                self._subject.clear()
        seconds = time.perf_counter() - begun
        if blocked:
            return Verdict(self.name, "not run", blocked, seconds=seconds)
        if finding is None and idle:
            return Verdict(self.name, "not exercised", idle, seconds=seconds)
        if finding is None:
            return Verdict(self.name, "passed", _note(self.name, self._subject), seconds=seconds)
        snippet = self._subject.snippet(finding)
        return Verdict(self.name, "failed", finding.happened, promise_of(self.name), snippet, seconds)

    def _finding(self) -> Finding | None:
        try:
            return self._subject.found(self.name, CHECKS[self.name])
        except Exception as error:  # of the callback, at a place where no check had expected one
            return Finding(f"the check was ended by {type(error).__name__}: {error}", "check_callback(make)")

    def __call__(self) -> None:
        """Run it.

        Raises:
            CallbackCheckError: it failed.
            unittest.SkipTest: it is skipped, or has nothing to look at, because another check fails or because the
                callback never answers; pytest knows that.
        """
        __tracebackhide__ = True
        verdict = self.verdict()
        if verdict.outcome in ("skipped", "not run", "not exercised"):
            raise unittest.SkipTest(verdict.note)
        if verdict.outcome == "failed":
            raise CallbackCheckError(_name(self._subject.make), [verdict], 1)

    def __str__(self) -> str:
        return self.name

    __repr__ = __str__


def callback_checks(
    make: Callable[[], Any], *, skip: Mapping[str, str] | None = None, **options: Any
) -> list[CallbackCheck]:
    """Every check of a callback, to call one by one.

    In a test: ``@pytest.mark.parametrize("check", callback_checks(EarlyStopping), ids=str)``, and in it ``check()``.

    Args:
        make: see `check_callback`, like the others.
        skip: see there.
        **options: see there.

    Raises:
        TypeError: see there.
        ValueError: see there.
    """
    check_options(options)
    reasons = check_skip(skip, CHECKS)
    subject = Subject(make, **options)
    return [CallbackCheck(name, subject, reasons.get(name, "")) for name in CHECKS]


def _blocked(name: str, subject: Subject) -> str:
    """Why a check cannot be run."""
    for needed in ("attaches", "state"):
        if name == needed:
            return ""
        if subject.found(needed, CHECKS[needed]) is not None:
            return f"see {needed}"
    if name in _COMPARING and subject.alone.lines != subject.again.lines:
        return "two equal runs differ already: see repeats and keys"
    return ""


def _note(name: str, subject: Subject) -> str:
    if name == "budget":
        return ", ".join(f"{event} {1000.0 * ms:.0f} µs" for event, ms in subject.taken.items())
    return ""


def _name(make: Callable[[], Any]) -> str:
    try:
        return type(make()).__name__
    except Exception:
        return getattr(make, "__qualname__", repr(make))
