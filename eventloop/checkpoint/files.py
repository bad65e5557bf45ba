"""Files that are really on the disk: flushed, synced and hashed."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Final

PORTION: Final = 1 << 20  # bytes that are hashed at once


def make_folder(path: Path) -> None:
    """Make a folder and those above it, each synced as an entry of its parent."""
    if not path.is_dir():
        make_folder(path.parent)
        path.mkdir(exist_ok=True)
        sync(path.parent)


@contextlib.contextmanager
def named(path: Path) -> Iterator[None]:
    """An error of the disk in here says which file it was."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, f"{path.name} cannot be written: {error.strerror or error}") from error


def write_text(path: Path, text: str) -> None:
    """Write and sync a file: flushed first, for fsync knows nothing of Python's buffer."""
    with named(path), path.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


def write_json(path: Path, value: Any) -> tuple[int, str]:
    """Strict JSON, synced; returns its size and hash."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"))
    write_text(path, text)
    return len(text), hashlib.sha256(text.encode()).hexdigest()  # it is ASCII


def sync(path: Path) -> None:
    """Sync a file or a folder to the disk."""
    with named(path):
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def sha256(path: Path, progress: Callable[[int], object] = lambda size: None) -> str:
    """The file's hash; ``progress`` is told the bytes of each portion."""
    digest, buffer = hashlib.sha256(), memoryview(bytearray(PORTION))
    with path.open("rb", buffering=0) as file:
        while size := file.readinto(buffer):
            digest.update(buffer[:size])
            progress(size)
    return digest.hexdigest()
