"""One process a run folder: a lock that the kernel frees, however its owner ends."""

from __future__ import annotations

import errno
import os
import weakref
from pathlib import Path
from typing import Final

from ..errors import CheckpointError
from ..log import logger

LOCK: Final = ".lock"
_held: weakref.WeakSet[RunLock] = weakref.WeakSet()


class RunLock:
    """Holds ``.lock`` in a folder from its making until `release`.

    Raises:
        CheckpointError: another process, or another run of this one, holds it; the message has its process number.
    """

    def __init__(self, folder: Path) -> None:
        self._descriptor: int | None = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            _lock(self._descriptor)
        except BlockingIOError:
            owner = os.pread(self._descriptor, 32, 0).decode(errors="replace").strip() or "of unknown number"
            self._close()
            raise CheckpointError(
                f"{folder} is in use by process {owner}: one run at a time may write there. Wait for it, end it, or "
                f"name another run_dir"
            ) from None
        except OSError as error:
            if error.errno not in (errno.ENOLCK, errno.ENOTSUP, errno.EOPNOTSUPP, errno.ENOSYS):
                self._close()
                raise
            logger().warning(f"{folder} is on a store without locks ({error}): two runs that write there go unnoticed")
        os.ftruncate(self._descriptor, 0)
        os.pwrite(self._descriptor, f"{os.getpid()}\n".encode(), 0)
        _held.add(self)

    def release(self) -> None:
        """Let others in; the file stays, for removing it would let two in."""
        _held.discard(self)
        self._close()

    def _close(self) -> None:
        descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)


def _lock(descriptor: int) -> None:
    try:
        import fcntl
    except ImportError:  # Windows: nobody is kept out
        return
    fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)


def _leave_to_parent() -> None:
    """A forked child (a data loader's worker) would hold the lock for as long as it outlives its parent."""
    for lock in list(_held):
        lock.release()


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_leave_to_parent)
