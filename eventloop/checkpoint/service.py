"""The checkpoint service: takes the state of the parts, and writes it while the training goes on. It knows no loop."""

from __future__ import annotations

import shutil
import sys
import time
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Literal, Protocol

from ..errors import CheckpointError
from ..log import logger
from .codec import pack
from .files import write_json
from .layout import Layout, check
from .manifest import STATE, SUFFIX, Checkpoint, write_manifest
from .retention import Retention
from .staging import Staging
from .store import Store
from .tensor_file import write_tensors

Saves = Literal["wait", "skip", "sync"]
SAVES: Final[tuple[Saves, ...]] = ("wait", "skip", "sync")
JUDGED: Final = 3  # saves that an estimate of the next is made from


class Stateful(Protocol):
    """Whatever has a part in a checkpoint."""

    def state_dict(self) -> Any:
        """Plain JSON plus tensors."""
        ...

    def load_state_dict(self, state: Any) -> Any:
        """Take it back, in place."""
        ...


class Saving:
    """A save whose state has been taken: on its way to the disk, or there, or failed."""

    def __init__(self, step: int, future: Future[Checkpoint]) -> None:
        self.step = step
        self.future = future
        self._since = time.monotonic()
        self.seconds = 0.0
        future.add_done_callback(self._note)

    def _note(self, future: Future[Checkpoint]) -> None:
        self.seconds = time.monotonic() - self._since

    @classmethod
    def ended(cls, checkpoint: Checkpoint) -> Saving:
        """One that needed no writing."""
        future: Future[Checkpoint] = Future()
        future.set_result(checkpoint)
        return cls(checkpoint.step, future)

    def done(self) -> bool:
        """Whether it has ended, well or not."""
        return self.future.done()

    def result(self) -> Checkpoint:
        """The checkpoint, once it is durable.

        Raises:
            Exception: why there is none.
        """
        return self.future.result()


@dataclass(frozen=True, slots=True)
class Taken:
    """The state of one moment: plain values as JSON, tensors in the staging memory."""

    step: int
    asked_by: Mapping[str, list[str]]
    metrics: Mapping[str, float]
    document: Mapping[str, Any]
    layouts: Mapping[str, Layout]
    persist: tuple[Callable[[], object], ...]


