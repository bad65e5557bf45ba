"""Replay of recorded runs: what other settings of the deciders would have decided on the same numbers.

A run that was recorded by ``Loop(..., journal="full")`` is driven again through the real bus, ledger and retention.
Early stopping, checkpointing and whoever else decides run live; everybody else answers what the record says.
"""

from __future__ import annotations

from .outcome import Replayed, Score, table
from .player import Player, replay, sweep

__all__ = ["Player", "Replayed", "Score", "replay", "sweep", "table"]
