"""`BusMachine`: hypothesis plays with a bus and compares it with a list; you add rules for your own callbacks."""

from __future__ import annotations

import itertools
import logging
from collections import Counter
from collections.abc import Callable, Mapping
from typing import Any, ClassVar, Final

from hypothesis import currently_in_test_context
from hypothesis import event as statistics
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, MultipleResults, RuleBasedStateMachine, consumes, multiple, precondition, rule

from ..bus import Bus
from ..events import EvalEnd, Event, HandlerFailed, StepEnd, event_class
from ..fold import Control
from ..requests import Stop
from ..state import TrainState
from .crowd import Deliberate, MadeUpEvent
from .members import ACTS, Act, Member, Members, Way, compare, receiver_of
from .strategies import metric_values

_KINDS: Final = st.sampled_from(["step_end", "event", "eval_end"])
_PRIORITIES: Final = st.integers(-2, 2)
_ACTS: Final = st.sampled_from(ACTS)
_VALUES: Final = st.none() | metric_values()
_ONE: Final = st.tuples(_KINDS, _PRIORITIES, _ACTS)
_SEVERAL: Final = st.lists(_ONE, min_size=2, max_size=6) | st.lists(_ONE, min_size=16, max_size=20)
_if_any = precondition(lambda machine: bool(machine.members.all))
_SIZES: Final = ((1, "no handler"), (10, "1 to 9 handlers"), (30, "10 to 29 handlers"), (10**9, "30 handlers or more"))


