"""What a run keeps in its folder: the journal, what it is, and its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final, cast

from .checkpoint import Checkpoints, Saving
from .checkpoint.files import make_folder
from .checkpoint.lock import RunLock
from .checkpoint.service import Stateful
from .journal import Journal
from .log import logger
from .parts import Ownerless
from .resume import Resumed, compare, find
from .rundir import describe_run, move_aside, refuse_used

_FAILS_FIRST: Final = "bus"  # the part in which users' code runs: if it fails, the model is as it was


class Folder:
    """The run folder of one run.

    Args:
        path: the folder.
        run_id: the run's name; one that is resumed keeps its own.
        resume: None, "auto", a path or a step.
        overwrite: move another run aside instead of refusing.
        background: write checkpoints in a thread of their own.

    Raises:
        FileExistsError: the folder holds another run, and nobody said to resume or to move it aside.
        CheckpointError: the checkpoint to go on from does not exist or is damaged.
    """

    resumed: Resumed | None = None  # what came back, once that is known
    skipped: tuple[str, ...] = ()  # checkpoints that were passed over
    planned_from: Mapping[str, float] = MappingProxyType({})  # the learning rates of the last update before
    _states: dict[str, Any] | None = None  # read, and not yet loaded

    def __init__(
        self, path: str | Path, run_id: str, resume: object, overwrite: bool, *, background: bool = False
    ) -> None:
        self.path = Path(path).absolute()  # the script may change its folder in mid-run
        self.checkpoints = Checkpoints(self.path / "checkpoints", run_id, background=background)
        self._lock: RunLock | None = None
        self._resume = resume
        self.origin, self.skipped = find(self.checkpoints, resume)
        self._go_on()
        new = resume != "auto" and not self._ours
        self._overwrite = overwrite and new
        if new and not overwrite:
            refuse_used(self.path)
        self.journal: Journal | None = Journal(self.path / "journal.jsonl")
        self._parts: Mapping[str, Stateful] = {}
        self._describe: Callable[[], None] = lambda: None  # called when the run has really begun

    def open(self, seed: int, callbacks: Iterable[tuple[str, Any]]) -> None:
        """Make the folder, keep other runs out of it, and say in it what is run.

        Raises:
            CheckpointError: another run writes there.
        """
        if self._overwrite and self.path.is_dir():
            used = RunLock(self.path)
            try:
                aside = move_aside(self.path)
            finally:
                used.release()
            if aside is not None:
                logger().warning(f"moved the earlier run aside to {aside}")
        make_folder(self.path)
        if self._lock is None:
            self._overwrite = False  # what was there is aside
            self._claim()
        self.checkpoints.repair()
        if self.origin is not None and self._ours:  # a replacement that a kill had cut short is finished by now
            self.origin = replace(self.origin, path=self.checkpoints.at(self.origin.step))
        self._describe = lambda: describe_run(self.path, self.checkpoints.run_id, seed, callbacks)

    def _claim(self) -> None:
        """From here on nobody else may write there; what was written since this run was made counts.

        Raises:
            CheckpointError: another run writes there.
            FileExistsError: another run has written there.
        """
        if self._lock is not None or self._overwrite or not self.path.is_dir():
            return
        self._lock = RunLock(self.path)
        if self._resume == "auto":
            newest = [] if self.origin is None else [self.origin]
            if self.checkpoints.list()[-1:] != newest:
                self.origin, self.skipped = find(self.checkpoints, self._resume)
                self._go_on()
        elif not self._ours:
            refuse_used(self.path)

    def _go_on(self) -> None:
        """The run is that of the checkpoint that it goes on from."""
        self._ours = self.origin is not None and self.origin.path.parent.resolve() == self.checkpoints.root.resolve()
        if self.origin is not None:
            self.checkpoints.run_id = self.origin.run_id

    def compare(self, parts: Mapping[str, Stateful], on_mismatch: str = "report") -> None:
        """Read the checkpoint to go on from and find out what fits; nothing is loaded or written.

        Raises:
            CheckpointError: it is damaged, or a state in it does not fit.
            ResumeError: something differs, and ``on_mismatch`` is "error".
        """
        self._claim()
        if self.origin is not None:
            self._states = self.origin.load(getattr(parts.get("model"), "target", None))
            self.planned_from = self._states.get("progress", {}).get("lr", {})
            self.resumed = compare(self.origin, self.skipped, self._states, parts)
            if on_mismatch == "error":
                self.resumed.require_match()

    def load(self, parts: Mapping[str, Stateful]) -> bool:
        """Give every part its state from the checkpoint to go on from; False if there is none.

        A state without a part travels on in later checkpoints; a part without a state starts fresh.
        """
        self._parts = parts
        if self.origin is None:
            self._describe()
            return False
        if self.resumed is None or self._states is None:
            self.compare(parts)
        report, states, self._states = cast("Resumed", self.resumed), cast("dict[str, Any]", self._states), None
        for name in sorted(states.keys() & parts.keys(), key=[_FAILS_FIRST, *parts].index):
            self._load_part(name, parts[name], states.pop(name))
        self._parts = {**parts, **{name: Ownerless(state) for name, state in states.items()}}
        if self._ours:  # only now that everything fits
            self.checkpoints.go_on_from(self.origin)
        self._describe()
        self.resumed = replace(report, path=self.origin.path)
        self.resumed.log()
        return True

    def _load_part(self, name: str, part: Stateful, state: Any) -> None:
        try:
            part.load_state_dict(state)
        except Exception as error:
            where = "" if self.origin is None else f" of {self.origin.path}"
            error.add_note(f"while loading the {name}{where}; for another model or optimizer take another run_dir")
            raise

    def rehearse(self, parts: Mapping[str, Stateful]) -> None:
        """Take every state once, so that one that cannot be written is found before the training.

        Raises:
            TypeError: naming the place of what no file can hold.
        """
        self.checkpoints.rehearse(parts)

    def save(self, step: int, asked_by: Mapping[str, Iterable[str]], metrics: Mapping[str, float]) -> Saving:
        """Begin a checkpoint of every part."""
        return self.checkpoints.save(step, self._parts, asked_by, metrics)

    def close(self) -> None:
        """The run is over: nothing is on its way to the disk any more, and others may have the folder."""
        try:
            self.checkpoints.close()
        finally:
            lock, self._lock = self._lock, None
            if lock is not None:
                lock.release()
