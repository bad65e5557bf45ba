"""What subscriptions, states and events are called."""

import functools
import re
from dataclasses import dataclass

import pytest
from handlers import (
    Meter,
    good,
    too_many,
)

from eventloop import EvalEnd, Event, Save, StepEnd
from eventloop.testing import assert_order


def test_names_are_the_functions_own_without_the_place_where_it_was_defined(bus):
    def local(event, state):
        return None

    for handler in (local, Meter().on_step_end, functools.partial(too_many, metrics=1), lambda event, state: None):
        bus.on(StepEnd, handler)
    assert_order(bus, StepEnd, ["local", "Meter.on_step_end", "too_many", "<lambda>"])


def test_derived_names_are_made_unique_in_order_of_registration(bus):
    for _ in range(3):
        bus.on(StepEnd, lambda event, state: None)
    for _ in range(2):
        bus.attach(Meter())
    assert_order(bus, StepEnd, ["<lambda>", "<lambda>#2", "<lambda>#3", "Meter", "Meter#2"])


def test_two_equal_given_names_are_an_error_that_names_the_first_place(bus):
    bus.on(StepEnd, good, name="slack")
    with pytest.raises(ValueError, match=r"the name 'slack' is taken by the subscription made at test_names.py:\d+"):
        bus.on(EvalEnd, lambda event, state: None, name="slack")
    with pytest.raises(ValueError, match="the name 'slack' is taken"):
        bus.attach(Meter(), name="slack")
    assert bus.objects == ()
    assert not bus.hears(EvalEnd)


def test_states_are_stored_under_the_class_with_its_monitor_or_the_given_name(bus):
    for meter in (Meter(), Meter("loss"), Meter("loss"), Meter()):
        bus.attach(meter)
    bus.attach(Meter("loss"), name="mine")
    assert list(bus.state_dict()["callbacks"]) == ["Meter", "Meter(loss)", "Meter(loss)#2", "Meter#2", "mine"]


def test_a_given_name_is_the_key_of_the_state_also_if_another_key_looks_like_it(bus):
    bus.attach(Meter("loss"))
    with pytest.raises(ValueError, match=re.escape("'Meter(loss)' is taken")):
        bus.attach(Meter(), name="Meter(loss)")


def test_states_find_their_owners_by_key_and_say_what_they_did_not_find(bus, caplog):
    bus.attach(Meter("loss"))
    bus.attach(Meter(), name="fresh")
    report = bus.load_state_dict({"callbacks": {"Meter(loss)": {"steps": 7}, "gone": {"x": 1}}})
    assert (report.restored, report.missing, report.unknown) == (("Meter(loss)",), ("fresh",), ("gone",))
    assert bus.state_dict()["callbacks"] == {"gone": {"x": 1}, "Meter(loss)": {"steps": 7}, "fresh": {"steps": 0}}
    assert [r.getMessage() for r in caplog.records] == [
        "no owner for the state of gone; it is kept for later checkpoints",
        "no state for fresh; starting fresh",
    ]


def test_an_error_while_a_state_is_loaded_names_whose_it_was(bus):
    bus.attach(Meter())
    with pytest.raises(KeyError) as caught:
        bus.load_state_dict({"callbacks": {"Meter": {}}})
    assert caught.value.__notes__ == ["while loading the state of Meter"]


# -- events ------------------------------------------------------------------------------------------------------------


def test_an_event_of_ones_own_has_the_name_of_its_class_in_snake_case_or_the_one_it_sets():
    class BatchDrawn(Event):
        pass

    class HTTPSent(Event):
        pass

    class Named(Event):
        name = "told_otherwise"

    assert [kind.name for kind in (BatchDrawn, HTTPSent, Named)] == ["batch_drawn", "http_sent", "told_otherwise"]


def test_an_event_may_not_take_the_name_of_a_built_in_one():
    with pytest.raises(
        TypeError, match=r"StepEnd would be called 'step_end', the name of the built-in eventloop.events.StepEnd"
    ):
        type("StepEnd", (Event,), {"__module__": "mine"})


def test_an_event_class_that_was_defined_again_replaces_the_older_one(bus):
    def define():
        @dataclass(frozen=True, slots=True)
        class CellRun(Event):
            pass

        return CellRun

    define()
    newest = define()
    bus.on("cell_run", lambda event, state: Save("heard"))
    assert bus.publish(newest()).save == {"heard"}


@pytest.mark.parametrize("event", [StepEnd, "step_end", None], ids=["a class", "a name", "nothing"])
def test_publishing_what_is_no_event_is_an_error_and_not_silence(bus, event):
    bus.on(StepEnd, good)
    with pytest.raises(TypeError, match="is no event"):
        bus.publish(event)


@pytest.mark.parametrize("word", ["request", "missing", "truncated"])
def test_an_event_may_not_be_called_like_a_row_of_the_journal_that_is_none(word):
    """Fails if such a class is made: its journal could not be read back."""
    with pytest.raises(TypeError, match=f"would be called '{word}', the name of the built-in kind of row"):
        type("Mine", (Event,), {"name": word})
