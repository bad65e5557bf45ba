"""One run of a set of callbacks, in a given order of registration."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from ..bus import Bus
from ..errors import told
from .arguments import check_callable
from .clock import Clock
from .fake_loop import FakeLoop

Make = Callable[[], Iterable[object]]
Drive = Callable[[Bus], Any]
"""Makes a run on a bus with the callbacks on it: publishes what it likes and returns what is to be told of the end."""


class End(NamedTuple):
    """How a run ended.

    Attributes:
        told: its result, or the error that ended it.
        failures: each handler that failed, and the error that ended the run unless the script itself raises it.
    """

    told: str
    failures: tuple[str, ...]


def carry_out(
    callbacks: Sequence[object],
    run: Drive | None,
    script: Mapping[str, Any],
    watch: Callable[[Bus], Any],
    names: Sequence[str] | None = None,
) -> End:
    """Attach the callbacks in this order to a new bus and make the run: that of the script on a `FakeLoop`, or ``run``.

    A ``run_dir`` in the script stands for a new folder in it. An error that ends the run is told, not raised: in
    another order there may be none. An error in the script itself is raised.

    Args:
        callbacks: the objects.
        run: what drives the bus in place of the FakeLoop.
        script: the keywords of the FakeLoop.
        watch: called with the bus before the callbacks are attached.
        names: their names on the bus, where those that follow from the order will not do.

    Returns:
        How the run ended.
    """
    if run is not None and script:
        raise TypeError(f"{', '.join(script)}: keywords for a FakeLoop, and run= makes its own run")
    if run is not None:
        check_callable(run, "run", "a function that is given the bus and makes the run", 1)
    clock = Clock()
    bus = Bus(clock=clock)
    watch(bus)
    for i, thing in enumerate(callbacks):
        bus.attach(thing, name=None if names is None else names[i])
    drive = run or _scripted(bus, clock, script)
    expected = tuple((script.get("fails") or {}).values())  # errors that the script itself raises
    end, raised = "", list[str]()
    try:
        answer = drive(bus)
        end = "" if answer is None else str(answer)
    except BaseException as error:
        if not isinstance(error, Exception) and error not in expected:
            raise
        end = f"the run raised {told(error)}"
        raised = [] if error in expected else [end]
    failed = dict.fromkeys(str(failure) for failure in bus.failures)
    return End(end, (*failed, *raised))


def _scripted(bus: Bus, clock: Clock, script: Mapping[str, Any]) -> Drive:
    """The run of a FakeLoop, which is built here and now, so that an error in the script is no error of the run."""
    loop = FakeLoop(bus=bus, clock=clock, **_in_a_new_folder(script))
    return lambda _: loop.run()


def _in_a_new_folder(script: Mapping[str, Any]) -> dict[str, Any]:
    if script.get("run_dir") is None:
        return dict(script)
    base = Path(script["run_dir"])
    taken = len(list(base.glob("run-*"))) if base.is_dir() else 0
    return {**script, "run_dir": base / f"run-{taken + 1}"}
