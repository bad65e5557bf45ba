"""One recorded publish, in the form in which a replay needs it: what the loop gave, and what came back."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any, Final

from ..events import (
    CheckpointSaved,
    EpochBegin,
    EpochEnd,
    EvalBegin,
    EvalEnd,
    EvalStep,
    Event,
    GradientsReady,
    HandlerFailed,
    RunFailed,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainEnd,
)
from ..failures import Failure
from ..fold import Control
from ..metrics import cells
from ..requests import Evaluate, Keep, Reply, Report, Request, Save, SetLR, SkipUpdate, Stop

Row = Mapping[str, Any]


class RecordedEvent(Event):
    """An event of a class of the user's own, known by its name alone."""

    def __init__(self, name: str) -> None:
        self.name = name  # type: ignore[misc]  # one class stands for all of them


class RecordedError(Exception):
    """An error of the recorded run, of which the text is known."""


class RecordedInterrupt(BaseException):
    """What ended the recorded run from outside."""


STEP_BEGIN, GRADIENTS_READY = StepBegin(), GradientsReady()
EVENTS: Final[Mapping[str, Callable[[Row], Event]]] = {
    "train_begin": lambda row: TrainBegin(resumed=row["resumed"]),
    "epoch_begin": lambda row: EpochBegin(),
    "step_begin": lambda row: STEP_BEGIN,
    "gradients_ready": lambda row: GRADIENTS_READY,
    "step_end": lambda row: StepEnd(bool(row["skipped"])),
    "eval_begin": lambda row: EvalBegin(),
    "eval_step": lambda row: EvalStep(row["batch"], row["total"]),
    "eval_end": lambda row: EvalEnd(row.get("completed", True)),
    "epoch_end": lambda row: EpochEnd(row["completed"]),
    "checkpoint_saved": lambda row: CheckpointSaved(),
    "handler_failed": lambda row: HandlerFailed(row["handler"]),
    "run_failed": lambda row: RunFailed(RecordedError(row["error"])),
    "train_end": lambda row: TrainEnd(row["status"], str(row["reason"])),
}
REQUESTS: Final[Mapping[str, Callable[[Any], Request]]] = {
    "Stop": lambda content: Stop(**content) if isinstance(content, Mapping) else Stop(str(content)),
    "SkipUpdate": lambda content: SkipUpdate(str(content)),
    "Save": lambda content: Save(str(content)),
    "Keep": lambda content: (
        Keep(frozenset(content["steps"]), True) if isinstance(content, Mapping) else Keep(frozenset(content))
    ),
    "Evaluate": lambda content: Evaluate(),
    "SetLR": SetLR,
}


MEASURES: Final = ("Report", "SetLR")
"""Requests that change numbers and decide nothing."""


