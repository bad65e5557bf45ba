"""`check_callback`: a battery of named checks over any callback, and what its snippets are made of."""

from .battery import CHECKS, CallbackCheck, CallbackCheckError, Verdict, callback_checks, check_callback, examine
from .cost import asked, slow_events, tensors
from .isolation import changes
from .standins import Cuts, Neighbour, Peer, Training, as_options, small_model
from .state import sizes, state_faults
from .trial import Answer, Answers, an_hour_on, answers, assert_same, shared

__all__ = [
    "CHECKS",
    "Answer",
    "Answers",
    "CallbackCheck",
    "CallbackCheckError",
    "Cuts",
    "Neighbour",
    "Peer",
    "Training",
    "Verdict",
    "an_hour_on",
    "answers",
    "as_options",
    "asked",
    "assert_same",
    "callback_checks",
    "changes",
    "check_callback",
    "examine",
    "shared",
    "sizes",
    "slow_events",
    "small_model",
    "state_faults",
    "tensors",
]
