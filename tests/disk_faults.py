"""Faults at the n-th operation by which a save changes the disk: a crash, a full disk, a disk that gives up."""

from __future__ import annotations

import builtins
import errno
import io
import os
from collections.abc import Callable
from typing import Any, Final

import pytest

CHANGES: Final = ("mkdir", "rename", "replace", "fsync", "unlink", "rmdir")  # beside opening a file, and writing to it
TAKES_ROOM: Final = ("mkdir", "open", "write", "fsync")
CRASHED: Final = 99

Fault = Callable[[int, str, Any], None]  # given the number of the operation, its name and its file, if it has one


def crash_at(n: int) -> Fault:
    """The process ends before its n-th operation."""

    def fault(number: int, name: str, path: Any) -> None:
        if number == n:
            os._exit(CRASHED)

    return fault


def broken_at(n: int) -> Fault:
    """The n-th operation fails, and no other."""

    def fault(number: int, name: str, path: Any) -> None:
        if number == n:
            raise _error(errno.EIO, path)

    return fault


def full_from(n: int) -> Fault:
    """From the n-th operation on there is no room; what needs none goes well."""

    def fault(number: int, name: str, path: Any) -> None:
        if number >= n and name in TAKES_ROOM:
            raise _error(errno.ENOSPC, path)

    return fault


def _error(code: int, path: Any) -> OSError:
    """As the system makes it: with the file's name, where it was given one and not a descriptor."""
    return OSError(code, os.strerror(code), *([] if path is None else [str(path)]))


class Disk:
    """Counts what this process does to the disk while ``patch`` lasts, and has a fault.

    Attributes:
        done: the operations by name, in order.
    """

    def __init__(self, fault: Fault, patch: pytest.MonkeyPatch) -> None:
        self.done: list[str] = []
        self._fault = fault
        for name in CHANGES:
            patch.setattr(os, name, self._counted(name, getattr(os, name)))
        opened = self._open(io.open)
        patch.setattr(io, "open", opened)
        patch.setattr(builtins, "open", opened)

    def reached(self, name: str, path: Any = None) -> None:
        """An operation is about to be done."""
        self.done.append(name)
        self._fault(len(self.done), name, path)

    def _counted(self, name: str, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, *arguments: Any, **options: Any) -> Any:
            self.reached(name, None if isinstance(path, int) else path)
            return function(path, *arguments, **options)

        return call

    def _open(self, function: Callable[..., Any]) -> Callable[..., Any]:
        def call(path: Any, mode: str = "r", buffering: int = -1, encoding: Any = None, *more: Any) -> Any:
            if mode[0] not in "wax":
                return function(path, mode, buffering, encoding, *more)
            self.reached("open", path)
            raw = _File(path, mode[0], self)
            if "b" in mode and buffering == 0:
                return raw
            buffered = io.BufferedWriter(raw)
            return buffered if "b" in mode else io.TextIOWrapper(buffered, encoding=encoding)

        return call


class _File(io.FileIO):
    """A file whose every write is an operation."""

    def __init__(self, path: Any, mode: str, disk: Disk) -> None:
        super().__init__(path, mode)
        self._disk = disk

    def write(self, data: Any) -> int:
        self._disk.reached("write")
        return super().write(data)
