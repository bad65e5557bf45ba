"""`assert_any_order`: whatever the order of registration, a set of callbacks does the same."""

from __future__ import annotations

import itertools
import math
import random
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from ..limits import whole
from .arguments import callbacks_in, check_callable
from .reads import number
from .recorder import Trace, difference, first_difference
from .reproduce import chosen, snippet
from .trial import Drive, Make, carry_out

if TYPE_CHECKING:
    from ..bus import Bus
    from ..events import Event
    from ..state import TrainState

Order = tuple[int, ...]
"""Places in the list that the factory returns, in order of registration."""
Line = tuple[str, ...]
"""An event with its step, and what happened at it, sorted."""


def assert_any_order(
    make: Make,
    *,
    run: Drive | None = None,
    limit: int = 120,
    seed: int = 0,
    failing: bool = False,
    **script: Any,
) -> None:
    """Require that a set of callbacks gives the same trace in any order of registration.

    A trace is every event with its step, who asked what, what was reported, what each handler read of metrics and
    learning rates, the rates themselves, and how the run ended; who asks first at one event does not count. All orders
    are tried if they are no more than ``limit``, so up to five callbacks; else ``limit`` of them: the reverse, each
    swap of two neighbours, and drawn ones. Callbacks of one class keep their names (``X``, ``X#2``) in every order.

    What is wrong in *every* order, a logger whose priority puts it in front of what it logs, say, `order_report` finds.

    Args:
        make: builds new callbacks at each call: ``lambda: [WarmupCosine(3), EarlyStopping("eval_loss")]``.
        run: what drives the bus in place of a `FakeLoop`; it is given the bus with the callbacks attached.
        limit: the most orders.
        seed: of those that are drawn.
        failing: whether callbacks that fail in the run are expected, or that the run itself ends with an error that the
            script does not raise; what fails does nothing that an order could change.
        **script: keywords of the `FakeLoop`, such as ``metrics`` and ``evaluations``; a ``run_dir`` is a folder for the
            folders of the runs.

    Raises:
        AssertionError: two orders differ. The message names two that are one swap apart, with as few callbacks as show
            it, the first event at which they differ, and a snippet that reproduces it. Or something failed, in every
            order alike.
        TypeError: ``make`` is no function that returns callbacks, or a keyword is not the `FakeLoop`'s.
        ValueError: ``make`` returns the same objects again, or the `FakeLoop` does not take the value of a keyword.
    """
    __tracebackhide__ = True  # pytest then points at the line of the test
    check_callable(make, "make", "a function that builds new callbacks: assert_any_order(lambda: [...])", 0)
    whole("limit", limit, least=1)
    runs = _Runs(make, run, script)
    first = tuple(range(len(runs.names)))
    runs.check_repeatable(first)
    for order in _orders(len(first), limit, seed):
        if runs.differ(first, order):
            raise AssertionError(_told(runs, *_smallest(runs, first, order)))
    if runs.failures and not failing:
        failed = "".join(f"\n  failed: {text}" for text in runs.failures)
        raise AssertionError(
            "no order differs, but what fails does nothing that an order could change: mend it, or allow for it with "
            f"failing=True{failed}"
        )


class _Lines(Trace):
    """A trace that also says when the learning rates are other ones than before."""

    def __init__(self, bus: Bus) -> None:
        self._lr: dict[str, float] = {}
        super().__init__(bus, reads=True)

    def record(self, event: Event, state: TrainState) -> None:
        super().record(event, state)
        if state.lr != self._lr:
            self._lr = dict(state.lr)
            rates = ", ".join(f"{group}={number(rate)}" for group, rate in self._lr.items())
            self._add(len(self) - 1, [f"the learning rate is {rates}"])


