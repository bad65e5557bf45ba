"""Callbacks with one fault each, for `tests/test_check_callback.py`: the checks have to find it."""

import itertools
import random
import threading
import time

from eventloop import Evaluate, Priority, Report, Save, Stop


class Counts:
    """Right: asks for an evaluation at each n-th update by its own count."""

    priority = Priority.DECIDE

    def __init__(self, n=3):
        self.n, self.count = n, 0

    def on_train_begin(self, event, state):
        if not event.resumed:
            self.count = 0

    def on_step_end(self, event, state):
        self.count += 1
        return Evaluate() if self.count % self.n == 0 else None

    def state_dict(self):
        return {"count": self.count}

    def load_state_dict(self, state):
        self.count = state["count"]


class MisspeltMethod(Counts):
    def on_epoch_ended(self, event, state):
        return None


class BindsTheUnknown(Counts):
    def bind(self, *, scheduler):
        self.scheduler = scheduler


class ForgetsItsCount(Counts):
    def state_dict(self):
        return {}

    def load_state_dict(self, state):
        pass


class ForgetsWhenResumed(Counts):
    def on_train_begin(self, event, state):
        self.count = 0


class ForgetsAVerdict(Counts):
    def __init__(self, n=3):
        super().__init__(n)
        self.late = None

    def on_train_begin(self, event, state):
        super().on_train_begin(event, state)
        self.late = None

    def on_step_end(self, event, state):
        late, self.late = self.late, None
        if "loss" in state.metrics.fresh:
            value = state.metrics.raw("loss")
            late, self.late = (value, None) if isinstance(value, float) else (late, value)
        return Report(low=1.0) if late is not None and float(late) < 0.7 else None


class FailsToLoad(Counts):
    def load_state_dict(self, state):
        self.count = state["counted"]


class KeepsItsCount(Counts):
    def on_train_begin(self, event, state):
        return None


class StoresItsLimit(Counts):
    def state_dict(self):
        return {"count": self.count, "n": self.n}

    def load_state_dict(self, state):
        self.count, self.n = state["count"], state["n"]


class LoadsItsLimit(Counts):
    def state_dict(self):
        return {"count": self.count, "n": self.n if self.count else None}

    def load_state_dict(self, state):
        self.count, self.n = state["count"], state["n"] or self.n


class CountsDown(Counts):
    def __init__(self, n=3):
        super().__init__(n)
        self.left = n

    def on_train_begin(self, event, state):
        if not event.resumed:
            self.left = self.n

    def on_step_end(self, event, state):
        self.left = self.left - 1 or self.n
        return Evaluate() if self.left == self.n else None

    def state_dict(self):
        return {"left": self.left}

    def load_state_dict(self, state):
        self.left = state["left"]


class KeepsASet(Counts):
    def state_dict(self):
        return {"count": {self.count}}

    def load_state_dict(self, state):
        (self.count,) = state["count"]


class LendsItsState(Counts):
    def __init__(self, n=3):
        super().__init__(n)
        self.kept = {"count": 0}

    def on_step_end(self, event, state):
        answer = super().on_step_end(event, state)
        self.kept["count"] = self.count
        return answer

    def state_dict(self):
        return self.kept


class LoadsNothing(Counts):
    load_state_dict = property()  # there is none


class KeepsItsHistory(Counts):
    def __init__(self, n=3):
        super().__init__(n)
        self.history = []

    def on_eval_end(self, event, state):
        self.history.append(dict(state.metrics))

    def state_dict(self):
        return {"count": self.count, "history": list(self.history)}

    def load_state_dict(self, state):
        self.count, self.history = state["count"], state["history"]


class ClosesOnce(Counts):
    def __init__(self, n=3):
        super().__init__(n)
        self.open = [1]

    def bind(self):
        self.open = [1]

    def close(self):
        self.open.pop()


class LeavesItsThread(Counts):
    def bind(self):
        self.done = threading.Event()
        threading.Thread(target=self.done.wait, args=[30.0], daemon=True, name="left behind").start()


class NeedsItsKey(Counts):
    monitor = "eval_loss"

    def on_eval_end(self, event, state):
        if not state.metrics.fresh >= {"eval_loss"}:
            raise KeyError("eval_loss")


class FailsWhenTheRunFails(Counts):
    def on_run_failed(self, event, state):
        return Save(event.error)


class ExitsTheProcess(Counts):
    def on_eval_end(self, event, state):
        if state.evals == 3:
            raise SystemExit("not worth going on")


class RegistersUnderAnotherName(Counts):
    handle = None

    def bind(self, *, bus):
        self.handle = bus.on("eval_end", self.judge, name="judge")

    def close(self):
        if self.handle is not None:
            self.handle.cancel()

    def judge(self, event, state):
        return None


class TossesACoin(Counts):
    dice = random.Random(1)

    def on_step_end(self, event, state):
        return Evaluate() if self.dice.random() < 0.5 else None


class StopsByTheClock(Counts):
    def on_train_begin(self, event, state):
        super().on_train_begin(event, state)
        self.begun = time.monotonic()

    def on_eval_end(self, event, state):
        return Stop("half an hour") if time.monotonic() - self.begun > 1800.0 else None


class SharesItsList(Counts):
    seen = []  # noqa: RUF012  # that is the fault

    def on_eval_end(self, event, state):
        self.seen.append(state.step)


class SharesItsDefault(Counts):
    def __init__(self, n=3, seen=[]):  # noqa: B006  # that is the fault
        super().__init__(n)
        self._history = seen

    def on_eval_end(self, event, state):
        self._history.append(state.step)


