"""Faults that training libraries have had, put into this one on purpose: the tests must tell each of them."""

from __future__ import annotations

from typing import Final

from . import in_bus, in_callbacks, in_checkpoints, in_filters, in_logs, in_loop, in_numbers, in_saves
from .mutant import MisfitError, Mutant
from .running import Copy, Verdict, try_all

MUTANTS: Final = (
    *in_bus.MUTANTS,
    *in_filters.MUTANTS,
    *in_numbers.MUTANTS,
    *in_loop.MUTANTS,
    *in_checkpoints.MUTANTS,
    *in_saves.MUTANTS,
    *in_callbacks.MUTANTS,
    *in_logs.MUTANTS,
)

__all__ = ["MUTANTS", "Copy", "MisfitError", "Mutant", "Verdict", "try_all"]