class _Runs:
    """The traces of one set of callbacks by order, each made once.

    Attributes:
        names: how the callbacks are called, in the factory's order.
        built: them, for this; no run has them.
        given: the keywords of `assert_any_order`, without those that choose orders.
        failures: what failed, in whatever order.
    """

    def __init__(self, make: Make, run: Drive | None, script: Mapping[str, Any]) -> None:
        self._make, self._drive, self._script = make, run, script
        self.given = {**({} if run is None else {"run": run}), **script}
        self.built = self._new()
        self.failures: dict[str, None] = {}
        self.names = list(_names(self.built))
        self._known: dict[Order, list[Line]] = {}

    def lines(self, order: Order) -> list[Line]:
        """The trace, and how the run ended."""
        if order not in self._known:
            self._known[order] = self._run(order)
        return self._known[order]

    def _run(self, order: Order) -> list[Line]:
        made, traces = self._new(), list[Trace]()
        if len(made) != len(self.built):
            raise ValueError(f"make() returned {len(made)} callbacks, and {len(self.built)} the first time")
        if again := [name for name, old, new in zip(self.names, self.built, made, strict=True) if old is new]:
            raise ValueError(f"make() returned the same {', '.join(again)} again; it has to build new callbacks")
        things, names = [made[i] for i in order], [self.names[i] for i in order]
        end = carry_out(things, self._drive, self._script, lambda bus: traces.append(_Lines(bus)), names)
        self.failures.update(dict.fromkeys(end.failures))
        # who asks first, among those whose order is free, is no difference
        return [*((f"{name} {step}", *sorted(texts)) for name, step, *texts in traces[0]), (end.told,)]

    def _new(self) -> list[object]:
        return callbacks_in(self._make(), "assert_any_order: make() returned", "a function that returns a list")

    def check_repeatable(self, order: Order) -> None:
        """Require that one order twice gives one trace: without it, a difference would say nothing of order."""
        once, again = self.lines(order), self._run(order)
        if (place := first_difference(once, again)) is not None:
            raise AssertionError(
                "two runs in one order of registration differ, so orders cannot be compared: seed what the callbacks "
                f"draw, and let make() build everything anew\n{_difference(once, again, place)}"
            )

    def differ(self, one: Order, other: Order) -> bool:
        """Whether two orders give two traces."""
        return self.lines(one) != self.lines(other)


def _names(things: list[object]) -> Iterator[str]:
    counts: Counter[str] = Counter()
    for thing in things:
        kind = type(thing).__name__
        counts[kind] += 1
        yield kind if counts[kind] == 1 else f"{kind}#{counts[kind]}"


def _orders(size: int, limit: int, seed: int) -> Iterator[Order]:
    first = tuple(range(size))
    if math.factorial(size) <= limit:
        yield from itertools.permutations(first)
        return
    named = [first[::-1], *(_swapped(first, i) for i in range(size - 1))][:limit]
    draw = random.Random(seed)
    yield from named
    for _ in range(limit - len(named)):
        yield tuple(draw.sample(first, size))


def _swapped(order: Order, i: int) -> Order:
    return (*order[:i], order[i + 1], order[i], *order[i + 2 :])


def _smallest(runs: _Runs, good: Order, bad: Order) -> tuple[Order, Order]:
    """Two orders that differ, one swap of neighbours apart, of as few callbacks as show it."""
    one, other = next((a, b) for a, b in itertools.pairwise(_way(good, bad)) if runs.differ(a, b))
    swapped = {a for a, b in zip(one, other, strict=True) if a != b}
    for spare in [i for i in good if i not in swapped]:
        fewer = tuple(i for i in one if i != spare), tuple(i for i in other if i != spare)
        if runs.differ(*fewer):
            one, other = fewer
    return one, other


def _way(start: Order, end: Order) -> Iterator[Order]:
    """From one order to another, by swaps of neighbours."""
    order, wanted = start, {one: place for place, one in enumerate(end)}
    yield order
    while order != end:
        i = next(i for i in range(len(order) - 1) if wanted[order[i]] > wanted[order[i + 1]])
        order = _swapped(order, i)
        yield order


def _told(runs: _Runs, one: Order, other: Order) -> str:
    mine, theirs = runs.lines(one), runs.lines(other)
    place = first_difference(mine, theirs) or 0
    told = [f"[{', '.join(runs.names[i] for i in order)}]" for order in (one, other)]
    first, second = (runs.names[i] for i, j in zip(one, other, strict=True) if i != j)
    options = dict(runs.given)

    def shows(make: Make, given: dict[str, Any]) -> bool:
        again = _Runs(make, given.pop("run", None), given)
        order = tuple(range(len(again.names)))
        return any(again.differ(order, changed) for changed in itertools.permutations(order))

    code = snippet("assert_any_order", [runs.built[i] for i in one], options, shows, chosen(one), "make", "")
    return (
        f"the order of registration decides: with {told[0]} (-) and {told[1]} (+) "
        f"{_difference(mine, theirs, place)}\n"
        f"give {first} or {second} a priority, so that it is said who is called first; to reproduce it:\n\n{code}"
    )


def _difference(one: list[Line], other: list[Line], place: int) -> str:
    """The place at which they differ; of the two lines there, what is in one alone."""
    mine, theirs = [*one], [*other]
    if place < min(len(one), len(other)) and one[place][0] == other[place][0]:
        for lines, here, there in ((mine, one[place], other[place]), (theirs, other[place], one[place])):
            lines[place] = (here[0], *(text for text in here[1:] if text not in there))
    return difference(mine, theirs, place, _shown)


def _shown(line: Line) -> str:
    return line[0] + (f": {'; '.join(line[1:])}" if len(line) > 1 else "")
