"""The callback under test, and the runs that it is put through."""

from __future__ import annotations

import inspect
import re
import shutil
import sys
import tempfile
from collections.abc import Callable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from pprint import pformat
from typing import Any, Final, NamedTuple

from ..fake_loop import FakeLoop
from .expression import UNKNOWN, Expression, expression_of, parsed
from .options import check_options
from .series import FEW, ROUNDS, courses, main_script
from .standins import Training, as_options, small_model
from .trial import Answers, an_hour_on, answers, shared
from .wanted import Asked, could_answer, counts_updates, longest_wait, metric_settings, told, with_what_it_asks

_MEMORY: Final = Path("/dev/shm")  # syncing a hundred checkpoints to a disk takes minutes
WAIT: Final = 64  # the longest patience that a run is made longer for; the time goes with it
WAIT_ON_DISK: Final = 16
BUDGET: Final = 10.0
_KIT: Final = (
    *(
        "Cuts",
        "Neighbour",
        "Peer",
        "Training",
        "an_hour_on",
        "answers",
        "as_options",
        "asked",
        "assert_same",
        "changes",
    ),
    *("check_callback", "shared", "sizes", "slow_events", "small_model", "state_faults", "tensors"),
)
_HOMES: Final = {
    "from eventloop import": ("Bus",),
    "from eventloop.testing import": ("Deliberate", "FakeLoop"),
    "from eventloop.testing.checks import": _KIT,
    "from math import": ("inf", "nan"),
    "from pathlib import": ("Path",),
    "from shutil import": ("copytree",),
    "from tempfile import": ("mkdtemp",),
}


TWICE: Final = (
    "first = answers(loop(make()))\nwith an_hour_on() as goes_on:\n    second = answers(loop(make()), around=goes_on)\n"
)
"""Two equal runs, for a snippet."""
_CANNOT: Final = "# this cannot be pasted as it stands; do here what your factory does"
_STUB: Final = 'raise NotImplementedError("make your callback here")'


class Finding(NamedTuple):
    """A broken promise: what happened, and Python that shows it, given ``make``, ``script`` and ``loop``."""

    happened: str
    body: str
    script: Mapping[str, Any] | None = None


