"""`assert_order`: who is called before whom."""

from __future__ import annotations

from itertools import zip_longest
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable

    from ..bus import Bus
    from ..events import Event


def assert_order(bus: Bus, kind: type[Event] | str, names: Iterable[str]) -> None:
    """Require that an event is heard by exactly these subscriptions, by name, in this order.

    Raises:
        AssertionError: it is not so; the message names the first difference and shows ``bus.explain``.
    """
    __tracebackhide__ = True  # pytest then points at the line of the test
    expected, found = list(names), [subscription.name for subscription in bus.order(kind)]
    for place, (right, there) in enumerate(zip_longest(expected, found), 1):
        if right != there:
            raise AssertionError(f"place {place} is {_told(there)}, expected {_told(right)}\n{bus.explain(kind)}")


def _told(name: str | None) -> str:
    return "empty" if name is None else repr(name)
