"""Who else takes part in the runs of the checks: a saver, what stands for the training, neighbours on the bus."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Final, Literal

from ...callback import Answer
from ...events import Event, GradientsReady, HandlerFailed, StepEnd
from ...requests import Report, Save
from ...state import TrainState
from ..crowd import Deliberate, MadeUpEvent

SCRIPTED: Final = ("scripted",)
"""The arguments of an error that a script raises."""
BEHIND: Final = -1_000_000
AHEAD: Final = 1_000_000
Does = Literal["silent", "reports", "publishes", "raises"]


class Cuts:
    """Asks for a checkpoint wherever a run may be cut, and stands behind all others."""

    priority = BEHIND

    def on_train_begin(self, event: Event, state: TrainState) -> None:
        """A run begins, or goes on."""

    def on_step_end(self, event: Event, state: TrainState) -> Save:
        """A cut."""
        return Save("cut")

    on_eval_end = on_epoch_end = on_step_end

    def on_checkpoint_saved(self, event: Event, state: TrainState) -> None:
        """The cut is made: what comes from now on comes after it."""


class Training:
    """Stands for the training of a model: gradients at gradients_ready, other weights at step_end."""

    priority = AHEAD

    def bind(self, *, model: Any, optimizer: Any = None) -> None:
        """Take hold of the model, and of its optimizer if there is one."""
        self._model, self._optimizer = model, optimizer

    def on_gradients_ready(self, event: GradientsReady, state: TrainState) -> None:
        """The gradients of this update are there."""
        import torch

        for parameter in self._model.parameters():
            parameter.grad = torch.full_like(parameter, 1.0 / state.update)

    def on_step_end(self, event: StepEnd, state: TrainState) -> None:
        """The weights have moved, unless the update was skipped."""
        import torch

        steps = hasattr(self._optimizer, "step")
        if steps and not event.skipped:
            self._optimizer.step()
        with torch.no_grad():
            for parameter in self._model.parameters():
                if not steps and not event.skipped and parameter.grad is not None:
                    parameter -= 0.1 * parameter.grad
                parameter.grad = None


def small_model(*, optimizer: bool = False) -> dict[str, Any]:
    """A model of three weights, and its optimizer if asked for, as the keywords of a `FakeLoop`."""
    import torch

    model = torch.nn.ParameterDict({"weight": torch.tensor([[1.0, 2.0]]), "bias": torch.tensor([3.0])})
    if not optimizer:
        return {"model": model}
    return {"model": model, "optimizer": torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)}


def as_options(bind: Mapping[str, Any] | Callable[[], Mapping[str, Any]] | None) -> dict[str, Any]:
    """Live objects, or the function that makes them, as the keywords of a `FakeLoop`."""
    given = dict(bind() if callable(bind) else bind or {})
    own: dict[str, Any] = {name: given.pop(name) for name in ("model", "optimizer") if name in given}
    return {**own, "bind": given} if given else own


class Neighbour:
    """Another subscriber, which hears every event and never minds.

    Args:
        does: at each event: nothing, report a key of its own, publish an event of its own, or raise.
        priority: its place.

    Attributes:
        heard: the name and step of each event.
    """

    def __init__(self, does: Does = "silent", priority: int = 0) -> None:
        self.does, self.priority = does, priority
        self.heard: list[tuple[str, int]] = []
        self._bus: Any = None

    def bind(self, *, bus: Any) -> None:
        """Take hold of the bus, to publish on it."""
        self._bus = bus

    def on_event(self, event: Event, state: TrainState) -> Answer:
        """Do it."""
        if isinstance(event, HandlerFailed | MadeUpEvent):
            return None  # of its own doing
        self.heard.append((event.name, state.step))
        if self.does == "raises":
            raise Deliberate("a neighbour")
        if self.does == "publishes":
            self._bus.dispatch(MadeUpEvent(), state)
        return Report({f"neighbour/{self.priority}": float(state.step)}) if self.does == "reports" else None


class Peer:
    """Another subscriber of the same bands: it stands at the places given and reports a key of its own there.

    Args:
        places: a priority by the name of the event.
    """

    def __init__(self, places: Mapping[str, int]) -> None:
        self._places = dict(places)
        for event in places:
            setattr(self, f"on_{event}", self._report)

    def _report(self, event: Event, state: TrainState) -> Report:
        return Report({"peer": float(state.step)})

    def options(self) -> dict[str, dict[str, Any]]:
        """Its places."""
        return {event: {"priority": priority} for event, priority in self._places.items()}
