"""Dispatch to handlers that do nothing, in other systems, where they are installed."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import repeat
from typing import Any, Final

from eventloop import Bus, StepEnd

from .dispatching import no_ops, publishing
from .size import Size
from .table import Row
from .timing import compare, per_unit

Times = Callable[[int], None]
"""Dispatches so many times."""


def calling(function: Callable[..., Any], *arguments: Any, **named: Any) -> Times:
    """So many calls of a function with these arguments."""

    def times(count: int) -> None:
        for _ in repeat(None, count):
            function(*arguments, **named)

    return times


def subclasses(base: type, method: str, signature: Callable[..., None], count: int) -> list[Any]:
    """Objects of so many subclasses, each with that method."""
    return [type(f"{base.__name__}{i}", (base,), {method: signature})() for i in range(count)]


def with_ignite(count: int) -> Times:
    """pytorch-ignite: ``Engine.fire_event``."""
    from ignite.engine import Engine, Events

    engine = Engine(lambda engine, batch: None)
    for _ in range(count):
        engine.add_event_handler(Events.ITERATION_COMPLETED, lambda engine: None)
    return calling(engine.fire_event, Events.ITERATION_COMPLETED)


def with_torchtnt(count: int) -> Times:
    """torchtnt: its handler of callbacks."""
    from torchtnt.framework._callback_handler import CallbackHandler
    from torchtnt.framework.callback import Callback

    def on_train_step_end(self: Any, state: Any, unit: Any) -> None:
        pass

    handler = CallbackHandler(subclasses(Callback, "on_train_step_end", on_train_step_end, count))
    return calling(handler.on_train_step_end, None, None)


def with_transformers(count: int) -> Times:
    """transformers: its handler of callbacks, without the default ones."""
    from transformers import TrainerCallback, TrainerControl, TrainerState
    from transformers.trainer_callback import CallbackHandler

    def on_step_end(self: Any, args: Any, state: Any, control: Any, **more: Any) -> None:
        pass

    callbacks = subclasses(TrainerCallback, "on_step_end", on_step_end, count)
    handler = CallbackHandler(callbacks, None, None, None, None)
    return calling(handler.on_step_end, None, TrainerState(), TrainerControl())


def with_lightning(count: int) -> Times:
    """lightning: what its loops call, with a trainer that has not been fitted."""
    import lightning.pytorch as pl
    from lightning.pytorch.trainer.call import _call_callback_hooks

    def on_train_batch_end(self: Any, *arguments: Any) -> None:
        pass

    callbacks = subclasses(pl.Callback, "on_train_batch_end", on_train_batch_end, count)
    off = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False}
    trainer = pl.Trainer(accelerator="cpu", callbacks=callbacks, **off)
    trainer.strategy._lightning_module = pl.LightningModule()
    return calling(_call_callback_hooks, trainer, "on_train_batch_end", None, None, 0)


def with_pluggy(count: int) -> Times:
    """pluggy: a hook call."""
    import pluggy

    class Spec:
        @pluggy.HookspecMarker("bench")
        def on_step(self, event: Any, state: Any) -> None: ...

    manager = pluggy.PluginManager("bench")
    manager.add_hookspecs(Spec)
    implementation = pluggy.HookimplMarker("bench")
    for _ in range(count):

        class Plugin:
            @implementation
            def on_step(self, event: Any, state: Any) -> None:
                pass

        manager.register(Plugin())
    return calling(manager.hook.on_step, event=None, state=None)


def with_psygnal(count: int) -> Times:
    """psygnal, which is compiled: ``emit``."""
    from psygnal import SignalInstance

    signal = SignalInstance((object, object))
    handlers = no_ops(count)
    for handler in handlers:
        signal.connect(handler)
    return calling(signal.emit, None, None)


def with_blinker(count: int) -> Times:
    """blinker, which is underneath: a plain ``send``."""
    from blinker import Signal

    def make() -> Callable[..., None]:
        def no_op(sender: Any, event: Any, state: Any) -> None:
            pass

        return no_op

    signal = Signal()
    for _ in range(count):
        signal.connect(make(), weak=False)
    return calling(signal.send, None, event=None, state=None)


PEERS: Final[dict[str, Callable[[int], Times]]] = {
    "blinker": with_blinker,
    "pluggy": with_pluggy,
    "psygnal": with_psygnal,
    "torchtnt": with_torchtnt,
    "ignite": with_ignite,
    "transformers": with_transformers,
    "lightning": with_lightning,
}


def ours(count: int) -> Times:
    """This bus."""
    bus = Bus()
    for function in no_ops(count):
        bus.on(StepEnd, function)
    return partial(publishing, bus)


def peers(size: Size) -> Iterator[Row]:
    """Ours beside each that can be imported; the others are named."""
    for name, build in PEERS.items():
        for count in (1, 10):
            what = f"publish to {count} handler{'s' * (count > 1)} / {name}"
            try:
                theirs = build(count)
            except ImportError as error:
                yield Row(f"{name}: not installed", note=f"absent ({error.name or error})")
                break
            times = max(size.calls // count // 4, 50)
            yield Row.of(what, compare(per_unit(ours(count), times), per_unit(theirs, times), size.rounds // 2))
