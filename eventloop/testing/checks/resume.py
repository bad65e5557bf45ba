"""A run that is cut and goes on, and what belongs into its checkpoints."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ...settings import arguments_of
from .cost import tensors
from .expression import is_literal, variants_of
from .series import LIMIT, losses
from .shrink import shrunk
from .standins import Cuts
from .subject import Finding, Subject
from .trial import Answers, answers, difference

if TYPE_CHECKING:
    from ..fake_loop import FakeLoop

TENSORS = "a run whose metrics are tensors"
SOME = 40  # cuts of a long run
WAYS = (
    "skipped updates, evaluations in between",
    "several micro-batches an update, the last window short",
)


def resume(subject: Subject) -> Finding | None:
    """Resumed from any checkpoint, a new one asks for and reports the same as in the run that was never interrupted.

    Whatever decides later is state: counts, bests, means. What is not in ``state_dict`` is gone after a crash, and the
    run ends elsewhere, without a word.

    Failed on `ForgetsItsCount`, on one that resets its count at every train_begin, resumed or not, and on one that has
    a tensor to judge at the next update and does not store it.
    """
    for course, changed in _courses(subject):
        tensor, script = course == TENSORS, {**subject.script, **changed}
        whole = subject.loop(subject.make(), Cuts(), **_given(script, tensor))
        expected = answers(whole)
        for cut, source in _some(subject, [*_cuts(whole, expected)]):
            found = _resumed(subject, whole, source, _given(script, tensor))
            if unlike := _difference(expected, cut, found):
                step, of = expected.cuts[cut], len(expected.cuts)
                told = f"in {course}, resumed from the checkpoint of step {step} (cut {cut + 1} of {of}): {unlike}"
                told += "" if found.error is None else f"\n  which said: {found.error}"
                short = shrunk(script, lambda one: _shown(subject, one, cut, tensor=tensor) == unlike)  # noqa: B023  # called at once
                return Finding(told, _text(subject, cut, step, tensor), short)
    return None


def _given(script: dict[str, Any], tensor: bool) -> dict[str, Any]:
    return {**script, "metrics": tensors(script["metrics"])} if tensor else script


def _difference(expected: Answers, cut: int, found: Answers) -> str:
    if not found.went_on and found.error is None:
        return ""  # the run had nothing left to do, so there is nothing to compare
    return difference(expected.after(cut), found.resumed())


def _shown(subject: Subject, script: dict[str, Any], cut: int, *, tensor: bool) -> str:
    """The difference that a script shows at one of its cuts."""
    given = _given(script, tensor)
    whole = subject.loop(subject.make(), Cuts(), **given)
    expected = answers(whole)
    source = dict(_cuts(whole, expected)).get(cut)
    return "" if source is None else _difference(expected, cut, _resumed(subject, whole, source, given))


def _some(subject: Subject, cuts: list[tuple[int, Any]]) -> list[tuple[int, Any]]:
    """All the cuts; of a run that was made longer for a setting, some that lie evenly in it."""
    few = SOME // 2 if subject.on_disk else SOME
    return cuts[:: max(1, len(cuts) // few)] if subject.is_long else cuts


def _courses(subject: Subject) -> Iterator[tuple[str, dict[str, Any]]]:
    """The main run, and short ones in which something else matters."""
    few, limit = LIMIT // 2 if subject.on_disk else LIMIT, subject.script["max_steps"]
    yield "a whole run", {}
    for course in WAYS:
        yield course, {**subject.courses[course], "max_steps": min(few, limit)}
    late = dict.fromkeys(subject.script["metrics"], losses(few, first=17))
    yield TENSORS, {"metrics": late, "max_steps": min(few, limit)}


def _cuts(whole: FakeLoop, expected: Answers) -> Iterator[tuple[int, Any]]:
    """The number of each checkpoint and what ``resume=`` takes for it; of several files of one step the last stands."""
    if whole.kept and not hasattr(whole.checkpoints[0], "states"):
        yield from {step: (cut, step) for cut, step in enumerate(expected.cuts)}.values()
    else:
        yield from enumerate(whole.checkpoints[: len(expected.cuts)])


def _resumed(subject: Subject, whole: FakeLoop, source: Any, changed: dict[str, Any]) -> Answers:
    more: dict[str, Any] = {}
    if subject.on_disk:
        more["run_dir"] = subject.folder() / "run"
        shutil.copytree(Path(whole.checkpoints[0].path).parents[1], more["run_dir"])
    return answers(subject.loop(subject.make(), Cuts(), resume=source, **{**changed, **more}))


def _text(subject: Subject, cut: int, step: int, tensor: bool) -> str:
    more = ', metrics=tensors(script["metrics"])' if tensor else ""
    if subject.on_disk:
        return (
            f'folder = Path(mkdtemp())\nwhole = answers(loop(make(), Cuts(){more}, run_dir=folder / "whole"))\n'
            'copytree(folder / "whole", folder / "cut")\n'
            f'found = answers(loop(make(), Cuts(){more}, run_dir=folder / "cut", resume={step}))\n'
            f"assert_same(whole.after({cut}), found.resumed())"
        )
    return (
        f"run = loop(make(), Cuts(){more})\nwhole = answers(run)\n"
        f"found = answers(loop(make(), Cuts(){more}, resume=run.checkpoints[{cut}]))  # of step {step}\n"
        f"assert_same(whole.after({cut}), found.resumed())"
    )


def settings(subject: Subject) -> Finding | None:
    """A setting is no state: the state of a new one is the same whatever it was set to, and a new setting survives it.

    Who resumes with ``patience=5`` in place of 3 means 5. Settings are what the constructor takes; numbers and truths
    among them are tried with other values, where the object keeps them under the argument's name.

    Failed on `StoresItsLimit`, which loads its limit with its count, and on a countdown that starts at the setting.
    """
    if not hasattr(subject.sample, "state_dict") or not hasattr(subject.sample, "load_state_dict"):
        return None
    kind, given = type(subject.sample), arguments_of(subject.sample)
    loaded = _a_state(subject)
    for name, value in variants_of(subject.sample).items():
        plain, other = kind(**given), kind(**{**given, name: value})
        words = {**{key: own for key, own in given.items() if is_literal(own)}, name: value}
        call = f"type(make())(**{words})"
        if repr(plain.state_dict()) != repr(other.state_dict()):
            told = f"with {name}={value!r} the state of a new one is {other.state_dict()}, not {plain.state_dict()}"
            return Finding(told, f"other = {call}\nassert repr(other.state_dict()) == repr(make().state_dict())")
        before = arguments_of(other)
        if loaded is not None and _loads(plain, loaded):
            other.load_state_dict(loaded)
        after = arguments_of(other)
        if lost := [key for key, own in before.items() if repr(after.get(key)) != repr(own)]:
            key = lost[0]
            told = f"made with {key}={before[key]!r} it has {key}={after.get(key)!r} after loading a state"
            return Finding(told, _loading(call, key))
    return None


def _loads(thing: Any, state: Any) -> bool:
    """Whether one with the same settings takes the state at all; else that is what ``resume`` says."""
    try:
        thing.load_state_dict(state)
    except Exception:
        return False
    return True


def _a_state(subject: Subject) -> Any:
    """Its state from the middle of a run; None if there is no checkpoint with it."""
    loop = subject.loop(subject.make(), Cuts())
    answers(loop)
    made = loop.checkpoints
    if not made:
        return None
    name = loop.bus.objects[0][0]
    return made[len(made) // 2].load()["bus"]["callbacks"].get(loop.bus.key_of(name))


def _loading(call: str, where: str) -> str:
    return (
        "run = loop(make(), Cuts())\nanswers(run)\nkey = run.bus.key_of(run.bus.objects[0][0])\n"
        'state = run.checkpoints[len(run.checkpoints) // 2].load()["bus"]["callbacks"][key]\n'
        f"other = {call}\nbefore = vars(other).copy()\nother.load_state_dict(state)\n"
        f'name = "{where}" if "{where}" in before else "_{where}"\nassert vars(other)[name] == before[name]'
    )
