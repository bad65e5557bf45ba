"""Writing without ever making the training thread wait: a bounded queue and one daemon thread a sink."""

from __future__ import annotations

import atexit
import contextlib
import os
import threading
from collections import deque
from collections.abc import Callable
from typing import Any, Final, Protocol

from .log import logger

LIMIT: Final = 10_000
PAUSE: Final = 1.0
PATIENCE: Final = 5.0
PORTION: Final = 1000  # records a write, so that a disk that fills up has taken what fits


class Sink(Protocol):
    """Where records go; used in the writer's thread alone."""

    def write(self, records: list[Any]) -> None:
        """Write the records so that nothing of them is left in this process's memory."""

    def close(self) -> None:
        """Let go of the file."""


class Writer:
    """Takes records from the training thread and writes them in a thread of its own.

    `put` never waits. When the queue is full the oldest record is dropped and counted. The thread looks at the queue
    about once a second, for each time it wakes it competes with training for the interpreter; `flush`, `close` and a
    queue that is half full wake it at once. After the sink's first error nothing more is written and everything counts
    as dropped; one warning says so, and the error is raised by the next `put` and by `close`. In a forked child nothing
    is written or closed. At a normal exit of the interpreter what is queued is written.

    Args:
        name: whose writer it is, and where to, for messages.
        open: makes the sink, in the thread, at the first record.
        limit: records that may wait.
        pause: seconds between two looks.
    """

    def __init__(self, name: str, open: Callable[[], Sink], *, limit: int = LIMIT, pause: float = PAUSE) -> None:  # noqa: A002  # it is what it does
        self.name, self._open, self._pause = name, open, pause
        self._records: deque[Any] = deque(maxlen=limit)
        self._half = limit // 2
        self._pid = os.getpid()
        self._thread: threading.Thread | None = None
        self._error: Exception | None = None
        self._told = self._closing = False
        self._hurry = threading.Event()
        self._answer = threading.Condition()
        self._asked = self._answered = 0
        self._given = self._written = self._under_way = 0

    def start(self) -> None:
        """Start the thread now, so that the sink is opened."""
        if self._thread is None:
            self._thread = threading.Thread(target=self._run, name=self.name, daemon=True)
            atexit.register(self._at_exit)
            self._thread.start()

    def put(self, record: Any) -> None:
        """Queue a record.

        Raises:
            OSError: the sink has failed; raised once, further records are only counted.
        """
        if os.getpid() != self._pid:
            return
        self._given += 1
        if self._closing:
            return
        if self._error is not None:
            if not self._told:
                self._told = True
                raise self._failure() from self._error
            return
        self._records.append(record)
        if self._thread is None:
            self.start()
        elif len(self._records) >= self._half and not self._hurry.is_set():
            self._hurry.set()

    def flush(self, timeout: float = PATIENCE) -> bool:
        """Wait until everything put so far is written; False if the sink has failed or takes longer than that."""
        if os.getpid() != self._pid or self._thread is None:
            return True
        with self._answer:
            self._asked += 1
            mine = self._asked
            self._hurry.set()
            done = self._answer.wait_for(lambda: self._answered >= mine or self._error is not None, timeout)
        return done and self._error is None

    def close(self, timeout: float = PATIENCE) -> None:
        """Write what is queued, close the sink, end the thread.

        Raises:
            OSError: the sink has failed.
            TimeoutError: it takes longer than ``timeout`` seconds; it is left behind, and what it has not written is
                lost when the process ends.
        """
        if os.getpid() != self._pid or self._thread is None:
            return
        atexit.unregister(self._at_exit)
        self._closing = True
        self._hurry.set()
        self._thread.join(timeout)
        if self._error is not None:
            raise self._failure() from self._error
        if self._thread.is_alive():
            left = len(self._records) + self._under_way
            raise TimeoutError(f"{self.name}: {left} records are still not written {timeout:g} s after closing")
        if self.dropped:
            logger().warning(f"{self.name}: {self.dropped} records were dropped, the sink is slower than the training")

    @property
    def dropped(self) -> int:
        """Records that were given and will never be written."""
        return self._given - self._written - self._under_way - len(self._records)

    def summary(self) -> dict[str, Any]:
        """Records ``written`` and ``dropped``, and why the sink ``failed``, or None.

        Of the write at which it failed some records may be in the file; all of them count as dropped.
        """
        return {"written": self._written, "dropped": self.dropped, "failed": self._error and str(self._error)}

    # -- in the thread -------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        try:
            with contextlib.closing(self._open()) as sink:
                while not self._turn(sink):
                    pass
        except Exception as error:
            self._under_way = 0
            self._error = error
            self._records.clear()
            logger().warning(f"{self.name} writes no more: {type(error).__name__}: {error}")
            with self._answer:
                self._answer.notify_all()

    def _turn(self, sink: Sink) -> bool:
        self._hurry.wait(self._pause)
        self._hurry.clear()
        asked, last = self._asked, self._closing  # before the queue is read: what came before them will be written
        waiting = len(self._records)
        while waiting > 0:
            portion = self._portion(min(waiting, PORTION))
            sink.write(portion)
            self._written += len(portion)
            self._under_way = 0
            waiting -= PORTION
        with self._answer:
            self._answered = asked
            self._answer.notify_all()
        return last

    def _portion(self, size: int) -> list[Any]:
        portion: list[Any] = []
        for _ in range(size):
            portion.append(self._records.popleft())
            self._under_way = len(portion)
        return portion

    def _failure(self) -> OSError:
        error = self._error
        number = getattr(error, "errno", None)
        what = f"{self.name} failed: {type(error).__name__}: {error}; {self._written} records written"
        return OSError(number, what) if number is not None else OSError(what)

    def _at_exit(self) -> None:
        with contextlib.suppress(Exception):  # it has been logged, and nobody is left to handle it
            self.close()