class Checkpoints(Store):
    """The checkpoints of one run, written in a thread of their own, and which of them each saver wants.

    Args:
        root: the folder; made at the first save.
        run_id: only checkpoints of this run are counted and removed.
        background: write in a thread, which is started by the first save; else in the caller's.
    """

    def __init__(self, root: Path, run_id: str, *, background: bool = False) -> None:
        super().__init__(root, run_id)
        self._retention = Retention()
        self._background = background
        self._pool: ThreadPoolExecutor | None = None
        self._staging = {"model": Staging(), "state": Staging()}
        self._seconds: deque[float] = deque(maxlen=JUDGED)

    def save(
        self,
        step: int,
        parts: Mapping[str, Stateful],
        asked_by: Mapping[str, Iterable[str]],
        metrics: Mapping[str, float],
    ) -> Saving:
        """Take the state of the parts now; write, sync and commit it, then remove what nobody wants any more.

        One save at a time: the one before must have ended. Where this run has saved the step already, whoever asked
        for it then has asked for this one too. A part that has ``persist()`` is asked, in the thread that writes, to
        see to it that what it was told by now is on disk before the checkpoint is.

        Raises:
            TypeError: a part has a state that no file can hold.
            RuntimeError: there is no memory for the copy.
        """
        taken = self._take(step, parts, asked_by, metrics)
        saving = Saving(step, self._submit(lambda: self._write(taken)))
        self._later(self._remove_unwanted)
        return saving

    def _take(
        self,
        step: int,
        parts: Mapping[str, Stateful],
        asked_by: Mapping[str, Iterable[str]],
        metrics: Mapping[str, float],
    ) -> Taken:
        document, tensors = _packed(parts)
        layouts = {kind: self._staging[kind].take(found) for kind, found in tensors.items() if found}
        asked = {who: sorted(tags) for who, tags in asked_by.items()}
        persist = tuple(part.persist for part in parts.values() if hasattr(part, "persist"))
        return Taken(step, asked, dict(metrics), document, layouts, persist)

    def rehearse(self, parts: Mapping[str, Stateful]) -> None:
        """Take every state once, so that one that cannot be written is found before the training.

        Raises:
            TypeError: naming the place of what no file can hold.
        """
        _, tensors = _packed(parts)
        for kind, found in tensors.items():
            for name, tensor in found.items():
                check(name if kind == "state" else f"{kind}.{name}", tensor)

    def _later(self, remove: Callable[[], None]) -> None:
        """Behind the save that is on its way; what goes wrong there is said, for nobody waits for it."""
        self._submit(remove).add_done_callback(_say_failure)

    def _submit(self, write: Callable[[], Any]) -> Future[Any]:
        if self._background:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(1, "eventloop-checkpoint")
            return self._pool.submit(write)
        future: Future[Any] = Future()
        try:
            future.set_result(write())
        except Exception as error:
            future.set_exception(error)
        return future

    # -- in the thread that writes -------------------------------------------------------------------------------------

    def _write(self, taken: Taken) -> Checkpoint:
        since = time.monotonic()
        temporary = self.temporary(taken.step)
        try:
            files = {STATE: write_json(temporary / STATE, taken.document)}
            for kind, layout in taken.layouts.items():
                path = temporary / f"{kind}{SUFFIX}"
                files[path.name] = write_tensors(path, layout.header(), self._staging[kind].data())
            for persist in taken.persist:
                persist()
            self._seal(temporary, taken, files)
        except BaseException:
            shutil.rmtree(temporary, ignore_errors=True)
            raise
        self._seconds.append(time.monotonic() - since)
        return Checkpoint.read(self._place(taken.step))

    def _seal(self, temporary: Path, taken: Taken, files: Mapping[str, tuple[int, str]]) -> None:
        asked, metrics = {**taken.asked_by}, taken.metrics
        forerunner = self.mine_at(taken.step)
        if forerunner is not None:
            metrics = {**forerunner.metrics, **metrics}
            for who, tags in forerunner.asked_by.items():
                asked[who] = sorted({*tags, *asked.get(who, ())})
        write_manifest(temporary, self.run_id, taken.step, asked, metrics, files)
        self.commit(temporary, taken.step, forerunner)

    def _remove_unwanted(self, *, make_room: bool = False) -> None:
        try:
            mine = [c for c in self.list() if c.run_id == self.run_id]
            going = self._retention.in_the_way(mine, _is_whole) if make_room else self._retention.unwanted(mine)
            if make_room and going:
                self.point_latest(max(c.step for c in mine if c not in going))
            latest = self.latest()
            for checkpoint in going:
                if checkpoint.path.name != latest:
                    self.trash(checkpoint.path)
        except OSError as error:  # what has been committed stands all the same
            logger().warning(f"checkpoints that nobody wants any more cannot be removed from {self.root}: {error}")

    # -- what is kept, and how long it takes ---------------------------------------------------------------------------

    def keep(self, saver: str, steps: frozenset[int], *, make_room: bool = False) -> None:
        """What this saver wants kept from now on; carried out behind the save that is on its way.

        Args:
            saver: who wants it.
            steps: what it wants.
            make_room: the steps are what it wants once its next save is there, and what that pushes out goes now, the
                newest too; one that is verified stays.
        """
        self._later(lambda: self._keep(saver, steps, make_room))

    def _keep(self, saver: str, steps: frozenset[int], make_room: bool) -> None:
        self._retention.keep(saver, steps)
        if self.root.is_dir():
            self._remove_unwanted(make_room=make_room)

    def estimate(self) -> float | None:
        """Seconds that a save takes, by the slowest of the last three; None before the first."""
        return max(self._seconds, default=None)

    def close(self) -> None:
        """Wait for the save on its way, and give thread and memory back."""
        pool, self._pool = self._pool, None
        if pool is not None:
            pool.shutdown(wait=True)
        for staging in self._staging.values():
            staging.release()


def _packed(parts: Mapping[str, Stateful]) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """The states as JSON, and their tensors by file: those of the model under the names of the model."""
    torch = sys.modules.get("torch")  # where nobody has loaded it there are no tensors
    states = {name: part.state_dict() for name, part in parts.items()}
    tensors: dict[str, dict[str, Any]] = {"model": {}, "state": {}}
    if "model" in states:
        model = states["model"]
        found = {n: value for n, value in model.items() if torch is not None and isinstance(value, torch.Tensor)}
        tensors["model"] = found
        states["model"] = {name: value for name, value in model.items() if name not in tensors["model"]}
    return {name: pack(state, name, tensors["state"]) for name, state in states.items()}, tensors


def _say_failure(future: Future[Any]) -> None:
    if (error := future.exception()) is not None:
        logger().error(f"checkpoints that nobody wants any more were not removed: {type(error).__name__}: {error}")


def _is_whole(checkpoint: Checkpoint) -> bool:
    try:
        checkpoint.verify()
    except CheckpointError:
        return False
    return True
