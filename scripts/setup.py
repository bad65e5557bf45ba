#!/usr/bin/env python3
"""Makes the project's .venv ready: `python3 scripts/setup.py test` (or demo, dev, docs; several add up).

Needs the standard library alone. Does nothing, silently, when nothing changed since the last time. In short:

* uv does the work: the one on PATH, else one fetched into .venv-tools, else venv and pip take its place.
* A torch that the interpreter at hand can import is used as it is, with its numpy: .venv then sees that interpreter's
  packages. Without one, the tested version from constraints.txt is installed: from the wheels on disk where
  PIP_FIND_LINKS or UV_FIND_LINKS names a folder that has it, else the build that uv finds right for this machine.

Environment: TORCH=torch==X installs that torch in any case; UV_TORCH_BACKEND=cpu (cu130, ...) chooses its build;
EVENTLOOP_UV=0 goes by venv and pip as if there were no uv.
"""

import hashlib
import json
import os
import platform
import re
import shutil
import subprocess
import sys
import sysconfig
import time
from importlib.util import find_spec
from pathlib import Path
from urllib.parse import unquote, urlsplit

VERSION = platform.python_version()
if sys.version_info < (3, 11):  # noqa: UP036 -- said here, since pip's way of saying it is long
    sys.exit(
        f"set-up: torch-eventloop needs Python 3.11 or newer, and {sys.executable} is Python {VERSION}. "
        "Name a newer one: PYTHON=python3.12 make test"
    )

ROOT = Path(__file__).resolve().parent.parent
VENV = ROOT / ".venv"
TOOLS = ROOT / ".venv-tools"
STAMP = VENV / ".setup.json"  # what .venv was made from; written last, so that a half-made .venv has none
BIN, EXE = ("Scripts", ".exe") if os.name == "nt" else ("bin", "")
PYTHON = VENV / BIN / f"python{EXE}"


def main(wanted: set[str]) -> None:
    """Brings .venv up to date with the wanted extras added to those that it has."""
    project = read_project()
    extras = project["project"]["optional-dependencies"]
    unknown = wanted - extras.keys()
    if unknown:
        sys.exit(f"set-up: no extra is called {', '.join(sorted(unknown))}; there are {', '.join(extras)}")
    stamp, key = read_stamp(), fingerprint(project)
    had = set(stamp.get("extras", [])) & extras.keys()
    current = stamp.get("key") == key and PYTHON.exists()
    if current and wanted <= had:
        return

    begin = time.monotonic()
    uv = find_uv()
    torch = Torch(project, uv)
    STAMP.unlink(missing_ok=True)
    if not current or bool(uv) != stamp["uv"]:
        say(f"making .venv with Python {VERSION} and {'uv' if uv else 'pip (a minute or two)'}, {torch.words}")
        make_venv(uv, torch)
    else:
        say(f"adding {', '.join(sorted(wanted - had))} to .venv")
    install(uv, torch, wanted | had)
    write_stamp({"key": key, "extras": sorted(wanted | had), "uv": bool(uv), "python": sys.executable})
    say(f".venv is ready for {', '.join(sorted(wanted | had))} after {time.monotonic() - begin:.1f} s")


