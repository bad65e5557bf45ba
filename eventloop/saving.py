"""The saves of one run: from the request to what is told of the checkpoint, or of its failure."""

from __future__ import annotations

import math
import time
from concurrent.futures import wait
from typing import Final

from .bus import Bus
from .checkpoint import Saving
from .errors import told
from .events import CheckpointSaved, HandlerFailed
from .failures import Failure
from .fold import NOTHING, Control
from .folder import Folder
from .ledger import Asked, Ledger
from .log import logger
from .progress import EVALS, Progress
from .requests import Keep, Save
from .telling import Teller

NO_TIME: Final = "it takes about "
"""How the refusal of a save begins that would not be done before the process is killed."""


class Saver(Teller):
    """The part of a run that saves: at most one checkpoint is on its way to the disk.

    Attributes:
        skips: whether a save that may be left out is, while another is being written.
        saved_at: step and evaluations of the last checkpoint.
        saving: the save that is on its way, or there and not yet told of.
        deadline: when the process will be killed, if that is known.
        newest: the step of the last checkpoint that was told of in this process.
    """

    def __init__(self, bus: Bus, progress: Progress, ledger: Ledger, folder: Folder | None) -> None:
        super().__init__(bus, progress, ledger, folder)
        self.skips = False
        self.saved_at: tuple[int, int] | None = None
        self.saving: Saving | None = None
        self.deadline: float | None = None
        self.newest: int | None = None
        self._saving_for: list[Asked] = []
        self._savers: set[str] = set()  # who has asked for a save in this run

    def save(self, asked: list[Asked]) -> str | None:
        """Take the state for all that asked, and have it written; a failure follows the policy of those who asked."""
        if self.folder is None:
            return "the loop has no run_dir"
        if self.deadline is not None and (why := self._no_time()):
            logger().warning(f"the checkpoint of step {self.progress.step} is left out: {why}")
            return why
        if self.saving is not None:
            if self.skips and not self.saving.done() and all(a.request.may_skip for a in asked):  # type: ignore[attr-defined]  # Saves
                return "another save was being written"
            self.finish_saving()
        state = self.progress.snapshot()
        step, tags = state.step, self._tags(asked)
        metrics = {key: state.metrics[key] for key in state.metrics.fresh}
        try:
            self.saving, self._saving_for = self.folder.save(step, tags, metrics), asked
        except Exception as error:
            return self._save_failed(asked, step, error)
        self.saved_at = (step, state.evals)
        return self._land() if self.saving.done() else None

    def _no_time(self) -> str:
        """Why a save would not be done before the process is killed, by the slowest of the last ones; else nothing."""
        left = (self.deadline or math.inf) - time.monotonic()
        needed = self.folder.checkpoints.estimate() if self.folder is not None else None
        if needed is None or needed <= left:
            return ""
        newest = "" if self.newest is None else f"; the newest is that of step {self.newest}"
        return f"{NO_TIME}{needed:.1f} s and the process ends in {max(left, 0):.1f} s{newest}"

    def finish_saving(self) -> None:
        """Wait until the save on its way has ended, and say how.

        Raises:
            Exception: it failed, and those who asked for it have the policy ``raise``.
        """
        if self.saving is not None:
            wait([self.saving.future])
            self.landed()
            self.ledger.carry_out_keeps(self.keep)  # by what was wanted before, it might be removed by the next one

    def landed(self) -> None:
        """A save has ended behind the boundary at which it was asked for: that it failed is a second line."""
        asked, saving, why = self._saving_for, self.saving, None
        try:
            why = self._land()
        except Exception as error:
            if saving is not None and saving.future.exception() is not None:  # else it is there, and a handler failed
                why = told(error)
            raise
        finally:
            for a in asked if why is not None else ():
                self.ledger.settle_one(a, "refused", self.progress.step, why or "")

    def _land(self) -> str | None:
        saving, asked, self.saving, self._saving_for = self.saving, self._saving_for, None, []
        try:
            checkpoint = saving.result()  # type: ignore[union-attr]  # there is one
        except Exception as error:
            self.saved_at = None
            return self._save_failed(asked, saving.step, error)  # type: ignore[union-attr]  # the same
        self.newest = checkpoint.step
        seconds = saving.seconds  # type: ignore[union-attr]  # the same
        self.tell(CheckpointSaved(str(checkpoint.path), checkpoint.step, checkpoint.tags, seconds))
        return None

    def _tags(self, asked: list[Asked]) -> dict[str, set[str]]:
        """Who asks, under the name that stays the same when callbacks change places, and under which tags."""
        tags: dict[str, set[str]] = {}
        for a in asked:
            if isinstance(a.request, Save):
                tags.setdefault(self.bus.key_of(a.who), set()).add(a.request.tag)
        self._savers |= {a.who for a in asked} - {"Loop"}
        return tags

    def _save_failed(self, asked: list[Asked], step: int, error: Exception) -> str:
        """By the policy of those who asked; of the savers of this run, where it is the loop's own last save."""
        names = {a.who for a in asked} - {"Loop"} or self._savers
        askers = [who for name in sorted(names) if (who := self.bus.find(name)) is not None]
        state = self.progress.snapshot()
        for who in askers:
            told_so = self.bus.fail(who, CheckpointSaved(step=step), state, error)
            others = [reply for reply in told_so.requests if not isinstance(reply.request, Save)]  # it would fail again
            self.ledger.file(Control(others), HandlerFailed(who.name), state.step)
        if not askers or any(who.failure == "raise" for who in askers):
            by = ", ".join(who.name for who in askers) or "the loop"
            error.add_note(f"while saving the checkpoint of step {step}, asked for by {by}")
            raise error
        return told(error)

    def keep(self, asked: Asked) -> None:
        """Note which checkpoints a saver wants."""
        if self.folder is not None:
            wish: Keep = asked.request  # type: ignore[assignment]  # the ledger's promise
            self.folder.checkpoints.keep(self.bus.key_of(asked.who), wish.steps, make_room=wish.make_room)

    def save_last(self) -> None:
        """The last save, if the last update or its evaluation came after the one before."""
        self.finish_saving()
        if self.folder is not None and self.saved_at != (self.progress.step, self.progress.fields[EVALS]):
            asked = Asked("Loop", Save("last", may_skip=False), "train_end", self.progress.step)
            if why := self.save([asked]):
                self.ledger.settle_one(asked, "refused", self.progress.step, why)
            self.finish_saving()

    def _drain(self) -> Control:
        """After an error no checkpoint is told of any more; one that could not be written is."""
        if self.saving is not None:
            wait([self.saving.future])
            failed = self.saving.future.exception()
            if failed is not None:
                for who in {a.who for a in self._saving_for}:
                    self.bus.record(Failure(who, CheckpointSaved.name, self.saving.step, failed))
                logger().warning(f"the checkpoint of step {self.saving.step} was not written: {told(failed)}")
            self.saving = None
        return NOTHING
