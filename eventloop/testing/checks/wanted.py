"""What a callback needs of a run to answer: the metrics that it asks for, and a run long enough for its settings."""

from __future__ import annotations

import ast
import inspect
import textwrap
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, Final

from ...bus import Bus
from ...callback import handlers_of
from ...settings import arguments_of
from ...subscription import Priority
from ..reads import ALL, Read, Reads
from .series import losses, verdicts
from .trial import answers

if TYPE_CHECKING:
    from ..fake_loop import FakeLoop

Script = dict[str, Any]
UPDATE: Final = ("step_begin", "gradients_ready", "step_end")
TRIES: Final = 4  # a key may be asked for only where another one is there
_METRIC_WORDS: Final = frozenset({"metric", "metrics", "monitor", "key", "keys", "quantity", "watch", "score"})


class Asked:
    """What one callback asks for in a run.

    Attributes:
        events: where it asks, by the name of the metric.
        unmet: the names that were never there, by what would have them: ``metrics`` or ``evaluations``.
        reported: the names that it reports itself.
    """

    def __init__(self, loop: FakeLoop) -> None:
        self.events: dict[str, list[str]] = {}
        self._met: dict[tuple[str, str], bool] = {}
        self.reported = set(answers(loop, around=self._around).keys)

    def _around(self, owner: Any, call: Callable[[Any, Any], Any], event: Any, state: Any) -> Any:
        reads = Reads()
        try:
            return call(event, reads.noting(state))
        finally:
            for read in reads:
                if read.of == "metrics" and read.key != ALL:
                    self._note(read, event.name, state)

    def _note(self, read: Read, event: str, state: Any) -> None:
        events = self.events.setdefault(read.key, [])
        if event not in events:
            events.append(event)
        there = read.key in (state.metrics.fresh if read.how == "in fresh" else state.metrics)
        place = read.key, "metrics" if event in UPDATE else "evaluations"
        self._met[place] = self._met.get(place, False) or there

    @property
    def unmet(self) -> Iterator[tuple[str, str]]:
        """The pairs of a name and of what would have it."""
        return (place for place, met in self._met.items() if not met)


def with_what_it_asks(
    script: Script, guessed: Iterable[str], run: Callable[[Script], FakeLoop]
) -> tuple[Script, Asked]:
    """The script with every metric in it that the callback asks for, and what it asked for.

    Args:
        script: what is known without asking; it stays as it is.
        guessed: names that may be metrics.
        run: a new run of the callback by a script.
    """
    added = dict.fromkeys((name, place) for name in guessed for place in ("metrics", "evaluations"))
    reported: set[str] = set()
    for _ in range(TRIES):
        whole = _with(script, [place for place in added if place[0] not in reported])
        asked = Asked(run(whole))
        new = dict.fromkeys(place for place in asked.unmet if place not in added)
        if not new and asked.reported <= reported:
            break
        added |= new
        reported |= asked.reported
    return _with(script, [place for place in added if place[0] not in reported]), asked


def _with(script: Script, places: Iterable[tuple[str, str]]) -> Script:
    more: dict[str, Script] = {"metrics": {}, "evaluations": {}}
    for name, place in places:
        more[place][name] = losses(script["max_steps"]) if place == "metrics" else verdicts(script["max_steps"] // 2)
    return {**script, **{place: {**series, **script[place]} for place, series in more.items()}}


def metric_settings(thing: object) -> list[str]:
    """The texts among its settings that are metrics by what their argument is called."""
    found: list[str] = []
    for name, value in arguments_of(thing).items():
        if _METRIC_WORDS & {*name.split("_")}:
            found += [text for text in (value if isinstance(value, list | tuple) else [value]) if _is_name(text)]
    return found


def _is_name(value: Any) -> bool:
    return isinstance(value, str) and value.split() == [value]


def longest_wait(thing: object, bound: int) -> int:
    """The largest whole number that it is set to, up to the bound: a patience, a window, every so many."""
    kept: dict[str, Any] = {}
    for kind in reversed(type(thing).__mro__):
        kept |= vars(kind)
    kept |= getattr(thing, "__dict__", {})
    kept |= arguments_of(thing)
    kept.pop("priority", None)
    return max((n for n in kept.values() if type(n) is int and n <= bound), default=0)


def counts_updates(thing: object) -> bool:
    """Whether it hears updates alone, so that what it counts are these."""
    return not any(event.startswith(("eval", "epoch")) for event in handlers_of(thing))


def in_log_band(priority: int) -> bool:
    """Whether it is a place for those that write down what others have made."""
    return Priority.DECIDE < priority < Priority.NORMAL


def could_answer(thing: object) -> bool:
    """Whether a handler of it is there to answer: it stands outside the LOG band and returns something somewhere."""
    places = {s.event.name: s.priority for s in Bus().attach(thing).subscriptions}
    return any(
        not in_log_band(places.get(event, Priority.NORMAL)) and _returns(method)
        for event, method in handlers_of(thing).items()
    )


def _returns(method: Callable[..., Any]) -> bool:
    try:
        tree = ast.parse(textwrap.dedent(inspect.getsource(method)))
    except (OSError, TypeError, SyntaxError):  # there is no source: it may
        return True
    nodes = list(ast.walk(tree))
    returned = [node.value for node in nodes if isinstance(node, ast.Return)]
    return any(isinstance(node, ast.Lambda) for node in nodes) or not all(map(_is_none, returned))


def _is_none(value: ast.expr | None) -> bool:
    return value is None or (isinstance(value, ast.Constant) and value.value is None)


def told(events: Mapping[str, list[str]]) -> str:
    """What it asked for, in words."""
    asked = [f"{name!r} at {' and '.join(at)}" for name, at in events.items()]
    return f"it asked for {', '.join(asked)}" if asked else "it asked for no metric by name"
