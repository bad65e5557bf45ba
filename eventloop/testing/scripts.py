"""Made-up runs and learning-rate plans, written down: `Stream` and `Schedule`."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from ..events import CheckpointSaved, Event, RunFailed, event_class
from ..state import TrainState
from .crowd import Deliberate
from .snippets import Printed, Snippet


@dataclass(frozen=True, repr=False)
class Schedule(Snippet):
    """The plan of a learning rate for one sitting of a run, in the numbers that people write.

    Attributes:
        base: the learning rate of each parameter group by name, as `TrainState.lr` and ``FakeLoop(lr=)`` take it.
        warmup_steps: updates of warmup, one number or one for each group.
        total_steps: the update at which the decay ends; None is the end of the run.
        eta_min: where the decay ends, one number or one for each group; never above the base.
        updates: the update after which this sitting is over, counted from the beginning of the run; the last sitting's
            is the end of the run.
    """

    base: Mapping[str, float] = field(default_factory=lambda: {"group_0": 0.1})
    warmup_steps: int | Mapping[str, int] = 0
    total_steps: int | None = None
    eta_min: float | Mapping[str, float] = 0.0
    updates: int = 0

    @property
    def options(self) -> dict[str, Any]:
        """``warmup_steps``, ``total_steps`` and ``eta_min``, the keywords of a scheduler such as ``WarmupCosine``."""
        return {"warmup_steps": self.warmup_steps, "total_steps": self.total_steps, "eta_min": self.eta_min}


_COUNTERS: Final = {"epoch", "step", "update", "micro", "evals", "skipped"}
_OPENING: Final = {"train_begin", "epoch_begin", "step_begin", "eval_begin", "run_failed"}  # a line of its own
_CLOSING: Final = {"epoch_end", "train_end"}


class Stream(Printed, list[tuple[Event, TrainState]]):
    """A run without a loop: each event with the snapshot that goes with it, written as words.

    A word is the name of an event; behind it stand, as ``name=value``, its fields, counters to set by hand (counted on
    from there), and any other name is a metric reported for its snapshot. ``samples`` at ``step_end`` are those of the
    update, 1 if nothing is said. The counters of the snapshots follow from the events, as in a loop::

        Stream("train_begin epoch_begin step_begin gradients_ready step_end loss=0.5 epoch_end train_end")

    It is a list of (event, state) to publish; where the words break the order of life, so does the list. Its repr is
    the call that makes it again.

    Args:
        words: the run.
        start: the snapshot that it starts from, for learning rates, say.
        broken: how the words break the order of life, if they do; a note, kept as ``broken``.

    Raises:
        ValueError: a word is no event, or stands before any.
        ReplyError: a metric is no number.
    """

    def __init__(self, words: str, start: TrainState = TrainState(), broken: str = "") -> None:  # noqa: B008  # immutable
        self.words, self.start, self.broken = " ".join(words.split()), start, broken
        state = start
        for name, told in _items(self.words):
            event, state = _happened(name, told, state)
            self.append((event, state))

    @property
    def boundaries(self) -> list[int]:
        """Where the run may be cut: each ``i`` such that no update and no evaluation is open between [:i] and [i:]."""
        found, open_scopes = [0], 0
        for i, (event, _) in enumerate(self, 1):
            if event.name in ("step_begin", "eval_begin"):
                open_scopes += 1
            elif event.name in ("step_end", "eval_end"):
                open_scopes -= 1
            if open_scopes == 0 or i == len(self):
                found.append(i)
        return found

    def __repr__(self) -> str:
        more = "" if self.start == TrainState() else f", start={self.start!r}"
        more += f", broken={self.broken!r}" if self.broken else ""
        if len(self.words) <= 70:
            return f"Stream({self.words!r}{more})"
        lines = [""]
        for name, told in _items(self.words):
            lines[-1:] = [lines[-1], ""] if name in _OPENING | _CLOSING and lines[-1] else [lines[-1]]
            lines[-1] += " ".join(["", name, *(f"{key}={value}" for key, value in told.items())])
        text = "\n".join(f"   {line}" for line in lines)
        return f"Stream('''\n{text}\n'''{more})"


def _items(words: str) -> Iterator[tuple[str, dict[str, str]]]:
    """Each event's name with what stands behind it."""
    name, told = "", dict[str, str]()
    for word in words.split():
        key, equals, value = word.partition("=")
        if equals and not name:
            raise ValueError(f"Stream: {word!r} stands before any event; begin with a name such as train_begin")
        if equals:
            told[key] = value
            continue
        if name:
            yield name, told
        name, told = word, {}
    if name:
        yield name, told


def _happened(name: str, told: Mapping[str, str], state: TrainState) -> tuple[Event, TrainState]:
    """The event of that name, and the snapshot with it."""
    kind = event_class(name)
    values = {key: _value(text) for key, text in told.items()}
    own = getattr(kind, "__dataclass_fields__", {})
    options = {key: values.pop(key) for key in own.keys() & values.keys()}
    counters = {key: values.pop(key) for key in _COUNTERS & values.keys()}
    if name == "epoch_begin":
        state = state.begin_epoch()
    elif name == "step_begin":
        state = state.begin_update()
    elif name == "step_end":
        state = state.end_update(skipped=options.get("skipped", False), samples=values.pop("samples", 1))
    elif name == "eval_end" and options.get("completed") is False:
        state = state.with_metrics(state.metrics.aged())
    elif name == "eval_end":
        state, values = state.end_evaluation(values), {}
    state = state.replace(**counters).report(values)
    if kind is CheckpointSaved:
        options = {"path": f"step_{state.step}", "step": state.step, "tags": ("asked",), **options}
    elif kind is RunFailed:
        options = {"error": Deliberate("the loop's own error")}
    return kind(**options), state


def _value(text: str) -> Any:
    if text in ("True", "False"):
        return text == "True"
    for read in (int, float):
        try:
            return read(text)
        except ValueError:
            continue
    return text
