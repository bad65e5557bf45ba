"""`SignalStop`: end the run in good order when the process is told to go."""

from __future__ import annotations

import difflib
import logging
import os
import signal
import threading
import time
from collections.abc import Callable, Iterable
from types import FrameType
from typing import Any, Final

from eventloop import (
    Callback,
    EpochBegin,
    EpochEnd,
    EvalEnd,
    EvalStep,
    Priority,
    StepEnd,
    Stop,
    TrainBegin,
    TrainState,
)

from .arguments import not_negative

LEFT_ALONE: Final = frozenset({"SIGKILL", "SIGSTOP", "SIGSEGV", "SIGBUS", "SIGFPE", "SIGILL"})
"""Signals that cannot be caught, or behind which the process cannot go on."""


class SignalStop(Callback):
    """Asks for a stop when the process gets a signal: the run ends ``preempted``, and a resume goes on exactly there.

    The signal's handler notes the moment and nothing else; the stop is asked for at the next step_end, eval_step,
    eval_end, epoch_begin or epoch_end, with the seconds of grace that are left by then. So what takes longer than
    ``grace`` between two of these is killed in its midst, and the run goes on from the checkpoint before.

    The handlers are set when the run begins and put back at close, each unless somebody else has set another in the
    meantime. They can be set in the main thread only; elsewhere there is one warning, and the run goes on without.
    A handler that was there before, a Python function, is called after ours; not so Python's own for SIGINT: it would
    raise KeyboardInterrupt at once. A second signal of the same kind goes to what was there before alone: SIGTERM then
    kills, SIGINT raises KeyboardInterrupt. A SIGINT that the process ignores stays ignored, as in a shell's background.

    A forked process, as a worker of a DataLoader, behaves as it would without this. A signal to the whole process group
    ends such workers, and the run fails with them: give the loader ``worker_init_fn=ignore_signals``.

    Args:
        signals: their names or numbers.
        grace: seconds from the signal until the process will be killed.

    Raises:
        ValueError: there is no such signal, or it cannot be caught, or ``grace`` is out of range.
    """

    priority = Priority.LAST  # a signal that comes while the others are at work counts at that event already
    failure = "raise"  # a run that counts on its grace must not begin without it
    from_outside = True

    def __init__(self, signals: Iterable[str | int] = ("SIGTERM", "SIGUSR1", "SIGINT"), grace: float = 30.0) -> None:
        self.signals = _names(self, signals)
        self.grace = not_negative(self, "grace", grace)
        self._watches: tuple[_Watch, ...] | None = None
        self._received: tuple[str, float] | None = None  # the first signal, and when

    def options(self) -> dict[str, dict[str, Any]]:
        """Before all others at train_begin, so that no signal is lost while they begin."""
        return {"train_begin": {"priority": Priority.FIRST}}

    def on_train_begin(self, event: TrainBegin, state: TrainState) -> None:
        """Set the handlers."""
        self.close()
        self._watch()

    def on_epoch_begin(self, event: EpochBegin, state: TrainState) -> Stop | None:
        """Whatever came since the epoch before."""
        return self._stop()

    def on_step_end(self, event: StepEnd, state: TrainState) -> Stop | None:
        """Whatever came during the update."""
        return self._stop()

    def on_eval_step(self, event: EvalStep, state: TrainState) -> Stop | None:
        """Whatever came during a batch of an evaluation."""
        return self._stop()

    def on_eval_end(self, event: EvalEnd, state: TrainState) -> Stop | None:
        """Whatever came during an evaluation that draws its batches by itself."""
        return self._stop() if event.completed else None

    def on_epoch_end(self, event: EpochEnd, state: TrainState) -> Stop | None:
        """Whatever came since; a request would be refused if the epoch was left before its end."""
        return self._stop() if event.completed else None

    def _stop(self) -> Stop | None:
        if self._watches is None:  # attached in mid-run
            self._watch()
        if self._received is None:
            return None
        name, when = self._received
        return Stop(f"{name} received", within=max(self.grace - (time.monotonic() - when), 0.0))

    def _watch(self) -> None:
        if threading.current_thread() is not threading.main_thread():
            self._watches = ()
            logging.getLogger("eventloop").warning(
                "SignalStop: this run is not in the main thread, where alone Python lets handlers be set: "
                "%s will not stop it",
                ", ".join(self.signals),
            )
            return
        numbers = [signal.Signals[name] for name in self.signals]
        self._watches = tuple(_Watch(number, self._note) for number in numbers if _may_be_set(number))

    def _note(self, name: str) -> None:
        self._received = self._received or (name, time.monotonic())

    def close(self) -> None:
        """Put back what was there before."""
        watches, self._watches, self._received = self._watches, None, None
        for watch in watches or ():
            watch.end()

    def describe(self) -> str:
        """The rule in words."""
        return f"{', '.join(self.signals)}: {self.grace:g} s of grace"


