"""Checkpoints: written beside, hashed, committed by one rename; nothing on disk is ever unpickled."""

from .codec import pack, unpack
from .manifest import Checkpoint
from .service import SAVES, Checkpoints, Saves, Saving
from .weights import LoadedWeights, load_weights

__all__ = [
    "SAVES",
    "Checkpoint",
    "Checkpoints",
    "LoadedWeights",
    "Saves",
    "Saving",
    "load_weights",
    "pack",
    "unpack",
]
