"""Learning-rate schedules: replies to step_begin, from the number of the update that opens."""

from __future__ import annotations

import logging
import math
from collections.abc import Callable, Mapping
from typing import Any, Final, TypeVar

from eventloop import Callback, Priority, SetLR, StepBegin, TrainBegin, TrainState

from .arguments import not_negative, whole
from .optimizers import param_groups

N = TypeVar("N", int, float)
UNPLANNED: Final = 0  # no plan has 0 updates at a step_begin


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


class WarmupCosine(Callback):
    """Linear warmup, then cosine annealing, by update: see `warmup_cosine` for the formula.

    Each parameter group has its own base: its learning rate when a fresh run begins, kept as state. On resume that base
    counts, unless the script now builds its optimizer with another one: then the script's does. To tell, ``bind`` notes
    the rates of the optimizer as built, so it comes before the optimizer's own state is loaded; `Loop` sees to that. Of
    an optimizer that was restored before, the rate last set here is recognised, and never taken for a base. A group
    added in mid-run is scheduled from then on, its own rate being its base.

    Args:
        warmup_steps: updates of warmup; one number, or one for each group by name.
        total_steps: the update at which the cosine ends; None is the end of the plan, ``state.total``.
        eta_min: where the cosine ends; one number, or one for each group by name.

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
    ) -> None:
        self.warmup_steps = self._checked("warmup_steps", warmup_steps, whole)
        self.total_steps = None if total_steps is None else whole(self, "total_steps", total_steps, 1)
        self.eta_min = self._checked("eta_min", eta_min, not_negative)
        if self.total_steps is not None:
            warmups = self.warmup_steps.values() if isinstance(self.warmup_steps, Mapping) else [self.warmup_steps]
            self._check_total(max(warmups, default=0), self.total_steps)
        self._script: list[float] = []  # base rates by the script, in the optimizer's order
        self._bases: dict[str, float] = {}
        self._last: tuple[int, dict[str, float]] = 0, {}  # the update that rates were set for, and these
        self._unplan(compare=False)

    def _unplan(self, compare: bool) -> None:
        self._curves: dict[str, tuple[float, int, float]] = {}  # base, warmup and eta_min by group
        self._total = UNPLANNED
        self._compare = compare  # whether the last rates were set by an earlier sitting

    def bind(self, *, optimizer: Any = None) -> None:
        """Note the base rates that the script gave its optimizer."""
        self._script = [float(group.get("initial_lr", group["lr"])) for group in param_groups(optimizer)]

    def on_train_begin(self, event: TrainBegin, state: TrainState) -> None:
        """Settle the base of each group."""
        self._unplan(compare=event.resumed)
        if event.resumed:
            self._heed_script(state.lr)
        else:
            self._bases, self._last = {}, (0, {})
        self._shape(state.lr)

    def on_step_begin(self, event: StepBegin, state: TrainState) -> SetLR:
        """Set the rates of the update that opens."""
        if state.lr.keys() != self._curves.keys() or not self._curves:
            self._shape(state.lr)
        total = state.total if self.total_steps is None else self.total_steps
        if total is None or total != self._total:
            total = self._plan(total)
        n = state.update
        rates = {
            group: warmup_cosine(n, base, warmup, total, eta_min)
            for group, (base, warmup, eta_min) in self._curves.items()
        }
        self._last = n, rates
        return SetLR(rates)

    def _heed_script(self, current: Mapping[str, float]) -> None:
        if len(self._script) != len(current):
            return  # never bound, or to other groups than these
        _, last = self._last
        for (group, rate), base in zip(current.items(), self._script, strict=True):
            if not base == rate == last.get(group):  # else an optimizer that was restored before it was bound
                self._bases[group] = base

    def _shape(self, current: Mapping[str, float]) -> None:
        """Give each group its curve."""
        self._bases = {**current, **self._bases}
        self._curves = {}
        for group in current:
            base, warmup = self._bases[group], self._of("warmup_steps", group, self.warmup_steps)
            eta_min = self._of("eta_min", group, self.eta_min)
            if eta_min > base:
                raise ValueError(
                    f"WarmupCosine: eta_min={eta_min!r} is above the base learning rate {base!r} of group {group!r}; "
                    f"a decay must end at or below where it begins"
                )
            self._curves[group] = base, warmup, eta_min

    def _plan(self, total: int | None) -> int:
        """Settle where the curves end."""
        if not self._curves:
            raise ValueError("WarmupCosine: state.lr names no group: begin with TrainState(lr={'group_0': 0.1})")
        if total is None:
            raise ValueError(
                "WarmupCosine: total_steps=None, and the length of the run is not known (state.total is None): "
                "give total_steps, or give the run a limit"
            )
        self._check_total(max(warmup for _, warmup, _ in self._curves.values()), total)
        self._total = total
        if self._compare:
            self._say_jump(total)
        return total

    def _say_jump(self, total: int) -> None:
        self._compare = False
        n, last = self._last
        for group in self._curves.keys() & last.keys():
            base, warmup, eta_min = self._curves[group]
            now = warmup_cosine(n, base, warmup, total, eta_min)
            if not math.isclose(now, last[group], rel_tol=1e-9):
                logging.getLogger("eventloop").warning(
                    f"WarmupCosine: another curve than before the resume: update {n} had {last[group]:.6g} in group "
                    f"{group!r} and would now have {now:.6g} (base {base:.6g}, eta_min {eta_min:.6g}, warmup {warmup}, "
                    f"total {total}); the present settings count"
                )

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

    def state_dict(self) -> dict[str, Any]:
        """The base of each group, and the rates last set, for telling a restored optimizer from a new one."""
        update, rates = self._last
        return {"bases": dict(self._bases), "update": update, "rates": dict(rates)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take them back."""
        self._bases = {group: float(base) for group, base in state["bases"].items()}
        self._last = int(state["update"]), {group: float(rate) for group, rate in state["rates"].items()}
        self._unplan(compare=True)

    def describe(self) -> str:
        """The curve in words."""
        end = "the end of the plan" if self.total_steps is None else f"update {self.total_steps}"
        return f"linear warmup over {self.warmup_steps} updates, cosine to {self.eta_min} at {end}"


CosineAnnealingWithWarmup = WarmupCosine
