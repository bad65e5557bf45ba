"""``python -m tests.benchmarks``: measure, print a table, keep the figures.

Where other jobs share the cores, ``nice -n -10 make bench`` (as root) steadies it; the ratios count, not the times.
"""

from __future__ import annotations

import gc
import json
import logging
import os
import platform
import time
from collections.abc import Callable, Iterator
from datetime import UTC, datetime
from pathlib import Path
from typing import Any, Final

import click
import torch

from .checkpoints import saves
from .counted import memory, syncs
from .dispatching import filtered, publish, raw_step, unheard
from .loop_saves import saves_in_a_loop
from .peers import peers
from .size import FULL, QUICK, Size
from .slow_disk import slow
from .table import Row, as_json, render
from .training import alone, every_step, stack

BENCHES: Final[dict[str, Callable[[Size], Iterator[Row]]]] = {
    "publish": publish,
    "unheard": unheard,
    "filtered": filtered,
    "raw-step": raw_step,
    "loop": alone,
    "stack": stack,
    "every-step": every_step,
    "slow-disk": slow,
    "saves": saves,
    "loop-saves": saves_in_a_loop,
    "syncs": syncs,
    "memory": memory,
    "peers": peers,
}


def machine() -> dict[str, Any]:
    """What the figures depend on."""
    return {
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
        "python": f"{platform.python_implementation()} {platform.python_version()}",
        "torch": str(torch.__version__),
        "cpus": os.cpu_count(),
        "machine": platform.machine(),
        "system": platform.system(),
        "load": [round(load, 2) for load in os.getloadavg()] if hasattr(os, "getloadavg") else None,
    }


@click.command()
@click.option("--json", "file", type=click.Path(path_type=Path), default="bench-out.json", help="For the figures.")
@click.option("--only", type=click.Choice(list(BENCHES)), multiple=True, help="This alone; may be given several times.")
@click.option("--quick", is_flag=True, help="Few rounds: to see that it runs, not for a verdict.")
def main(file: Path, only: tuple[str, ...], quick: bool) -> None:
    """Measure what the bus and the loop cost, as ratios to plain code in the same process."""
    logging.getLogger("eventloop").setLevel(logging.CRITICAL)  # on a model so small every handler is dear, it would say
    torch.set_num_threads(1)
    facts = machine()
    rows: list[Row] = []
    for name in only or BENCHES:
        start = time.perf_counter()
        click.echo(f"{name} ... ", nl=False, err=True)
        gc.freeze()  # what was imported by now: to look through it before each measurement would take 40 ms
        rows += BENCHES[name](QUICK if quick else FULL)
        click.echo(f"{time.perf_counter() - start:.1f} s", err=True)
    click.echo(", ".join(f"{key} {value}" for key, value in facts.items()))
    click.echo(render(rows))
    click.echo("Figures are medians, of CPU time if not said to be on the wall.")
    click.echo("A/A is the baseline against itself: median, and half its middle half.")
    file.write_text(json.dumps(as_json(rows, facts), indent=1) + "\n", encoding="utf-8")
    click.echo(f"written to {file}", err=True)


if __name__ == "__main__":
    main()
