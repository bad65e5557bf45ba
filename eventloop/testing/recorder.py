"""`Recorder` and `Trace`: what a bus published, as a plain list, with assertions that show the first difference."""

from __future__ import annotations

import sys
from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from ..errors import shown, told
from ..events import Event, HandlerFailed, event_class, known_events
from ..fold import Control
from ..metrics import cells
from ..requests import Report, SetLR
from ..subscription import Priority
from .arguments import check_bus, check_callable
from .reads import Reads, number

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from ..bus import Bus
    from ..loop import Loop
    from ..state import TrainState
    from ..subscription import Subscription

CONTEXT: Final = 3  # lines shown before a difference
_END: Final = "nothing: the end"


class Recorder(list[tuple[Any, ...]]):
    """A list that fills itself with what a bus publishes: ``(event name, step)``, and ``extra`` behind it if asked.

    Being a list of plain tuples, it is compared whole: ``assert recorder == [("step_begin", 0), ("step_end", 1)]``, or
    with `assert_equal`, which shows the first difference alone. It hears every kind of event first, so an event that a
    handler publishes stands behind the one that caused it.

    Args:
        bus: whose events to record.
        extra: called with (event, state); what it returns is the third member of each tuple.
        priority: its place in the order; ``Priority.LAST`` shows ``extra`` the state with everybody's reports in it.
    """

    def __init__(
        self,
        bus: Bus,
        extra: Callable[[Any, TrainState], Any] | None = None,
        *,
        priority: int = Priority.FIRST,
    ) -> None:
        super().__init__()
        if extra is not None:
            check_callable(extra, "extra", "a function of (event, state)", 2)
        self._extra = extra
        self.handle = check_bus(bus, f"{type(self).__name__}(bus)").on(
            Event, self.record, priority=priority, failure="raise"
        )

    def record(self, event: Event, state: TrainState) -> None:
        """Add one line; the handler that stands on the bus."""
        line = event.name, state.step
        self.append(line if self._extra is None else (*line, self._extra(event, state)))

    @property
    def names(self) -> list[str]:
        """The names of the events alone."""
        return [line[0] for line in self]

    def assert_equal(self, expected: Iterable[tuple[Any, ...]]) -> None:
        """Require exactly these lines.

        Raises:
            AssertionError: it is not so; the message shows the first difference with the lines before it.
        """
        __tracebackhide__ = True  # pytest then points at the line of the test
        wanted = [*expected]
        if (place := first_difference(wanted, self)) is not None:
            raise AssertionError(f"{difference(wanted, self, place)}\n  - expected, + found")

    def assert_in_order(self, *wanted: str | tuple[Any, ...]) -> None:
        """Require these lines in this order; what else stands between them does not matter.

        Args:
            *wanted: the name of an event, or the beginning of a line: ``("step_end", 4)``.

        Raises:
            AssertionError: one is not there behind those before it; the message says where the search went on from.
        """
        __tracebackhide__ = True
        start = 0
        for n, want in enumerate(wanted, 1):
            begins = (want,) if isinstance(want, str) else want
            found = next((i for i in range(start, len(self)) if self[i][: len(begins)] == begins), None)
            if found is None:
                after = "" if n == 1 else f" after {wanted[n - 2]!r}, found at line {start}"
                earlier = any(line[: len(begins)] == begins for line in self[:start])
                hint = "; it stands only before that" if earlier else ""
                rest = "".join(f"\n    {line!r}" for line in self[start : start + 2 * CONTEXT]) or f"\n    {_END}"
                raise AssertionError(f"{want!r} does not come{after}{hint}; there follows:{rest}")
            start = found + 1

    def assert_counts(self, **counts: int) -> None:
        """Require so many of each event named: ``assert_counts(step_end=8, eval_end=2, run_failed=0)``.

        Raises:
            AssertionError: it is not so; the message names each wrong count and shows all of them.
            ValueError: there is no event of such a name, so that none of it would always be right.
        """
        __tracebackhide__ = True
        there = Counter(self.names)
        for name in counts.keys() - there.keys() - known_events().keys():
            event_class(name)  # raises, with the nearest name
        wrong = [f"{name} {there[name]} times, expected {n}" for name, n in counts.items() if there[name] != n]
        if wrong:
            every = ", ".join(f"{name} {n}" for name, n in there.items()) or "nothing"
            raise AssertionError(f"{'; '.join(wrong)}\nrecorded: {every}")