class AnotherKeyEachRun(Counts):
    numbers = itertools.count()

    def __init__(self, n=3):
        super().__init__(n)
        self.key = f"count_{next(self.numbers)}"

    def on_step_end(self, event, state):
        return Report({self.key: 1.0})


class BlankInItsKey(Counts):
    def on_step_end(self, event, state):
        return Report({"step count": state.step})


class ReportsTheLoss(Counts):
    def on_step_end(self, event, state):
        return Report(loss=1.0)


class DescribesNothing(Counts):
    def describe(self):
        return None


class SumsUpInAList(Counts):
    def summary(self):
        return [self.count] if self.count else {}


class SaysNoPriority:
    def on_epoch_end(self, event, state):
        return Save("epoch")


class ChangesTheEvent(Counts):
    def on_step_end(self, event, state):
        skipped = event.skipped
        object.__setattr__(event, "skipped", not skipped)
        return super().on_step_end(event, state)


class SetsTheRateByHand(Counts):
    def bind(self, *, optimizer):
        self.optimizer = optimizer

    def on_epoch_begin(self, event, state):
        self.optimizer.param_groups[0]["lr"] *= 0.5


class DrawsAtRandom(Counts):
    def on_epoch_end(self, event, state):
        random.random()


class ScalesTheGradients(Counts):
    touches_model = True

    def bind(self, *, model):
        self.model = model

    def on_gradients_ready(self, event, state):
        for parameter in self.model.parameters():
            parameter.grad.mul_(0.5)


class LeavesTheModelInEval(Counts):
    def bind(self, *, model):
        self.model = model

    def on_eval_end(self, event, state):
        self.model.eval()


class FreezesTheModel(LeavesTheModelInEval):
    def on_eval_end(self, event, state):
        for parameter in self.model.parameters():
            parameter.requires_grad_(False)


class ClearsTheMomentum(Counts):
    def bind(self, *, model, optimizer):
        self.optimizer = optimizer

    def on_epoch_end(self, event, state):
        self.optimizer.state.clear()


class SilencesOthers(Counts):
    def bind(self, *, bus):
        self.bus = bus

    def on_epoch_end(self, event, state):
        for other in self.bus.order("epoch_end"):
            if other.owner is not self:
                other.leave("disabled")


class MindsFailures(Counts):
    def __init__(self, n=3):
        super().__init__(n)
        self.failed = False

    def on_handler_failed(self, event, state):
        self.failed = True

    def on_train_begin(self, event, state):
        super().on_train_begin(event, state)
        self.failed = False

    def on_eval_end(self, event, state):
        return Stop("somebody failed") if self.failed else None


class MindsItsCompany(Counts):
    def bind(self, *, bus):
        self.bus = bus

    def on_epoch_end(self, event, state):
        others = [s for s in self.bus.order("epoch_end") if s.priority not in (self.priority, -1_000_000)]
        return Save("alone") if not others else None


class MindsItsPlace(Counts):
    def bind(self, *, bus):
        self.bus = bus

    def on_step_end(self, event, state):
        band = [s for s in self.bus.order("step_end") if s.priority == self.priority]
        return Report(first=1.0) if band[0].owner is self else None


class TakesItsTime(Counts):
    def on_step_end(self, event, state):
        until = time.perf_counter() + 0.0004
        while time.perf_counter() < until:
            pass
        return super().on_step_end(event, state)


class AsksAtEachStep(Counts):
    def on_step_end(self, event, state):
        high = "loss" in state.metrics.fresh and state.metrics["loss"] > 100.0
        return Stop("the loss is high") if high else None


class ForgetsOnDisk(ForgetsItsCount):
    def bind(self, *, run_dir):
        self.run_dir = run_dir


class KeepsItsCountOnDisk(KeepsItsCount):
    def bind(self, *, run_dir, model):
        self.run_dir, self.model = run_dir, model


# -- right or wrong only where a run has what they wait for ------------------------------------------------------------


class JudgesItsMetric:
    """Forgets its count in a checkpoint; its setting is called ``metric``."""

    priority = Priority.DECIDE

    def __init__(self, metric="val_acc", patience=3):
        self.metric, self.patience = metric, patience
        self.best, self.bad = float("-inf"), 0

    def on_train_begin(self, event, state):
        if not event.resumed:
            self.best, self.bad = float("-inf"), 0

    def on_eval_end(self, event, state):
        if self.metric in state.metrics.fresh:
            return self.judge(state.metrics[self.metric])
        return None

    def judge(self, value):
        self.bad = 0 if value > self.best else self.bad + 1
        self.best = max(value, self.best)
        return Stop("no better") if self.bad >= self.patience else None


class JudgesAFixedKey(JudgesItsMetric):
    def __init__(self, patience=3):
        super().__init__(None, patience)

    def on_eval_end(self, event, state):
        return self.judge(state.metrics["val_acc"])


class WatchesTheGradients(JudgesItsMetric):
    on_eval_end = None

    def __init__(self, patience=3):
        super().__init__(None, patience)

    def on_step_end(self, event, state):
        return self.judge(state.metrics["grad_norm"]) if "grad_norm" in state.metrics.fresh else None


class ListsItsMetrics(JudgesItsMetric):
    def on_eval_end(self, event, state):
        found = [value for name, value in state.metrics.items() if name == self.metric]
        return self.judge(found[0]) if found else None


class LooksThroughTheNames:
    """Right, but nobody can tell from outside what it looks for."""

    priority = Priority.DECIDE

    def on_eval_end(self, event, state):
        return Stop("too hot") if any(name == "heat" for name in state.metrics) else None


class NeedsADevice(Counts):
    def __init__(self, name):
        raise RuntimeError(f"no {name} here")
