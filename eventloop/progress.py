"""Counters, parameter groups and the snapshot made of them."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final

from .fold import Control
from .metrics import NO_METRICS, Cell, Metrics
from .state import FIELD, NO_LR, TrainState, checked_cells

if TYPE_CHECKING:
    from torch.optim import Optimizer

EPOCH, STEP, UPDATE = FIELD["epoch"], FIELD["step"], FIELD["update"]
MICRO, SAMPLES, EVALS, SKIPPED = FIELD["micro"], FIELD["samples"], FIELD["evals"], FIELD["skipped"]
TOTAL, LR, METRICS, ELAPSED, HELD = (FIELD[n] for n in ("total", "lr", "metrics", "elapsed", "held"))
SAVED: Final = ("run_id", "epoch", "step", "update", "micro", "samples", "evals", "skipped", "total", "elapsed")


class Groups:
    """The parameter groups of one or several optimizers under stable names.

    The name is ``param_group["name"]``, else ``group_0``, ``group_1``; with several optimizers their key stands before
    it, alone if that optimizer has one group without a name.

    Raises:
        ValueError: two groups have one name.
    """

    def __init__(self, optimizers: Mapping[str, Optimizer]) -> None:
        self._optimizers = optimizers
        self._known: list[tuple[Optimizer, Any, int]] = []  # with their lists of groups, and the lengths of these
        self._named: dict[str, dict[str, Any]] = {}
        self._seen: dict[str, Any] = {}  # each group's lr as it was found or written
        self._rates: Mapping[str, float] = NO_LR
        self._name()

    def read(self) -> Mapping[str, float]:
        """The learning rates as they stand, also where the loop's own code has set one or has added a group.

        A tensor is read once; from then on its rate is what was written through `write`.
        """
        for optimizer, groups, count in self._known:
            if optimizer.param_groups is not groups or len(groups) != count:  # load_state_dict makes a new list
                self._name()
                break
        for name, group in self._named.items():
            if group["lr"] is not self._seen[name]:
                self._note(name, group["lr"])
        return self._rates

    def _note(self, name: str, rate: Any) -> None:
        self._seen[name] = rate
        self._rates = MappingProxyType({**self._rates, name: float(rate)})

    def write(self, rates: Mapping[str, float]) -> Mapping[str, float]:
        """Set learning rates; a tensor is filled in place, for compiled code holds on to it. Returns all of them."""
        known = self._rates
        for name, rate in rates.items():
            if rate != known[name]:
                group = self._named[name]
                if group["lr"].__class__ is not float and hasattr(group["lr"], "fill_"):
                    group["lr"].fill_(rate)
                else:
                    group["lr"] = self._seen[name] = rate
        self._rates = rates if len(rates) == len(known) else MappingProxyType({**known, **rates})
        return self._rates

    def parameters(self) -> Iterator[Any]:
        """Every parameter of every group."""
        return (p for group in self._named.values() for p in group["params"])

    def _name(self) -> None:
        self._named = {}
        for key, optimizer in self._optimizers.items():
            for i, group in enumerate(optimizer.param_groups):
                name = "/".join(part for part in (key, self._own_name(key, i, group)) if part)
                if name in self._named:
                    raise ValueError(f"two parameter groups are called {name!r}; give each its own 'name'")
                self._named[name] = group
        self._known = [(o, o.param_groups, len(o.param_groups)) for o in self._optimizers.values()]
        self._rates, self._seen = NO_LR, {}
        for name, group in self._named.items():
            self._note(name, group["lr"])

    def _own_name(self, key: str, i: int, group: Mapping[str, Any]) -> str:
        if "name" in group:
            return str(group["name"])
        return "" if key and len(self._optimizers[key].param_groups) == 1 else f"group_{i}"


class Progress:
    """Where the run stands: a list in the order of `TrainState`'s fields, from which a snapshot is one copy.

    Losses of the window in hand wait here untouched; they are detached when a snapshot is built that shows them.
    """

    def __init__(self, groups: Groups, run_id: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self.groups = groups
        self.fields: list[Any] = list(TrainState(run_id=run_id, lr=groups.read()))
        self.losses: list[Any] = []
        self.in_hand = False  # whether an update is
        self._shown = 0
        self._clock = clock
        self._since = clock()
        self._elapsed_before = 0.0

    @property
    def step(self) -> int:
        """Finished updates."""
        return self.fields[STEP]  # type: ignore[no-any-return]  # a list of mixed fields

    @property
    def epoch(self) -> int:
        """The epoch in hand."""
        return self.fields[EPOCH]  # type: ignore[no-any-return]  # a list of mixed fields

    def snapshot(self) -> TrainState:
        """The state now."""
        fields = self.fields
        if len(self.losses) != self._shown:
            self._show_losses()
        fields[ELAPSED] = self._elapsed_before + self._clock() - self._since
        return tuple.__new__(TrainState, fields)

    def _show_losses(self) -> None:
        losses = self.losses
        self._shown = len(losses)
        value: Any = _kept(losses[0]) if len(losses) == 1 else tuple([_kept(loss) for loss in losses])
        cell = Cell(value, max(self.fields[STEP], self.fields[UPDATE]))
        self.fields[METRICS] = self.fields[METRICS].added({"loss": cell})

    def report(self, metrics: Mapping[str, Any]) -> None:
        """Add metrics of the update in hand.

        Raises:
            ReplyError: a value is not one real number.
        """
        cells = checked_cells(metrics, max(self.fields[STEP], self.fields[UPDATE]))
        self.fields[METRICS] = self.fields[METRICS].added(cells)

    def adopt(self, control: Control, state: TrainState) -> None:
        """Take over what the handlers changed in the snapshot that they were given."""
        last = control.apply(state)
        if last is state:
            return
        self.fields[METRICS], self.fields[HELD] = last.metrics, last.held
        if last.lr is not state.lr:
            self.fields[LR] = self.groups.write(last.lr)

    def begin_update(self) -> None:
        """The next update is in hand: the held rates come into force, nothing is fresh."""
        fields, self.in_hand = self.fields, True
        fields[UPDATE] = fields[STEP] + 1
        if self.losses:
            self.losses, self._shown = [], 0
        metrics: Metrics = fields[METRICS]
        if metrics is not NO_METRICS:
            fields[METRICS] = metrics.aged()
        fields[LR] = self.groups.read()
        if fields[HELD]:
            fields[LR] = self.groups.write(fields[HELD])
            fields[HELD] = NO_LR

    def end_update(self, skipped: bool) -> None:
        """The update in hand is done, or was skipped."""
        self.fields[SKIPPED if skipped else STEP] += 1
        self.in_hand = False

    def forget_fresh(self) -> None:
        """Nothing is fresh: an evaluation was given up."""
        if len(self.losses) != self._shown:
            self._show_losses()
        self.fields[METRICS] = self.fields[METRICS].aged()

    def end_evaluation(self, cells: dict[str, Cell]) -> None:
        """One more evaluation; exactly these metrics are fresh."""
        if len(self.losses) != self._shown:
            self._show_losses()
        self.fields[EVALS] += 1
        self.fields[METRICS] = self.fields[METRICS].evaluated(cells)

    def state_dict(self) -> dict[str, Any]:
        """Counters over all sittings, and the metrics that are known as numbers."""
        state = self.snapshot()
        return {name: getattr(state, name) for name in SAVED} | {
            "metrics": {key: [cell.value, cell.step] for key, cell in state.metrics.known()},
            "held": dict(state.held),
            "lr": dict(state.lr),  # told, never set from here: the optimizer has them
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from there."""
        for name in SAVED:
            self.fields[FIELD[name]] = state[name]
        self._elapsed_before, self._since = state["elapsed"], self._clock()
        old = {key: Cell(float(value), step) for key, (value, step) in state["metrics"].items()}
        self.fields[METRICS] = Metrics(old=old)
        self.fields[LR] = self.groups.read()
        self.fields[HELD] = MappingProxyType(dict(state["held"]))


def _kept(loss: Any) -> Any:
    return float(loss) if isinstance(loss, float | int) else loss.detach()
