"""What a run keeps in its folder: the journal, what it is, and its checkpoints."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from .checkpoint import Checkpoint, Checkpoints
from .checkpoint.codec import pack
from .checkpoint.files import make_folder
from .checkpoint.service import Stateful
from .errors import CheckpointError
from .journal import Journal
from .log import logger
from .parts import Ownerless
from .rundir import describe_run, move_aside, refuse_used


class Folder:
    """The run folder of one run.

    Args:
        path: the folder.
        run_id: the run's name; one that is resumed keeps its own.
        resume: None, "auto", a path or a step.
        overwrite: move another run aside instead of refusing.

    Raises:
        FileExistsError: the folder holds another run, and nobody said to resume or to move it aside.
        CheckpointError: the checkpoint to go on from does not exist or is damaged.
    """

    def __init__(self, path: str | Path, run_id: str, resume: object, overwrite: bool) -> None:
        self.path = Path(path).absolute()  # the script may change its folder in mid-run
        self.checkpoints = Checkpoints(self.path / "checkpoints", run_id)
        self.origin = self._find(resume)
        self._ours = self.origin is not None and self.origin.path.parent.resolve() == self.checkpoints.root.resolve()
        new = resume != "auto" and not self._ours
        self._overwrite = overwrite and new
        if new and not overwrite:
            refuse_used(self.path)
        if self.origin is not None:
            self.checkpoints.run_id = self.origin.run_id
        self.journal: Journal | None = Journal(self.path / "journal.jsonl")
        self._parts: Mapping[str, Stateful] = {}
        self._describe: Callable[[], None] = lambda: None  # called when the run has really begun

    def _find(self, resume: object) -> Checkpoint | None:
        if resume is None:
            return None
        if resume == "auto":
            newest = self.checkpoints.newest()
            if newest is None:
                logger().warning(f"resume='auto': no whole checkpoint in {self.checkpoints.root}; starting fresh")
            return newest
        if isinstance(resume, int) and not isinstance(resume, bool):
            path = self.checkpoints.at(resume)
        elif isinstance(resume, str | Path):
            path = Path(resume)
        else:
            raise TypeError(f"resume={resume!r}: give None, 'auto', a checkpoint's path or a step")
        if not path.is_dir():
            there = ", ".join(str(c.step) for c in self.checkpoints.list()) or "none"
            raise CheckpointError(f"resume={resume!r}: there is no checkpoint {path}; steps there: {there}")
        found = Checkpoint.read(path)
        found.verify()
        return found

    def open(self, seed: int, callbacks: Iterable[tuple[str, Any]]) -> None:
        """Make the folder and say in it what is run."""
        if self._overwrite and (aside := move_aside(self.path)) is not None:
            logger().warning(f"moved the earlier run aside to {aside}")
        make_folder(self.path)
        self.checkpoints.clear_rubbish()
        if self.origin is not None and self._ours:  # a replacement that a kill had cut short is finished by now
            self.origin = replace(self.origin, path=self.checkpoints.at(self.origin.step))
        self._describe = lambda: describe_run(self.path, self.checkpoints.run_id, seed, callbacks)

    def load(self, parts: Mapping[str, Stateful]) -> bool:
        """Give every part its state from the checkpoint to go on from; False if there is none.

        A state without a part is said and travels on in later checkpoints; a part without a state is said.
        """
        self._parts = parts
        if self.origin is None:
            self._describe()
            return False
        states = self.origin.load()
        for name, part in parts.items():
            if name in states:
                self._load_part(name, part, states.pop(name))
            else:
                logger().warning(f"{self.origin.path} has no state of the {name}; it starts fresh")
        for name in states:
            logger().warning(f"{self.origin.path} has a state of the {name}, which this run is without; it is kept")
        self._parts = {**parts, **{name: Ownerless(state) for name, state in states.items()}}
        if self._ours:  # only now that everything fits
            self.checkpoints.go_on_from(self.origin)
        self._describe()
        logger().warning(f"resumed from {self.origin.path}, step {self.origin.step}")
        return True

    def _load_part(self, name: str, part: Stateful, state: Any) -> None:
        try:
            part.load_state_dict(state)
        except Exception as error:
            where = "" if self.origin is None else f" of {self.origin.path}"
            error.add_note(f"while loading the {name}{where}; for another model or optimizer take another run_dir")
            raise

    def rehearse(self, parts: Mapping[str, Stateful]) -> None:
        """Pack every state but the model's once, so that one that cannot be written is found before the training.

        Raises:
            TypeError: naming the place of what is neither JSON nor a tensor.
        """
        for name, part in parts.items():
            if name != "model":
                pack(part.state_dict(), name, {})

    def save(self, step: int, asked_by: Mapping[str, Iterable[str]], metrics: Mapping[str, float]) -> Checkpoint:
        """Write a checkpoint of every part."""
        return self.checkpoints.save(step, self._parts, asked_by, metrics)