class BusMachine(RuleBasedStateMachine):
    """A bus, and a list of its subscribers sorted by priority and registration; both must call the same in one order.

    Rules subscribe, connect through blinker (weakly too), cancel, disable and enable, mute, register again and publish;
    the machine's own subscribers, its members, ask for a stop, raise, publish, add a member, register again or cancel
    another when they are called. An update reports a loss and an evaluation another: numbers, NaN, the infinities, or
    nothing. Add rules and invariants for your own callbacks::

        class WithMine(BusMachine):
            @initialize()
            def attach_mine(self):
                self.mine = MyCallback()
                self.bus.attach(self.mine)

            @invariant()
            def mine_is_sane(self):
                assert self.mine.count >= 0

        TestWithMine = WithMine.TestCase

    Whoever else is on the bus may do what it likes, publish too, but an error that it raises fails the run. Members
    alone are compared, and in a dispatch that somebody else began only their order. The steps of a failing run are
    printed as Python that runs as it stands.

    Attributes:
        step_metric: the name of what an update reports; a subclass may set another.
        eval_metric: the name of what an evaluation reports; a subclass may set another.
        bus: the bus; in your ``__init__`` you may put another in its place.
        members: the list.
        state: the snapshot last published, with what was reported at it.
        reached: how often something has happened: a tie, raising, cancelling, nesting, re-registering, adding, and how
            many members heard a publish. Also in hypothesis' statistics.
    """

    step_metric: ClassVar[str] = "loss"
    eval_metric: ClassVar[str] = "eval_loss"
    subscribed: Bundle[Member] = Bundle("subscribed")
    connected: Bundle[Member] = Bundle("connected")
    weak: Bundle[Member] = Bundle("weak")
    paused: Bundle[Member] = Bundle("paused")

    def __init__(self) -> None:
        super().__init__()
        self.bus = Bus()
        self.members = Members()
        self.state = TrainState(lr={"group_0": 0.1}).begin_epoch()
        self.reached: Counter[str] = Counter()
        logging.getLogger("eventloop").addFilter(_undeliberate)

    def teardown(self) -> None:
        """Tell the statistics; call it from yours."""
        logging.getLogger("eventloop").removeFilter(_undeliberate)
        if currently_in_test_context():
            for label in self.reached:
                statistics(label)

    # -- registering ---------------------------------------------------------------------------------------------------

    @rule(target=subscribed, kind=_KINDS, priority=_PRIORITIES, does=_ACTS)
    def subscribe(self, kind: str, priority: int, does: Act) -> Member:
        """A member joins by ``bus.on``."""
        return self._join("subscribed", kind, priority, does)

    @rule(target=subscribed, several=_SEVERAL)
    def subscribe_several(self, several: list[tuple[str, int, Act]]) -> MultipleResults[Member]:
        """Members join by ``bus.on``, each a (kind, priority, does)."""
        return multiple(*(self._join("subscribed", *one) for one in several))

    @rule(target=connected, kind=_KINDS, priority=_PRIORITIES, does=_ACTS)
    def connect(self, kind: str, priority: int, does: Act) -> Member:
        """A member joins through blinker."""
        return self._join("connected", kind, priority, does)

    @rule(target=weak, kind=_KINDS, priority=_PRIORITIES, does=_ACTS)
    def connect_weakly(self, kind: str, priority: int, does: Act) -> Member:
        """A member joins through blinker, which holds it weakly."""
        return self._join("weak", kind, priority, does)

    @rule(target=subscribed, kind=_KINDS, priority=_PRIORITIES, victim=subscribed | connected | weak)
    @_if_any
    def subscribe_one_that_cancels(self, kind: str, priority: int, victim: Member) -> Member:
        """A member joins that cancels another when it is called."""
        return self._join("subscribed", kind, priority, "silent", victim)

    @rule(kind=_KINDS)
    def connect_for_another_sender(self, kind: str) -> None:
        """A receiver joins that this bus must never call."""
        stranger = Member(-1, event_class(kind), 0, "silent", "connected")
        receiver = receiver_of(self._handler(stranger))
        self.bus.signal(kind).connect(receiver, sender="another sender", weak=False)

    @rule(member=subscribed | connected | weak)
    @_if_any
    def register_again(self, member: Member) -> None:
        """A member leaves and comes back, behind its equals."""
        self._register_again(member)

    @rule(member=connected, priority=_PRIORITIES)
    def connect_with_another_priority(self, member: Member, priority: int) -> None:
        """A receiver that blinker has keeps its ticket; one that another member has cancelled comes back."""
        member.priority = priority
        if not member.on:
            self.members.come_back(member)
        self.bus.signal(member.kind).connect(member.receiver, weak=False, priority=priority)

    # -- leaving -------------------------------------------------------------------------------------------------------

    @rule(member=subscribed | connected | weak)
    @_if_any
    def cancel(self, member: Member) -> None:
        """A member is cancelled, or disconnected through blinker, perhaps not for the first time."""
        member.cancel(self.bus)

    @rule(member=weak)
    def drop_the_only_reference(self, member: Member) -> None:
        """A weak member dies."""
        member.leave()
        member.owner = None

    @rule(target=paused, member=subscribed)
    def disable(self, member: Member) -> Member:
        """A member pauses."""
        member.leave()
        member.handle.disable()
        return member

    @rule(member=consumes(paused))
    def enable(self, member: Member) -> None:
        """A member goes on in its old place; one that was cancelled cannot."""
        if member.handle.subscriptions[0].state != "cancelled":
            member.on = True
            member.handle.enable()

    @rule(kind=_KINDS, muted=st.booleans())
    def mute(self, kind: str, muted: bool) -> None:
        """A signal is muted, or no longer."""
        (self.members.muted.add if muted else self.members.muted.discard)(event_class(kind))
        self.bus.signal(kind).is_muted = muted

    # -- publishing ----------------------------------------------------------------------------------------------------

    def next_state(self, event: Event, metrics: Mapping[str, float]) -> TrainState:
        """The snapshot of the next publish, one update or one evaluation on; override it to report more metrics."""
        if isinstance(event, StepEnd):
            return self.state.begin_update().end_update(samples=1).report(metrics)
        return self.state.end_evaluation(metrics) if isinstance(event, EvalEnd) else self.state.report(metrics)

    @rule(value=_VALUES)
    def publish_step_end(self, value: float | None = None) -> None:
        """An event is published, and what happened is compared with the list; None is no loss."""
        self.check(StepEnd(), {} if value is None else {self.step_metric: value})

    @rule(value=_VALUES)
    def publish_eval_end(self, value: float | None = None) -> None:
        """Another event is published."""
        self.check(EvalEnd(), {} if value is None else {self.eval_metric: value})

    @rule()
    def publish_of_ones_own(self) -> None:
        """An event is published that nobody hears but who hears every event."""
        self.check(MadeUpEvent())

    def check(self, event: Event, metrics: Mapping[str, float] | None = None) -> None:
        """Publish this and compare; for rules of yours that publish other events.

        Args:
            event: the event.
            metrics: what its snapshot reports.

        Raises:
            AssertionError: members were called who should not have been, or not in order, or not at all; or what they
                asked for, or their failures, are not in the control.
            Exception: somebody who is no member has raised it.
        """
        members = self.members
        self._count(members.hearing(type(event)))
        members.called.clear()
        members.expected.clear()
        state = self.next_state(event, metrics or {})
        control = self._dispatch(event, state)
        self.state = control.apply(state)
        for failure in control.failures:
            if not isinstance(failure.error, Deliberate):
                raise failure.error
        compare(event, "called", members.called, members.expected)
        known = {m.name: m for m in members.all}
        asked = [r.request.reason for r in control.requests if isinstance(r.request, Stop)]
        called = [known[name] for name, _ in members.called]
        stops = [m.name for m in called if m.does == "stops"]
        compare(event, "has the stops of", sorted(reason for reason in asked if reason in known), sorted(stops))
        raised = sorted(str(failure.error) for failure in control.failures)
        compare(event, "has the failures of", raised, sorted(m.name for m in called if m.does == "raises"))

    @rule(kind=_KINDS)
    def look(self, kind: str) -> None:
        """``bus.order`` and ``bus.hears`` are compared with the list."""
        hearing = self.members.hearing(event_class(kind))
        names = [m.name for m in hearing if m.way == "subscribed"]
        told = [s.name for s in self.bus.order(kind) if s.name in names]
        compare(event_class(kind)(), "lists", told, names)
        if hearing and not self.bus.hears(event_class(kind)):
            raise AssertionError(f"bus.hears({kind}) is False, though {hearing} hear it")

    def _count(self, hearing: list[Member]) -> None:
        self.reached[next(label for limit, label in _SIZES if len(hearing) < limit)] += 1
        if any(a.priority == b.priority for a, b in itertools.pairwise(hearing)):
            self.reached["a tie"] += 1

    # -- members -------------------------------------------------------------------------------------------------------

    def _join(self, way: Way, kind: str, priority: int, does: Act, victim: Member | None = None) -> Member:
        member = self.members.add(event_class(kind), priority, does, way, victim)
        member.join(self.bus, self._handler(member))
        return member

    def _register_again(self, member: Member) -> None:
        self.reached["re-registering"] += 1
        member.cancel(self.bus)
        self.members.come_back(member)
        member.join(self.bus, self._handler(member))

    def _handler(self, member: Member) -> Callable[[Event, TrainState], Any]:
        def handler(event: Event, state: TrainState) -> Stop | None:
            self.members.note(member, event)
            if member.victim is not None:
                self.reached["cancelling"] += 1
                member.victim.cancel(self.bus)
            elif member.does == "raises":
                self.reached["raising"] += 1
                raise self.members.begin_failure(Deliberate(member.name), event)
            elif member.does == "publishes" and type(event) is StepEnd:
                self.reached["nesting"] += 1
                self._dispatch(EvalEnd(), state)
            elif member.does == "adds" and member.newcomer is None:
                self.reached["adding"] += 1
                member.newcomer = self._join("subscribed", member.kind.name, member.priority, "stops")
            elif member.does == "registers" and not isinstance(event, HandlerFailed):  # else often, and it takes time
                self._register_again(member)
            return Stop(member.name) if member.does == "stops" else None

        return handler

    def _dispatch(self, event: Event, state: TrainState) -> Control:
        dispatch = self.members.begin(event)
        control = self.bus.dispatch(event, state)
        self.members.end(dispatch)
        return control


def _undeliberate(record: logging.LogRecord) -> bool:
    """Whether a record is not of a member's failure; kept with its traceback, it would keep weak members alive."""
    return not (record.exc_info and isinstance(record.exc_info[1], Deliberate))
