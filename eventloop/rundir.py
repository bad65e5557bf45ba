"""The run folder: never shared by two runs unasked, and it tells what was run."""

from __future__ import annotations

import json
import platform
import subprocess
import sys
from collections.abc import Iterable
from datetime import UTC, datetime
from importlib import metadata
from pathlib import Path
from typing import Any, Final

from .callbacks import _BY_PATH
from .checkpoint.files import write_text
from .rows import plain
from .settings import settings_of

TRACES: Final = ("run.json", "journal.jsonl", "metrics.jsonl", "checkpoints/step-*", "tb/**/events*")


def traces(folder: Path) -> list[str]:
    """What a run has left in a folder, by kind."""
    found = []
    for pattern in TRACES:
        matches = list(folder.glob(pattern))
        if matches:
            found.append(pattern if len(matches) == 1 and "*" not in pattern else f"{pattern} ({len(matches)})")
    return found


def refuse_used(folder: Path) -> None:
    """Refuse a folder that holds another run.

    Raises:
        FileExistsError: naming what is there and what to do.
    """
    if folder.exists() and not folder.is_dir():
        raise FileExistsError(f"run_dir {folder} is a file; name a folder")
    if there := traces(folder):
        raise FileExistsError(
            f"run_dir {folder} holds another run: {', '.join(there)}. Go on with it by resume='auto', "
            f"name another folder, or move it aside by overwrite=True"
        )


def move_aside(folder: Path) -> Path | None:
    """Move a used folder to the first free numbered name beside it; returns where it went."""
    if not traces(folder):
        return None
    n = 1
    while (aside := folder.with_name(f"{folder.name}.old-{n}")).exists():
        n += 1
    folder.rename(aside)
    return aside


def describe_run(folder: Path, run_id: str, seed: int, callbacks: Iterable[tuple[str, Any]]) -> None:
    """Write ``run.json``: command line, git commit, versions, seed, callbacks with their settings in order."""
    told = {
        "run_id": run_id,
        "started": datetime.now(UTC).isoformat(timespec="seconds"),
        "argv": sys.argv,
        "git": git_commit(),
        "versions": {"python": platform.python_version(), **_versions("torch", "torch-eventloop", "numpy", "blinker")},
        "seed": seed,
        "callbacks": [
            {"name": name, "type": type(c).__name__, "path": import_path(type(c)), "settings": settings_of(c)}
            for name, c in callbacks
        ],
    }
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / "run.json"
    sittings = json.loads(path.read_text(encoding="utf-8"))["sittings"] if path.exists() else []
    temporary = path.with_suffix(".tmp")
    document = json.dumps(plain({"sittings": [*sittings, told]}), indent=1, allow_nan=False)
    write_text(temporary, document)
    temporary.replace(path)


def import_path(kind: type) -> str:
    """Where a class is imported from, as ``module:QualName``: the outermost package that has it under its name."""
    module, name = kind.__module__, kind.__qualname__
    if module.startswith(f"{_BY_PATH}."):
        return f"eventloop.callbacks:{name}"
    parts = module.split(".")
    packages = (".".join(parts[:n]) for n in range(1, len(parts)))
    public = (p for p in packages if p in sys.modules and getattr(sys.modules[p], name, None) is kind)
    return f"{next(public, module)}:{name}"


def git_commit() -> dict[str, Any] | None:
    """The commit of the working folder and whether anything differs from it; None outside a repository."""

    def git(*arguments: str) -> str | None:
        try:
            done = subprocess.run(["git", *arguments], capture_output=True, text=True, timeout=5, check=True)
        except (OSError, subprocess.SubprocessError):
            return None
        return done.stdout.strip()

    commit = git("rev-parse", "HEAD")
    if commit is None:
        return None
    return {"commit": commit, "dirty": bool(git("status", "--porcelain", "--untracked-files=no"))}


def _versions(*names: str) -> dict[str, str]:
    found = {}
    for name in names:
        try:
            found[name] = metadata.version(name)
        except metadata.PackageNotFoundError:
            continue
    return found