class Trace(Recorder):
    """A `Recorder` that also tells who asked what: ``("eval_end", 8, "EarlyStopping: Stop(reason='...')")``.

    Each line is ``(event name, step)`` with one text a request behind it, in the order of the handlers, and one for
    each handler that raised. Numbers are told to six digits. It prints as a story, one line an event.

    Args:
        where: the bus, or the loop, whose events to record.
        reads: also tell what each handler read of metrics and learning rates: ``"ConsoleLogger reads loss=0.5"``.
    """

    def __init__(self, where: Bus | Loop, *, reads: bool = False) -> None:
        bus = check_bus(getattr(where, "bus", where), "Trace(where)")
        self._reads = reads
        self._open: list[tuple[Event, int]] = []  # the dispatches under way, with their lines
        self._depth = 0
        super().__init__(bus, priority=sys.maxsize)  # there has to be a line before anybody adds to it
        self._watching = bus.watch(self._around)
        self._watching.__enter__()

    def record(self, event: Event, state: TrainState) -> None:
        """Begin a line; what the handlers ask is added as they are called."""
        if not self._depth and not isinstance(event, HandlerFailed):  # that one is published inside a dispatch
            self._open.clear()
        self._open.append((event, len(self)))
        super().record(event, state)

    def close(self) -> None:
        """Record no more."""
        self.handle.cancel()
        self._watching.__exit__(None, None, None)

    def _around(self, who: Subscription, call: Callable[[Any, Any], Any], event: Event, state: TrainState) -> Any:
        if who in self.handle.subscriptions:
            return call(event, state)
        place = next((i for known, i in reversed(self._open) if known is event), None)
        depth, reads = len(self._open), Reads()
        self._depth += 1
        try:
            answer = call(event, reads.noting(state) if self._reads else state)
        except Exception as error:
            self._add(place, [*_read(who, reads), f"{who.name} raises {told(error)}"])
            raise
        finally:
            self._depth -= 1
            del self._open[depth:]
        self._add(place, [*_read(who, reads), *(f"{who.name}: {one}" for one in asked(answer))])
        return answer

    def _add(self, place: int | None, texts: list[str]) -> None:
        if place is not None:
            self[place] = (*self[place], *texts)

    def __str__(self) -> str:
        return "\n".join(told_line(line) for line in self)


def _read(who: Subscription, reads: Reads) -> list[str]:
    return [f"{who.name} reads {reads.told}"] if reads else []


def asked(answer: Any) -> list[str]:
    """What a handler returned, one text a request; a nested publish's requests stand in its own line."""
    if answer is None or isinstance(answer, Control):
        return []
    return [_request(one) for one in (answer if isinstance(answer, list | tuple) else (answer,))]


def _request(request: Any) -> str:
    if isinstance(request, SetLR):
        rates = request.by_group([""])
        return f"SetLR({', '.join(f'{name}={number(rate)}' if name else number(rate) for name, rate in rates.items())})"
    if isinstance(request, Report):
        good, bad = cells(request.metrics, 0)
        values = [f"{name}={number(cell.value)}" for name, cell in good.items()]
        return f"Report({', '.join([*values, *bad.values()])})"
    return shown(request)


def told_line(line: Sequence[Any]) -> str:
    """A line of a `Trace` for people."""
    name, step, *texts = line
    return f"{name} {step}" + (f": {'; '.join(texts)}" if texts else "")


def first_difference(one: Sequence[Any], other: Sequence[Any]) -> int | None:
    """The first place at which two lists differ, None if they are equal."""
    for i, (a, b) in enumerate(zip(one, other, strict=False)):
        if a != b:
            return i
    return None if len(one) == len(other) else min(len(one), len(other))


def difference(one: Sequence[Any], other: Sequence[Any], place: int, show: Callable[[Any], str] = repr) -> str:
    """Two lists at the place where they begin to differ: the lines before, then - of the one and + of the other."""
    lines = [f"they differ at line {place + 1} (of {len(one)} and {len(other)}):"]
    before = one[max(place - CONTEXT, 0) : place]
    lines += [f"    {show(line)}" for line in before]
    for sign, each in ("-", one), ("+", other):
        lines.append(f"  {sign} {show(each[place]) if place < len(each) else _END}")
    return "\n".join(lines)
