"""What a publish costs, and a step of a loop that drives the bus by itself."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from typing import Any

from eventloop import Bus, StepBegin, StepEnd, TrainState

from . import plain
from .size import Size
from .table import Row
from .timing import compare, per_unit

STATE = TrainState(epoch=1, step=150, update=150, lr={"group_0": 0.1})


def no_ops(count: int) -> tuple[plain.Handler, ...]:
    """So many functions that do nothing, each its own."""

    def make() -> plain.Handler:
        def no_op(event: Any, state: Any) -> None:
            pass

        return no_op

    return tuple(make() for _ in range(count))


class NoOp:
    """A callback object whose method does nothing."""

    def on_step_end(self, event: StepEnd, state: TrainState) -> None:
        """Nothing."""


def publishing(bus: Bus | plain.Smallest, times: int) -> None:
    """So many publishes of one event."""
    publish, event, state = bus.publish, StepEnd(), STATE
    for _ in repeat(None, times):
        publish(event, state)


def publish(size: Size) -> Iterator[Row]:
    """To n handlers that do nothing."""
    for count, target in ((1, 2.0), (10, 1.4), (50, 1.25)):
        functions, objects = no_ops(count), [NoOp() for _ in range(count)]
        bus, object_bus = Bus(), Bus()
        for function in functions:
            bus.on(StepEnd, function)
        for thing in objects:
            object_bus.attach(thing)
        times = max(size.calls // count, 50)
        kinds: list[tuple[str, Bus, tuple[plain.Handler, ...]]] = [
            ("function", bus, functions),
            ("bound method", object_bus, tuple(thing.on_step_end for thing in objects)),
        ]
        for kind, one, handlers in kinds:
            ours = per_unit(partial(publishing, one), times)
            base = per_unit(partial(plain.call_all, handlers, StepEnd(), STATE), times)
            what = f"publish to {count} {kind}{'s' * (count > 1)} / tuple loop with try and reply check"
            yield Row.of(what, compare(ours, base, size.rounds), target)
        smallest = per_unit(partial(publishing, plain.Smallest(StepEnd, functions)), times)
        found = compare(per_unit(partial(publishing, bus), times), smallest, size.rounds)
        yield Row.of("- the same functions / the smallest dispatcher that isolates", found)


def unheard(size: Size) -> Iterator[Row]:
    """To nobody."""
    ours = per_unit(partial(publishing, Bus()), size.calls)
    base = per_unit(partial(plain.call_nothing, StepEnd(), STATE), size.calls)
    yield Row.of("publish to nobody / call of an empty function", compare(ours, base, size.rounds), 3.0)


def waiting_bus(count: int) -> Bus:
    """A bus on which so many handlers wait for the next multiple of 100."""
    bus = Bus()
    for function in no_ops(count):
        bus.on(StepEnd, function, every=100)
    return bus


def stepping(bus: Bus, times: int) -> None:
    """So many publishes, at steps at which nobody is due."""
    publish, event = bus.publish, StepEnd()
    states = [STATE.replace(step=step, update=step) for step in range(101, 200)]
    for state in states:
        publish(event, state)
    for _ in repeat(None, times // len(states)):
        for state in states:
            publish(event, state)


def filtered(size: Size) -> Iterator[Row]:
    """To handlers none of which is due."""

    def work(bus: Bus) -> Callable[[], float]:
        return per_unit(partial(stepping, bus), size.calls)

    waiting = work(waiting_bus(50))
    what = "publish to 50 handlers with every=100, none due"
    yield Row.of(f"{what} / publish to nobody", compare(waiting, work(Bus()), size.rounds), 1.5)
    yield Row.of(f"{what} / the same with 5 of them", compare(waiting, work(waiting_bus(5)), size.rounds), 1.1)


def raw_steps(bus: Bus, times: int) -> None:
    """So many steps of a loop of one's own: two snapshots, a report, two events."""
    publish, state = bus.publish, STATE
    for _ in repeat(None, times):
        state = state.begin_update()
        publish(StepBegin(), state)
        state = state.end_update().report(loss=0.5)
        publish(StepEnd(), state)


def raw_step(size: Size) -> Iterator[Row]:
    """A step with seven handlers that do nothing."""
    begin, end = no_ops(3), no_ops(4)
    bus = Bus()
    for function in begin:
        bus.on(StepBegin, function)
    for function in end:
        bus.on(StepEnd, function)
    times = size.calls // 7
    base = per_unit(partial(plain.step_calls, begin, end, StepEnd(), STATE), times)
    found = compare(per_unit(partial(raw_steps, bus), times), base, size.rounds)
    yield Row.of("raw step, 7 handlers in all / tuple loop of the same calls", found, 5.0, "us")
