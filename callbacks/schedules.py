"""Learning-rate schedules: replies to step_begin, from the number of the update that opens."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple, TypeVar

from eventloop import Callback, Priority, SetLR, StepBegin, TrainBegin, TrainState

from .arguments import not_negative, one_of, whole
from .optimizers import param_groups

N = TypeVar("N", int, float)
UNPLANNED: Final = 0  # no plan has 0 updates at a step_begin
ON_CHANGE: Final = ("follow", "keep", "rewarm")


def warmup_cosine(n: int, base: float, warmup: int, total: int, eta_min: float) -> float:
    """The learning rate of update ``n`` (the first is 1): linear up to ``base``, then a half cosine to ``eta_min``.

    Update ``warmup`` and the one after it use ``base`` (without a warmup: update 1); after ``total`` it stays
    ``eta_min``; a run that ends before ``total`` ends above it. Never above ``base``. The cosine is equation 5 of
    Loshchilov and Hutter, SGDR (arXiv:1608.03983), one period of it; the linear warmup is that of Goyal et al.
    (arXiv:1706.02677), begun at base/warmup, for an update with a rate of 0 is spent for nothing.
    """
    if warmup > 0 and n <= warmup:
        return base * (n / warmup)
    if n > total:  # also where total equals warmup, so that there is no decay to divide by
        return eta_min
    p = max(n - 1 - warmup, 0) / (total - warmup)
    return min(eta_min + (base - eta_min) * (1 + math.cos(math.pi * p)) / 2, base)  # rounding may overshoot


class Curve(NamedTuple):
    """The whole course of one group's learning rate."""

    base: float
    warmup: int
    total: int
    eta_min: float

    def at(self, n: int) -> float:
        """The rate of an update."""
        return warmup_cosine(n, *self)

    def __str__(self) -> str:
        return f"base {self.base:.6g}, eta_min {self.eta_min:.6g}, warmup {self.warmup}, total {self.total}"


class Ramp(NamedTuple):
    """The way back to a curve after a resume: ``steps`` updates after update ``after``, which had ``rate``."""

    after: int
    rate: float
    steps: int

    def at(self, n: int, curve: Curve) -> float:
        """The rate of an update: on the straight line to where the curve will be, then on the curve."""
        if n >= self.after + self.steps:
            return curve.at(n)
        return self.rate + (curve.at(self.after + self.steps) - self.rate) * ((n - self.after) / self.steps)


