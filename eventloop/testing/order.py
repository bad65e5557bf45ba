"""`assert_order` and `assert_before`: who is called before whom."""

from __future__ import annotations

from itertools import pairwise, zip_longest
from typing import TYPE_CHECKING, Any

from ..channel import key_of
from ..errors import shown
from ..subscription import name_of

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..bus import Bus
    from ..events import Event
    from ..subscription import Subscription


def assert_order(bus: Bus, kind: type[Event] | str, expected: Iterable[Any]) -> None:
    """Require that an event is heard by exactly these, in this order.

    Args:
        bus: who publishes.
        kind: the event.
        expected: names, attached objects, or subscribed functions; plain blinker receivers go by name.

    Raises:
        AssertionError: it is not so; the message names the first difference and shows ``bus.explain``.
    """
    __tracebackhide__ = True  # pytest then points at the line of the test
    for place, (right, there) in enumerate(zip_longest(expected, bus.order(kind)), 1):
        if right is None or there is None or not _is(there, right):
            found = "empty" if there is None else repr(there.name)
            raise AssertionError(f"place {place} is {found}, expected {_told(bus, right)}\n{bus.explain(kind)}")


def assert_before(bus: Bus, kind: type[Event] | str, *things: Any) -> None:
    """Require that each of these is called before the next; who else hears the event, and where, does not matter.

    Args:
        bus: who publishes.
        kind: the event.
        *things: two or more names, attached objects, or subscribed functions.

    Raises:
        AssertionError: it is not so, or one of them does not hear the event; the message shows ``bus.explain``.
        ValueError: fewer than two.
    """
    __tracebackhide__ = True
    if len(things) < 2:
        raise ValueError(f"assert_before compares two or more, not {len(things)}")
    order = bus.order(kind)
    places = [[i for i, one in enumerate(order, 1) if _is(one, thing)] for thing in things]
    for thing, at in zip(things, places, strict=True):
        if not at:
            raise AssertionError(f"{_told(bus, thing)} does not hear this event\n{bus.explain(kind)}")
    for (first, earlier), (second, later) in pairwise(zip(things, places, strict=True)):
        if max(earlier) >= min(later):
            where = f"it stands at {max(earlier)}, the other at {min(later)}"
            raise AssertionError(
                f"{_told(bus, first)} is not called before {_told(bus, second)}: {where}\n{bus.explain(kind)}"
            )


def _is(one: Subscription, thing: Any) -> bool:
    if isinstance(thing, str):
        return one.name == thing
    return one.owner is thing or (not one.foreign and key_of(one.handler) == key_of(thing))


def _told(bus: Bus, thing: Any) -> str:
    if thing is None:
        return "empty"
    if isinstance(thing, str):
        return repr(thing)
    names = [name for name, one in bus.objects if one is thing]
    return repr(names[0]) if names else repr(name_of(thing)) if callable(thing) else shown(thing)
