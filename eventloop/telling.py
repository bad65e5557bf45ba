"""Telling the bus what happens in a run, and taking over what the handlers changed and asked for."""

from __future__ import annotations

from collections.abc import Callable

from .bus import Bus
from .events import Event, TrainBegin
from .fold import NOTHING, Control
from .folder import Folder
from .full_journal import FullJournal
from .journal import Journal
from .ledger import Entry, Ledger
from .progress import Progress


class Teller:
    """The half of a run that publishes.

    Attributes:
        told: the classes of the events that somebody heard.
    """

    def __init__(self, bus: Bus, progress: Progress, ledger: Ledger, folder: Folder | None) -> None:
        self.bus, self.progress, self.ledger, self.folder = bus, progress, ledger, folder
        self.told: set[type[Event]] = set()
        journal = None if folder is None else folder.journal
        self._full = journal if isinstance(journal, FullJournal) else None
        self._telling = False
        self._event: Event = TrainBegin()  # the last one told
        ledger.written = self._journal

    def tell(self, event: Event) -> Control:
        """Publish an event if anybody hears it; no snapshot is built otherwise.

        Raises:
            Exception: the first error of a handler under the policy ``raise``.
        """
        if not self.bus.hears(type(event), self.progress.fields):
            return NOTHING
        control = self.tell_quietly(event)
        if control.failures:
            control.raise_failures()
        return control

    def publish(self, event: Event) -> Control:
        """Publish an event, and take over what the handlers reported and asked for.

        Raises:
            Exception: the first error of a handler under the policy ``raise``.
        """
        control = self.tell_quietly(event)
        if control.failures:
            control.raise_failures()
        return control

    def tell_quietly(self, event: Event) -> Control:
        """`publish` without raising: failures are in ``control.failures``."""
        self.told.add(type(event))
        self._event = event
        state = self.progress.snapshot()
        nested, self._telling = self._telling, True
        full = None if nested else self._full
        if full is not None:
            full.expect(event)
        try:
            control = self.bus.publish(event, state, False)
        except BaseException:
            if full is not None:
                self._write(full, lambda: full.tell(event, state, None))
            raise
        finally:
            self._telling = nested
        if nested:
            return control  # a handler's own publish reaches the loop through the outer answer
        if control is not NOTHING:
            self.progress.adopt(control, state)
        if full is not None:
            self._write(full, lambda: full.tell(event, state, control))
        if control is not NOTHING:
            self.ledger.file(control, event, max(state.step, state.update), self.progress.in_hand)
        return control

    def _journal(self, entry: Entry) -> None:
        journal = None if self.folder is None else self.folder.journal
        if journal is not None:
            self._write(journal, lambda: journal.entry(entry))

    def _write(self, journal: Journal, write: Callable[[], None]) -> None:
        """Let the journal write; that it cannot is its own failure."""
        try:
            write()
        except Exception as error:
            if (who := self.bus.find(self.bus.name_of(journal))) is not None:
                self.bus.fail(who, self._event, self.progress.snapshot(), error)
