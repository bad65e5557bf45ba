"""`replay` and `sweep`: the deciders of a recorded run, run again on its numbers with other settings."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any, Final

from ..errors import told
from .cast import DECISIONS, USUAL, Cast, NotRebuiltError, Role, role_of
from .changes import checked_grid, checked_settings, nearest
from .drive import Drive
from .moments import MEASURES
from .outcome import Replayed, best_of, difference
from .record import Record

Run = str | PathLike[str]
MUST_DECIDE: Final = ("Stop", "Save")
"""Whoever has asked for one of these must run live, or the replay has verified nothing."""
DID: Final = {"Report": "reported", "SetLR": "set rates"}


def replay(run: Run, settings: Mapping[str, Any] | None = None) -> Replayed:
    """How a recorded run would have gone with other settings of its deciders.

    Without settings the recorded ledger must come out again; ``reproduced`` says whether it does.

    Args:
        run: the run's folder, or its journal, a full one.
        settings: by callback and argument, such as ``{"EarlyStopping.patience": 5}``.

    Raises:
        FileNotFoundError: there is no such run, or it has no journal.
        TypeError: the settings are no mapping.
        ValueError: the journal is short or incomplete, there is no such callback or argument, or the callback refuses
            the value.
    """
    changes = checked_settings({} if settings is None else settings)
    return Player(run).play(changes)


def sweep(run: Run, grid: Mapping[str, Sequence[Any]]) -> list[Replayed]:
    """Every combination of the settings given; see `replay`.

    Args:
        run: the run's folder, or its journal, a full one.
        grid: for each setting its values, such as ``{"EarlyStopping.patience": [2, 3, 5]}``.

    Raises:
        TypeError: the grid is no mapping of settings to lists of values.
        Exception: see `replay`.
    """
    lists = checked_grid(grid)
    return list(Player(run).sweep(lists))


class Player:
    """A record that is read once and played as often as one likes.

    Attributes:
        record: the run.
        as_it_was: who is played from the record although there was something to decide, and why.
    """

    def __init__(self, run: Run) -> None:
        self.record = Record(run)
        self.as_it_was: dict[str, str] = {}
        self._roles: dict[str, Role] = {}
        self._cast: Cast | None = None  # the last one, for the moments know what it needs of them
        self._own: dict[frozenset[str], Replayed] = {}  # with the recorded settings, by who else runs live
        self._find_roles()
        self._agree()

    def play(self, settings: Mapping[str, Any]) -> Replayed:
        """One replay; without settings the one of the run as it was."""
        changes: dict[str, dict[str, Any]] = {}
        for setting, value in settings.items():
            name, argument = self._place(setting)
            changes.setdefault(name, {})[argument] = value
        more = {name: self._role(name) for name in changes if name not in self._roles}
        own = self._as_recorded(more)
        if not changes:
            return own
        drive = self._drive(self._roles | more, changes)
        for argument, value in (change for one in changes.values() for change in one.items()):
            if argument == "monitor" and isinstance(value, str) and value not in self.record.metrics:
                drive.stage.note(f"the record has no metric {value!r}; there are {nearest(value, self.record.metrics)}")
        if not own.reproduced:
            drive.stage.note("how exact this is: even with the recorded settings the ledger does not come out again")
        return self._told(drive, settings, changes, own)

    def _as_recorded(self, more: Mapping[str, Role]) -> Replayed:
        """The run as it was; who else is to run live must do then what it did."""
        key = frozenset(more)
        if key not in self._own:
            self._own[key] = self._told(self._drive({**self._roles, **more}, {}), {}, {}, None)
        return self._own[key]

    def sweep(self, grid: Mapping[str, Sequence[Any]]) -> Iterator[Replayed]:
        """One replay for each combination, in the order of the grid."""
        for values in itertools.product(*grid.values()):
            yield self.play(dict(zip(grid, values, strict=True)))

    def _drive(self, roles: Mapping[str, Role], changes: Mapping[str, Mapping[str, Any]]) -> Drive:
        order = {name: i for sitting in self.record.callbacks for i, name in enumerate(sitting)}
        live = sorted(roles, key=lambda name: order[name])
        if self._cast is None or [role.name for role in self._cast.roles] != live:
            self._cast = Cast(self.record, [roles[name] for name in live])
        drive = Drive(self.record, self._cast, changes)
        drive.run()
        return drive

    def _told(
        self, drive: Drive, settings: Mapping[str, Any], changed: Mapping[str, object], own: Replayed | None
    ) -> Replayed:
        stage, result, record = drive.stage, drive.result, self.record
        stopped = result is not None and result.status == "stopped"
        monitor, mode = _monitor([drive.deciders[name] for name in [*changed, *drive.deciders]])
        recorded = record.evaluations
        made = {step: recorded[step] for step in stage.evaluated}
        unlike = difference(stage.entries, record.ledger)
        folder = stage.folder
        return Replayed(
            path=str(record.path),
            settings=dict(settings),
            live=tuple(drive.deciders),
            as_it_was={name: why for name, why in self.as_it_was.items() if name not in drive.deciders},
            unverified=self._unverified(drive, unlike is None) if own is None else own.unverified,
            not_anew=self._not_anew(drive),
            open=not record.ended,
            steps=record.steps,
            step=stage.progress.step,
            status="open" if result is None else result.status,
            stopped_at=result.step if stopped else None,
            stopped_by=result.stopped_by if stopped else None,
            reason="" if result is None else result.reason,
            kept=tuple(c.step for c in folder.checkpoints.list()) if folder is not None else (),
            monitor=monitor,
            mode=mode,
            best=None if monitor is None else best_of(made, monitor, mode),
            best_recorded=None if monitor is None else best_of(recorded, monitor, mode),
            ledger=tuple(stage.entries),
            reproduced=unlike is None if own is None else own.reproduced,
            difference=unlike,
            unknown=tuple(stage.unknown),
            failures=drive.failures(),
        )

    def _unverified(self, drive: Drive, same: bool) -> dict[str, str]:
        """Whose decisions are the record's, or are not what they were although nothing was changed."""
        record, live = self.record, drive.deciders
        must = record.asked(*MUST_DECIDE)
        found = {name: why for name, why in self.as_it_was.items() if name in must and name not in live}
        if not record.described and not found:
            found["run.json"] = "it is missing, so nobody knows who was attached, and with which settings"
        for name in live.keys() - self._roles.keys():
            if not same:
                found[name] = self.as_it_was.get(name, "with its recorded settings it does not do what it did")
            elif drive.stage.strayed:
                found[name] = "with its recorded settings it does not set the recorded learning rates"
        for failure in drive.failures():
            found.setdefault(failure.subscription, f"with its recorded settings it fails: {told(failure.error)}")
        return found

    def _not_anew(self, drive: Drive) -> dict[str, str]:
        """Those that had nothing to decide, with what they did."""
        found: dict[str, str] = {}
        for name in dict.fromkeys(name for sitting in self.record.callbacks for name in sitting):
            if name not in drive.deciders and name not in self.as_it_was:
                asked = self.record.requests.get(name, set())
                others = sorted(asked - DID.keys())
                did = " and ".join(DID[kind] for kind in DID if kind in asked)
                rest = f"asked for {', '.join(others)}" if others else "asked for nothing"
                found[name] = f"it {did}, and {rest}" if did else f"it {rest}"
        return found

    # -- who runs live -------------------------------------------------------------------------------------------------

    def _find_roles(self) -> None:
        """The usual deciders and whoever has asked for a decision; not those that measure or set rates."""
        types = {name: one["type"] for sitting in self.record.callbacks for name, one in sitting.items()}
        usual = {name for name, kind in types.items() if kind in USUAL}
        measures = self.record.asked(*MEASURES)
        for name in sorted(usual | (self.record.asked(*DECISIONS) - {"Loop"})):
            if name in measures:
                self.as_it_was[name] = "what it measures, or the rates that it sets, are those of the record"
                continue
            try:
                self._roles[name] = role_of(self.record, name, changed=False)
            except NotRebuiltError as error:
                self.as_it_was[name] = str(error)

    def _agree(self) -> None:
        """Replay the run as it was; who decides otherwise on the same numbers is played from the record."""
        while True:
            self._own.clear()
            played = self._as_recorded({})
            suspects = {entry.who for entry in played.difference or () if entry is not None} & self._roles.keys()
            if not suspects:
                return
            failed = {failure.subscription: failure for failure in reversed(played.failures)}
            for name in suspects:
                del self._roles[name]
                fails = f"built anew it fails: {told(failed[name].error)}" if name in failed else ""
                self.as_it_was[name] = fails or "built anew it decides otherwise on the same numbers"

    def _role(self, name: str) -> Role:
        if name in self._roles:
            return self._roles[name]
        try:
            return role_of(self.record, name, changed=True)
        except NotRebuiltError as error:
            raise ValueError(f"{name} cannot be built anew: {error}") from None

    def _place(self, setting: str) -> tuple[str, str]:
        """The callback and the argument that a setting means.

        Raises:
            ValueError: there is none; the message names those that there are, the nearest first.
        """
        word, _, argument = setting.rpartition(".")
        there = {name: one for sitting in self.record.callbacks for name, one in sitting.items()}
        named = [name for name, one in there.items() if word in (name, one["type"])]
        name = word if word in there else named[0] if len(named) == 1 else None
        if not self.record.described:
            raise ValueError(
                f"{setting}: run.json is missing, which tells the callbacks of this run and their settings"
            )
        if name is None:
            raise ValueError(f"{setting}: no callback {word!r} in this run; there are {nearest(word, there)}")
        known = list(inspect.signature(self._role(name).kind).parameters)
        if argument not in known:
            raise ValueError(f"{setting}: {name} has no {argument!r}; it has {nearest(argument, known)}")
        return name, argument


def _monitor(deciders: Sequence[Any]) -> tuple[str | None, str]:
    """What the first of the deciders that look at a metric looks at."""
    for decider in deciders:
        monitor, mode = getattr(decider, "monitor", None), getattr(decider, "mode", None)
        if isinstance(monitor, str) and mode in ("min", "max"):
            return monitor, mode
    return None, "min"
