"""What is to be learnt of a loader, whatever kind it is."""

from __future__ import annotations

from typing import Any


def stateful(loader: object) -> bool:
    """Whether a loader keeps its own place, as torchdata's StatefulDataLoader does."""
    return all(callable(getattr(loader, name, None)) for name in ("state_dict", "load_state_dict"))


def keeps_iterator(loader: Any) -> bool:
    """Whether a loader without a state of its own has one iterator for all epochs, with its workers."""
    workers = getattr(loader, "persistent_workers", False) and getattr(loader, "num_workers", 0) > 0
    return bool(workers) and hasattr(loader, "_iterator") and not stateful(loader)


def kept_iterator(loader: Any) -> Any:
    """The one that is there by now, or None."""
    return loader._iterator if keeps_iterator(loader) else None


def set_epoch(loader: object, epoch: int) -> None:
    """Tell the loader's samplers and its dataset which epoch it is, counted from 0 as torch does."""
    for part in (*samplers(loader), getattr(loader, "dataset", None)):
        if hasattr(part, "set_epoch"):
            part.set_epoch(epoch - 1)


def samplers(loader: object) -> list[Any]:
    """The samplers of a loader and those inside them."""
    found: list[Any] = []
    pending: list[Any] = [loader]
    while pending:
        holder = pending.pop(0)
        inner = [getattr(holder, name, None) for name in ("sampler", "batch_sampler")]
        new = [s for s in inner if s is not None and all(s is not known for known in found)]
        found += new
        pending += new
    return found


def generators(loader: object) -> list[Any]:
    """The generators of a loader and of its samplers, each once."""
    found = [getattr(holder, "generator", None) for holder in (loader, *samplers(loader))]
    return list({id(g): g for g in found if hasattr(g, "set_state")}.values())
