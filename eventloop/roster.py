"""The objects attached to a bus: their names, their live parts, their state, their closing."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple

from .log import logger
from .subscription import Handle


class LoadReport(NamedTuple):
    """What came of loading states: names ``restored``, names without a state (``missing``), without an owner."""

    restored: tuple[str, ...]
    missing: tuple[str, ...]
    unknown: tuple[str, ...]

    def log(self) -> None:
        """Say what was not found."""
        if self.unknown:
            logger().warning(f"no owner for the state of {', '.join(self.unknown)}; it is kept for later checkpoints")
        if self.missing:
            logger().warning(f"no state for {', '.join(self.missing)}; starting fresh")


class Attached:
    """One attached object: ``name`` is how it is called everywhere, ``key`` what its state is stored under."""

    __slots__ = ("handle", "key", "name", "place", "thing")

    def __init__(self, thing: Any, name: str, key: str, handle: Handle, place: str) -> None:
        self.thing, self.name, self.key, self.handle, self.place = thing, name, key, handle, place


class Names:
    """Names in use: given ones are unique or refused, derived ones are made unique with ``#2``, ``#3``."""

    def __init__(self) -> None:
        self._used: dict[str, str] = {}

    def claim(self, given: str | None, derived: str, place: str) -> str:
        """The name to use.

        Raises:
            ValueError: the given name is taken.
        """
        if given is not None:
            if not isinstance(given, str) or not given:
                raise ValueError(f"name={given!r} is no text")
            if given in self._used:
                raise ValueError(f"the name {given!r} is taken by the subscription made at {self._used[given]}")
            name = given
        else:
            name, n = derived, 1
            while name in self._used:
                n += 1
                name = f"{derived}#{n}"
        self._used[name] = place
        return name

    def release(self, name: str) -> None:
        """Nobody uses it any more."""
        self._used.pop(name, None)


class Roster:
    """What is attached, in order, and who was started in this run."""

    def __init__(self) -> None:
        self._attached: list[Attached] = []
        self._started: list[Attached] = []
        self._live: dict[str, Any] | None = None
        self._running = self._closed = False
        self._orphans: dict[str, Any] = {}
        self._keys = Names()

    def __iter__(self) -> Iterator[Attached]:
        return iter(tuple(self._attached))

    def find(self, thing: object) -> Attached | None:
        """The entry of an attached object."""
        return next((a for a in self._attached if a.thing is thing), None)

    def add(self, thing: Any, name: str, given: bool, handle: Handle, place: str) -> None:
        """Attach; in a run that has begun it is bound at once."""
        monitor = getattr(thing, "monitor", None)
        derived = f"{type(thing).__name__}({monitor})" if isinstance(monitor, str) else type(thing).__name__
        key = self._keys.claim(name if given else None, derived, place)
        attached = Attached(thing, name, key, handle, place)
        self._attached.append(attached)
        if self._running:
            self._start(attached)

    def forget(self, handle: Handle) -> None:
        """The object is detached; what was started is still closed at the end."""
        for attached in [a for a in self._attached if a.handle is handle]:
            self._attached.remove(attached)
            self._keys.release(attached.key)

    def bind(self, live: Mapping[str, Any]) -> None:
        """Hand each object the live parts that its ``bind`` names."""
        self._live = dict(live)
        self._running, self._closed = True, False
        for attached in self._attached:
            self._start(attached)

    def start(self) -> None:
        """A run begins: whoever is attached will be closed."""
        self._running, self._closed = True, False
        for attached in self._attached:
            if all(a.thing is not attached.thing for a in self._started):
                self._started.append(attached)

    def _start(self, attached: Attached) -> None:
        if any(a.thing is attached.thing for a in self._started):
            return
        self._started.append(attached)  # first: a bind that fails half-way may hold something to close
        bind = getattr(attached.thing, "bind", None)
        if bind is None or self._live is None:
            return
        wanted = inspect.signature(bind).parameters.values()
        named = [p for p in wanted if p.kind not in (p.VAR_KEYWORD, p.VAR_POSITIONAL)]
        unknown = [p.name for p in named if p.name not in self._live and p.default is p.empty]
        if unknown:
            there = ", ".join(sorted(self._live))
            raise TypeError(f"{attached.name}.bind asks for {', '.join(map(repr, unknown))}; there are {there}")
        everything = any(p.kind is p.VAR_KEYWORD for p in wanted)
        asked = {p.name for p in named}
        bind(**{name: value for name, value in self._live.items() if everything or name in asked})

    def close(self, failed: Callable[[str, Exception], None]) -> None:
        """Close, in reverse order, everything that was started, each once, whatever the others do."""
        if not self._running and not self._closed:
            self.start()  # a raw loop that never began may still hold open files
        started, self._started, self._live = self._started, [], None
        self._running, self._closed = False, True
        interrupt: BaseException | None = None
        for attached in reversed(started):
            try:
                getattr(attached.thing, "close", _nothing)()
            except Exception as error:
                failed(attached.name, error)
            except BaseException as error:  # Ctrl-C in one keeps no other from being closed
                interrupt = interrupt or error
        if interrupt is not None:
            raise interrupt

    def persist(self) -> None:
        """Let every object that can put on disk what it was told."""
        for attached in self:
            try:
                getattr(attached.thing, "persist", _nothing)()
            except Exception as error:
                logger().warning(f"{attached.name} could not put its rows on disk: {type(error).__name__}: {error}")

    def state_dict(self, failed: Callable[[Attached, Exception], None]) -> dict[str, Any]:
        """The state of every object that has one, by key; states that nobody owns travel on."""
        states = dict(self._orphans)
        for attached in self._attached:
            if hasattr(attached.thing, "state_dict"):
                try:
                    states[attached.key] = attached.thing.state_dict()
                except Exception as error:
                    failed(attached, error)
        return states

    def forget_orphans(self) -> None:
        """A fresh run has no states of others to carry."""
        self._orphans = {}

    def load_state_dict(self, states: Mapping[str, Any]) -> LoadReport:
        """Hand each object its state, in place."""
        owners, report = self._owners(), self.match(states)
        for key in report.restored:
            try:
                owners[key].thing.load_state_dict(states[key])
            except Exception as error:
                error.add_note(f"while loading the state of {key}")
                raise
        self._orphans = {k: states[k] for k in report.unknown}
        return report

    def match(self, states: Mapping[str, Any]) -> LoadReport:
        """What would come of loading these states."""
        owners = self._owners()
        missing = tuple(k for k in owners if k not in states)
        unknown = tuple(k for k in states if k not in owners)
        return LoadReport(tuple(k for k in owners if k in states), missing, unknown)

    def _owners(self) -> dict[str, Attached]:
        return {a.key: a for a in self._attached if hasattr(a.thing, "load_state_dict")}


def _nothing() -> None:
    """The close or persist of what has none."""
