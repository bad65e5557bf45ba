"""Checkpoints: written beside, hashed, committed by one rename; nothing on disk is ever unpickled."""

from .codec import pack, unpack
from .service import Checkpoint, Checkpoints

__all__ = ["Checkpoint", "Checkpoints", "pack", "unpack"]
