"""How each save of a record went, and when its loop was told so."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, Final

from ..checkpoint import Checkpoint, Saving
from ..events import CheckpointSaved
from ..saving import NO_TIME
from ..scripted import NoFolder, Standing
from ..stream_saves import REFUSED_AT, Key, checkpoint_step, key_of
from .moments import Moment, RecordedError, Row

Place = tuple[int, int]
AT_ONCE: Final[Place] = (0, 0)


@dataclass
class Outcome:
    """How one save went.

    Attributes:
        error: why it failed; None if it did not, or nobody knows.
        told: behind which publish of the record, and how many fates behind that, this was told; None: never, or because
            the next save had to wait for it.
        own: nobody asked for it but the loop.
    """

    error: str | None = None
    told: Place | None = None
    own: bool = False


class SaveLog:
    """Reads the outcomes off the rows of one process.

    A save that fails is told by a ``handler_failed`` at ``checkpoint_saved`` for each handler that asked for it; so is
    a handler that fails at ``checkpoint_saved``, but there the publish follows and has it. A save that was written
    while the training went on has its fates first, when its state was taken.

    Attributes:
        outcomes: by step, in order.
        skips: what was said of one that was left out while another was being written; empty if there is none.
        granted: the requests that were; each has its row, whereas the same refusal is said once.

    Args:
        number: of the last publish before.
    """

    def __init__(self, number: int) -> None:
        self.outcomes: dict[int, list[Outcome]] = {}
        self.skips = ""
        self.granted: set[Key] = set()
        self._place: Place = (number, 0)
        self._writing: tuple[int, Outcome] | None = None
        self._ended: Outcome | None = None  # of which was told right before
        self._whose: set[Key] = set()  # who was granted the one that was taken last
        self._settling: int | None = None  # the step of the save whose fates follow each other now
        self._open: list[Row] = []
        self._since: Place = AT_ONCE
        self._texts: dict[str, str] = {}

    def failed(self, row: Row) -> None:
        """A row of a publish inside another, or past the loop."""
        if row["event"] == "handler_failed" and row["at"] == CheckpointSaved.name:
            if row["handler"] in (failed["handler"] for failed in self._open):
                self._failed("")  # that was another save
            self._since = self._since if self._open else self._place
            self._open.append(row)

    def told(self, moment: Moment, row: Row) -> bool:
        """A publish of the loop's own; True for a checkpoint of which is told behind where its state was taken."""
        late, self._settling = False, None
        if moment.kind is CheckpointSaved:
            for who, *_ in moment.failed:
                self._open = [failed for failed in self._open if failed["handler"] != who]
            self._failed("")
            step = checkpoint_step(dict(row))
            if self._writing is not None and self._writing[0] == step:
                late = True
                self._ended, self._writing = self._writing[1], None
                self._ended.told = self._place
            else:
                self._add(step, Outcome(told=AT_ONCE, own=True))
                self._settling, self._whose = step, set()
        else:
            self._failed("")
            self._ended = None
        self._place = moment.number, 0
        return late

    def fate(self, row: Row) -> bool:
        """The fate of a request, of a refused save with the error; True if the save had been granted before."""
        save = row["request"] == "Save"
        own = row["who"] == "Loop"  # the last one, which has no other fate
        late = save and row["fate"] == "refused" and (own or key_of(dict(row)) in self._whose)
        if own and self._writing is None:
            self._writing = row["step"], self._add(row["step"], Outcome())
        if save and row["fate"] == "refused" and not row["note"].startswith(NO_TIME):
            beside = self._writing is not None and not late
            if beside and not self._open and row["at"] not in REFUSED_AT:
                self.skips = row["note"]
            self._failed("" if beside else row["note"])
            if own and self._ended is not None:
                self._ended.told = None  # the loop waits for it
        else:
            self._failed("")  # the same refusal is said once
        if save and row["fate"] == "granted":
            self._granted(row)
        else:
            self._settling, self._ended = None, self._ended if late else None
        self._place = self._place[0], self._place[1] + 1
        return late

    def _granted(self, row: Row) -> None:
        if self._settling != row["decided"]:
            self._settling, self._whose = row["decided"], set()
            self._writing = row["decided"], self._add(row["decided"], Outcome())
        self.outcomes[row["decided"]][-1].own = False
        self._whose.add(key_of(dict(row)))
        self.granted.add(key_of(dict(row)))

    def _add(self, step: int, outcome: Outcome) -> Outcome:
        """The next save begins; what was told right before it, it had to wait for."""
        if self._ended is not None:
            self._ended.told, self._ended = None, None
        self.outcomes.setdefault(step, []).append(outcome)
        return outcome

    def _failed(self, note: str) -> None:
        if not self._open:
            return
        error: str = self._open[0]["error"]
        text = self._texts[error] = note or self._texts.get(error) or error
        if self._writing is not None:
            self._ended, self._writing = self._writing[1], None
            self._ended.error, self._ended.told = text, self._since
        else:
            self._add(self._open[0]["step"], Outcome(text, AT_ONCE))
        self._open = []


class RecordedSaving(Saving):
    """A save that has ended for the loop where the record told so.

    Args:
        checkpoint: what has come of it, or why nothing has.
        step: of the checkpoint.
        is_told: whether the replay has come to that place.
    """

    def __init__(self, checkpoint: Checkpoint | Exception, step: int, is_told: Callable[[], bool]) -> None:
        future: Future[Checkpoint] = Future()
        if isinstance(checkpoint, Exception):
            future.set_exception(checkpoint)
        else:
            future.set_result(checkpoint)
        super().__init__(step, future)
        self._is_told = is_told

    def done(self) -> bool:
        """Whether the loop had been told by then."""
        return self._is_told()


class RecordedFolder(NoFolder):
    """The checkpoints of a replay, none of which is written.

    Args:
        outcome: how the next one went.
        is_told: whether the replay has come to where the loop was told so.
    """

    def __init__(self, outcome: Callable[[], Outcome], is_told: Callable[[Outcome], bool]) -> None:
        super().__init__(Standing("replay"))
        self._outcome, self._is_told = outcome, is_told

    def save(self, step: int, asked_by: Mapping[str, Any], metrics: Mapping[str, float]) -> Saving:
        """Note it, if it did not fail.

        Raises:
            Exception: it failed, and the loop was told at once.
        """
        outcome = self._outcome()
        error = None if outcome.error is None else error_of(outcome.error)
        if error is not None and outcome.told == AT_ONCE:
            raise error
        checkpoint = error or super().save(step, asked_by, metrics).result()
        return RecordedSaving(checkpoint, step, lambda: self._is_told(outcome))


def error_of(text: str) -> Exception:
    """An error of which the text is known, so that it tells itself as it did."""
    name, colon, rest = text.partition(": ")
    kind: type[Exception] = type(name, (RecordedError,), {}) if colon and name.isidentifier() else RecordedError
    return kind(rest if colon else text)
