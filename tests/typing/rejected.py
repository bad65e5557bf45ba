"""What a type checker must refuse. Each ignore is required: mypy warns of one that nothing needs."""

from __future__ import annotations

from eventloop import Bus, Callback, EvalEnd, Event, StepEnd, Stop, TrainState

bus = Bus()


def of_eval_end(event: EvalEnd, state: TrainState) -> None: ...


def with_another_state(event: StepEnd, state: dict[str, float]) -> None: ...


def replies_a_flag(event: StepEnd, state: TrainState) -> bool:
    return True


def replies_a_text(event: StepEnd, state: TrainState) -> str:
    return "stop"


def replies_flags(event: StepEnd, state: TrainState) -> list[bool]:
    return [True]


def without_state(event: StepEnd) -> None: ...


async def awaited(event: StepEnd, state: TrainState) -> None: ...


# the wrong event
bus.on(StepEnd, of_eval_end)  # type: ignore[arg-type]
bus.on(Event, of_eval_end)  # type: ignore[arg-type]
# the wrong state
bus.on(StepEnd, with_another_state)  # type: ignore[arg-type]
# the wrong reply
bus.on(StepEnd, replies_a_flag)  # type: ignore[arg-type]
bus.on(StepEnd, replies_a_text)  # type: ignore[arg-type]
bus.on(StepEnd, replies_flags)  # type: ignore[arg-type]
# what is no handler, no event
bus.on(StepEnd, without_state)  # type: ignore[arg-type]
bus.on(StepEnd, awaited)  # type: ignore[arg-type]
bus.on(int, of_eval_end)  # type: ignore[type-var, arg-type]
bus.on(StepEnd())  # type: ignore[call-overload]


@bus.on(StepEnd)  # type: ignore[arg-type]
def decorated_for_another(event: EvalEnd, state: TrainState) -> None: ...


@bus.on(StepEnd)  # type: ignore[arg-type]
def decorated_with_a_flag(event: StepEnd, state: TrainState) -> bool:
    return False


class Wrong(Callback):
    def on_step_end(self, event: EvalEnd, state: TrainState) -> None: ...  # type: ignore[override]

    def on_eval_end(self, event: EvalEnd, state: TrainState) -> bool:  # type: ignore[override]
        return True


# what is frozen
state = TrainState()
state.step = 3  # type: ignore[misc]
state.metrics["loss"] = 1.0  # type: ignore[index]
state.lr["all"] = 1.0  # type: ignore[index]
StepEnd().skipped = True  # type: ignore[misc]
Stop("a").reason = "b"  # type: ignore[misc]
bus.publish(StepEnd)  # type: ignore[arg-type]
bus.publish("step_end")  # type: ignore[arg-type]
Bus(failure="loud")  # type: ignore[arg-type]
