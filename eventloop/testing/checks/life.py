"""From its making to its closing: attached, bound, run, run again, closed."""

from __future__ import annotations

import threading
from collections.abc import Callable

from ...bus import Bus
from ...callback import handlers_of
from ..fake_loop import FakeLoop
from .standins import SCRIPTED
from .subject import Finding, Subject
from .trial import answers, difference


def attaches(subject: Subject) -> Finding | None:
    """The factory makes a new callback at each call, and a bus takes it and binds it.

    Every ``on_`` method is the handler of an event that there is, ``options()`` speak of handlers that there are, and
    ``bind`` asks for nothing that a loop does not have. All the other checks need that.

    Failed on `MisspeltMethod`, whose ``on_epoch_ended`` would never have been called.
    """
    try:
        first, second = subject.make(), subject.make()
    except Exception as error:
        return Finding(f"the factory raised {error!r}", "make()")
    if isinstance(first, type):
        return Finding(
            f"the factory gave the class {first.__name__}, not an object", "assert not isinstance(make(), type)"
        )
    if first is None:
        return Finding("the factory returned None: does it lack a return?", "assert make() is not None")
    if not handlers_of(first):
        kind = type(first).__name__
        told = f"the factory returned {first!r}: {_article(kind)} {kind} has no on_<event> method"
        return Finding(told, "Bus().attach(make())")
    if first is second:
        return Finding("the factory gave the same object twice", "assert make() is not make()")
    bus = Bus()
    try:
        bus.attach(first)
    except Exception as error:
        return Finding(f"attaching it raised {_told(error)}", "Bus().attach(make())")
    live = subject.live()
    try:
        bus.bind(**{"optimizer": None, "run_dir": subject.folder(), **live, **live.get("bind", {})})
    except Exception as error:
        return Finding(f"binding it raised {_told(error)}", "loop(make(), max_epochs=0).run()")
    finally:
        bus.close()
    return None


def _article(word: str) -> str:
    return "an" if word[0] in "aeiouAEIOU" else "a"


def closes(subject: Subject) -> Finding | None:
    """It can be closed without ever having run, after a run, and twice, and leaves no thread behind.

    ``close`` comes once a run, however the run ended, also where it never began; people call it once more by hand.

    Failed on `ClosesOnce`, whose second ``close`` raises, and on a ``close`` that leaves its thread running.
    """
    thing = subject.make()
    close: Callable[[], object] = getattr(thing, "close", lambda: None)
    for times in ("once", "twice"):
        try:
            close()
        except Exception as error:
            body = "thing = make()\nthing.close()\nthing.close()"
            return Finding(f"closing it {times}, without a run, raised {_told(error)}", body)
    before = set(threading.enumerate())
    loop = subject.loop(thing)
    answers(loop)
    failed = [f for f in loop.bus.failures if f.event == "close"]
    try:
        close()
    except Exception as error:
        failed_again: BaseException | None = error
    else:
        failed_again = failed[0].error if failed else None
    if failed_again is not None:
        body = "thing = make()\nanswers(loop(thing))\nthing.close()"
        return Finding(f"closing it after a run raised {_told(failed_again)}", body)
    left = [thread.name for thread in threading.enumerate() if thread not in before and thread.is_alive()]
    if left:
        body = "import threading\n\nbefore = threading.active_count()\nanswers(loop(make()))\n"
        body += "assert threading.active_count() == before, threading.enumerate()"
        return Finding(f"a run has left its threads: {', '.join(left)}", body)
    return None


def two_runs(subject: Subject) -> Finding | None:
    """A second run on the same bus starts clean: it asks for the same as a first one, also after a run that failed.

    ``train_begin`` with ``resumed=False`` is where history is forgotten.

    Failed on `KeepsItsCount`, which goes on counting in the second run.
    """
    for course in ("a whole run", "a run that fails"):
        changed = subject.courses[course]
        loop = subject.loop(subject.make(), **changed)
        answers(loop)
        more = {"run_dir": subject.folder() / "run"} if subject.on_disk else {}
        found = answers(FakeLoop(bus=loop.bus, clock=loop.clock, **{**subject.script, **subject.live(), **more}))
        if unlike := difference(subject.alone.lines, found.lines):
            return Finding(f"in a second run, after {course}, {unlike}", _second(subject, changed))
    return None


def _second(subject: Subject, changed: dict[str, object]) -> str:
    more = "".join(f", {name}={value!r}" for name, value in changed.items())
    options = "**script" + (f", **{subject.model_text}" if subject.modelled else "")
    options += ', run_dir=Path(mkdtemp()) / "run"' if subject.on_disk else ""
    return (
        f"first = loop(make(){more})\n"
        f"answers(first)\n"
        f"second = FakeLoop(bus=first.bus, clock=first.clock, {options})\n"
        f"assert_same(answers(loop(make())).lines, answers(second).lines)"
    )


def every_run(subject: Subject) -> Finding | None:
    """It raises in no lawful run: skipped updates, evaluations in between, a run left, failed or with nothing to do.

    Nor where a metric is missing, NaN or infinite, where nobody evaluates and where a stop is refused. With an
    attribute ``strict`` that is True, a KeyError is lawful: a missing metric is an error then.

    Failed on `NeedsItsKey`, a KeyError at the first evaluation without the metric.
    """
    strict = getattr(subject.sample, "strict", False) is True
    for course, changed in subject.courses.items():
        script = {**subject.script, **changed}
        loop = subject.loop(subject.make(), **changed)
        found = answers(loop)
        errors = [f for f in loop.bus.failures if not (strict and isinstance(f.error, KeyError))]
        body = "run = loop(make())\nanswers(run)\nassert not run.bus.failures, list(run.bus.failures)"
        if errors:
            return Finding(f"in {course}: {errors[0]}", body, script)
        if isinstance(found.error, Exception) and found.error.args != SCRIPTED and not loop.bus.failures:
            body = "error = answers(loop(make())).error\nassert error is None, error"
            return Finding(f"{course} ended with {_told(found.error)}", body, script)
    return None


def _told(error: BaseException) -> str:
    return f"{type(error).__name__}: {error}"