class Subject:
    """A callback under test: how one is made, and what runs it needs.

    Args:
        make: makes a new one at each call.
        monitor: the metric that it decides by, or several, besides its attribute ``monitor``. What it asks for in a
            first run is in the script without this, and so are settings that are metrics by their name.
        bind: live objects for its ``bind``, as a mapping or as a function that makes a new one for each run; else,
            where it asks for a model or an optimizer, a small model.
        metrics: further metrics of each update, as `FakeLoop` takes them.
        evaluations: further metrics of each evaluation.
        rounds: evaluations of a run, else 16, or 8 where its checkpoints are files, and more where a setting of it is a
            larger number, up to 64. The time that the checks take grows with its square.
        budget_ms: what a call of a handler may take.
        expression: what makes it, as ``module:Class(arguments)``; else it is made out from the object.

    Attributes:
        taken: milliseconds of a median call by event, once they were measured.
        shared: what all objects of its class had in common before the first run, once there is a sample.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        monitor: str | Sequence[str] | None = None,
        bind: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None = None,
        metrics: Mapping[str, Any] | None = None,
        evaluations: Mapping[str, Any] | None = None,
        rounds: int | None = None,
        budget_ms: float | None = None,
        expression: str | None = None,
    ) -> None:
        if not callable(make):
            raise TypeError(f"{make!r} is no factory: give a function that makes a new callback, or its class")
        given = {"monitor": monitor, "bind": bind, "metrics": metrics, "evaluations": evaluations, "rounds": rounds}
        check_options({**given, "budget_ms": budget_ms, "expression": expression})
        self.make, self._bind = make, bind
        self.budget_ms = BUDGET if budget_ms is None else budget_ms
        self._rounds = rounds
        self._monitors = (monitor,) if isinstance(monitor, str) else tuple(monitor or ())
        self._metrics, self._evaluations = metrics or {}, evaluations or {}
        self._expression = None if expression is None else parsed(expression)
        self._folders: list[Path] = []
        self._found: dict[str, Finding | None] = {}
        self.taken: dict[str, float] = {}
        self.shared: dict[str, str] = {}

    @cached_property
    def sample(self) -> Any:
        """One that is never run."""
        thing = self.make()
        self.shared = shared(type(thing))
        return thing

    @property
    def name(self) -> str:
        """Its class."""
        return type(self.sample).__name__

    @cached_property
    def wants(self) -> frozenset[str]:
        """What its ``bind`` names."""
        bind = getattr(self.sample, "bind", None)
        return frozenset() if bind is None else frozenset(inspect.signature(bind).parameters)

    @property
    def on_disk(self) -> bool:
        """Whether its runs have a real folder."""
        return "run_dir" in self.wants

    @cached_property
    def rounds(self) -> int:
        """Evaluations of a run: so many that whoever waits for some has an answer."""
        few = FEW if self.on_disk else ROUNDS
        if self._rounds is not None or not self.could_answer:
            return self._rounds or few
        wait = longest_wait(self.sample, WAIT_ON_DISK if self.on_disk else WAIT)
        if counts_updates(self.sample):
            wait = (wait + 1) // 2
        return few if wait <= few // 2 else wait + ROUNDS

    @property
    def is_long(self) -> bool:
        """Whether its runs are longer than others', so that some cuts stand for all."""
        return self._rounds is None and self.rounds > ROUNDS

    @cached_property
    def could_answer(self) -> bool:
        """Whether it is there to answer, as far as that can be told."""
        return could_answer(self.make())

    @property
    def script(self) -> dict[str, Any]:
        """The run that most checks make."""
        return self._scripted[0]

    @property
    def asked(self) -> Asked:
        """What it asks for in such a run."""
        return self._scripted[1]

    @cached_property
    def _scripted(self) -> tuple[dict[str, Any], Asked]:
        own = getattr(self.sample, "monitor", None)
        monitors = list(dict.fromkeys([*self._monitors, *([own] if isinstance(own, str) else [])]))
        known = main_script(monitors, self._metrics, self._evaluations, self.rounds)
        guessed = metric_settings(self.sample)
        return with_what_it_asks(known, guessed, lambda script: self._loop(script, self.make()))

    @property
    def courses(self) -> dict[str, dict[str, Any]]:
        """How a run may go, as what it changes in the script."""
        return courses(self.script["max_steps"])

    @property
    def modelled(self) -> bool:
        """Whether its runs have the small model, since nobody gave another."""
        return self._bind is None and bool(self.wants & {"model", "optimizer"})

    def live(self) -> dict[str, Any]:
        """The live objects of one run, as keywords of a `FakeLoop`."""
        if self.modelled:
            return small_model(optimizer="optimizer" in self.wants)
        return as_options(self._bind)

    def found(self, name: str, check: Callable[[Subject], Finding | None]) -> Finding | None:
        """What a check that others need has found; it is run once."""
        if name not in self._found:
            self._found[name] = check(self)
        return self._found[name]

    def folder(self) -> Path:
        """A new folder, gone after `clear`."""
        self._folders.append(Path(tempfile.mkdtemp(dir=_MEMORY if _MEMORY.is_dir() else None)))
        return self._folders[-1]

    def clear(self) -> None:
        """Remove the folders."""
        while self._folders:
            shutil.rmtree(self._folders.pop(), ignore_errors=True)

    def loop(self, *things: Any, **more: Any) -> FakeLoop:
        """A run with these callbacks, by the main script unless told otherwise."""
        return self._loop({**self.script, **more}, *things)

    def _loop(self, script: Mapping[str, Any], *things: Any) -> FakeLoop:
        options = {**self.live(), **script}
        if self.on_disk and "run_dir" not in options:
            options["run_dir"] = self.folder() / "run"
        staff = [Training()] if "model" in options and "bus" not in options else []
        return FakeLoop([*things, *staff], **options)

    @cached_property
    def alone(self) -> Answers:
        """What one answers in the main run."""
        return answers(self.loop(self.make()))

    @cached_property
    def again(self) -> Answers:
        """What another one answers in the same run, at another time of day."""
        loop = self.loop(self.make())
        with an_hour_on() as goes_on:
            return answers(loop, around=goes_on)

    @cached_property
    def idle(self) -> str:
        """Why the checks that compare its answers say nothing about it; nothing if they do."""
        if not self.could_answer or self.alone.replied:
            return ""
        for changed in self.courses.values():
            if answers(self.loop(self.make(), **changed)).replied:
                return ""
        return f"it never answered: {told(self.asked.events)}; give metrics=, evaluations=, monitor= or rounds="

    # -- telling -------------------------------------------------------------------------------------------------------

    @cached_property
    def expression(self) -> Expression:
        """The Python that makes one."""
        try:
            return self._expression or expression_of(self.sample)
        except Exception:  # there is no sample
            return UNKNOWN

    def snippet(self, finding: Finding) -> str:
        """Python to paste that shows what was found; it raises as long as that is so."""
        imports, call, definitions, why = self.expression
        make = f"    return {call}" if call else f"    {_CANNOT}: {why}\n    {_STUB}"
        parts = [*definitions, f"def make():\n{make}"]
        if "loop(" in finding.body:
            script = pformat(dict(finding.script or self.script), width=110, compact=True, sort_dicts=False)
            parts += [f"script = {script}", self._loop_text()]
        code = "\n\n".join([*parts, finding.body])
        lines = list(imports)
        for home, names in _HOMES.items():
            if here := [name for name in names if re.search(rf"\b{name}\b", code)]:
                lines.append(f"{home} {', '.join(here)}")
        lines = list(dict.fromkeys(lines))
        lines.sort(key=lambda line: line.startswith("from eventloop.testing"))
        return "\n".join([*lines, "", code]).lstrip()

    @property
    def model_text(self) -> str:
        """The call that makes the small model, for a snippet."""
        return f"small_model({'optimizer=True' if 'optimizer' in self.wants else ''})"

    def _loop_text(self) -> str:
        given, live = "", ""
        things = "[*things, Training()]" if "model" in self.live() else "things"
        if self.modelled:
            live = f"**{self.model_text}, "
        elif self._bind is not None:
            given, live = f"{self._bind_text()}\n\n", "**as_options(bind), "
        folder = '"run_dir": Path(mkdtemp()) / "run", ' if self.on_disk else ""
        return f"{given}def loop(*things, **more):\n    return FakeLoop({things}, **{{**script, {live}{folder}**more}})"

    def _bind_text(self) -> str:
        bind: Any = self._bind
        name = getattr(bind, "__qualname__", "")
        if name.isidentifier() and getattr(sys.modules.get(bind.__module__), name, None) is bind:
            return f"from {bind.__module__} import {name} as bind"
        return "bind = None  # put here what you gave as bind="
