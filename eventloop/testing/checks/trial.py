"""One run of one callback, and all that it answered in it."""

from __future__ import annotations

import contextlib
import logging
import re
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, NamedTuple

from ...events import CheckpointSaved, EpochBegin, EvalEnd, Event, StepEnd, TrainBegin
from ...fold import Control
from ...requests import Keep, Report
from ...watch import Around
from .standins import SCRIPTED, Cuts

if TYPE_CHECKING:
    from ...subscription import Subscription
    from ..fake_loop import FakeLoop

_CLOCKS: Final = ("time", "monotonic", "perf_counter", "time_ns", "monotonic_ns", "perf_counter_ns")
_MUTABLE: Final = (list, dict, set, bytearray, deque)
_ADDRESS: Final = re.compile(r" at 0x[0-9a-fA-F]+")


class Answer(NamedTuple):
    """One request, or one error: ``text`` says it, ``keys`` are those that it reports.

    ``saves`` is the number of checkpoints that `Cuts` had got before it.
    """

    event: str
    step: int
    epoch: int
    text: str
    keys: tuple[str, ...] = ()
    saves: int = 0

    def __str__(self) -> str:
        return f"{self.text} at {self.event} of step {self.step}"


class Answers(list[Answer]):
    """All answers of one callback in one run, in order.

    Attributes:
        error: what the run raised.
        cuts: the step of each checkpoint that `Cuts` got.
        calls: how many handlers of the callback were called.
        replied: whether it ever asked for or reported something.
        went_on: whether an update or an evaluation was made; `Cuts` sees it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.error: BaseException | None = None
        self.cuts: list[int] = []
        self.calls = 0
        self.replied = False
        self.went_on = False
        self._reopened: int | None = None  # the epoch that a resumed run stands in

    @property
    def lines(self) -> list[str]:
        """Each answer as text, and what the run raised."""
        return self._told(self)

    @property
    def keys(self) -> list[str]:
        """The keys that were reported, in order of appearance."""
        return list(dict.fromkeys(key for answer in self for key in answer.keys))

    def after(self, cut: int) -> list[str]:
        """What was answered after the checkpoint number ``cut``, from 0, was saved."""
        return self._told(answer for answer in self if answer.saves > cut)

    def resumed(self) -> list[str]:
        """What was answered after a resume, but for train_begin and the epoch_begin that only opens an epoch again."""
        again = {(TrainBegin.name, a.epoch) for a in self} | {(EpochBegin.name, self._reopened)}
        return self._told(answer for answer in self if (answer.event, answer.epoch) not in again)

    def _told(self, some: Iterable[Answer]) -> list[str]:
        ended = [] if self.error is None else [f"the run raised a {type(self.error).__name__}"]
        return [*map(str, some), *ended]

    def add(self, event: Event, state: Any, answer: Any) -> None:
        """Note what a handler returned, or the error that it raised."""
        for text, keys in _told(answer):
            self.append(Answer(event.name, state.step, state.epoch, text, keys, len(self.cuts)))
            self.replied = self.replied or not isinstance(answer, BaseException)

    def passed(self, who: Subscription, event: Event, state: Any) -> None:
        """Note how far the run is: a handler was called."""
        if isinstance(event, TrainBegin) and event.resumed:
            self._reopened = state.epoch
        if isinstance(who.owner, Cuts):
            self.went_on = self.went_on or isinstance(event, StepEnd | EvalEnd)
            if isinstance(event, CheckpointSaved):
                self.cuts.append(event.step)


def answers(loop: FakeLoop, who: int = 0, around: Around | None = None) -> Answers:
    """Run a `FakeLoop`, without a word in the log, and list what one of its callbacks answered.

    What the run raises is kept as ``error``.

    Args:
        loop: the run.
        who: the place of the callback among the objects on the bus.
        around: stands around each call of its handlers, as in `Bus.watch`.
    """
    thing, found = loop.bus.objects[who][1], Answers()

    def look(owner: Subscription, call: Any, event: Any, state: Any) -> Any:
        if not is_of(owner, thing):
            answer = call(event, state)
        else:
            found.calls += 1
            try:
                answer = call(event, state) if around is None else around(owner, call, event, state)
            except BaseException as error:
                found.add(event, state, error)
                raise
            found.add(event, state, answer)
        found.passed(owner, event, state)
        return answer

    with quiet(), loop.bus.watch(look):
        try:
            loop.run()
        except KeyboardInterrupt as error:
            if error.args != SCRIPTED:
                raise
            found.error = error
        except (Exception, SystemExit) as error:
            found.error = error
    return found


def is_of(who: Subscription, thing: object) -> bool:
    """Whether a subscription is one of this object's, those that it made itself included."""
    return who.owner is thing or getattr(who.handler, "__self__", None) is thing


