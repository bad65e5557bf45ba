"""`replay` and `sweep`: the deciders of a recorded run, run again on its numbers with other settings."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import Iterator, Mapping, Sequence
from os import PathLike
from typing import Any

from .cast import DECISIONS, USUAL, Cast, NotRebuiltError, Role, nearest, role_of
from .drive import Drive
from .moments import MEASURES
from .outcome import Replayed, best_of, difference
from .record import Record

Run = str | PathLike[str]


def replay(run: Run, settings: Mapping[str, Any] | None = None) -> Replayed:
    """How a recorded run would have gone with other settings of its deciders.

    Without settings the recorded ledger must come out again; ``reproduced`` says whether it does.

    Args:
        run: the run's folder, or its journal, a full one.
        settings: by callback and argument, such as ``{"EarlyStopping.patience": 5}``.

    Raises:
        FileNotFoundError: there is no journal.
        ValueError: the journal is short or incomplete, there is no such callback or argument, or the callback refuses
            the value.
    """
    return Player(run).play(settings or {})


def sweep(run: Run, grid: Mapping[str, Sequence[Any]]) -> list[Replayed]:
    """Every combination of the settings given; see `replay`.

    Args:
        run: the run's folder, or its journal, a full one.
        grid: for each setting its values, such as ``{"EarlyStopping.patience": [2, 3, 5]}``.
    """
    return list(Player(run).sweep(grid))


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
        self._find_roles()
        self._baseline: Replayed | None = None
        self._baseline = self._agree()

    def play(self, settings: Mapping[str, Any]) -> Replayed:
        """One replay; without settings the one of the run as it was."""
        changes: dict[str, dict[str, Any]] = {}
        for setting, value in settings.items():
            name, argument = self._place(setting)
            changes.setdefault(name, {})[argument] = value
        if not changes and self._baseline is not None:
            return self._baseline
        roles = self._roles | {name: self._role(name) for name in changes}
        return self._run(roles, changes, settings)

    def sweep(self, grid: Mapping[str, Sequence[Any]]) -> Iterator[Replayed]:
        """One replay for each combination, in the order of the grid."""
        for values in itertools.product(*grid.values()):
            yield self.play(dict(zip(grid, values, strict=True)))

    def _run(
        self,
        roles: Mapping[str, Role],
        changes: Mapping[str, Mapping[str, Any]],
        settings: Mapping[str, Any],
    ) -> Replayed:
        order = {name: i for sitting in self.record.callbacks for i, name in enumerate(sitting)}
        live = sorted(roles, key=lambda name: order[name])
        if self._cast is None or [role.name for role in self._cast.roles] != live:
            self._cast = Cast(self.record, [roles[name] for name in live])
        drive = Drive(self.record, self._cast, changes)
        drive.run()
        return self._told(drive, tuple(live), settings)

    def _told(self, drive: Drive, live: tuple[str, ...], settings: Mapping[str, Any]) -> Replayed:
        stage, result = drive.stage, drive.result
        stopped = result is not None and result.status == "stopped"
        monitor, mode = _monitor(drive.deciders)
        recorded = self.record.evaluations
        made = {step: recorded[step] for step in stage.evaluated}
        unlike = difference(stage.entries, self.record.ledger)
        exact = self._baseline.reproduced if settings and self._baseline is not None else unlike is None
        if not exact and settings:
            stage.note("how exact this is: even with the recorded settings the ledger does not come out again")
        folder = stage.folder
        return Replayed(
            path=str(self.record.path),
            settings=dict(settings),
            live=live,
            as_it_was={name: why for name, why in self.as_it_was.items() if name not in live},
            steps=self.record.steps,
            step=stage.progress.step,
            status="open" if result is None else result.status,
            stopped_at=result.step if stopped else None,
            stopped_by=result.stopped_by if stopped else None,
            reason="" if result is None else result.reason,
            kept=tuple(c.step for c in folder.checkpoints.list()) if folder is not None else (),
            monitor=monitor,
            best=None if monitor is None else best_of(made, monitor, mode),
            best_recorded=None if monitor is None else best_of(recorded, monitor, mode),
            ledger=tuple(stage.entries),
            reproduced=exact,
            difference=unlike,
            unknown=tuple(stage.unknown),
        )

    # -- who runs live -------------------------------------------------------------------------------------------------

    def _find_roles(self) -> None:
        """The usual deciders and whoever has asked for a decision; not those that measure or set rates."""
        told = {name: one["type"] for sitting in self.record.callbacks for name, one in sitting.items()}
        usual = {name for name, kind in told.items() if kind in USUAL}
        measures = self.record.asked(*MEASURES)
        for name in sorted(usual | (self.record.asked(*DECISIONS) - {"Loop"})):
            if name in measures:
                self.as_it_was[name] = "what it measures, or the rates that it sets, are those of the record"
                continue
            try:
                self._roles[name] = role_of(self.record, name, changed=False)
            except NotRebuiltError as error:
                self.as_it_was[name] = str(error)

    def _agree(self) -> Replayed:
        """Replay the run as it was; who decides otherwise on the same numbers is played from the record."""
        while True:
            played = self._run(self._roles, {}, {})
            suspects = {entry.who for entry in played.difference or () if entry is not None} & self._roles.keys()
            if not suspects:
                return played
            for name in suspects:
                del self._roles[name]
                self.as_it_was[name] = "built anew it decides otherwise on the same numbers"

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
        told = {name: one for sitting in self.record.callbacks for name, one in sitting.items()}
        named = [name for name, one in told.items() if word in (name, one["type"])]
        name = word if word in told else named[0] if len(named) == 1 else None
        if name is None:
            raise ValueError(f"{setting}: no callback {word!r} in this run; there are {', '.join(nearest(word, told))}")
        known = list(inspect.signature(self._role(name).kind).parameters)
        if argument not in known:
            raise ValueError(f"{setting}: {name} has no {argument!r}; it has {', '.join(nearest(argument, known))}")
        return name, argument


def _monitor(deciders: Sequence[Any]) -> tuple[str | None, str]:
    """What the first of the deciders that look at a metric looks at."""
    for decider in deciders:
        monitor, mode = getattr(decider, "monitor", None), getattr(decider, "mode", None)
        if isinstance(monitor, str) and mode in ("min", "max"):
            return monitor, mode
    return None, "min"
