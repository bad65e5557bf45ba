"""A loop of one's own on a raw bus, for tests of what listens to it."""

from eventloop import (
    Bus,
    EpochBegin,
    EpochEnd,
    EvalBegin,
    EvalEnd,
    StepBegin,
    StepEnd,
    TrainBegin,
    TrainEnd,
    TrainState,
)


class RawRun:
    """One sitting of a run; each method publishes what a loop would, and keeps the state."""

    def __init__(self, *callbacks, run_dir=None, state=None, failure="raise", saved=None):
        self.bus = Bus(failure=failure)
        self.callbacks = callbacks
        for callback in callbacks:
            self.bus.attach(callback)
        self.bus.bind(run_dir=run_dir)
        self.state = TrainState() if state is None else state
        if saved is not None:
            self.bus.load_state_dict(saved)
        self._publish(TrainBegin(resumed=saved is not None))

    def _publish(self, event):
        self.state = self.bus.publish(event, self.state).apply(self.state)

    def epoch(self):
        self.state = self.state.begin_epoch()
        self._publish(EpochBegin())

    def step(self, skipped=False, **metrics):
        self.state = self.state.begin_update()
        self._publish(StepBegin())
        self.state = self.state.end_update(skipped=skipped).report(metrics)
        self._publish(StepEnd(skipped=skipped))

    def steps(self, first, last, **functions):
        for n in range(first, last + 1):
            self.step(**{key: function(n) for key, function in functions.items()})

    def evaluate(self, **metrics):
        self._publish(EvalBegin())
        self.state = self.state.end_evaluation(metrics)
        self._publish(EvalEnd())

    def end_epoch(self, **metrics):
        self.state = self.state.report(metrics)
        self._publish(EpochEnd())

    def end(self, status="completed"):
        self._publish(TrainEnd(status))
        self.bus.close()
