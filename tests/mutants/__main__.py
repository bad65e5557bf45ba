"""``python -m tests.mutants``: break the library in many ways and show which test tells each fault."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import click
from tabulate import tabulate
from tqdm import tqdm

from . import MUTANTS, MisfitError, Mutant, Verdict, try_all


def table(verdicts: Sequence[Verdict]) -> str:
    """One line a mutant."""
    rows = [(v.mutant.name, v.mutant.file, v.word, v.by, v.seconds) for v in verdicts]
    return tabulate(rows, ["mutant", "file", "verdict", "by", "seconds"], floatfmt=".1f", disable_numparse=[0, 1, 2, 3])


def tried(mutants: Sequence[Mutant]) -> list[Verdict]:
    """The verdicts, with a bar on stderr meanwhile."""
    with (
        tempfile.TemporaryDirectory(prefix="mutants-") as folder,
        tqdm(total=len(mutants), unit="mutant", file=sys.stderr) as bar,
    ):
        bar.set_postfix_str("without a mutant")
        verdicts = []
        for verdict in try_all(mutants, Path(folder)):
            verdicts.append(verdict)
            bar.set_postfix_str(f"{verdict.word}: {verdict.mutant.name}"[:60], refresh=False)
            bar.update()
    return verdicts


@click.command()
@click.option("--only", default="", metavar="TEXT", help="The mutants alone in whose name or file this text occurs.")
@click.option("--list", "listing", is_flag=True, help="Say which mutants there are, and try none.")
def main(only: str, listing: bool) -> None:
    """Put faults into a copy of the library, one at a time; exit code 1 if the tests miss one."""
    mutants = [m for m in MUTANTS if only in m.name or only in m.file]
    if not mutants:
        raise click.UsageError(f"--only {only!r}: no mutant has this text in its name or file; see --list")
    if listing:
        click.echo(tabulate([(m.name, m.file, " ".join(m.tests)) for m in mutants], ["mutant", "file", "tests"]))
        return
    try:
        verdicts = tried(mutants)
    except (MisfitError, RuntimeError) as error:
        raise click.ClickException(str(error)) from error
    survivors = sum(v.survived for v in verdicts)
    click.echo(table(verdicts))
    click.echo(f"{len(verdicts)} mutants, {survivors} survived")
    sys.exit(1 if survivors else 0)


if __name__ == "__main__":
    main()