class Moment:
    """One row of what the loop itself published.

    Attributes:
        own: fresh values that the loop's own code gave.
        lr: the rates when the dispatch was over; None where they are those of the moment before.
        asked: ``[who, class name, content]`` of each reply, in order.
        failed: ``[who, event, error, policy]`` of each failure.
        replies: what the stand-ins answer, one for each gap between deciders; empty if nothing.
        folded: whether only numbers came back, and nobody live was there to see them come.
        number: which publish of the record it is.
    """

    __slots__ = (
        "asked",
        "counters",
        "elapsed",
        "event",
        "failed",
        "folded",
        "interrupted",
        "kind",
        "lr",
        "number",
        "own",
        "replies",
        "reported",
        "step",
        "tags",
    )

    def __init__(self, row: Row, lr_before: Mapping[str, float] | None, number: int) -> None:
        name = row["event"]
        self.event = EVENTS[name](row) if name in EVENTS else RecordedEvent(name)
        self.kind = type(self.event)
        self.step: int = row["step"]
        self.number = number
        self.elapsed: float = row["elapsed"]
        counters = row["counters"]
        self.counters = counters["micro"], counters["samples"], counters["total"]
        self.own: dict[str, float] = row.get("metrics", {})
        self.reported: dict[str, float] = row.get("reported", {})
        self.lr: Mapping[str, float] | None = None if row["lr"] == lr_before else row["lr"]
        self.asked: list[list[Any]] = row.get("asked", [])
        self.failed: list[list[str]] = row.get("failed", [])
        self.interrupted = "interrupted" in row
        self.tags: list[str] = row.get("tags", [])
        self.replies: tuple[Control | None, ...] = ()
        self.folded = False

    @property
    def name(self) -> str:
        """The event's name."""
        return self.event.name

    def asks(self, *kinds: str) -> list[list[Any]]:
        """The replies of these request classes."""
        return [asked for asked in self.asked if asked[1] in kinds]

    def alone(self, *, heard: bool) -> bool:
        """Take note that nobody live hears this; True if what was replied then comes down to its numbers.

        Args:
            heard: whether a decider hears the event.
        """
        self.replies = ()
        self.folded = not heard and not self.failed and all(asked[1] in MEASURES for asked in self.asked)
        return self.folded

    def answer(self, order: Mapping[str, int], live: Iterable[str], gaps: int) -> None:
        """Say what the stand-ins will answer.

        Args:
            order: for each handler that is no decider, how many deciders run before it.
            live: the deciders, in running order.
            gaps: one more than deciders that hear this event.
        """
        places = {name: i for i, name in enumerate(live)}
        taken: list[list[list[Any]]] = [[] for _ in range(gaps)]
        for i, at in enumerate(_gaps(self.asked, order, places, gaps - 1)):
            if at is not None:
                taken[at].append(self.asked[i])
        failed: list[list[list[str]]] = [[] for _ in range(gaps)]
        for failure in self.failed:
            if failure[3] == "raise" and failure[0] not in places:
                failed[order.get(failure[0], gaps - 1)].append(failure)
        answers = tuple(self._control(taken[i], failed[i]) if taken[i] or failed[i] else None for i in range(gaps))
        self.replies = answers if any(answer is not None for answer in answers) else ()

    def _control(self, asked: list[list[Any]], failed: list[list[str]]) -> Control:
        """The answer of a gap: requests in the names of those who made them, and what they changed."""
        requests, changes = [], []
        for who, kind, content in asked:
            if kind == "Report":
                values = {name: self.reported[name] for name in content if name in self.reported}
                requests.append(Reply(who, Report(values)))
                if values:
                    changes.append(("metrics", dict(cells(values, self.step)[0])))
            else:
                requests.append(Reply(who, request_of(kind, content)))
                if kind == "SetLR":
                    changes.append(("lr" if self.kind.folds_lr else "held", dict(content)))
        failures = [Failure(who, event, self.step, RecordedError(text), "raise") for who, event, text, _ in failed]
        return Control(requests, failures, changes)


def _gaps(
    asked: list[list[Any]], order: Mapping[str, int], places: Mapping[str, int], last: int
) -> Iterable[int | None]:
    """For each reply the gap between deciders in which it was made; None for a decider's own.

    A decider's own reply tells for certain; else the place of who made it, and replies never change their order.
    """
    ceilings, ceiling = [], last
    for who, *_ in reversed(asked):
        ceiling = min(ceiling, places.get(who, ceiling))
        ceilings.append(ceiling)
    at = 0
    for (who, *_), most in zip(asked, reversed(ceilings), strict=True):
        if who in places:
            at = max(at, places[who] + 1)
            yield None
        else:
            at = min(max(at, order.get(who, at)), most)
            yield at


def request_of(kind: str, content: Any) -> Request:
    """A request again; of a class of the user's own one of the same name with the same fields."""
    if kind in REQUESTS:
        return REQUESTS[kind](content)
    request: Request = type(kind, (Request,), dict(content))()
    return request
