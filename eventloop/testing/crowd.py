"""Made-up subscribers: what they are, and what they do when they are called."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final, Literal, get_args

from ..events import Event, StepEnd
from ..requests import Report, Stop
from .snippets import Snippet

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from ..bus import Bus
    from ..callback import Answer
    from ..failures import Policy
    from ..state import TrainState

Behaviour = Literal["silent", "reports", "stops", "raises", "cancels", "publishes", "registers"]
BEHAVIOURS: Final[tuple[Behaviour, ...]] = get_args(Behaviour)


class Deliberate(Exception):  # noqa: N818  # it is no error of the code under test
    """What a made-up subscriber raises, or the body of a made-up run."""


@dataclass(frozen=True, slots=True)
class MadeUpEvent(Event):
    """What a made-up subscriber publishes; nobody hears it who does not hear every `Event`."""


@dataclass(frozen=True, repr=False)
class Subscriber(Snippet):
    """A made-up subscriber; its repr is the call that makes it again, without the defaults.

    Attributes:
        does: what it does at each call: nothing (silent), reply a `Report` of a key of its own or a `Stop` with its
            name as reason, raise `Deliberate`, cancel the subscriber at place ``target``, publish a `MadeUpEvent`, or
            cancel itself and register again.
        priority: its place; ties go by order of registration.
        filters: ``every``, ``after``, ``before`` and ``once``, as `Bus.on` takes them.
        failure: its failure policy.
        target: the place in the crowd of the subscriber that it cancels, counted round.
    """

    does: Behaviour = "silent"
    priority: int = 0
    filters: Mapping[str, Any] = field(default_factory=dict)
    failure: Policy = "isolate"
    target: int = 0

    @property
    def options(self) -> dict[str, Any]:
        """The keywords of `Bus.on`."""
        return {"priority": self.priority, "failure": self.failure, **self.filters}


class Crowd:
    """Made-up subscribers of one event on a bus, in order of registration.

    Publish with ``bus.dispatch``, which does not raise what a subscriber under the policy ``raise`` raises.

    Attributes:
        names: their names: ``step_end_0``, ``step_end_1``, ...
        calls: the names of those that were called, in order.
        handles: their handles.
    """

    def __init__(self, bus: Bus, subscribers: Sequence[Subscriber], kind: type[Event] = StepEnd) -> None:
        self._bus, self._kind, self.subscribers = bus, kind, tuple(subscribers)
        self.calls: list[str] = []
        self.names = [f"{kind.name}_{i}" for i in range(len(subscribers))]
        self.handles = [self._register(i) for i in range(len(subscribers))]

    def _register(self, i: int) -> Any:
        def made_up(event: Event, state: TrainState) -> Answer:
            self.calls.append(self.names[i])
            return self._acts[self.subscribers[i].does](self, i, state)

        return self._bus.on(self._kind, made_up, name=self.names[i], **self.subscribers[i].options)

    def _report(self, i: int, state: TrainState) -> Answer:
        return Report({f"metric/{self.names[i]}": float(i)})

    def _stop(self, i: int, state: TrainState) -> Answer:
        return Stop(self.names[i])

    def _raise(self, i: int, state: TrainState) -> Answer:
        raise Deliberate(self.names[i])

    def _cancel(self, i: int, state: TrainState) -> Answer:
        self.handles[self.subscribers[i].target % len(self.handles)].cancel()
        return None

    def _publish(self, i: int, state: TrainState) -> Answer:
        self._bus.dispatch(MadeUpEvent(), state)
        return None

    def _register_again(self, i: int, state: TrainState) -> Answer:
        self.handles[i].cancel()
        self.handles[i] = self._register(i)
        return None

    _acts: Final[Mapping[Behaviour, Callable[[Crowd, int, TrainState], Answer]]] = {
        "silent": lambda crowd, i, state: None,
        "reports": _report,
        "stops": _stop,
        "raises": _raise,
        "cancels": _cancel,
        "publishes": _publish,
        "registers": _register_again,
    }
