"""A handler replies None, a Request, several, or a Control; whatever else it does is its own failure."""

import pytest

from eventloop import (
    Reply,
    ReplyError,
    Report,
    Save,
    StepEnd,
    Stop,
    TrainState,
)


class Unprintable:
    def __repr__(self):
        raise RuntimeError("no text")


REFUSED = [True, False, 0, "stop", {"stop": True}, {1}, Stop, [None], TrainState(), Reply("me", Stop())]


@pytest.mark.parametrize("answer", [*REFUSED, Unprintable()], ids=[type(a).__name__ for a in [*REFUSED, Unprintable()]])
def test_anything_but_requests_is_one_failure_of_its_handler(bus, answer):
    bus.on(StepEnd, lambda event, state: answer, name="answers")
    bus.on(StepEnd, lambda event, state: Save("behind"), name="behind")
    control = bus.publish(StepEnd())
    assert [(f.subscription, type(f.error)) for f in control.failures] == [("answers", ReplyError)]
    assert [r.who for r in control.requests] == ["behind"]


@pytest.mark.parametrize("answer", [None, (), [], Stop(), (Stop(),), [Stop(), Save()]])
def test_none_a_request_or_several_are_fine(strict_bus, answer):
    strict_bus.on(StepEnd, lambda event, state: answer, name="answers")
    given = answer if isinstance(answer, tuple | list) else [answer] if answer else []
    assert [r.request for r in strict_bus.publish(StepEnd()).requests] == list(given)


class Unreadable:
    dtype = "strange"

    def item(self):
        raise RuntimeError("device lost")


def test_a_reported_value_that_cannot_even_be_looked_at_is_its_reporters_failure(bus):
    bus.on(StepEnd, lambda event, state: Report(good=1.0, strange=Unreadable(), fine=2.0), name="reporter")
    bus.on(StepEnd, lambda event, state: Save("behind"), name="behind")
    control = bus.publish(StepEnd())
    assert [f.subscription for f in control.failures] == ["reporter"]
    assert control.save == {"behind"}
    assert dict(control.apply(TrainState()).metrics) == {"good": 1.0, "fine": 2.0}


def test_an_error_that_cannot_be_printed_is_a_failure_like_any_other(bus):
    class MuteError(Exception):
        def __str__(self):
            raise RuntimeError("no text")

    def raises_mute(event, state):
        raise MuteError

    bus.on(StepEnd, raises_mute)
    bus.on(StepEnd, lambda event, state: Save("behind"), name="behind")
    control = bus.publish(StepEnd())
    assert [type(f.error) for f in control.failures] == [MuteError]
    assert control.save == {"behind"}
