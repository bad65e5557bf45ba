"""The full journal: every publish of a run with what came of it; `stream` tells its rows and reads them back.

The training thread takes down what must be taken down at once and hands it to a `Writer`; text is made of it there. To
record a run changes nothing in it: the cells of its metrics stay unread, for what was asked for lives longer. A value
on the host is read beside them, one on a device is cloned there and read in the writer's thread.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from .bus import Bus
from .checks import check_choice
from .dispatch import Dispatcher
from .events import EvalStep, Event, TrainBegin
from .fold import Control
from .journal import LIFE, Journal, facts_of
from .journal_file import JournalFile, Told
from .metrics import Cell, fetch
from .plain_form import answers_of, own_fields, running_order
from .state import TrainState
from .writer import Writer

if TYPE_CHECKING:
    from .ledger import Entry

NO_CELLS: Final[dict[str, Cell]] = {}
NO_NEWS: Final[Mapping[str, Any]] = {}
LIMIT: Final = 1 << 30
FLUSH: Final = 1.0  # a slow disk may cost a checkpoint so many seconds, and no more


class FullJournal(Journal):
    """Hears every event in the last place; the row of what the loop itself publishes is written after the dispatch.

    A row that cannot be written is this handler's failure, and the run goes on. If the queue is full, rows are dropped,
    and a row says how many.

    Args:
        path: the file.
        loop: what a replay must know of the loop, in plain form.
        limit: bytes of the file; behind them only lifecycle and requests are written, and a row says so.
    """

    def __init__(self, path: Path, loop: Mapping[str, Any], limit: int = LIMIT) -> None:
        super().__init__(path)
        self._loop, self._limit = dict(loop), limit
        self._bus: Bus | None = None
        self._out: Writer | None = None
        self._closed = False
        self._number = 0  # of records, so that the thread can tell where some were dropped
        self._expected: Event | None = None
        self._seen: dict[str, Cell] = {}  # the fresh metrics at the last row of the loop's own
        self._after: int | None = None

    def options(self) -> dict[str, None]:
        """Everything is heard through ``on_event``."""
        return {kind.name: None for kind in LIFE}

    def bind(self, bus: Bus) -> None:
        """Take hold of the bus, whose running order is told in the first row."""
        self._bus = bus

    # -- what is told --------------------------------------------------------------------------------------------------

    def expect(self, event: Event) -> None:
        """The loop publishes this next, and will tell what came of it."""
        self._expected = event

    def tell(self, event: Event, state: TrainState, control: Control | None) -> None:
        """Write the row of the loop's own publish; ``control`` is None if an interrupt has ended the dispatch.

        Of the batches of an evaluation only those have a row of which something came.

        Raises:
            OSError: the file cannot be written; raised once.
        """
        self._expected = None
        if isinstance(event, EvalStep) and control is not None and not (control.requests or control.failures):
            return
        last = state if control is None else control.apply(state)
        given, left = state.metrics._now, last.metrics._now
        late: list[Cell] = []
        own, reported = _news(given, self._seen, late), _news(left, given, late)
        self._seen = left
        facts = facts_of(event, state) | own_fields(event)
        if isinstance(event, TrainBegin):
            facts |= self._at_begin(event)
        if control is None:
            facts["interrupted"] = True
        elif control.requests or control.failures:
            facts |= answers_of(control, last)
        self._put(Told(event.name, time.time(), False, isinstance(event, LIFE), last, facts, own, reported), late)

    def on_event(self, event: Event, state: TrainState) -> None:
        """Write the row of a publish inside another, or of one that went past the loop."""
        if event is self._expected and not _inside(sys._getframe()):
            return  # its row is written when the dispatch is over
        if isinstance(event, EvalStep):
            return  # nobody can ask the loop for anything there
        facts = facts_of(event, state) | own_fields(event)
        late: list[Cell] = []
        fresh = _news(state.metrics._now, NO_CELLS, late)
        self._put(Told(event.name, time.time(), True, isinstance(event, LIFE), state, facts, fresh, NO_NEWS), late)

    def entry(self, entry: Entry) -> None:
        """One request and its fate."""
        facts = asdict(entry)
        facts = {"at": facts.pop("event"), **facts}
        self._put(Told("request", time.time(), False, True, None, facts, NO_NEWS, NO_NEWS), [])

    def _at_begin(self, event: TrainBegin) -> dict[str, Any]:
        facts: dict[str, Any] = {"loop": self._loop}
        if self._bus is not None:
            facts["handlers"] = running_order(self._bus, self)
        if event.resumed:
            size = self._path.stat().st_size if self._path.exists() else 0
            facts["after"] = self._after if self._after is not None and 0 < self._after <= size else None
        return facts

    # -- where it goes -------------------------------------------------------------------------------------------------

    def _put(self, record: Told, late: list[Cell]) -> None:
        if self._closed:
            return
        if self._out is None:
            self._out = Writer(f"{type(self).__name__} to {self._path}", lambda: JournalFile(self._path, self._limit))
        self._number += 1
        record.number = self._number
        if late:
            record.ready = _copied(late)
        self._out.put(record)

    def persist(self) -> bool:
        """Wait until every row is written; False if the disk is too slow for it."""
        return self._out is None or self._out.flush(FLUSH)

    def state_dict(self) -> dict[str, Any]:
        """Where the journal ends now. All before it is on disk when this returns; None if the disk is too slow."""
        whole = self.persist()
        return {"end": self._path.stat().st_size if whole and self._path.exists() else None}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """The run goes on from there; what the journal has behind it is of a part that was lost."""
        self._after = state.get("end")

    def close(self) -> None:
        """Let every row out; bounded in time.

        Raises:
            OSError: the file could not be written.
            TimeoutError: writing takes too long.
        """
        self._closed, self._bus = True, None
        if self._out is not None:
            self._out.close()


def is_full(journal: object, run_dir: object) -> bool:
    """Whether a loop's ``journal=`` asks for the full one.

    Raises:
        ValueError: it is neither of the two words, or there is no folder for it.
    """
    full = check_choice("journal", journal, ("short", "full")) == "full"
    if full and run_dir is None:
        raise ValueError("journal='full' needs a run_dir")
    return full


def _inside(frame: Any) -> bool:
    """Whether the publish that calls this handler was made by another handler."""
    while frame.f_code is not Dispatcher.publish.__code__:
        frame = frame.f_back
        if frame is None:
            return True  # through blinker's send
    return frame.f_back is not None and frame.f_back.f_code is Dispatcher._inside.__code__


# -- numbers -----------------------------------------------------------------------------------------------------------


def _news(now: dict[str, Cell], before: dict[str, Cell], late: list[Cell]) -> Mapping[str, Any]:
    """Values of the cells that are new: floats, or cells of their own, added to ``late``, for the writer's thread."""
    if now is before or not now:
        return NO_NEWS
    news: dict[str, Any] = {}
    for key, cell in now.items():
        if before.get(key) is not cell:
            value = cell.value
            news[key] = value if value.__class__ is float else _taken(value, late)
    return news


def _taken(value: Any, late: list[Cell]) -> Any:
    """A float where the value is on the host, for whom reading is cheaper than a clone; else a cell with a clone."""
    if not _on_host(value):
        late.append(cell := Cell(_clone(value), 0))
        return cell
    if value.__class__ is not tuple:
        return float(value)
    fetch([cell := Cell(value, 0)])  # it alone knows how the mean is made that handlers see
    return cell.value


def _on_host(value: Any) -> bool:
    if value.__class__ is tuple:
        return all(map(_on_host, value))
    return bool(getattr(value, "is_cpu", True))


def _clone(value: Any) -> Any:
    if value.__class__ is tuple:
        return tuple(map(_clone, value))
    return value if _on_host(value) else value.clone()


def _copied(late: list[Cell]) -> tuple[Any, ...]:
    """What the writer's thread has to wait for before it may read the clones: it has streams of its own."""
    parts = [part for cell in late for part in (cell.value if cell.value.__class__ is tuple else (cell.value,))]
    devices = {part.device for part in parts if getattr(part, "is_cuda", False)}
    return tuple(sys.modules["torch"].cuda.current_stream(device).record_event() for device in devices)
