"""What it may not do to others: neither to those on its bus nor to what it is shown."""

from __future__ import annotations

import random
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from ...events import HandlerFailed
from ..crowd import Deliberate
from .standins import AHEAD, BEHIND, Neighbour
from .subject import Finding, Subject
from .trial import answers, difference

if TYPE_CHECKING:
    from ...subscription import Subscription
    from ..fake_loop import FakeLoop

TOUCHING = ("eval_begin", "eval_end", "train_end")


def isolation(subject: Subject) -> Finding | None:
    """Whatever it does, all others are called; a neighbour that raises changes nothing for it; its policy holds.

    One plugin must not be able to take the run's checkpoints, or the log of how it ended, from all the others.

    Failed on `SilencesOthers`, which switches off whoever else hears an event, on one that minds its neighbours'
    failures, and on one that raises SystemExit.
    """
    first, last = Neighbour(priority=AHEAD), Neighbour(priority=BEHIND)
    found = answers(subject.loop(subject.make(), first, last))
    unheard = sorted({*first.heard} ^ {*last.heard})
    if unheard or first.heard[-1:] != last.heard[-1:] or first.heard[-1][0] != "train_end":
        event, step = unheard[0] if unheard else first.heard[-1]
        told = f"at {event} of step {step} a neighbour was not called"
        if not unheard:
            told = f"its neighbours hear nothing after {event} of step {step}"
        return Finding(told + ("" if found.error is None else f" ({found.error!r})"), _listeners())
    return _minds_failures(subject) or _policy(subject)


def _listeners() -> str:
    return (
        f"first, last = Neighbour(priority={AHEAD}), Neighbour(priority={BEHIND})\n"
        "answers(loop(make(), first, last))\n"
        'assert first.heard == last.heard and last.heard[-1][0] == "train_end"'
    )


def _minds_failures(subject: Subject) -> Finding | None:
    """A neighbour that raises against one that is silent: all else is the same."""
    if hasattr(subject.sample, "on_handler_failed") and "handler_failed" in {a.event for a in subject.alone}:
        return None  # that is what it is there for
    silent, raises = (answers(subject.loop(subject.make(), Neighbour(does, AHEAD))) for does in ("silent", "raises"))
    lines = [[str(a) for a in found if a.event != HandlerFailed.name] for found in (silent, raises)]
    if unlike := difference(*lines):
        body = (
            f'silent, raises = (answers(loop(make(), Neighbour(does, {AHEAD}))) for does in ("silent", "raises"))\n'
            'assert_same(silent.lines, [str(a) for a in raises if a.event != "handler_failed"])'
        )
        return Finding(f"with a neighbour that raises, {unlike}", body)
    return None


class _Fault:
    """Raises in place of the first call of a handler of the callback."""

    who: Subscription | None = None
    event = ""

    def __call__(self, who: Subscription, call: Callable[[Any, Any], Any], event: Any, state: Any) -> Any:
        if self.who is None:
            self.who, self.event = who, event.name
            raise Deliberate("injected")
        return call(event, state)


def _policy(subject: Subject) -> Finding | None:
    """Let it raise once, and see what its policy comes to."""
    fault, loop, last = _Fault(), subject.loop(subject.make()), Neighbour(priority=BEHIND)
    loop.bus.attach(last)
    error = answers(loop, around=fault).error
    if fault.who is None or fault.event == "train_end":
        return None
    policy, name = fault.who.failure, fault.who.name
    held = {
        "raise": isinstance(error, Deliberate),
        "stop": loop.result.stopped_by == name,
    }.get(policy, error is None)
    if not held or not any(f.subscription == name for f in loop.bus.failures) or last.heard[-1][0] != "train_end":
        body = (
            "def raises(who, call, event, state):\n    raise Deliberate(who.name)\n\n"
            "run = loop(make())\nfound = answers(run, around=raises)\n"
            "raise AssertionError((found.error, run.result, list(run.bus.failures)))"
        )
        told = f"it raised at {fault.event} under failure={policy!r}: the run ended with {error!r}, {loop.result}"
        return Finding(told, body)
    return None


