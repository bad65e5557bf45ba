"""A loop of numbers around savers: it publishes, carries out what they ask, and tells of saves as late as you like.

`Savings` is what the loop would do with `Save` and `Keep`; there is no model, so that a test may make many runs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from callbacks import ModelCheckpoint
from eventloop import (
    Bus,
    CheckpointSaved,
    EvalEnd,
    Event,
    HandlerFailed,
    Keep,
    Save,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainState,
)
from eventloop.checkpoint import Checkpoints
from eventloop.scripted import Standing

Scores = Mapping[int, float]


class Savings:
    """Savers on a bus of their own, and the checkpoints that they ask for.

    Args:
        savers: by name.
        root: the folder of checkpoints; None: nothing is written.
        scores: what the evaluation behind each update gives, by step; None: there is none.
        delays: after how many events each save in turn is told of; then at once.
        fails: steps whose save fails.

    Attributes:
        made: the steps saved, with their tags.
        states: the state of the savers behind each update.
    """

    def __init__(
        self,
        savers: Mapping[str, ModelCheckpoint],
        root: Path | None = None,
        scores: Scores | None = None,
        delays: Iterable[int] = (),
        fails: frozenset[int] = frozenset(),
    ):
        self.bus, self.scores, self.delays, self.fails = Bus(failure="raise"), scores or {}, iter(delays), fails
        self.service = Standing("run") if root is None else Checkpoints(root, "run")
        self.made: list[tuple[int, frozenset[str]]] = []
        self.states: list[Any] = []
        self.newest: tuple[int, Any] = (0, {"callbacks": {}, "filters": {}})
        self.before_save: Callable[[], object] = lambda: None
        self._keeps: list[tuple[str, Keep]] = []
        self._saves: dict[str, set[str]] = {}
        self._coming: tuple[CheckpointSaved, bool] | None = None
        self._wait = 0
        for name, saver in savers.items():
            self.bus.attach(saver, name=name)
        self.bus.bind(run_dir=self.service.root.parent, bus=self.bus)
        self.state = TrainState(run_id="run")

    def go_on(self, newest: tuple[int, Any] | None = None) -> None:
        """Begin, or go on from the newest checkpoint of another."""
        self.newest = newest or self.newest
        self.state = self.state.replace(step=self.newest[0], update=self.newest[0])
        self.bus.load_state_dict(self.newest[1])
        self._publish(TrainBegin(resumed=newest is not None))
        self._boundary()

    def updates(self, last: int) -> Iterator[int]:
        """Make updates up to ``last``, yielding behind the boundary of each."""
        while self.state.step < last:
            self.state = self.state.begin_update()
            self._publish(StepBegin())
            self.state = self.state.end_update()
            self._publish(StepEnd())
            if self.state.step in self.scores:
                self.state = self.state.end_evaluation({"score": self.scores[self.state.step]})
                self._publish(EvalEnd())
            self._boundary()
            self.states.append(self.bus.state_dict()["callbacks"])
            yield self.state.step

    def end(self) -> None:
        """Tell of the last save."""
        self._tell()
        self._keep()

    @property
    def standing(self) -> set[int]:
        """The steps of this run's checkpoints that stand."""
        return {c.step for c in self.service.list() if c.run_id == "run"}

    def _publish(self, event: Event) -> None:
        if self._coming is not None:
            self._wait -= 1
            if self._wait <= 0:
                self._tell()
        self._take(event)

    def _take(self, event: Event) -> None:
        for who, request in self.bus.publish(event, self.state).requests:
            if isinstance(request, Keep):
                self._keeps.append((self.bus.key_of(who), request))
            elif isinstance(request, Save):
                self._saves.setdefault(self.bus.key_of(who), set()).add(request.tag)

    def _keep(self) -> None:
        keeps, self._keeps = self._keeps, []
        for who, wish in keeps:
            self.service.keep(who, wish.steps, make_room=wish.make_room)

    def _boundary(self) -> None:
        self._keep()
        if not self._saves:
            return
        self._tell()
        self._keep()
        self.before_save()
        step, asked, self._saves = self.state.step, self._saves, {}
        tags = frozenset(tag for told in asked.values() for tag in told)
        self.made.append((step, tags))
        fails = step in self.fails
        if not fails:
            metrics = {key: self.state.metrics[key] for key in self.state.metrics.fresh}
            self.newest = step, self.bus.state_dict()
            self.service.save(step, {}, asked, metrics).result()
        path = "" if fails else str(self.service.root / f"step-{step:08d}")
        self._coming, self._wait = (CheckpointSaved(path, step, tuple(tags)), fails), next(self.delays, 0)
        if self._wait == 0:
            self._tell()
            self._keep()

    def _tell(self) -> None:
        if self._coming is not None:
            (event, failed), self._coming = self._coming, None
            self._take(HandlerFailed("somebody", event, OSError("disk full")) if failed else event)
