"""Where the run stands: an immutable snapshot."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Final, NamedTuple

from .errors import ReplyError
from .metrics import NO_METRICS, Cell, Metrics, cells

NO_LR: Final[Mapping[str, float]] = MappingProxyType({})


class _Fields(NamedTuple):
    # A tuple underneath, because CPython builds that cheapest; `progress` keeps a list in this same order.
    run_id: str
    epoch: int
    step: int
    update: int
    micro: int
    samples: int
    evals: int
    skipped: int
    total: int | None
    lr: Mapping[str, float]
    metrics: Metrics
    rank: int
    world: int
    elapsed: float
    held: Mapping[str, float]


class TrainState(_Fields):
    """An immutable snapshot of the run's counters, learning rates and latest metrics.

    Not the model's parameters, as flax uses the word. No handler can change it and reading it never communicates with
    another rank. Every field has a default, so ``TrainState()`` is the state before a run.

    Attributes:
        run_id: one name over all sittings of the run.
        epoch: the epoch in hand, from 1.
        step: finished optimizer updates; 1 at the first step_end.
        update: the update in progress, or the last finished one.
        micro: micro-batches so far.
        samples: samples so far.
        evals: evaluations so far.
        skipped: updates that were begun and skipped.
        total: planned updates, None if not known.
        lr: the learning rate of the current or last update by group name, in plain floats.
        metrics: the latest metrics; see `Metrics`.
        rank: this process, from 0.
        world: how many processes.
        elapsed: seconds over all sittings of the run.
        held: rates asked for outside step_begin, in force from the next step_begin.
    """

    __slots__ = ()

    def __new__(
        cls,
        run_id: str = "",
        epoch: int = 0,
        step: int = 0,
        update: int = 0,
        micro: int = 0,
        samples: int = 0,
        evals: int = 0,
        skipped: int = 0,
        total: int | None = None,
        lr: Mapping[str, float] = NO_LR,
        metrics: Mapping[str, Any] = NO_METRICS,
        rank: int = 0,
        world: int = 1,
        elapsed: float = 0.0,
        held: Mapping[str, float] = NO_LR,
    ) -> TrainState:
        """Check and freeze what is given."""
        if not isinstance(metrics, Metrics):
            metrics = Metrics(checked_cells(metrics, max(step, update)))
        lr, held = (MappingProxyType({str(g): float(rate) for g, rate in rates.items()}) for rates in (lr, held))
        counters = (run_id, epoch, step, update, micro, samples, evals, skipped, total)
        return _new(cls, (*counters, lr, metrics, rank, world, elapsed, held))

    def replace(self, **fields: Any) -> TrainState:
        """The same snapshot with other values in the fields named."""
        return TrainState(**{**self._asdict(), **fields})

    def begin_epoch(self) -> TrainState:
        """The next epoch is in hand."""
        return self.replace(epoch=self.epoch + 1)

    def begin_update(self) -> TrainState:
        """The next update is in hand: held rates come into force, nothing is fresh, unread tensors are let go."""
        fields: list[Any] = [*self[:]]  # a plain tuple, a list, one copy back: the cheapest way to another of these
        fields[_UPDATE] = fields[_STEP] + 1
        fields[_METRICS] = fields[_METRICS].aged()
        if fields[_HELD]:
            fields[_LR], fields[_HELD] = MappingProxyType({**fields[_LR], **fields[_HELD]}), NO_LR
        return _new(TrainState, fields)

    def end_update(self, *, skipped: bool = False, micro: int = 1, samples: int = 0) -> TrainState:
        """The update in hand is finished, or was skipped: then no counter moves but ``skipped`` and the micro-batches.

        Args:
            skipped: no weight was changed.
            micro: micro-batches that went into the update.
            samples: samples in them.
        """
        fields: list[Any] = [*self[:]]
        fields[_SKIPPED if skipped else _STEP] += 1
        fields[_MICRO] += micro
        fields[_SAMPLES] += samples
        return _new(TrainState, fields)

    def end_evaluation(self, metrics: Mapping[str, Any]) -> TrainState:
        """One more evaluation is counted, and exactly these metrics are fresh.

        Raises:
            ReplyError: a value is not one real number.
        """
        fresh = checked_cells(metrics, max(self.step, self.update))
        return _new(TrainState, (*self[:6], self.evals + 1, *self[7:10], self.metrics.evaluated(fresh), *self[11:]))

    def report(self, metrics: Mapping[str, Any] | None = None, /, **more: Any) -> TrainState:
        """With these metrics among the fresh ones.

        Raises:
            ReplyError: a value is not one real number.
        """
        fields: list[Any] = [*self[:]]
        step, update = fields[_STEP], fields[_UPDATE]
        fresh = checked_cells({**metrics, **more} if metrics else more, update if update > step else step)
        fields[_METRICS] = fields[_METRICS].added(fresh)
        return _new(TrainState, fields)

    def with_metrics(self, metrics: Metrics) -> TrainState:
        """With this mapping in place of ``metrics``."""
        fields: list[Any] = [*self[:]]
        fields[_METRICS] = metrics
        return _new(TrainState, fields)

    def with_lr(self, lr: Mapping[str, float], *, held: bool = False) -> TrainState:
        """With these rates, in force at once or ``held`` until the next step_begin."""
        fields: list[Any] = [*self[:]]
        where = _HELD if held else _LR
        fields[where] = MappingProxyType(fields[where] | lr)
        return _new(TrainState, fields)

    def __repr__(self) -> str:
        told: dict[str, Any] = {"step": self.step}
        for name, value, blank in zip(self._fields, self, TrainState(), strict=True):
            if isinstance(value, Mapping):
                if value:  # never compared, for that would ask for numbers
                    told[name] = value if isinstance(value, Metrics) else dict(value)
            elif value != blank:
                told[name] = round(value, 3) if isinstance(value, float) else value
        return f"TrainState({', '.join(f'{name}={value!r}' for name, value in told.items())})"


_new = tuple.__new__
FIELD: Final[Mapping[str, int]] = MappingProxyType({name: i for i, name in enumerate(TrainState._fields)})
_STEP, _UPDATE, _MICRO, _SAMPLES, _SKIPPED = (FIELD[n] for n in ("step", "update", "micro", "samples", "skipped"))
_LR, _METRICS, _HELD = (FIELD[n] for n in ("lr", "metrics", "held"))
COUNTERS: Final = ("update", "step", "epoch", "micro", "samples", "evals", "skipped")


def checked_cells(metrics: Mapping[str, Any], step: int) -> dict[str, Cell]:
    """The metrics as cells.

    Raises:
        ReplyError: a value is not one real number.
    """
    good, bad = cells(metrics, step)
    if bad:
        raise ReplyError("; ".join(bad.values()))
    return good
