"""What came behind the last turn of a process: its work was lost, or the record ends there without the run's end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable

from .moments import Row
from .record import Sitting
from .stage import Cut, Stage
from .turns import settles


def lost(stage: Stage, sitting: Sitting) -> Callable[[], bool]:
    """Whether the checkpoint has been made from which the next process goes on."""
    last = max(sitting.saves, default=-1)

    def is_lost() -> bool:
        done = not sitting.turns or stage.turn is sitting.turns[-1].moment
        return done and stage.progress.step == last and stage.next_save() is None

    return is_lost


def unsettled(stage: Stage, sitting: Sitting) -> Callable[[], bool]:
    """Whether the record has ended with an epoch_end, before what was asked for by then was carried out."""
    ends = bool(sitting.turns) and not sitting.ended and not any(map(settles, sitting.rest))

    def is_unsettled() -> bool:
        return ends and not stage.course.epoch_open and stage.turn is sitting.turns[-1].moment

    return is_unsettled


def carry_out_rest(stage: Stage, sitting: Sitting, *, open_ended: bool) -> None:
    """Do what the rows behind the last turn tell of.

    Args:
        stage: the run.
        sitting: the process.
        open_ended: the record ends with them; else it goes on from a checkpoint that they have.
    """
    if open_ended:
        close_up_to_its_end(stage, sitting.rest, closing=sitting.closing)
    elif stage.next_save() is not None:
        _next_act(stage)


def close_up_to_its_end(stage: Stage, rows: list[Row], *, closing: bool = True) -> None:
    """Go as far as the rows go, and not to an epoch_end or a save that they do not have.

    Raises:
        Exception: what ended the recorded run there.
    """
    told = [row for row in rows if settles(row)]
    stage.rest = told or None
    try:
        with contextlib.suppress(Cut):
            if told and closing and stage.course.epoch_open:
                stage.course.close_epoch(leaving=True)
            elif told:
                _next_act(stage)
    finally:
        stage.rest = None


def _next_act(stage: Stage) -> None:
    if stage.course.epoch_open:
        stage.course.boundary()
    else:
        stage.course.finish()
