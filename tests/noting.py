"""A bus with one handler that notes when it is called, for tests of filters."""

from hypothesis import strategies as st

from eventloop import (
    Bus,
    StepEnd,
    TrainState,
)


def fired(bus, values, counter="step", event=None):
    """At which of these values of a counter a handler is called that has been put on the bus as `noted`."""
    bus.noted.clear()
    for value in values:
        bus.publish(event or StepEnd(), TrainState(**{counter: value}))
    return list(bus.noted)


def noting(kind=StepEnd, counter="step", bus=None, **filters):
    bus = bus or Bus()
    bus.noted = []
    bus.on(kind, lambda event, state: bus.noted.append(getattr(state, counter)), name="noting", **filters)
    return bus


FILTERS = st.fixed_dictionaries({}, optional={word: st.integers(1, 5) for word in ("every", "after", "before", "once")})
