"""What it costs the training: time, and waiting for the device."""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from .subject import Finding, Subject
from .trial import answers
from .wanted import UPDATE, in_log_band

if TYPE_CHECKING:
    from ..fake_loop import FakeLoop

TRIES = 4  # a machine that is busy may be so for one run, and hardly for all of them
OFTEN = 5  # calls that make a median


def budget(subject: Subject) -> Finding | None:
    """A call of a handler takes no longer than its budget: of the calls at one event, the median.

    Handlers run between two updates, and the accelerator waits for them. What comes once a run, such as opening a file
    at train_begin, is not counted; nor is a slow call now and then.

    Failed on `TakesItsTime`, which keeps the training waiting at each step_end.
    """
    for _ in range(TRIES):
        taken = slow_events(subject.loop(subject.make()))
        subject.taken = {event: min(ms, subject.taken.get(event, ms)) for event, ms in taken.items()}
        slow = {event: ms for event, ms in subject.taken.items() if ms > subject.budget_ms}
        if not slow:
            return None
    event, ms = max(slow.items(), key=lambda item: item[1])
    body = f"found = slow_events(loop(make()))\nassert found[{event!r}] <= {subject.budget_ms}, found"
    return Finding(f"at {event} a call takes {ms:.1f} ms, where {subject.budget_ms:g} ms are allowed", body)


def slow_events(loop: FakeLoop, who: int = 0) -> dict[str, float]:
    """Run a `FakeLoop` and give the milliseconds of one callback's median call by event, where it is called often."""
    taken: dict[str, list[float]] = defaultdict(list)

    def around(owner: Any, call: Any, event: Any, state: Any) -> Any:
        begun = time.perf_counter()
        try:
            return call(event, state)
        finally:
            taken[event.name].append(time.perf_counter() - begun)

    answers(loop, who, around)
    return {event: 1000.0 * statistics.median(times) for event, times in taken.items() if len(times) >= OFTEN}


def asks(subject: Subject) -> Finding | None:
    """It asks for no number at an update at which it has nothing to say.

    Reading ``state.metrics[key]`` waits for the device. Say how often that is worth it (``every=`` or ``when=``), take
    ``state.metrics.raw(key)``, or report what you read. Not counted where a filter has called it, nor in the LOG band:
    what a logger has to say is what it writes.

    Failed on `AsksAtEachStep`, which looks for a spike in the loss of every update.
    """
    metrics = subject.script["metrics"]
    wasted, calls = asked(subject.loop(subject.make(), metrics=tensors(metrics)))
    for event, n in wasted.items():
        if 2 * n > calls[event]:
            told = f"at {n} of {calls[event]} calls for {event} it asked for a metric and answered nothing; "
            told += (
                "give it every=... or when=..., let it stand in the LOG band if it is a logger, or skip with a reason"
            )
            body = 'wasted, calls = asked(loop(make(), metrics=tensors(script["metrics"])))\n'
            return Finding(told, body + f"assert 2 * wasted.get({event!r}, 0) <= calls[{event!r}], (wasted, calls)")
    return None


def tensors(metrics: Mapping[str, Any]) -> dict[str, Any]:
    """The same script of metrics, with tensors in place of numbers."""
    import torch

    def as_tensor(series: Any) -> Any:
        def at(turn: int) -> Any:
            value = series(turn) if callable(series) else series
            if isinstance(series, list | tuple):
                value = series[turn - 1] if turn <= len(series) else None
            return None if value is None else torch.tensor(value)

        return at

    return {name: as_tensor(series) for name, series in metrics.items()}


def asked(loop: FakeLoop, who: int = 0) -> tuple[dict[str, int], dict[str, int]]:
    """Run a `FakeLoop` whose metrics are tensors; count, by event, where one callback asked and answered nothing.

    Returns:
        These counts, and of how many calls; those of the events of an update that no filter chose, but in the LOG band.
    """
    wasted: dict[str, int] = defaultdict(int)
    calls: dict[str, int] = defaultdict(int)

    def around(owner: Any, call: Any, event: Any, state: Any) -> Any:
        exempt = owner.filter is not None or owner.when is not None or in_log_band(owner.priority)
        if exempt or event.name not in UPDATE:
            return call(event, state)
        before = len(dict(state.metrics.known()))
        answer = call(event, state)
        calls[event.name] += 1
        wasted[event.name] += answer is None and len(dict(state.metrics.known())) > before
        return answer

    answers(loop, who, around)
    return dict(wasted), dict(calls)
