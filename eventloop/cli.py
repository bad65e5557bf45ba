"""The command line. ``--help`` loads no torch: whatever needs it is imported by the command that does."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any, NoReturn

import click

from . import __version__
from .errors import EventLoopError


class _Commands(click.Group):
    """Errors go to stderr in one sentence, with exit code 2."""

    def invoke(self, context: click.Context) -> Any:
        try:
            return super().invoke(context)
        except (EventLoopError, OSError, ValueError, ImportError) as error:
            _fail(error)


def _fail(error: Exception) -> NoReturn:
    notes = "".join(f" ({note})" for note in getattr(error, "__notes__", ()))
    click.echo(f"error: {error}{notes}", err=True)
    sys.exit(2)


@click.group(cls=_Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="eventloop")
def main() -> None:
    """The training event bus for PyTorch loops of your own."""


@main.command()
@click.option("--run-dir", type=click.Path(path_type=Path), help="The run's folder; default: a new runs/digits-N.")
@click.option("--patience", type=click.IntRange(min=1), default=3, show_default=True, help="Of early stopping.")
@click.option("--max-epochs", type=click.IntRange(min=1), default=30, show_default=True, help="Epochs at most.")
@click.option("--seed", type=int, default=0, show_default=True, help="Of weights and order of images.")
@click.option(
    "--resume",
    is_flag=True,
    help="Go on from the newest whole checkpoint of --run-dir, by default of the last demo run.",
)
@click.option("--fail-logger", is_flag=True, help="Let the loggers' disk be full in mid-run, to see what that costs.")
def demo(run_dir: Path | None, **options: Any) -> None:
    """Train a small CNN on real images of digits until it no longer gets better.

    Schedule, loggers, early stopping and checkpoints are subscribers of one bus; the summary says who stopped the run.
    """
    folder = run_dir or (_last(Path("runs")) if options["resume"] else _free(Path("runs")))
    from .demo import run_demo

    try:
        told, code = run_demo(folder, **options)
    except KeyboardInterrupt:
        told, code = "", 130
    if told:
        click.echo(told)
    if code:
        ended = "interrupted" if code == 130 else "preempted"
        click.echo(f"{ended}; to go on: python -m eventloop demo --run-dir {folder} --resume", err=True)
        sys.exit(code)


@main.command()
@click.argument("run_a", type=click.Path(path_type=Path))
@click.argument("run_b", type=click.Path(path_type=Path))
@click.option(
    "--rtol", type=click.FloatRange(min=0.0), default=0.0, show_default=True, help="Numbers so near are equal."
)
@click.option("--context", type=click.IntRange(min=0), default=5, show_default=True, help="Rows to show before it.")
def diff(run_a: Path, run_b: Path, **options: Any) -> None:
    """Show the first event at which two recorded runs differ, and who made the difference.

    For all that happened, let the runs record by Loop(journal="full"). Exit code: 0 equal, 1 different, 2 an error.
    """
    from .diff import diff_runs

    comparison = diff_runs(run_a, run_b, **options)
    click.echo(str(comparison))
    sys.exit(0 if comparison.equal else 1)


@main.command("check-callback")
@click.argument("place", metavar="MODULE:CLASS", required=False)
@click.option("--arg", "arguments", multiple=True, metavar="NAME=VALUE", help="An argument of the constructor.")
@click.option("--skip", multiple=True, metavar="NAME=REASON", help="A check to leave out, and why.")
@click.option("--monitor", multiple=True, metavar="NAME", help="The metric that it decides by. Repeatable.")
@click.option("--metric", multiple=True, metavar="NAME", help="Another metric to report. Repeatable.")
@click.option("--list", "list_checks", is_flag=True, help="Show the checks and what they promise.")
def check_callback(
    place: str | None,
    arguments: tuple[str, ...],
    skip: tuple[str, ...],
    monitor: tuple[str, ...],
    metric: tuple[str, ...],
    list_checks: bool,
) -> None:
    """Put a callback through every check of the test kit: MODULE:CLASS, or path/to/file.py:CLASS.

    What it asks for in a first run is reported to it; --monitor and --metric name what it does not ask for by name.

    Exit code: 0 all kept, 1 some failed, 2 an error.
    """
    from .testing.checks.command import check_place, listed

    if list_checks:
        click.echo(listed())
        return
    if place is None:
        raise click.UsageError("name a callback, as module:Class, or ask for --list")
    report, passed = check_place(place, arguments, skip, (*monitor, *metric))
    click.echo(report)
    sys.exit(0 if passed else 1)


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option(
    "--set",
    "settings",
    multiple=True,
    metavar="CALLBACK.SETTING=VALUE",
    help="Decide with this setting; several values, separated by commas, are tried one after the other. Repeatable; "
    "the values of one setting add up.",
)
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def replay(run: Path, settings: tuple[str, ...], as_json: bool) -> None:
    """Decide again over a recorded run: when it would have stopped, and what it would have kept.

    Without --set it verifies that the recorded ledger comes out again. The run must have been recorded by
    Loop(journal="full"); nothing is written into its folder. Exit code: 0, 1 if it is not verified (the ledger does not
    come out again, or who has stopped or saved cannot decide anew), 2 an error, also of a callback with new settings.
    """
    from .replay.command import run_replay, verdict

    text, played = run_replay(run, settings, as_json=as_json)
    click.echo(text)
    code, error = verdict(played)
    if error:
        click.echo(f"error: {error}", err=True)
    sys.exit(code)


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.option("--verify", is_flag=True, help="Read every file and compare its hash.")
@click.option("--json", "as_json", is_flag=True, help="For machines.")
def checkpoints(run: Path, verify: bool, as_json: bool) -> None:
    """Show the checkpoints of a run: which is the best, which the newest, and with --verify which are whole.

    RUN is a run folder or its folder of checkpoints; nothing in it is changed. Without --verify the manifests alone are
    read. Exit code: 0, 1 if --verify finds a broken one, 2 an error.
    """
    from .checkpoint import command

    shelf = command.look(run, verify=verify)
    click.echo(command.as_json(shelf) if as_json else shelf)
    sys.exit(1 if verify and shelf.broken else 0)


@main.command()
@click.argument("run", type=click.Path(path_type=Path))
@click.argument("file", type=click.Path(path_type=Path))
@click.option("--step", type=click.IntRange(min=0), help="The checkpoint of this step; default: the newest whole one.")
@click.option("--best", is_flag=True, help="The best one.")
@click.option("--dtype", help="Turn floating-point tensors into it, such as bfloat16.")
@click.option("--overwrite", is_flag=True, help="Replace FILE if it is there.")
def export(run: Path, file: Path, step: int | None, best: bool, dtype: str | None, overwrite: bool) -> None:
    """Write the weights of a run's model into FILE, one plain safetensors file under the names of the module's own.

    RUN is a run folder or one checkpoint.
    """
    if best and step is not None:
        raise click.UsageError("--best and --step name two checkpoints; give one of them")
    from .checkpoint import command

    click.echo(command.run_export(run, file, step, best=best, dtype=dtype, overwrite=overwrite))


def _free(parent: Path) -> Path:
    n = 1
    while (folder := parent / f"digits-{n}").exists():
        n += 1
    return folder


def _last(parent: Path) -> Path:
    numbers = [int(n) for path in parent.glob("digits-*") if (n := path.name.removeprefix("digits-")).isdigit()]
    if not numbers:
        raise click.UsageError(f"--resume: there is no demo run in {parent.absolute()}; name one by --run-dir")
    return parent / f"digits-{max(numbers)}"
