"""What ``state_dict`` gives: plain, and no larger than it must be."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from ...checkpoint.codec import pack, unpack
from ...events import StepEnd
from .standins import BEHIND
from .subject import Finding, Subject
from .trial import answers

if TYPE_CHECKING:
    from ..fake_loop import FakeLoop

EVERY = 20  # updates between two looks at the size


def state(subject: Subject) -> Finding | None:
    """Its state is plain JSON plus tensors and NumPy arrays at every moment, and comes back from a file as it went.

    There is no pickle in a checkpoint. ``state_dict`` and ``load_state_dict`` come together; one that raises, or gives
    an object, costs the whole checkpoint.

    What was given stays as it is: a checkpoint may be written later.

    Failed on `KeepsASet`, whose state holds a ``set``, on a ``state_dict`` without its ``load_state_dict``, and on one
    that gives the dict that it goes on changing.
    """
    there = [name for name in ("state_dict", "load_state_dict") if hasattr(subject.sample, name)]
    if len(there) == 1:
        body = 'assert hasattr(make(), "state_dict") == hasattr(make(), "load_state_dict")'
        return Finding(f"it has {there[0]} and not the other", body)
    if there and (faults := state_faults(subject.loop(subject.make()))):
        return Finding(faults[0], "faults = state_faults(loop(make()))\nassert not faults, faults")
    return None


def state_faults(loop: FakeLoop, who: int = 0) -> list[str]:
    """Run a `FakeLoop`, take the state of one callback after each of its calls, and list what is wrong with it."""
    name, thing = loop.bus.objects[who]
    found: list[str] = []
    given: list[tuple[Any, str, str]] = []

    def around(owner: Any, call: Any, event: Any, state: Any) -> Any:
        answer, when = call(event, state), f"after {event.name} of step {state.step}"
        if fault := _fault(name, thing) or _lent(name, given):
            found.append(f"{when}: {fault}")
        else:
            kept = thing.state_dict()
            given[:] = [(kept, _text(name, kept), when)]
        return answer

    if fault := _fault(name, thing):
        return [f"before a run: {fault}"]
    answers(loop, who, around)
    return found


def _fault(name: str, thing: Any) -> str:
    try:
        given = thing.state_dict()
        tensors: dict[str, Any] = {}
        back = unpack(json.loads(json.dumps(pack(given, name, tensors))), tensors)
    except Exception as error:
        return f"{type(error).__name__}: {error}"
    return "" if _equal(given, back) else f"the state is {given!r}, and {back!r} when it comes back"


def _lent(name: str, given: list[tuple[Any, str, str]]) -> str:
    """What is wrong with a state that was given before: it has changed since."""
    for kept, text, when in given:
        if (now := _text(name, kept)) != text:
            return f"the state that it gave {when} was {text} and has become {now}: let state_dict() give a copy"
    return ""


def _text(name: str, kept: Any) -> str:
    """A state without its tensors and arrays, which may be the live ones as they are in PyTorch."""
    return json.dumps(pack(kept, name, {}))


def _equal(one: Any, other: Any) -> bool:
    if isinstance(one, dict) and isinstance(other, dict):
        return one.keys() == other.keys() and all(_equal(value, other[key]) for key, value in one.items())
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(_equal, one, other))
    if hasattr(one, "shape"):
        return bool((one == other).all())
    return bool(one == other or (one != one and other != other))  # NaN is NaN here


def bounded(subject: Subject) -> Finding | None:
    """Its state does not grow with the length of the run.

    It is in every checkpoint. What is needed for ever belongs into a log; means and bests need no history.

    Failed on `KeepsItsHistory`, which stores every loss.
    """
    if not hasattr(subject.sample, "state_dict"):
        return None
    n = 120 if subject.on_disk else 600
    options: dict[str, Any] = {"max_steps": n, "min_steps": n, "updates": 10}
    metrics, evaluations = (dict.fromkeys(subject.script[of], lambda n: 1.0 / n) for of in ("metrics", "evaluations"))
    grown = sizes(subject.loop(subject.make(), metrics=metrics, evaluations=evaluations, **options))
    if _grows(grown):
        told = (
            f"its state has {grown[len(grown) // 2]} bytes after half of a run of {n} updates, {grown[-1]} at its end"
        )
        falling = [f'{of}=dict.fromkeys(script["{of}"], lambda n: 1.0 / n)' for of in ("metrics", "evaluations")]
        words = ", ".join([*falling, *(f"{name}={value}" for name, value in options.items())])
        body = f"found = sizes(loop(make(), {words}))\n"
        return Finding(told, body + "assert found[-1] <= 1.2 * found[len(found) // 2] + 64, found")
    return None


def _grows(grown: list[int]) -> bool:
    return bool(grown) and grown[-1] > 1.2 * grown[len(grown) // 2] + 64


def sizes(loop: FakeLoop, who: int = 0) -> list[int]:
    """Run a `FakeLoop` and give the bytes of the state of one callback, each 20 updates."""
    thing = loop.bus.objects[who][1]
    found: list[int] = []

    def look(event: Any, state: Any) -> None:
        tensors: dict[str, Any] = {}
        text = json.dumps(pack(thing.state_dict(), "state", tensors))
        found.append(len(text) + sum(tensor.numel() * tensor.element_size() for tensor in tensors.values()))

    loop.bus.on(StepEnd, look, every=EVERY, priority=BEHIND, name="sizes")
    answers(loop, who)
    return found
