"""Checkpoints: written beside, hashed, committed by one rename; nothing on disk is ever unpickled."""

from .api import Loaded, load, save
from .catalog import Inspected, inspect, list, verify  # noqa: A004  # called as checkpoint.list
from .codec import pack, unpack
from .manifest import Checkpoint
from .plain_file import export
from .service import SAVES, Checkpoints, Saves, Saving
from .weights import LoadedWeights, load_weights

__all__ = [
    "SAVES",
    "Checkpoint",
    "Checkpoints",
    "Inspected",
    "Loaded",
    "LoadedWeights",
    "Saves",
    "Saving",
    "export",
    "inspect",
    "list",
    "load",
    "load_weights",
    "pack",
    "save",
    "unpack",
    "verify",
]
