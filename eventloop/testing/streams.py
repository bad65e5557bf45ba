"""Whole runs for tests without a loop, right or broken in one known way, and where a run may be cut."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, Literal, get_args

from hypothesis import assume
from hypothesis import strategies as st

from ..state import TrainState
from .scripts import Stream
from .strategies import metric_values

Breach = Literal["dropped", "doubled", "swapped", "unended", "late", "back"]
_GOES_ON: Final = ("done", "done", "evaluated", "saved", "skipped")  # what may come of an update
_ENDS: Final = ("left", "left open", "raised")
BREACHES: Final[tuple[Breach, ...]] = get_args(Breach)


@st.composite
def event_streams(
    draw: st.DrawFn,
    max_epochs: int = 3,
    max_updates: int = 4,
    evaluates: bool = True,
    *,
    broken: bool | Sequence[Breach] = False,
    start: TrainState = TrainState(),  # noqa: B008  # immutable
) -> Stream:
    """A run as a list of (event, state), such as a loop would publish it: completed, stopped or failed anywhere.

    Every begin has its end, an exception apart: after that only ``run_failed`` and ``train_end`` follow. An update may
    be skipped; a run that is left in the middle ends its open update and epoch first. ``loss`` is reported at
    ``step_end``, ``eval_loss`` at ``eval_end``, each now and then missing.

    A broken one breaks this order in one way, which ``stream.broken`` says, its first word being one of these: a begin
    is ``dropped``; any event ``doubled``; two neighbours ``swapped``; a begin ``unended``, its end missing; an event
    ``late``, after train_end; the step, epoch or evals of a snapshot going ``back``. Counters follow what is published.

    Args:
        draw: hypothesis gives it.
        max_epochs: the most epochs.
        max_updates: the most updates in an epoch.
        evaluates: whether each epoch that is completed ends with an evaluation, and some updates too.
        broken: whether it is broken, or the ways to choose from.
        start: the snapshot that the run starts from: give it learning rates, and ``total``, for a scheduler.
    """
    run = _Run(draw, evaluates)
    run.items.append("train_begin")
    try:
        for _ in range(draw(st.integers(0, max_epochs))):
            run.epoch(draw(st.integers(1, max_updates)))
        status = "completed"
    except _Left:
        status = draw(st.sampled_from(["stopped", "interrupted", "preempted"]))
    except _Raised:
        run.items.append("run_failed")
        status = "failed"
    run.items.append("train_end" if status == "completed" else f"train_end status={status}")
    if not broken:
        return Stream(" ".join(run.items), start)
    return _broken(draw, run.items, start, BREACHES if broken is True else broken)


class _Left(Exception):  # noqa: N818  # the run is left, as by a break
    pass


class _Raised(Exception):  # noqa: N818  # the loop's own code raised
    pass


class _Run:
    """Draws the words of a run, one item for each event."""

    def __init__(self, draw: st.DrawFn, evaluates: bool) -> None:
        self._draw, self._evaluates = draw, evaluates
        self._fates = draw(
            st.sampled_from([_GOES_ON, (*_GOES_ON, *_ENDS), (*_GOES_ON, "raised")])
        )  # else few runs would be long
        self.items: list[str] = []

    def _add(self, name: str, **told: Any) -> None:
        self.items.append(" ".join([name, *(f"{key}={value!r}" for key, value in told.items() if value is not None)]))

    def epoch(self, updates: int) -> None:
        self._add("epoch_begin")
        try:
            for _ in range(updates):
                self._update()
        except _Left:
            self._add("epoch_end", completed=False)
            raise
        if self._evaluates:
            self._evaluation()
        self._add("epoch_end")

    def _update(self) -> None:
        self._add("step_begin")
        fate = self._draw(st.sampled_from(self._fates))
        if fate == "raised":
            raise _Raised
        if fate != "left open":
            self._add("gradients_ready")
        samples, loss = self._draw(st.integers(1, 64)), self._draw(st.none() | metric_values())
        skipped = True if fate in ("skipped", "left open") else None
        self._add("step_end", skipped=skipped, samples=None if samples == 1 else samples, loss=loss)
        if fate in ("left", "left open"):
            raise _Left
        if fate == "saved":
            self._add("checkpoint_saved")
        elif fate == "evaluated" and self._evaluates:
            self._evaluation()

    def _evaluation(self) -> None:
        self._add("eval_begin")
        self._add("eval_end", eval_loss=self._draw(st.none() | metric_values()))


def _broken(draw: st.DrawFn, items: list[str], start: TrainState, ways: Sequence[Breach]) -> Stream:
    """The run with one breach, at a place where it is one: a checkpoint may be saved anywhere."""
    names = [item.split()[0] for item in items]
    fixed = [i for i, name in enumerate(names) if name != "checkpoint_saved"]
    counted = _counted(items, start)
    places: dict[Breach, list[int]] = {
        # of an update in which the loop's own code raised, only the begin is there; without it nothing is missing
        "dropped": [i for i in fixed if names[i].endswith("_begin") and names[i + 1 : i + 2] != ["run_failed"]],
        "doubled": fixed,
        "swapped": [i for i in fixed if i + 1 in fixed],
        "unended": [i for i in fixed if names[i].endswith("_end")],
        "late": [len(items)],
        "back": sorted(counted),
    }
    possible = [way for way in ways if places[way]]
    assume(possible)
    way = draw(st.sampled_from(possible))
    i = draw(st.sampled_from(places[way]))
    return _with_breach(draw, way, i, list(items), counted.get(i, {}), start)


def _with_breach(
    draw: st.DrawFn, way: Breach, i: int, items: list[str], counters: dict[str, int], start: TrainState
) -> Stream:
    if way in ("dropped", "unended"):
        what = items.pop(i)
    elif way == "doubled":
        what = items[i]
        items.insert(i, what)
    elif way == "swapped":
        what = items[i]
        items[i : i + 2] = items[i + 1], what
    elif way == "late":
        what = draw(st.sampled_from(["step_begin", "step_end", "eval_end", "epoch_end", "train_end"]))
        items.append(what)
    else:
        what = draw(st.sampled_from(sorted(counters)))
        items[i] += f" {what}={draw(st.integers(0, counters[what] - 1))}"
    return Stream(" ".join(items), start, f"{way}: {what.split()[0]} at {i}")


def _counted(items: list[str], start: TrainState) -> dict[int, dict[str, int]]:
    """For each event the counters that its snapshot can have less of than the one before, with their values there."""
    stream, found = Stream(" ".join(items), start), {}
    for i, (_, before) in enumerate(stream[:-1], 1):
        own = getattr(stream[i][0], "step", None)  # a word step= is the event's own where it has such a field
        names = ("epoch", "evals") if own is not None else ("step", "epoch", "evals")
        if counters := {name: getattr(before, name) for name in names if getattr(before, name)}:
            found[i] = counters
    return found


def cut_points(of: int | Stream, *, min_cuts: int = 1, max_cuts: int = 3) -> st.SearchStrategy[list[int]]:
    """Where a run is cut and resumed, in order: one place or several, its beginning and its end among them.

    Of a number of updates the places are numbers of finished updates, from 0 to it; of a stream its ``boundaries``:
    between updates, around evaluations, at the ends of epochs. Draw both together with
    ``event_streams().flatmap(lambda s: st.tuples(st.just(s), cut_points(s)))``.

    Args:
        of: how many updates the run has, or the run.
        min_cuts: the fewest cuts.
        max_cuts: the most cuts; fewer if there are not so many places.

    Raises:
        ValueError: the run has fewer places than ``min_cuts``.
    """
    places = list(range(of + 1)) if isinstance(of, int) else of.boundaries
    if len(places) < min_cuts:
        raise ValueError(f"cut_points: min_cuts={min_cuts}, but the run has only the places {places}")
    some = st.sampled_from([places[0], places[-1]]) | st.sampled_from(places)
    return st.lists(some, min_size=min_cuts, max_size=min(max_cuts, len(places)), unique=True).map(sorted)
