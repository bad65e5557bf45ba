"""Who asked for what, when, and what came of it; and the order in which requests are carried out."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Literal, Protocol

from .events import CheckpointSaved, EpochEnd, EvalEnd, Event, GradientsReady, RunFailed, TrainEnd
from .fold import Control
from .ranks import Agreement
from .requests import Evaluate, Keep, Report, Request, Save, SetLR, SkipUpdate, Stop

KEPT: Final = 1000
Fate = Literal["granted", "deferred", "refused", "expired"]


@dataclass(frozen=True, slots=True)
class Asked:
    """A request on its way: ``who`` made it, at which ``event`` of which ``step``."""

    who: str
    request: Request
    event: str
    step: int
    immediate: bool = False  # from an evaluation, an epoch's end or train_*: agreed before the next update

    @property
    def kind(self) -> str:
        """The request's class name."""
        return type(self.request).__name__

    @property
    def within(self) -> float | None:
        """Of a stop because the process will be killed: in how many seconds; else None."""
        return self.request.within if isinstance(self.request, Stop) else None


@dataclass(frozen=True, slots=True)
class Entry:
    """One line of the ledger: asked for at ``step``, decided at ``decided``. A deferred request has a second line."""

    who: str
    request: str
    detail: str
    event: str
    step: int
    fate: Fate
    decided: int
    note: str = ""

    def __str__(self) -> str:
        detail = f" ({self.detail})" if self.detail else ""
        note = f": {self.note}" if self.note else ""
        return f"{self.request} by {self.who}{detail} at {self.event} of step {self.step} {self.fate}{note}"


class Acts(Protocol):
    """What the loop can do about a request. Each returns None if done, else why it is refused."""

    def stop(self, asked: Asked) -> str | None:
        """End the run after the update in hand."""
        ...

    def evaluate(self) -> str | None:
        """Evaluate now, unless it was done at this update."""
        ...

    def save(self, asked: list[Asked]) -> str | None:
        """Write one checkpoint for all that asked."""
        ...

    def keep(self, asked: Asked) -> None:
        """Note which checkpoints a saver wants."""
        ...

    def obey(self, asked: Asked) -> str | None:
        """Hand a request of the user's own class to whoever was registered for it."""
        ...