class Torch:
    """Which torch .venv gets: the interpreter's own, one from the wheels on disk, or one from an index."""

    def __init__(self, project: dict, uv: "str | None") -> None:
        self.chosen = os.environ.get("TORCH", "")
        self.outer = "" if self.chosen else usable_torch(project)
        pin = re.search(r"^torch==\S+", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[0]
        wanted = self.chosen or pin
        self.on_disk = not self.outer and wheel_on_disk(wanted)
        if self.outer:
            self.words = f"torch {self.outer} as it stands in {sys.prefix}"
        else:
            self.words = f"{wanted} {'from the wheels on disk' if self.on_disk else 'from the package index'}"
        unguided = not (uv or self.outer or self.on_disk or self.chosen or has_nvidia_driver())
        if unguided and platform.system() == "Linux":
            sys.exit(
                "set-up: pip alone would fetch torch with gigabytes of CUDA libraries, and this machine shows no "
                "NVIDIA driver. Install uv (which picks the right build), or install the CPU build of torch for "
                f"{sys.executable} first, or say which torch you want: TORCH={pin} make test"
            )

    def without(self) -> "tuple[str, ...]":
        """The packages that are not ours to choose, so that no tested version of them is asked for."""
        if self.outer:
            return ("torch", "numpy") if find_spec("numpy") else ("torch",)
        return ("torch",) if self.chosen else ()


def make_venv(uv: "str | None", torch: Torch) -> None:
    """Makes an empty .venv in place of whatever stands there."""
    if VENV.exists():
        shutil.rmtree(VENV)
    outer = ["--system-site-packages"] if torch.outer else []
    if uv:
        run(uv, "venv", "--quiet", "--python", sys.executable, *outer, VENV)
    else:
        run(sys.executable, "-m", "venv", *outer, VENV)
    if torch.outer and sys.prefix != sys.base_prefix:  # "system" means the base interpreter, not the venv at hand
        site = run(PYTHON, "-c", "import sysconfig; print(sysconfig.get_path('purelib'))", stdout=subprocess.PIPE)
        places = dict.fromkeys((sysconfig.get_path("purelib"), sysconfig.get_path("platlib")))
        Path(site.stdout.strip(), "outer-environment.pth").write_text("\n".join(places) + "\n")


def install(uv: "str | None", torch: Torch, extras: "set[str]") -> None:
    """Installs the project, editable, with these extras and the tested versions."""
    project = ["-e", f".[{','.join(sorted(extras))}]"]
    if torch.chosen:
        project.append(torch.chosen)
    lines = (ROOT / "constraints.txt").read_text().splitlines()
    constraints = VENV / ".constraints.txt"
    constraints.write_text("\n".join(x for x in lines if x.partition("==")[0] not in torch.without()) + "\n")
    if not uv:
        run(PYTHON, "-m", "pip", "install", "--quiet", "--no-compile", *project, "--constraint", constraints)
        return
    options = []
    if torch.outer:  # uv does not look at what --system-site-packages shows: tell it to leave these out
        overrides = VENV / ".overrides.txt"
        overrides.write_text("".join(f"{name} ; sys_platform == 'never'\n" for name in torch.without()))
        options = ["--override", overrides]
    elif not torch.on_disk and "UV_TORCH_BACKEND" not in os.environ:
        options = ["--torch-backend=auto"]
    run(uv, "pip", "install", "--quiet", "--python", PYTHON, *project, "--constraint", constraints, *options)


def find_uv() -> "str | None":
    """A uv that works and is new enough to know torch's builds; None where there is none to be had."""
    if os.environ.get("EVENTLOOP_UV") == "0":
        return None
    fetched = TOOLS / BIN / f"uv{EXE}"
    for uv in (shutil.which("uv"), str(fetched)):
        if uv and knows_torch(uv):
            return uv
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--no-compile", "--retries=1", "--upgrade"]
    subprocess.run([*pip, "--target", str(TOOLS), "uv"], cwd=ROOT, capture_output=True, check=False)
    return str(fetched) if knows_torch(str(fetched)) else None


def knows_torch(uv: str) -> bool:
    """Whether this is a working uv with the option that chooses torch's build."""
    try:
        told = subprocess.run([uv, "pip", "install", "--help"], capture_output=True, text=True, check=False)
    except OSError:
        return False
    return "--torch-backend" in told.stdout


def usable_torch(project: dict) -> str:
    """The version of the torch that the interpreter at hand imports, if we can use it; else an empty text."""
    if find_spec("torch") is None:
        return ""
    probe = [sys.executable, "-c", "import torch; print(torch.__version__)"]
    version = subprocess.run(probe, capture_output=True, text=True, check=False).stdout.strip()
    floor = next(x for x in project["project"]["dependencies"] if x.startswith("torch>="))
    return version if version and release(version) >= release(floor) else ""


def release(text: str) -> "tuple[int, ...]":
    """The first two numbers of a version, to compare by."""
    return tuple(int(x) for x in re.findall(r"\d+", text)[:2])


def wheel_on_disk(wanted: str) -> bool:
    """Whether the find-links places hold the wanted torch for this Python; one that is no folder is believed."""
    version = wanted.partition("==")[2]
    name = re.compile(rf"torch-{re.escape(version)}(\+\w+)?-cp{sys.version_info[0]}{sys.version_info[1]}-.*\.whl")
    for place in find_links():
        parts = urlsplit(place)
        if parts.scheme in ("http", "https"):
            return True
        folder = Path(unquote(parts.path) if parts.scheme == "file" else place)
        if folder.is_dir() and any(name.fullmatch(x.name) for x in folder.iterdir()):
            return True
    return False


def find_links() -> "list[str]":
    """The places that uv, or pip by its environment or its own settings, is told to look for wheels in."""
    told = os.environ.get("UV_FIND_LINKS") or os.environ.get("PIP_FIND_LINKS")
    if told is None:
        pip = [sys.executable, "-m", "pip", "config", "get", "global.find-links"]
        told = subprocess.run(pip, capture_output=True, text=True, check=False).stdout
    return re.split(r"[\s,]+", told.strip()) if told.strip() else []


def has_nvidia_driver() -> bool:
    """Whether this machine shows an NVIDIA driver."""
    return bool(shutil.which("nvidia-smi")) or Path("/proc/driver/nvidia/version").exists()


def fingerprint(project: dict) -> str:
    """What .venv depends on, in one short text: the dependencies, the tested versions, Python, the choice of torch."""
    needs = [project["build-system"], project["project"], project["tool"]["hatch"]]
    torch = os.environ.get("TORCH") or (sys.prefix if find_spec("torch") else "own")
    parts = [needs, (ROOT / "constraints.txt").read_text(), sys.version, str(ROOT), torch]
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()


def read_project() -> dict:
    """What pyproject.toml says."""
    import tomllib  # not at the top: an older Python has none, and is to be told so in words

    return tomllib.loads((ROOT / "pyproject.toml").read_text())


def read_stamp() -> dict:
    """What .venv was made from; empty where it was not finished."""
    try:
        return json.loads(STAMP.read_text())
    except (OSError, ValueError):
        return {}


def write_stamp(stamp: dict) -> None:
    """Says that .venv is whole, all at once."""
    half = STAMP.with_suffix(".half")
    half.write_text(json.dumps(stamp))
    half.replace(STAMP)


def run(*command: object, **options: object) -> subprocess.CompletedProcess:
    """Runs one step in the project's folder; its error ends the set-up."""
    env = dict(os.environ)
    links = find_links()
    if links:
        env.update(UV_FIND_LINKS=",".join(links), PIP_FIND_LINKS=" ".join(links))
    return subprocess.run([str(x) for x in command], cwd=ROOT, env=env, check=True, text=True, **options)


def say(text: str) -> None:
    """Tells the person who waits; standard output belongs to the program that comes after."""
    print(f"set-up: {text}", file=sys.stderr, flush=True)


def leave_own_venv() -> None:
    """Starts again from the interpreter that made .venv, should that one be activated: it may have to be remade."""
    if Path(sys.prefix).resolve() == VENV.resolve():
        outer = read_stamp().get("python") or sys._base_executable
        os.execv(outer, [outer, __file__, *sys.argv[1:]])


if __name__ == "__main__":
    leave_own_venv()
    try:
        main(set(sys.argv[1:]) or {"dev"})
    except subprocess.CalledProcessError as error:
        step = " ".join(Path(error.cmd[0]).name if i == 0 else x for i, x in enumerate(error.cmd[:4]))
        sys.exit(
            f"set-up failed: `{step} ...` ended with {error.returncode}; its own words are above. The next try starts "
            "afresh. If it was torch that could not be had, choose another: TORCH=torch==X make test"
        )
    except KeyboardInterrupt:
        sys.exit("set-up: interrupted; the next try starts afresh")
