"""A place for what an earlier run has left: a fresh run neither deletes it nor adds to it."""

from __future__ import annotations

from pathlib import Path


def beside(path: Path) -> Path:
    """The first free name beside ``path``: ``log.jsonl`` gives ``log.old-1.jsonl``, then ``log.old-2.jsonl``."""
    n = 1
    while (other := path.with_name(f"{path.stem}.old-{n}{path.suffix}")).exists():
        n += 1
    return other
