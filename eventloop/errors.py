"""What this library raises of its own. Everything else is a builtin, or the user's error, unchanged."""

from __future__ import annotations

import sys
from types import FrameType


def shown(value: object) -> str:
    """The repr of what a user gave, also of what has none that works."""
    try:
        return repr(value)
    except Exception:
        return f"<a {type(value).__qualname__} that cannot be shown>"


def told(error: BaseException) -> str:
    """Type and text of an error, also of one that has no text."""
    try:
        return f"{type(error).__name__}: {error}"
    except Exception:
        return type(error).__name__


def forget_frames(error: BaseException) -> None:
    """Drop the tracebacks of an error and of those behind it: they keep alive every local of their frames.

    An error that somebody up the stack is handling just now stands behind it too, and keeps its own.
    """
    here = set()  # of ids: a frame in a local of its own frame would be a cycle
    frame: FrameType | None = sys._getframe()
    while frame is not None:
        here.add(id(frame))
        frame = frame.f_back
    pending, seen = [error], set()
    while pending:
        one = pending.pop()
        trace = one.__traceback__
        if id(one) in seen or (one is not error and trace is not None and id(trace.tb_frame) in here):
            continue
        seen.add(id(one))
        one.__traceback__ = None
        pending += [e for e in (one.__cause__, one.__context__) if e is not None]
        pending += one.exceptions if isinstance(one, BaseExceptionGroup) else []


class EventLoopError(Exception):
    """Base of the errors below."""


class PublishCycleError(EventLoopError, RuntimeError):
    """Handlers published events in a circle until the stack was full; the message names the circle."""


class BusyBusError(EventLoopError, RuntimeError):
    """A second thread published on a bus while another was publishing on it."""


class ReplyError(EventLoopError, TypeError):
    """A handler returned, or reported, what nobody can use."""


class ConflictError(EventLoopError, RuntimeError):
    """Two subscriptions claim the same thing: a metric at one event, or a parameter group's learning rate."""


class StaleMetricError(EventLoopError, RuntimeError):
    """A metric nobody asked for in time was let go at the next step_begin."""


class CheckpointError(EventLoopError, RuntimeError):
    """A checkpoint is missing, damaged, or does not fit."""


class ResumeError(CheckpointError):
    """A run and the checkpoint that it is to go on from differ, and it was given ``on_mismatch="error"``."""
