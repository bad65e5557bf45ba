"""Checkpoints: written beside, hashed, committed by one rename; nothing on disk is ever unpickled."""

from .codec import pack, unpack
from .manifest import Checkpoint
from .service import Checkpoints

__all__ = ["Checkpoint", "Checkpoints", "pack", "unpack"]