class Ledger:
    """Requests from the dispatch that made them to their end. The last 1,000 entries are kept, and totals of all."""

    def __init__(self, agreement: Agreement) -> None:
        self.entries: deque[Entry] = deque(maxlen=KEPT)
        self.totals: Counter[str] = Counter()
        self.pending: list[Asked] = []
        self.written: Callable[[Entry], None] = lambda entry: None
        self._agreement = agreement
        self._said: set[tuple[str, str, str]] = set()
        self._open: list[Asked] = []  # agreed on, and not yet carried out
        self._saving: tuple[list[Asked], int] = [], 0  # those of them for which a checkpoint is being made right now

    def file(self, control: Control, event: Event, step: int, mid_update: bool = False) -> None:
        """Take in the requests of one dispatch; what nobody may ask at this event is refused."""
        for who, request in control.requests:
            kind = type(request)
            if kind is Report or kind is SetLR:
                self.totals[kind.__name__] += 1
                continue
            immediate = event.name in ("train_begin", "eval_end", "epoch_end")
            asked = Asked(who, request, event.name, step, immediate)
            if isinstance(request, SkipUpdate) and isinstance(event, GradientsReady):
                self.settle_one(asked, "granted", step)
            elif why := _refused_at(request, event):
                self.settle_one(asked, "refused", step, why)
            else:
                self.pending.append(asked)
                if isinstance(request, Save) and mid_update:
                    self.settle_one(asked, "deferred", step, "until the update in hand is done")

    def carry_out(self, acts: Acts, step: int, *, saves: bool = True) -> None:
        """Carry out what is pending: stops and user requests, evaluations, then one save for all that asked.

        An evaluation's own requests are included. Without ``saves`` these wait, for an epoch's end is still to come.
        """
        kept: list[Asked] = []
        while self.pending:
            asked, self.pending = self._agreed(step), []
            self._open += asked
            kept += [a for a in asked if isinstance(a.request, Save)]
            for a in asked:
                if isinstance(a.request, Stop):
                    self._settle(a, acts.stop(a), step)
                elif isinstance(a.request, Keep):
                    acts.keep(a)
                elif not isinstance(a.request, Save | Evaluate):
                    self._settle(a, acts.obey(a), step)
            if evaluations := [a for a in asked if isinstance(a.request, Evaluate)]:
                why = acts.evaluate()
                for a in evaluations:
                    self._settle(a, why, step)
            if kept and saves and not self.pending:
                self._saving = kept, step
                why = acts.save(kept)
                self._saving = [], step
                for a in kept:
                    self._settle(a, why, step)
                kept = []
        self.pending, self._open = kept, []

    def carry_out_keeps(self, keep: Callable[[Asked], None]) -> None:
        """What savers want kept is noted at once: nothing else that is pending may come before it."""
        keeps = [asked for asked in self.pending if isinstance(asked.request, Keep)]
        self.pending = [asked for asked in self.pending if not isinstance(asked.request, Keep)]
        for asked in keeps:
            keep(asked)

    def _agreed(self, step: int) -> list[Asked]:
        now = [a for a in self.pending if a.immediate]
        later = [a for a in self.pending if not a.immediate]
        return [*self._agreement.now(now), *self._agreement.later(step, later)]

    def expire(self, step: int) -> None:
        """The run is over: what is still open has expired."""
        for asked in [*self._open, *self.pending, *self._agreement.drain()]:
            if not isinstance(asked.request, Keep):
                self.settle_one(asked, "expired", step, "the run was over")
        self.pending, self._open = [], []

    def _settle(self, asked: Asked, why: str | None, step: int) -> None:
        self._open = [other for other in self._open if other is not asked]
        self.settle_one(asked, "granted" if why is None else "refused", step, why or "")

    def settle_one(self, asked: Asked, fate: Fate, step: int, note: str = "") -> None:
        """Write a fate down. The same refusal or deferral of one asker is said once, and counted from then on."""
        self.totals[f"{asked.kind} {fate}"] += 1
        said = (asked.who, asked.kind, note)
        if fate in ("refused", "deferred") and said in self._said:
            return
        self._said.add(said)
        entry = _entry(asked, fate, step, note)
        self.entries.append(entry)
        self.written(entry)

    def __iter__(self) -> Iterator[Entry]:
        return iter(tuple(self.entries))

    def of(self, fate: Fate) -> list[Entry]:
        """The kept entries of one fate."""
        return [entry for entry in self.entries if entry.fate == fate]

    def state_dict(self) -> dict[str, Any]:
        """The kept entries and the totals; the whole ledger is the journal.

        In a checkpoint that is just being made, what has asked for it is granted.
        """
        saving, step = self._saving
        granted = [_entry(asked, "granted", step, "") for asked in saving]
        entries = [[getattr(e, name) for name in Entry.__slots__] for e in [*self.entries, *granted][-KEPT:]]
        return {"entries": entries, "totals": self.totals + Counter(f"{a.kind} granted" for a in saving)}

    def load_state_dict(self, state: dict[str, Any]) -> None:
        """Go on from there."""
        self.entries = deque((Entry(*e) for e in state["entries"]), maxlen=KEPT)
        self.totals = Counter(state["totals"])


def _entry(asked: Asked, fate: Fate, step: int, note: str) -> Entry:
    detail = getattr(asked.request, "reason", "") or getattr(asked.request, "tag", "")
    return Entry(asked.who, asked.kind, str(detail), asked.event, asked.step, fate, step, note)


def _refused_at(request: Request, event: Event) -> str | None:
    """Why nobody may ask this at this event."""
    if isinstance(event, RunFailed):
        return "the run has failed"
    if isinstance(event, TrainEnd) and not isinstance(request, Keep):
        return "the run is over"
    if isinstance(event, EpochEnd) and not event.completed:
        return "the epoch was left before its end"
    if isinstance(event, EvalEnd) and not event.completed and not isinstance(request, Keep | Stop):
        return "the evaluation was given up before its end"
    if isinstance(request, SkipUpdate):
        return "an update can only be skipped at gradients_ready"
    if isinstance(request, Save) and isinstance(event, CheckpointSaved):
        return "a save may not ask for a save"
    return None
