"""Faults of the bus itself: order, isolation, merging, names, closing."""

from __future__ import annotations

from typing import Final

from .mutant import Mutant

CHANNEL: Final = "eventloop/channel.py"
DISPATCH: Final = "eventloop/dispatch.py"
FOLD: Final = "eventloop/fold.py"
ROSTER: Final = "eventloop/roster.py"
SUBSCRIPTION: Final = "eventloop/subscription.py"

MUTANTS: Final = (
    Mutant(
        "lower priority first",
        CHANNEL,
        "slot.order = (-priority, slot.order[1])",
        "slot.order = (priority, slot.order[1])",
        ("test_order.py",),
    ),
    Mutant(
        "ties: the last registered first",
        CHANNEL,
        "(-priority, next(self._space.tickets))",
        "(-priority, -next(self._space.tickets))",
        ("test_order.py",),
    ),
    Mutant(
        "ties by name",
        DISPATCH,
        "in self.signals.slots(kind):",
        "in sorted(self.signals.slots(kind), key=lambda p: (p[0].order[0], getattr(p[0].owner, 'name', ''))):",
        ("test_order.py",),
    ),
    Mutant(
        "handlers of a base class behind all others",
        CHANNEL,
        "for pair in channel.ordered(self.source())]\n        return sorted(pairs, key=lambda pair: pair[0].order)",
        "for pair in channel.ordered(self.source())]\n        return pairs",
        ("test_order.py",),
    ),
    Mutant(
        "a pause costs the place",
        CHANNEL,
        "slot.order = (-priority, ticket)",
        "slot.order = (-priority, slot.order[1])",
        ("test_order.py",),
    ),
    Mutant(
        "a removed receiver is still called in the dispatch that runs",
        CHANNEL,
        "self._slots.pop(key_of(receiver), None)) is not None:\n                slot.call = silent",
        "self._slots.pop(key_of(receiver), None)) is not None:\n                pass",
        ("test_channel.py",),
    ),
    Mutant(
        "a muted event is published all the same",
        CHANNEL,
        " is not None and not c.is_muted]",
        " is not None]",
        ("test_channel.py",),
    ),
    Mutant(
        "a weak receiver is held strongly",
        CHANNEL,
        "reference = weakref.ref(receiver if function is None else receiver.__self__, died)",
        "reference = lambda: receiver if function is None else receiver.__self__",
        ("test_channel.py",),
    ),
    Mutant(
        "the first error ends the dispatch",
        DISPATCH,
        "                    continue\n",
        "                    break\n",
        ("test_isolation.py",),
    ),
    Mutant(
        "an error under raise is raised before the others were called",
        DISPATCH,
        "                    continue\n",
        "                    if slot.owner.failure == 'raise':\n                        raise\n",
        ("test_isolation.py",),
    ),
    Mutant(
        "Ctrl-C in a handler is swallowed as its failure",
        DISPATCH,
        "                except Exception as error:",
        "                except BaseException as error:",
        ("test_isolation.py",),
    ),
    Mutant(
        "requests made before a failure are lost",
        DISPATCH,
        "fold = fold or self._fold(event, state)\n                    state = fold.failed(",
        "fold = self._fold(event, state)\n                    state = fold.failed(",
        ("test_isolation.py",),
    ),
    Mutant(
        "switched off one failure late",
        DISPATCH,
        "who.failed >= who.disable_after",
        "who.failed > who.disable_after",
        ("test_isolation.py",),
    ),
    Mutant(
        "a failing observer of failures is told of its own failure",
        DISPATCH,
        "        if not isinstance(event, HandlerFailed):",
        "        if True:",
        ("test_isolation.py",),
    ),
    Mutant(
        "every failure has a traceback in the log",
        DISPATCH,
        "if first or failure.note:",
        "if True:",
        ("test_isolation.py",),
    ),
    Mutant(
        "an interrupted dispatch leaves its requests to the next",
        DISPATCH,
        "            self.inner = []\n            raise",
        "            raise",
        ("test_isolation.py",),
    ),
    Mutant(
        "requests of a nested publish do not reach the outer one",
        DISPATCH,
        "outer.append(control)",
        "pass",
        ("test_nested.py",),
    ),
    Mutant(
        "after a nested publish another thread may mix in",
        DISPATCH,
        "self._busy = _nested",
        "self._busy = False",
        ("test_threads.py",),
    ),
    Mutant(
        "a run begins with the failures of the last",
        DISPATCH,
        "        self.failures.clear()\n",
        "",
        ("test_isolation.py",),
    ),
    Mutant(
        "the last save's tag replaces the others",
        FOLD,
        "return frozenset(r.request.tag for r in self.requests if isinstance(r.request, Save))",
        "return frozenset([r.request.tag for r in self.requests if isinstance(r.request, Save)][-1:])",
        ("test_merging.py",),
    ),
    Mutant(
        "the last stop is named instead of the first",
        FOLD,
        "next(iter(self.of(Stop)), None)",
        "next(reversed(self.of(Stop)), None)",
        ("test_merging.py",),
    ),
    Mutant(
        "silence of the last handler is a veto",
        FOLD,
        "return bool(self.of(Evaluate))",
        "return bool(self.requests) and isinstance(self.requests[-1].request, Evaluate)",
        ("test_merging.py",),
    ),
    Mutant(
        "a report does not reach the handlers behind",
        FOLD,
        "            self.state = _folded(self.state, (what, values))",
        "            pass",
        ("test_fold.py",),
    ),
    Mutant(
        "a nested request counts twice when its control is returned",
        FOLD,
        "if id(control) not in returned:",
        "if True:",
        ("test_nested.py",),
    ),
    Mutant(
        "a second reporter of a metric overwrites the first",
        FOLD,
        "if owner is not who and owner.origin is not who.origin:",
        "if False:",
        ("test_fold.py",),
    ),
    Mutant(
        "a second writer of a learning rate wins in silence",
        FOLD,
        "if origin is not who.origin:",
        "if False:",
        ("test_fold.py",),
    ),
    Mutant(
        "a rate set at step_end is told as that of the update that used another",
        FOLD,
        '"lr" if self._event.folds_lr else "held"',
        '"lr"',
        ("test_fold.py",),
    ),
    Mutant(
        "a bad reply loses the requests behind it",
        FOLD,
        "            errors.append(ReplyError(_refusal(who.name, request)))",
        "            raise ReplyError(_refusal(who.name, request))",
        ("test_isolation.py",),
    ),
    Mutant(
        "a handler that returns True is taken for silent",
        FOLD,
        "        elif isinstance(request, Request):",
        "        elif request is True:\n            pass\n        elif isinstance(request, Request):",
        ("test_replies.py", "test_isolation.py"),
    ),
    Mutant(
        "closed in order instead of in reverse",
        ROSTER,
        "for attached in reversed(started):",
        "for attached in started:",
        ("test_attach.py",),
    ),
    Mutant(
        "closed again when close is called twice",
        ROSTER,
        "started, self._started, self._live = self._started, [], None",
        "started, self._live = self._started, None",
        ("test_attach.py",),
    ),
    Mutant(
        "an error in one close leaves the others open",
        ROSTER,
        "                failed(attached.name, error)",
        "                raise",
        ("test_attach.py",),
    ),
    Mutant(
        "two callbacks of one class share a state",
        ROSTER,
        "while name in self._used:",
        "while False:",
        ("test_names.py",),
    ),
    Mutant(
        "a state that nobody owns is thrown away",
        ROSTER,
        "self._orphans = {k: states[k] for k in report.unknown}",
        "self._orphans = {}",
        ("test_names.py",),
    ),
    Mutant(
        "failures are counted across runs",
        SUBSCRIPTION,
        '        """Forget the failures and the cost of the run before; what its policy has switched off goes on."""\n'
        "        self.failed = 0\n",
        "",
        ("test_isolation.py",),
    ),
    Mutant(
        "what a policy has switched off stays off in the next run",
        SUBSCRIPTION,
        'if self.state == "switched off" and self.channel',
        "if False and self.channel",
        ("test_isolation.py",),
    ),
)
