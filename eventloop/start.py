"""How a run begins: what a checkpoint holds of it, what comes back from one, and what is told of it."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .checks import check_choice
from .course import Course
from .log import logger
from .model import Model, without_shape
from .optimizers import Optimizers
from .parts import Scaler
from .resume import jumps
from .run import Run
from .settings import Settings

if TYPE_CHECKING:
    from torch.nn import Module
    from torch.optim import Optimizer

ON_MISMATCH: Final = ("report", "error")


@dataclass(frozen=True)
class Choices:
    """How a run may begin.

    Attributes:
        on_mismatch: "report" or "error".
        weights: where to take weights from, if there is no checkpoint to go on from.
    """

    on_mismatch: str = "report"
    weights: Path | None = None

    @classmethod
    def checked(cls, on_mismatch: str, init_from: str | Path | None, resume: object) -> Choices:
        """What the user has chosen.

        Raises:
            ValueError: ``on_mismatch`` is no choice, or there are two sources of weights.
            CheckpointError: there is nothing at ``init_from``.
        """
        from .checkpoint.weights import find_weights

        check_choice("on_mismatch", on_mismatch, ON_MISMATCH)
        if init_from is not None and resume not in (None, "auto"):
            raise ValueError(
                f"init_from={str(init_from)!r} beside resume={resume!r}: the weights come from one of them"
            )
        return cls(on_mismatch, None if init_from is None else find_weights(init_from))


def parts_of(
    model: Module, optimizers: Mapping[str, Optimizer], scaler: Any, run: Run, course: Course, own: Mapping[str, Any]
) -> dict[str, Any]:
    """What a checkpoint of a loop holds; ``own`` are the loop's own settings."""
    import torch

    plain = Model(model)
    return {
        "model": plain,
        "optimizer": Optimizers(optimizers, plain.names),
        **({} if scaler is None else {"scaler": Scaler(scaler)}),
        **run.parts(),
        "random": course.random,
        "settings": Settings({**own, "seed": torch.initial_seed()}, lambda: _keyed(run)),
    }


def _keyed(run: Run) -> Iterable[tuple[str, object]]:
    return [(run.bus.key_of(name), thing) for name, thing in run.callbacks]


def start(run: Run, course: Course, live: Mapping[str, Any], parts: Mapping[str, Any], choices: Choices) -> None:
    """Find out whether the checkpoint fits; only then open the folder, load, and say that the run begins.

    Raises:
        CheckpointError: something does not fit, or another run writes there; the model is as it was.
    """
    folder = run.folder
    plain = parts.get("model")
    if folder is not None and isinstance(plain, Model) and (names := without_shape(plain.module)):
        raise ValueError(f"{', '.join(names)} have no shape yet: run one forward pass before the loop begins")
    run.join()
    if folder is not None:
        folder.compare(parts, choices.on_mismatch)
    _take_weights(live.get("model"), choices.weights, resumed=folder is not None and folder.origin is not None)
    if isinstance(settings := parts.get("settings"), Settings):
        settings.note()
    if folder is not None:
        torch = sys.modules.get("torch")
        folder.open(0 if torch is None else torch.initial_seed(), run.callbacks)
    run.begin(live, lambda: folder is not None and folder.load(parts))
    if folder is not None:
        folder.rehearse(parts)
        if folder.resumed is not None:
            folder.resumed = replace(folder.resumed, ended=run.nothing_left)
            course.on_first_update = lambda: _note_jumps(run, folder.planned_from)


def _take_weights(model: Any, weights: Path | None, *, resumed: bool) -> None:
    from .checkpoint.weights import load_weights

    if weights is None:
        return
    if resumed:
        logger().info(f"init_from={str(weights)!r} is ignored: the run goes on from a checkpoint of its own")
        return
    load_weights(model, weights)
    logger().info(f"weights taken from {weights}")


def _note_jumps(run: Run, was: Mapping[str, float]) -> None:
    """The first update has begun, so it is known which learning rates go on otherwise than planned."""
    folder, state, bus = run.folder, run.progress.snapshot(), run.bus
    if folder is None or folder.resumed is None:
        return
    planned: dict[str, float] = {}
    for _, thing in bus.objects:
        if hasattr(thing, "planned_before"):
            planned |= thing.planned_before(state.update)
    differing = {d.who for d in folder.resumed.settings}
    new_base = any(d.setting == "lr" for d in folder.resumed.settings)
    writers = {group: bus.key_of(name) for group, (_, name) in bus.writers.items()}
    touched = [group for group in state.lr if new_base or writers.get(group) in differing]
    folder.resumed = replace(folder.resumed, lr=jumps(was, state.lr, planned, touched))