class _Watch:
    """The handler of one signal, from when it is made until `end`. Afterwards it is what was there before."""

    def __init__(self, number: signal.Signals, note: Callable[[str], None]) -> None:
        self._number, self._note = number, note
        self._process = os.getpid()
        self._over = False
        self._before = signal.getsignal(number)
        signal.signal(number, self)

    def __call__(self, number: int, frame: FrameType | None) -> None:
        """A signal has come."""
        before = self._before
        if self._over or os.getpid() != self._process:
            self._as_before(frame)
            return
        self._over = True
        self._note(self._number.name)
        if callable(before) and before is not signal.default_int_handler:
            before(number, frame)

    def _as_before(self, frame: FrameType | None) -> None:
        if callable(self._before):
            self._before(self._number, frame)
        elif self._before == signal.SIG_DFL:
            signal.signal(self._number, signal.SIG_DFL)
            os.kill(os.getpid(), self._number)

    def end(self) -> None:
        """Put back what was there before; somebody else's handler stays, and may go on calling this one."""
        self._over = True
        now: object = signal.getsignal(self._number)
        if now is self:
            signal.signal(self._number, self._before)


def ignore_signals(worker: int = 0) -> None:
    """Let this process ignore SIGTERM, SIGINT and SIGUSR1: a ``worker_init_fn`` for a ``DataLoader`` with workers.

    A cluster, and Ctrl-C, send their signal to the workers too. With this they live until the main process, which has
    made its last update and saved, ends them.
    """
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1):
        signal.signal(number, signal.SIG_IGN)


def _may_be_set(number: signal.Signals) -> bool:
    """Whether what is there now can be put back; and a SIGINT that is ignored was meant to be."""
    before = signal.getsignal(number)
    if before is None:
        logging.getLogger("eventloop").warning(
            "SignalStop: the handler of %s was not set by Python and cannot be put back: it stays", number.name
        )
    return before is not None and not (number == signal.SIGINT and before == signal.SIG_IGN)


def _names(owner: object, signals: Any) -> tuple[str, ...]:
    several = [signals] if isinstance(signals, str | int) else list(signals)
    if not several:
        raise ValueError(f"{type(owner).__name__}: signals={signals!r} must name at least one")
    return tuple(dict.fromkeys(_name(owner, one) for one in several))


def _name(owner: object, one: Any) -> str:
    try:
        found = signal.Signals[one] if isinstance(one, str) else signal.Signals(one)
    except (KeyError, ValueError):
        near = difflib.get_close_matches(str(one).upper(), signal.Signals.__members__, 1)
        hint = f"did you mean {near[0]!r}? " if near else ""
        valid = f"{hint}valid are names such as 'SIGTERM', and their numbers"
        raise ValueError(f"{type(owner).__name__}: signals={one!r} is no signal; {valid}") from None
    if found.name in LEFT_ALONE:
        raise ValueError(f"{type(owner).__name__}: signals={one!r}: {found.name} cannot be caught, or not survived")
    return found.name
