"""Stop when a monitored metric no longer improves."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any

from eventloop import Callback, EvalEnd, Priority, Stop, TrainBegin, TrainEnd, TrainState, unwrap

from .arguments import flag, name, not_negative, whole
from .improvement import Improvement, Mode, resolve_mode, say_missing

if TYPE_CHECKING:
    from collections.abc import Mapping


class EarlyStopping(Callback):
    """Asks for a stop at the ``patience``-th evaluation in a row without improvement.

    Each ``eval_end`` that reports ``monitor`` afresh is one evaluation. One that does not is no verdict: the first is
    said in the log. ``best`` moves only at an improvement, so small gains add up against the same reference. NaN and
    inf count as no improvement. A stop that was refused is asked for again at each further evaluation without
    improvement. A fresh run forgets everything, a resumed one goes on counting.

    Args:
        monitor: the metric's name.
        mode: "min" or "max"; may be left out only for "loss" and names that end in "_loss" or "/loss" (then "min").
        patience: a whole number >= 1.
        min_delta: an improvement is more than this.
        min_steps: evaluations before this step move ``best`` but are not counted.
        restore_best: give the model the weights and buffers of the best evaluation back at train_end, however the run
            ended. They are copied to the host at each improvement, and the copy is part of the state.
        strict: a missing ``monitor`` is an error instead of a warning.

    Attributes:
        best: the best value so far, None before the first finite one.
        best_step: the step it was measured at.
        count: evaluations in a row without improvement.
        touches_model: True with ``restore_best``.

    Raises:
        ValueError: an argument is out of range.
    """

    priority = Priority.DECIDE
    failure = "raise"

    def __init__(
        self,
        monitor: str,
        mode: Mode | None = None,
        patience: int = 3,
        min_delta: float = 0.0,
        min_steps: int = 0,
        restore_best: bool = False,
        strict: bool = False,
    ) -> None:
        self.monitor = name(self, "monitor", monitor)
        self.mode = resolve_mode(monitor, mode, self)
        self.patience = whole(self, "patience", patience, 1)
        self.min_delta = not_negative(self, "min_delta", min_delta)
        self.min_steps = whole(self, "min_steps", min_steps)
        self.restore_best = self.touches_model = flag(self, "restore_best", restore_best)
        self.strict = flag(self, "strict", strict)
        self._mode_by_name = mode is None
        self._rule = Improvement(self.mode, self.min_delta)
        self._model: Any = None
        self._forget()

    def _forget(self) -> None:
        self.best: float | None = None
        self.best_step: int | None = None
        self.count = 0
        self._weights: dict[str, Any] | None = None
        self._said_missing = False

    def options(self) -> dict[str, None]:
        """Without ``restore_best`` there is nothing to do at train_end."""
        return {} if self.restore_best else {"train_end": None}

    def bind(self, *, model: Any = None) -> None:
        """Take hold of the model whose weights are to be kept."""
        self._model = None if model is None else unwrap(model)

    def on_train_begin(self, event: TrainBegin, state: TrainState) -> None:
        """A fresh run has no history."""
        if not event.resumed:
            self._forget()
        if self.restore_best and self._model is None:
            raise ValueError("EarlyStopping: restore_best=True needs the model: call bus.bind(model=...) first")
        if self.restore_best and self.best is not None and self._weights is None:
            logging.getLogger("eventloop").warning(
                f"EarlyStopping: restore_best was off when the best {self.monitor} was measured ({self.best:.6g} at "
                f"step {self.best_step}), so its weights are gone: only those of a later best can be given back"
            )

    def on_eval_end(self, event: EvalEnd, state: TrainState) -> Stop | None:
        """Judge one evaluation."""
        if not event.completed:
            return None
        if self.monitor not in state.metrics.fresh:
            if self.strict or not self._said_missing:
                self._said_missing = True
                say_missing(self, self.monitor, event, state, strict=self.strict)
            return None
        value = state.metrics[self.monitor]
        if self._rule.better(value, self.best):
            if self.restore_best:
                self._weights = _host_copy(_tensors(self._model))
            self.best, self.best_step, self.count = value, state.step, 0
        elif state.step >= self.min_steps:
            self.count += 1
            if self.count >= self.patience:
                return Stop(self._reason())
        return None

    def _reason(self) -> str:
        times = "1 evaluation" if self.count == 1 else f"{self.count} evaluations"
        if self.best is None:
            return f"{self.monitor} has not been finite for {times}"
        return f"{self.monitor} has not improved on {self.best:.6g} for {times}"

    def on_train_end(self, event: TrainEnd, state: TrainState) -> None:
        """Give the best weights back."""
        if self._weights is None:
            return
        import torch

        live = _tensors(self._model)
        if gone := sorted(self._weights.keys() - live.keys()):
            raise KeyError(f"EarlyStopping: the model no longer has {', '.join(gone)}; its weights stay as they are")
        with torch.no_grad():
            for key, tensor in self._weights.items():
                live[key].copy_(tensor)

    def summary(self) -> dict[str, Any]:
        """The best, for the run's result."""
        return {"monitor": self.monitor, "best": self.best, "best_step": self.best_step}

    def state_dict(self) -> dict[str, Any]:
        """Best and count; with ``restore_best`` the weights of the best too."""
        state: dict[str, Any] = {"best": self.best, "best_step": self.best_step, "count": self.count}
        return state if self._weights is None else {**state, "weights": dict(self._weights)}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take them back; the limits stay those of this object."""
        self.best, self.best_step, self.count = state["best"], state["best_step"], state["count"]
        weights = state.get("weights") if self.restore_best else None
        self._weights = None if weights is None else _host_copy(weights)

    def describe(self) -> str:
        """The rule in words."""
        facts = [f"{self.monitor} {self.mode}" + (" (by its name)" if self._mode_by_name else "")]
        facts.append(f"patience {self.patience}")
        facts += [f"{word} {value}" for word in ("min_delta", "min_steps") if (value := getattr(self, word))]
        return ", ".join(facts + [word for word in ("restore_best", "strict") if getattr(self, word)])


def _tensors(model: Any) -> dict[str, Any]:
    """Parameters and buffers, those that a state_dict leaves out among them, by name; the live ones."""
    return {**dict(model.named_parameters()), **dict(model.named_buffers())}


def _host_copy(tensors: Mapping[str, Any]) -> dict[str, Any]:
    # New tensors at each best: a checkpoint that is being written may still hold the last ones.
    return {key: tensor.detach().to("cpu", copy=True) for key, tensor in tensors.items()}
