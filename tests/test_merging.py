"""Promise 3: requests add up, absence is no veto; the merge is associative and independent of order."""

from dataclasses import dataclass

from hypothesis import given
from hypothesis import strategies as st

from eventloop import (
    Bus,
    Control,
    Evaluate,
    Reply,
    Report,
    Request,
    Save,
    SkipUpdate,
    StepBegin,
    StepEnd,
    Stop,
    TrainState,
)
from eventloop.testing import metric_values


@dataclass(frozen=True)
class Upload(Request):
    """A user's own request."""

    where: str = "bucket"


REQUESTS = (
    st.builds(Stop, st.sampled_from(["", "enough"]))
    | st.builds(Save, st.sampled_from(["best", "last", "asked"]))
    | st.sampled_from([Evaluate(), SkipUpdate("bad batch"), Upload()])
    | st.builds(Report, st.dictionaries(st.sampled_from("abc"), metric_values(), max_size=2))
)
REPLIES = st.lists(st.builds(Reply, st.sampled_from(["a", "b", "c"]), REQUESTS), max_size=6)
CONTROLS = REPLIES.map(Control)


def asked(control):
    """What the loop is to do, without who asked and in which order."""
    own = sum(isinstance(r.request, Upload) for r in control.requests)
    return bool(control.stop), control.save, control.evaluate, bool(control.skip), own


@given(CONTROLS, CONTROLS, CONTROLS)
def test_the_merge_is_associative(a, b, c):
    left, right = (a | b) | c, a | (b | c)
    assert left.requests == right.requests == a.requests + b.requests + c.requests
    assert asked(left) == asked(right)


@given(REPLIES, st.randoms(use_true_random=False))
def test_what_is_asked_for_does_not_depend_on_the_order(replies, random):
    shuffled = random.sample(replies, len(replies))
    assert asked(Control(replies)) == asked(Control(shuffled))


@given(CONTROLS, CONTROLS)
def test_merging_loses_nothing_and_invents_nothing(a, b):
    both = a | b
    assert bool(both.stop) == (bool(a.stop) or bool(b.stop))
    assert both.evaluate == (a.evaluate or b.evaluate)
    assert bool(both.skip) == (bool(a.skip) or bool(b.skip))
    assert both.save == a.save | b.save


@given(CONTROLS)
def test_an_empty_control_is_no_veto(control):
    assert (Control() | control).requests == (control | Control()).requests == control.requests


@given(st.lists(st.none() | REQUESTS.filter(lambda r: not isinstance(r, Report)), max_size=6), st.data())
def test_what_a_publish_asks_for_does_not_depend_on_the_order_of_its_handlers(answers, data):
    controls = []
    for order in (answers, data.draw(st.permutations(answers))):
        bus = Bus()
        for i, answer in enumerate(order):
            bus.on(StepEnd, lambda event, state, answer=answer: answer, name=f"h{i}")
        controls.append(bus.publish(StepEnd()))
    assert asked(controls[0]) == asked(controls[1])
    assert asked(controls[0]) == asked(Control([Reply("", a) for a in answers if a is not None]))


@given(st.lists(st.lists(REQUESTS, max_size=3), max_size=4))
def test_the_requests_keep_the_order_of_the_handlers_and_the_names_of_who_made_them(answers):
    bus = Bus()
    for i, answer in enumerate(answers):
        answer = [request for request in answer if not isinstance(request, Report)]
        answers[i] = answer
        bus.on(StepEnd, lambda event, state, answer=answer: answer, name=f"h{i}")
    assert bus.publish(StepEnd()).requests == tuple(Reply(f"h{i}", r) for i, a in enumerate(answers) for r in a)


@given(st.dictionaries(st.sampled_from("abcd"), metric_values(), max_size=4))
def test_apply_gives_the_state_that_the_last_handler_saw(metrics):
    bus, seen = Bus(), []
    for key, value in metrics.items():
        bus.on(StepEnd, lambda event, state, key=key, value=value: Report({key: value}), name=key)
    bus.on(StepEnd, lambda event, state: seen.append(state), priority=-1, name="last")
    given_ = TrainState(step=3)
    control = bus.publish(StepEnd(), given_)
    assert control.apply(given_) is seen[0]
    elsewhere = control.apply(TrainState(step=9)).metrics
    assert {key: str(value) for key, value in elsewhere.items()} == {k: str(float(v)) for k, v in metrics.items()}


def test_the_first_stop_names_who_made_it_and_why(bus):
    bus.on(StepEnd, lambda event, state: None, name="silent", priority=2)
    bus.on(StepEnd, lambda event, state: Stop("patience is over"), name="stopper", priority=1)
    bus.on(StepEnd, lambda event, state: Stop("time is over"), name="clock")
    control = bus.publish(StepEnd())
    assert (control.stop.who, control.stop.reason) == ("stopper", "patience is over")
    assert str(control.stop) == "Stop by stopper: patience is over"
    assert [r.who for r in control.of(Stop)] == ["stopper", "clock"]


def test_users_own_requests_are_found_by_class_with_who_made_them(bus):
    @dataclass(frozen=True)
    class UploadTwice(Upload):
        pass

    bus.on(StepEnd, lambda event, state: UploadTwice("disk"), name="mine")
    assert bus.publish(StepEnd()).of(Upload) == (Reply("mine", UploadTwice("disk")),)


def test_a_publish_that_nobody_answers_costs_no_object_and_asks_for_nothing(bus):
    bus.on(StepEnd, lambda event, state: None, name="silent")
    assert bus.publish(StepEnd()) is bus.publish(StepBegin())
    assert asked(bus.publish(StepEnd())) == (False, frozenset(), False, False, 0)


def test_a_control_tells_who_asked_for_what_in_its_repr():
    control = Control([Reply("saver", Save("best")), Reply("stopper", Stop("enough"))])
    assert repr(control) == (
        "Control([Reply(who='saver', request=Save(tag='best')), Reply(who='stopper', request=Stop(reason='enough'))])"
    )
