"""`order_report`: every pair of callbacks whose relative order matters, and whether it is the right one."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Final, Literal

from .arguments import callbacks_in
from .observe import Observer, Seen, Thing, Who
from .reads import ALL
from .reproduce import snippet
from .trial import Drive, Make, carry_out

Verdict = Literal["right", "fragile", "wrong"]
_VERDICTS: Final[tuple[Verdict, ...]] = ("right", "fragile", "wrong")


@dataclass(frozen=True, slots=True)
class Dependency:
    """Two subscriptions of one event whose relative order matters.

    Attributes:
        event: the event's name.
        first: the name of who has to be called first: who reports, sets or changes something.
        second: the name of who has to be called behind it: who reads it.
        what: the metrics, ``lr[group]`` or attributes; ``Stop`` where both ask for one.
        how: how they are read: asked (as a number), raw, in, in fresh, listed, fresh listed, step_of, attribute, or
            "through Totals", by which the loggers get their means; reported twice, set twice, asked twice.
        verdict: the order is right by priority; fragile: right, but only by order of registration; or wrong.
        advice: what to do.
    """

    event: str
    first: str
    second: str
    what: tuple[str, ...]
    how: tuple[str, ...]
    verdict: Verdict
    advice: str

    def __str__(self) -> str:
        return f"{self.event}: {self.first} -> {', '.join(self.what)} -> {self.second}: {self.verdict}; {self.advice}"


class OrderReport(list[Dependency]):
    """The dependencies that a run has shown, the wrong ones first. It prints as a table.

    Attributes:
        failures: the handlers that failed in the run, and what ended it if that was an error that the script does not
            raise: what they would have done is not in the report.
        snippet: Python that runs the same set and fails where it is not `assert_right`.
    """

    def __init__(self, found: Iterable[Dependency] = (), failures: Iterable[str] = (), snippet: str = "") -> None:
        super().__init__(found)
        self.failures, self.snippet = tuple(failures), snippet

    @property
    def wrong(self) -> list[Dependency]:
        """Those in the wrong order."""
        return [one for one in self if one.verdict == "wrong"]

    @property
    def fragile(self) -> list[Dependency]:
        """Those in the right order only because of the order of registration."""
        return [one for one in self if one.verdict == "fragile"]

    def assert_right(self, *, fragile: bool = False, failing: bool = False) -> None:
        """Require that no pair is wrong, that none is fragile, and that nothing failed in the run.

        Args:
            fragile: whether fragile pairs are allowed.
            failing: whether `failures` are expected; what they would have done is then not judged.

        Raises:
            AssertionError: some are; the message shows them, what to do, and a snippet that reproduces it.
        """
        __tracebackhide__ = True  # pytest then points at the line of the test
        if bad := self.wrong + ([] if fragile else self.fragile):
            raise AssertionError(f"{OrderReport(bad, self.failures)}\n\nto reproduce it:\n\n{self.snippet}")
        if self.failures and not failing:
            raise AssertionError(
                "no wrong order was found, but what fails shows nothing of what it would read and write: mend it, or "
                f"allow for it with failing=True\n{OrderReport(failures=self.failures)}"
            )

    def __str__(self) -> str:
        from tabulate import tabulate

        headers = ["event", "first", "writes", "second", "reads it", "order", "what to do"]
        rows = [(d.event, d.first, ", ".join(d.what), d.second, ", ".join(d.how), d.verdict, d.advice) for d in self]
        widths = [None, None, 30, None, 20, None, 50]
        table = tabulate(rows, headers, maxcolwidths=widths) if rows else "no pair whose order matters"
        return "\n".join([table, *(f"failed: {text}" for text in self.failures)])


def order_report(callbacks: Make | Iterable[object], *, run: Drive | None = None, **script: Any) -> OrderReport:
    """Run a set of callbacks and find each pair whose relative order at an event matters.

    One reports a metric that the other reads; one sets a learning rate that the other reads at that event; one changes
    an attribute that the other looks at; both report one key, set one group, or ask for a stop. What was not called in
    the run is not seen, so the script has to be long enough for every ``every=``; loggers alone are in the report if
    they only could have been called. Nobody has to be written for it: what is read is noted by the snapshot itself.

    Args:
        callbacks: the objects in order of registration, or a function that builds them.
        run: what drives the bus in place of a `FakeLoop`; it is given the bus with the callbacks attached.
        **script: keywords of the `FakeLoop`, such as ``metrics`` and ``evaluations``; a ``run_dir`` is a folder for the
            folders of the runs.

    Raises:
        TypeError: ``callbacks`` is something else, or a keyword is not the `FakeLoop`'s.
        ValueError: the `FakeLoop` does not take the value of a keyword.
    """
    report, things = _observed(callbacks, run, script)
    if report.wrong or report.fragile:
        bad = [str(one) for one in report if one.verdict != "right"]

        def shows(make: Make, given: dict[str, Any]) -> bool:
            again, _ = _observed(make, given.pop("run", None), given)
            return bad == [str(one) for one in again if one.verdict != "right"]

        given = {**({} if run is None else {"run": run}), **script}
        fresh = _built(callbacks) if callable(callbacks) else things
        otherwise = f"callbacks = {'make' if callable(callbacks) else 'things'}\n"
        source = "make" if callable(callbacks) else "things"
        report.snippet = snippet("order_report", fresh, given, shows, otherwise, source, ".assert_right()")
    return report


def _observed(
    callbacks: Make | Iterable[object], run: Drive | None, script: dict[str, Any]
) -> tuple[OrderReport, list[object]]:
    things = _built(callbacks)
    observers: list[Observer] = []
    try:
        end = carry_out(things, run, script, lambda bus: observers.append(Observer(bus)))
    finally:
        for observer in observers:
            observer.stop()
    return OrderReport(sorted(_found(observer), key=_rank), end.failures), things


def _built(callbacks: Any) -> list[object]:
    if callable(callbacks):
        return callbacks_in(callbacks(), "order_report: callbacks() returned", "a function that returns a list")
    form = "a list of callbacks, or a function that builds one: order_report(lambda: [...])"
    return callbacks_in(callbacks, "order_report: callbacks =", form)


def _rank(one: Dependency) -> tuple[int, str, str, str]:
    return -_VERDICTS.index(one.verdict), one.event, one.first, one.second


# -- what was seen, judged ---------------------------------------------------------------------------------------------


def _found(observer: Observer) -> Iterator[Dependency]:
    for event, seen in observer.seen.items():
        yield from _reads(event, _with_loggers(observer, event, seen))
        yield from _clashes(event, seen)
    yield from _rates_set_twice(observer)


Link = tuple[Who, Who, tuple[Who, ...]]
"""Who writes, who reads, and through whom."""


def _with_loggers(observer: Observer, event: str, seen: Seen) -> dict[Link, dict[Thing, dict[str, None]]]:
    """Each writer and reader of one thing, with how it is read; the loggers in place of the `Totals` they read."""
    found: dict[Link, dict[Thing, dict[str, None]]] = {}
    accumulator = observer.accumulates.get(event)
    there = map(Who.of, observer.bus.order(event)) if accumulator else ()
    loggers = [who for who in there if who.origin in observer.totals]
    for reader, things in seen.reads.items():
        for writer, written in seen.writes.items():
            for thing in written:
                hows = {**things.get(thing, {}), **things.get((thing[0], ALL), {})}
                if not hows or reader.origin == writer.origin or writer == accumulator:
                    continue
                if thing[0] != "metrics" and reader in observer.setters.get(thing[1], {}):
                    continue  # both set it, and that is said
                if reader != accumulator:
                    found.setdefault((writer, reader, ()), {}).setdefault(thing, {}).update(hows)
                    continue
                for logger in loggers:
                    link = writer, logger, (reader,)
                    found.setdefault(link, {}).setdefault(thing, {})["through Totals"] = None
    return found


def _reads(event: str, links: dict[Link, dict[Thing, dict[str, None]]]) -> Iterator[Dependency]:
    for (writer, reader, through), things in links.items():
        what = tuple(_named(thing, writer) for thing in things)
        hows = tuple(dict.fromkeys(how for each in things.values() for how in each))
        yield Dependency(event, writer.name, reader.name, what, hows, *_judged(event, [writer, *through, reader]))


def _named(thing: Thing, writer: Who) -> str:
    of, key = thing
    return key if of == "metrics" else f"{of}[{key}]" if of in ("lr", "held") else f"{writer.name}.{key}"


def _judged(event: str, chain: list[Who]) -> tuple[Verdict, str]:
    """Whether each of a chain is called before the next, and what to do."""
    verdict, advice = 0, "nothing: " + " before ".join(str(who.priority) for who in chain)
    for before, after in pairwise(chain):
        if before.place > after.place and verdict < 2:
            verdict = 2
            advice = (
                f"{after.name} ({after.priority}) is called before {before.name} ({before.priority}) and sees what was "
                f"there at the event before, or nothing: give it a priority below {before.priority} at {event}"
            )
        elif before.priority == after.priority and verdict < 1:
            verdict = 1
            advice = (
                f"both have priority {before.priority}, so the order is that of registration: give {after.name} one "
                f"below {before.priority} at {event}, or {before.name} one above"
            )
    return _VERDICTS[verdict], advice


def _clashes(event: str, seen: Seen) -> Iterator[Dependency]:
    for (first, second), keys in seen.clashes.items():
        advice = f"only what {first.name} reports counts, and {second.name} fails by it: rename one"
        yield Dependency(event, first.name, second.name, tuple(keys), ("reported twice",), "wrong", advice)
    for first, second in seen.stops:
        tie = first.priority == second.priority
        advice = f"nothing: {first.name}, whose priority is higher, is named in the result"
        if tie:
            advice = f"the result names {first.name}, which was registered first: give one of them a priority"
        verdict: Verdict = "fragile" if tie else "right"
        yield Dependency(event, first.name, second.name, ("Stop",), ("asked twice",), verdict, advice)


def _rates_set_twice(observer: Observer) -> Iterator[Dependency]:
    for group, setters in observer.setters.items():
        (first, event), *others = setters.items()
        for second, later in others:
            if second.origin != first.origin:
                where = event if event == later else f"{event}, {later}"
                advice = f"{second.name} fails by it: a group has one writer a run, so leave one of them out"
                yield Dependency(where, first.name, second.name, (f"lr[{group}]",), ("set twice",), "wrong", advice)