@contextlib.contextmanager
def an_hour_on() -> Iterator[Around]:
    """Give what stands around each call of a run; after the first one the clocks of ``time`` go on by an hour.

    They are right again behind the block. Functions that were taken out of that module before are not reached.
    """
    real = {name: getattr(time, name) for name in _CLOCKS}
    ahead = 0

    def shifted(name: str) -> Callable[[], Any]:
        unit = 1_000_000_000 if name.endswith("_ns") else 1
        return lambda: real[name]() + unit * ahead

    def around(who: Subscription, call: Callable[[Any, Any], Any], event: Any, state: Any) -> Any:
        nonlocal ahead
        try:
            return call(event, state)
        finally:
            ahead = 3600

    for name in real:
        setattr(time, name, shifted(name))
    try:
        yield around
    finally:
        for name, function in real.items():
            setattr(time, name, function)


def shared(kind: type) -> dict[str, str]:
    """What the objects of a class have in common and could change, as text by name: lists, dicts and sets.

    These are attributes of the class and of its bases, and defaults of their ``__init__``.
    """
    found: dict[str, str] = {}
    for base in kind.__mro__:
        init = vars(base).get("__init__")
        defaults = [
            *(getattr(init, "__defaults__", None) or ()),
            *(getattr(init, "__kwdefaults__", None) or {}).values(),
        ]
        values = {name: value for name, value in vars(base).items() if not name.startswith("__")}
        values |= {f"__init__'s default {i}": value for i, value in enumerate(defaults, 1)}
        found |= {f"{base.__name__}.{name}": repr(v) for name, v in values.items() if isinstance(v, _MUTABLE)}
    return found


def difference(expected: Sequence[str], found: Sequence[str]) -> str:
    """Where two lists of answers part, in two lines; nothing if they are equal."""
    for place, (right, there) in enumerate(zip_longest(expected, found), 1):
        if right != there:
            lines = f"expected: {right or 'no more answers'}", f"found:    {there or 'no more answers'}"
            return "\n  ".join([f"answer {place} differs", *lines])
    return ""


def assert_same(expected: Sequence[str], found: Sequence[str]) -> None:
    """Require that two lists of answers are equal.

    Raises:
        AssertionError: they are not; the message shows where they part.
    """
    __tracebackhide__ = True
    if unlike := difference(expected, found):
        raise AssertionError(unlike)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Inside the block the library's log is silent: the runs of a check go wrong on purpose."""
    log = logging.getLogger("eventloop")
    before, log.disabled = log.disabled, True
    try:
        yield
    finally:
        log.disabled = before


def _told(answer: Any) -> Iterator[tuple[str, tuple[str, ...]]]:
    """Each request of an answer as text, with the keys that it reports."""
    if isinstance(answer, Control):
        return  # of an event that it has published: what it answered there is noted already, the rest is others'
    for request in answer if isinstance(answer, list | tuple) else [answer]:
        if isinstance(request, Report):
            pairs = ", ".join(f"{key}={_number(value)}" for key, value in request.metrics.items())
            yield f"Report({pairs})", tuple(map(str, request.metrics))
        elif isinstance(request, Keep):
            yield f"Keep({sorted(request.steps)}{', make_room=True' if request.make_room else ''})", ()
        elif isinstance(request, BaseException):
            yield f"raised a {type(request).__name__}", ()  # its text may tell who else is there
        elif request is not None:
            yield _ADDRESS.sub("", repr(request)), ()


def _number(value: Any) -> str:
    try:
        return repr(float(value))
    except (TypeError, ValueError, RuntimeError):  # nested, or no number at all: the bus refuses what is none
        return repr(value)
