"""What a `Loop` is given, checked before anything is made of it; each message names the argument and its value."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from os import PathLike
from typing import Any, Final

from .bus import Bus
from .limits import whole
from .log import logger

OWN: Final = ("bus", "model", "optimizer", "run_dir")


def check_numbers(accumulate: object, clip_norm: object, eval_every: object) -> None:
    """The options that are numbers or words.

    Raises:
        ValueError: one is out of range.
    """
    whole("accumulate", accumulate, least=1)
    if clip_norm is not None and not (isinstance(clip_norm, int | float) and clip_norm > 0):
        raise ValueError(f"clip_norm={clip_norm!r} must be a number above 0")
    if isinstance(eval_every, str) and eval_every != "epoch":
        raise ValueError(f"eval_every={eval_every!r} must be 'epoch', None or a whole number of updates >= 1")
    if eval_every != "epoch":
        whole("eval_every", eval_every, least=1, optional=True)


def check_folder(run_dir: object, resume: object, overwrite: object) -> None:
    """The options of the run folder.

    Raises:
        TypeError: ``run_dir`` is no path.
        ValueError: one is out of range, or ``resume`` comes without ``run_dir``.
    """
    if run_dir is not None and not isinstance(run_dir, str | PathLike):
        raise TypeError(f"run_dir={run_dir!r} is no path; give a folder, or None for a run that writes nothing")
    if run_dir == "":
        raise ValueError("run_dir='' names no folder; give one, or None for a run that writes nothing")
    if overwrite not in (True, False):
        raise ValueError(f"overwrite={overwrite!r} must be True or False")
    if resume is not None and run_dir is None:
        raise ValueError(f"resume={resume!r} needs a run_dir")


def check_choice(argument: str, value: object, choices: tuple[str, ...]) -> str:
    """One of some words.

    Raises:
        ValueError: it is none of them.
    """
    if value not in choices:
        *others, last = map(repr, choices)
        raise ValueError(f"{argument}={value!r} must be {', '.join(others)} or {last}")
    return str(value)


def check_parts(
    model: Any, optimizers: Mapping[str, Any], bus: object, callbacks: object, bind: Mapping[str, Any] | None
) -> None:
    """The live objects.

    Raises:
        TypeError: one is of another kind.
        ValueError: ``bind`` has a name that is the loop's own.
    """
    import torch

    if not isinstance(model, torch.nn.Module):
        raise TypeError(f"model is a {type(model).__name__}, not a torch.nn.Module: Loop(model, optimizer)")
    for key, optimizer in optimizers.items():
        if not hasattr(optimizer, "param_groups"):
            where = f"optimizer[{key!r}]" if key else "optimizer"
            raise TypeError(f"{where} is a {type(optimizer).__name__}, not an optimizer: Loop(model, optimizer)")
    if bus is not None and not isinstance(bus, Bus):
        raise TypeError(f"bus={bus!r} is no Bus; give an instance, Bus()")
    if not isinstance(callbacks, Iterable):
        raise TypeError(f"callbacks={callbacks!r}: give a list, callbacks=[...]")
    if taken := sorted({*(bind or ())} & {*OWN}):
        raise ValueError(
            f"bind={{{taken[0]!r}: ...}}: the loop itself gives callbacks {', '.join(OWN)}; take another name"
        )
    _say_strangers(model, optimizers)


def _say_strangers(model: Any, optimizers: Mapping[str, Any]) -> None:
    known = {id(p) for p in model.parameters()}
    stepped = {id(p) for o in optimizers.values() for group in o.param_groups for p in group["params"]}
    if known and stepped and not known & stepped:
        logger().warning("no optimizer holds a parameter of the model: it will not be trained")
