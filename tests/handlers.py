"""Right and wrong handlers, for tests of registering."""

from eventloop import Callback, EvalEnd, Save, StepBegin, StepEnd, TrainBegin

EVENTS = [StepBegin, StepEnd, EvalEnd, TrainBegin]


def untouched(bus):
    """Whether nothing at all is registered: no handler, no object, no name."""
    for name in ("good", "Faulty", "Meter"):
        bus.on(StepEnd, lambda event, state: None, name=name).cancel()  # an error if the name is taken
    return all(bus.order(kind) == () for kind in EVENTS) and bus.objects == ()


def good(event, state):
    return None


async def awaited(event, state):
    return None


async def awaited_generator(event, state):
    yield


def generator(event, state):
    yield Save()


def too_few(event):
    return None


def too_many(event, state, metrics):
    return None


def by_keyword(event, *, state):
    return None


class Meter(Callback):
    monitor = None

    def __init__(self, monitor=None):
        self.monitor, self.steps = monitor, 0

    def on_step_end(self, event, state):
        self.steps += 1

    def on_eval_end(self, event, state):
        return Save(f"eval {state.evals}")

    def state_dict(self):
        return {"steps": self.steps}

    def load_state_dict(self, state):
        self.steps = state["steps"]


def a_class_with(**methods):
    return type("Faulty", (), methods)