def changes_nothing(subject: Subject) -> Finding | None:
    """It changes neither the event nor the state that it is given, nor model, optimizer or random states.

    Numbers come from requests, so that everybody sees who made them. The model may be changed by who says so with
    ``touches_model = True``, at eval_begin, eval_end and train_end. A draw from the global random generators changes
    the data that the training sees.

    Failed on `ChangesTheEvent` (``object.__setattr__``), on `SetsTheRateByHand`, on a draw from ``random``, on a model
    that is left in ``eval()`` or frozen, and on an optimizer whose state is cleared.
    """
    if found := changes(subject.loop(subject.make())):
        return Finding(found[0], "found = changes(loop(make()))\nassert not found, found")
    return None


def changes(loop: FakeLoop, who: int = 0) -> list[str]:
    """Run a `FakeLoop` and list what one of its callbacks has changed of what it was shown, one sentence each."""
    found: list[str] = []
    live = {**loop._live, **loop._live.get("bind", {})}

    def around(owner: Subscription, call: Callable[[Any, Any], Any], event: Any, state: Any) -> Any:
        before = _seen(event, state), _live(live)
        answer = call(event, state)
        after = _seen(event, state), _live(live)
        for what in sorted({k for old, new in zip(before, after, strict=True) for k in old if old[k] != new[k]}):
            allowed = what == "the model" and event.name in TOUCHING and getattr(owner.owner, "touches_model", False)
            if not allowed:
                found.append(f"{owner.name} changed {what} at {event.name} of step {state.step}")
        return answer

    answers(loop, who, around)
    return found


def _seen(event: Any, state: Any) -> dict[str, Any]:
    fields = [getattr(event, name, None) for name in getattr(event, "__dataclass_fields__", ())]
    known = {key: (repr(cell.value), cell.step) for key, cell in state.metrics.known()}
    told = [repr(value) for name, value in zip(state._fields, state, strict=True) if name != "metrics"]
    return {"the event": repr(fields), "the state": told, "the metrics": _Grown(known, list(state.metrics))}


class _Grown:
    """Metrics that may be read, which makes numbers of them, and not be changed otherwise."""

    def __init__(self, known: dict[str, Any], names: list[str]) -> None:
        self._known, self._names = known, names

    def __eq__(self, later: object) -> bool:
        if not isinstance(later, _Grown):
            return NotImplemented
        return self._names == later._names and self._known.items() <= later._known.items()

    __hash__ = None  # type: ignore[assignment]  # it is only compared


def _live(live: dict[str, Any]) -> dict[str, Any]:
    """The model, the optimizer's settings and the random states, as values that can be compared."""
    optimizer, model = live.get("optimizer"), live.get("model")
    groups = [{k: repr(v) for k, v in g.items() if k != "params"} for g in getattr(optimizer, "param_groups", ())]
    moments = [_plain(kept) for kept in getattr(optimizer, "state", {}).values()]
    drawn: list[object] = [random.getstate()]
    if (numpy := sys.modules.get("numpy")) is not None:
        _, keys, *place = numpy.random.get_state()
        drawn.append((keys.tobytes(), place))
    if (torch := sys.modules.get("torch")) is not None:
        drawn.append(torch.get_rng_state().numpy().tobytes())
    return {
        "the model": _weights(model),
        "the optimizer's settings": groups,
        "the optimizer's state": moments,
        "a global random state": drawn,
    }


def _plain(kept: Any) -> str:
    """What an optimizer keeps of a parameter, as text."""
    return repr({key: value.tolist() if hasattr(value, "tolist") else value for key, value in kept.items()})


def _weights(model: Any) -> list[Any]:
    if not hasattr(model, "named_parameters"):
        return []
    modes = [(name, module.training) for name, module in model.named_modules()]
    grads = [
        (name, p.requires_grad, None if p.grad is None else repr(p.grad.tolist()))
        for name, p in model.named_parameters()
    ]
    return [*modes, *grads, *((name, repr(value.tolist())) for name, value in model.state_dict().items())]