class WarmupCosine(Callback):
    """Linear warmup, then cosine annealing, by update: see `warmup_cosine` for the formula.

    Each parameter group has its own base: its learning rate when a fresh run begins, kept as state. On resume that base
    counts, unless the script now builds its optimizer with another one: then the script's does. To tell, ``bind`` notes
    the rates of the optimizer as built, so it comes before the optimizer's own state is loaded; `Loop` sees to that. Of
    an optimizer that was restored before, the rate last set here is recognised, and never taken for a base. A group
    added in mid-run is scheduled from then on, its own rate being its base.

    On resume the curve may be another than the checkpoint's: another total, warmup, base or ``eta_min``.
    ``on_change`` says what then counts, and the log says what came of it.

    Args:
        warmup_steps: updates of warmup; one number, or one for each group by name.
        total_steps: the update at which the cosine ends; None is the end of the plan, ``state.total``.
        eta_min: where the cosine ends; one number, or one for each group by name.
        on_change: "follow": the new curve at once; "keep": the checkpoint's curve to its end, then its ``eta_min``;
            "rewarm": a straight line from the rate in use to the new curve, over ``warmup_steps`` updates.

    Raises:
        ValueError: an argument is out of range; at train_begin or the first step_begin where that depends on the
            groups or on the plan.
    """

    priority = Priority.SCHEDULE
    failure = "raise"

    def __init__(
        self,
        warmup_steps: int | Mapping[str, int],
        total_steps: int | None = None,
        eta_min: float | Mapping[str, float] = 0.0,
        on_change: str = "follow",
    ) -> None:
        self.warmup_steps = self._checked("warmup_steps", warmup_steps, whole)
        self.total_steps = None if total_steps is None else whole(self, "total_steps", total_steps, 1)
        self.eta_min = self._checked("eta_min", eta_min, not_negative)
        if self.total_steps is not None:
            warmups = self.warmup_steps.values() if isinstance(self.warmup_steps, Mapping) else [self.warmup_steps]
            self._check_total(max(warmups, default=0), self.total_steps)
        self.on_change = one_of(self, "on_change", on_change, ON_CHANGE)
        self._script: list[float] = []  # base rates by the script, in the optimizer's order
        self._bases: dict[str, float] = {}
        self._last: tuple[int, dict[str, float]] = 0, {}  # the update that rates were set for, and these
        self._before: dict[str, Curve] = {}  # the checkpoint's curves
        self._ramps: dict[str, Ramp] = {}
        self._unplan(compare=False)

    def _unplan(self, compare: bool) -> None:
        self._curves: dict[str, Curve] = {}
        self._wanted: dict[str, Curve] = {}  # by the settings; `_curves` differ from these where they are kept
        self._total = UNPLANNED
        self._compare = compare  # whether the last rates were set by an earlier sitting
        self._old_ramps = dict(self._ramps)

    def bind(self, *, optimizer: Any = None) -> None:
        """Note the base rates that the script gave its optimizer."""
        self._script = [float(group.get("initial_lr", group["lr"])) for group in param_groups(optimizer)]

    def on_train_begin(self, event: TrainBegin, state: TrainState) -> None:
        """Settle the base of each group."""
        self._unplan(compare=event.resumed)
        if event.resumed:
            self._heed_script(state.lr)
        else:
            self._bases, self._last, self._before, self._ramps = {}, (0, {}), {}, {}
        self._check_groups(state.lr)

    def on_step_begin(self, event: StepBegin, state: TrainState) -> SetLR:
        """Set the rates of the update that opens."""
        total = state.total if self.total_steps is None else self.total_steps
        if state.lr.keys() != self._curves.keys() or total is None or total != self._total:
            self._plan(state.lr, total)
        n = state.update
        if self._compare:
            self._settle_change(n)
        rates = {group: self._rate(group, n) for group in self._curves}
        self._last = n, rates
        return SetLR(rates)

    def _rate(self, group: str, n: int) -> float:
        curve, ramp = self._curves[group], self._ramps.get(group)
        return curve.at(n) if ramp is None else ramp.at(n, curve)

    def _heed_script(self, current: Mapping[str, float]) -> None:
        if len(self._script) != len(current):
            return  # never bound, or to other groups than these
        _, last = self._last
        for (group, rate), base in zip(current.items(), self._script, strict=True):
            if not base == rate == last.get(group):  # else an optimizer that was restored before it was bound
                self._bases[group] = base

    def _check_groups(self, current: Mapping[str, float]) -> dict[str, int]:
        """Settle the base of each group, which no floor may be above, and give the warmups."""
        self._bases = {**current, **self._bases}
        for group in current:
            base, eta_min = self._bases[group], self._of("eta_min", group, self.eta_min)
            if eta_min > base:
                raise ValueError(
                    f"WarmupCosine: eta_min={eta_min!r} is above the base learning rate {base!r} of group {group!r}; "
                    f"a decay must end at or below where it begins"
                )
        return {group: self._of("warmup_steps", group, self.warmup_steps) for group in current}

    def _plan(self, current: Mapping[str, float], total: int | None) -> None:
        """Give each group its curve."""
        if not current:
            raise ValueError("WarmupCosine: state.lr names no group: begin with TrainState(lr={'group_0': 0.1})")
        warmups = self._check_groups(current)
        if total is None:
            raise ValueError(
                "WarmupCosine: total_steps=None, and the length of the run is not known (state.total is None): "
                "give total_steps, or give the run a limit"
            )
        self._check_total(max(warmups.values()), total)
        self._total = total
        self._wanted = {
            group: Curve(self._bases[group], warmups[group], total, self._of("eta_min", group, self.eta_min))
            for group in current
        }
        kept = self._before if self.on_change == "keep" else {}
        self._curves = {group: kept.get(group, curve) for group, curve in self._wanted.items()}

    def _settle_change(self, n: int) -> None:
        """The first update after a resume: go on with the curve of the settings, or with that of the checkpoint."""
        self._compare = False
        update, last = self._last
        for group, wanted in self._wanted.items():
            if group not in last or self._before.get(group, wanted) == wanted:
                continue
            rate = last[group]
            if self.on_change == "keep":
                told = (
                    f"group {group!r} keeps that of the checkpoint ({self._before[group]}), not the one set ({wanted})"
                )
            elif self.on_change == "rewarm" and wanted.warmup:
                self._ramps[group] = Ramp(n - 1, rate, wanted.warmup)
                end = n - 1 + wanted.warmup
                told = (
                    f"group {group!r} goes from {rate:.6g} in a straight line to {wanted.at(end):.6g} at update {end}, "
                    f"then on the curve that is set ({wanted})"
                )
            else:
                self._ramps.pop(group, None)
                now = wanted.at(update)
                if math.isclose(now, rate, rel_tol=1e-9):
                    continue
                told = (
                    f"update {update} had {rate:.6g} in group {group!r} and would now have {now:.6g} ({wanted}); the "
                    f"present settings count"
                )
            logging.getLogger("eventloop").warning(f"WarmupCosine: another curve than before the resume: {told}")

    def _check_total(self, warmup: int, total: int) -> None:
        if warmup > total:
            raise ValueError(f"WarmupCosine: warmup_steps={warmup} is more than the {total} updates of the whole curve")

    def _checked(
        self, argument: str, value: N | Mapping[str, N], check: Callable[[object, str, N], N]
    ) -> N | dict[str, N]:
        if not isinstance(value, Mapping):
            return check(self, argument, value)
        return {str(group): check(self, f"{argument}[{group!r}]", one) for group, one in value.items()}

    def _of(self, argument: str, group: str, value: N | Mapping[str, N]) -> N:
        if not isinstance(value, Mapping):
            return value
        if group not in value:
            raise ValueError(f"WarmupCosine: {argument} has no value for group {group!r}, only for {', '.join(value)}")
        return value[group]

    def planned_before(self, update: int) -> dict[str, float]:
        """The rate that the plan in the checkpoint has for an update, by group; nothing in a fresh run."""
        return {
            group: self._old_ramps[group].at(update, curve) if group in self._old_ramps else curve.at(update)
            for group, curve in self._before.items()
        }

    def state_dict(self) -> dict[str, Any]:
        """The base of each group, its curve, its way back to it, and the rate last set."""
        update, rates = self._last
        return {
            "bases": dict(self._bases),
            "update": update,
            "rates": dict(rates),
            "curves": {group: list(curve) for group, curve in (self._curves or self._before).items()},
            "ramps": {group: list(ramp) for group, ramp in self._ramps.items()},
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        self._bases = {group: float(base) for group, base in state["bases"].items()}
        self._last = int(state["update"]), {group: float(rate) for group, rate in state["rates"].items()}
        self._before = {group: Curve(*curve) for group, curve in state["curves"].items()}
        self._ramps = {group: Ramp(*ramp) for group, ramp in state["ramps"].items()}
        self._unplan(compare=True)

    def describe(self) -> str:
        """The curve in words."""
        end = "the end of the plan" if self.total_steps is None else f"update {self.total_steps}"
        return f"linear warmup over {self.warmup_steps} updates, cosine to {self.eta_min} at {end}"


CosineAnnealingWithWarmup = WarmupCosine
