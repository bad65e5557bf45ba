"""What a run says of itself, and what it hands to whom."""

import signal
import threading

import pytest
import torch
from loops import ask, batches, model_and_optimizer, recorded, train

from eventloop import Bus, Event, Loop, Report, Save, Stop
from eventloop.result import Best, best_of
from eventloop.testing import Deliberate


@pytest.fixture
def parts():
    return model_and_optimizer()


# -- requests and the user's own lines ---------------------------------------------------------------------------------


def test_the_users_lines_behind_update_count_before_a_save(parts, tmp_path):
    model, optimizer = parts
    loop = Loop(model, optimizer, run_dir=tmp_path / "run", max_steps=2)
    ask(loop, "step_end", Save("now"), once=1)
    saved = []
    loop.bus.on("checkpoint_saved", lambda event, state: saved.append(event.path))

    def write_the_step():
        with torch.no_grad():
            model.weight.fill_(loop.state.step)

    train(loop, model, batches(3), after=write_the_step)
    from eventloop.checkpoint import Checkpoint

    assert [Checkpoint.read(tmp_path.__class__(p)).load()["model"]["weight"][0, 0].item() for p in saved] == [1.0, 2.0]


def test_a_second_save_of_the_same_step_keeps_the_names_of_who_asked_for_the_first(parts, tmp_path):
    model, optimizer = parts
    loop = Loop(model, optimizer, run_dir=tmp_path / "run", max_epochs=1)
    ask(loop, "step_end", Save("step"), every=3, name="by step")  # a loader without length: saved before the end shows
    ask(loop, "epoch_end", Save("epoch"), name="by epoch")
    saved = recorded(loop, lambda event, state: getattr(event, "tags", None))
    train(loop, model, iter(batches(3)))
    from eventloop.checkpoint import Checkpoints

    assert [tags for name, _, tags in saved if name == "checkpoint_saved"] == [("step",), ("epoch", "step")]
    (only,) = Checkpoints(tmp_path / "run" / "checkpoints", "").list()
    assert only.asked_by == {"by step": ["step"], "by epoch": ["epoch"]}


def test_a_rejected_callback_leaves_the_bus_as_it_was(parts, tmp_path):
    bus, good = Bus(), Noter()
    with pytest.raises(TypeError, match="has no on_<event> method"):
        Loop(*parts, bus=bus, run_dir=tmp_path / "run", callbacks=[good, object()])
    assert bus.objects == ()
    Loop(*parts, bus=bus, run_dir=tmp_path / "run", callbacks=[good])


class Noter:
    def __init__(self):
        self.bound = None

    def bind(self, *, model, optimizer, bus, run_dir, extra=None):
        self.bound = {"model": model, "optimizer": optimizer, "bus": bus, "run_dir": run_dir, "extra": extra}

    def on_train_begin(self, event, state):
        self.bound["begun"] = True


def test_callbacks_are_bound_to_what_their_bind_names_before_train_begin(parts, tmp_path):
    model, optimizer = parts
    noter = Noter()
    loop = Loop(
        model, {"o": optimizer}, callbacks=[noter], bind={"extra": 7}, max_epochs=0, run_dir=str(tmp_path / "run")
    )
    train(loop, model, batches(1))
    assert noter.bound == {
        "model": model,
        "optimizer": {"o": optimizer},
        "bus": loop.bus,
        "run_dir": tmp_path / "run",
        "extra": 7,
        "begun": True,
    }


def test_a_callback_attached_in_mid_run_is_bound_and_hears_the_next_event(parts):
    model, optimizer = parts
    late = Late()
    loop = Loop(model, optimizer, max_steps=3)
    train(loop, model, batches(3), after=lambda: loop.state.step == 1 and loop.bus.attach(late))
    assert late.life == ["bound", "step 2", "step 3", "closed"]


class Late:
    def __init__(self):
        self.life = []

    def bind(self, *, model):
        self.life.append("bound")

    def on_train_begin(self, event, state):
        self.life.append("train_begin")

    def on_step_end(self, event, state):
        self.life.append(f"step {state.step}")

    def close(self):
        self.life.append("closed")


def test_a_bind_that_asks_for_what_is_not_there_is_an_error_that_lists_what_is(parts):
    class Wants:
        def bind(self, *, loop):
            raise AssertionError("nobody is handed the loop")

        def on_step_end(self, event, state):
            pass

    loop = Loop(*parts, callbacks=[Wants()], max_epochs=1)
    with pytest.raises(TypeError, match=r"Wants\.bind asks for 'loop'; there are bus, model, optimizer, run_dir"), loop:
        next(loop.epochs())
    assert (loop.result.status, loop.result.step) == ("failed", 0)


# -- what the loop says ------------------------------------------------------------------------------------------------


def test_a_handler_of_an_event_that_was_never_published_is_named_at_the_end(parts, caplog):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    loop.bus.on("gradients_ready", lambda event, state: None, name="norms")
    loop.bus.on("eval_end", lambda event, state: None, name="judge")
    loop.bus.on("handler_failed", lambda event, state: None, name="pager")
    loop.bus.on("step_end", lambda event, state: None, name="seldom", every=1000)
    with loop:
        for _ in loop.batches(batches(2)):
            loop.step_end(loss=1.0)
    said = [record.message for record in caplog.records]
    assert said == [
        "norms waited for gradients_ready; with an update of your own call loop.gradients_ready() before the "
        "optimizer's step",
        "judge waited for eval_end; the loop never evaluated: give it evaluate=",
    ]


def _fail(loop, error):
    """One update, and then an error."""
    with loop:
        loop.step_end(loss=1.0)
        raise error


def test_an_event_of_ones_own_that_was_published_or_a_run_that_failed_names_nobody(parts, caplog):
    class Halfway(Event):
        name = "loop_test_halfway"

    loop = Loop(*parts, max_epochs=1)
    loop.bus.on(Halfway, lambda event, state: None, name="listener")
    loop.bus.on("step_end", lambda event, state: loop.bus.publish(Halfway(), state) and None)
    with loop:
        loop.step_end()
    failing = Loop(*parts, max_epochs=1)
    failing.bus.on("eval_end", lambda event, state: None, name="judge")
    with pytest.raises(Deliberate):
        _fail(failing, Deliberate("planned"))
    assert caplog.records == []


def test_a_handler_that_takes_a_large_share_of_step_time_is_named_once(parts, caplog):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_steps=300)

    def slow(event, state):
        for _ in range(20_000):
            pass

    loop.bus.on("step_end", slow, name="slow")
    loop.bus.on("step_end", lambda event, state: None, name="quick")
    train(loop, model, batches(100))
    said = [record.message for record in caplog.records]
    assert len(said) == 1
    assert said[0].startswith("slow takes ")
    assert "% of step time at step_end" in said[0]


def test_without_a_run_dir_a_loop_writes_nothing_prints_nothing_and_starts_nothing(
    parts, tmp_path, monkeypatch, capfd, caplog
):
    monkeypatch.chdir(tmp_path)
    model, optimizer = parts
    threads, handlers = threading.enumerate(), [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    seen = []
    loop = Loop(model, optimizer, max_epochs=2, evaluate=lambda: {"a": 1.0})
    loop.bus.on("step_end", lambda event, state: seen.append(threading.enumerate() == threads))
    train(loop, model, batches(3), lambda: seen.append(signal.getsignal(signal.SIGINT) is handlers[0]))
    assert seen == [True] * 12
    assert threading.enumerate() == threads
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers
    assert list(tmp_path.iterdir()) == []
    assert capfd.readouterr() == ("", "")
    assert caplog.records == []


def test_the_result_tells_the_whole_story_as_one_sentence(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=5, evaluate=lambda: {"eval_loss": 1.0})
    ask(loop, "eval_end", Stop("eval_loss has not improved"), every=2, name="EarlyStopping")

    @loop.bus.on("step_end", name="logger")
    def fails(event, state):
        raise OSError("disk full")

    result = train(loop, model, batches(2))
    assert str(result) == (
        "stopped after update 4 by EarlyStopping: eval_loss has not improved "
        "(60 % of 10 planned updates not spent); handler failures: logger 4"
    )
    assert (result.status, result.stopped_by, result.reason) == (
        "stopped",
        "EarlyStopping",
        "eval_loss has not improved",
    )
    assert (result.step, result.epoch, result.total, result.unspent, result.refused) == (4, 2, 10, 6, ())
    assert [str(f) for f in result.failures][:1] == ["logger failed at step_end of step 1: OSError: disk full"]


def test_a_failed_and_an_interrupted_run_say_so(parts):
    sentences = []
    for error in (ValueError("bad data"), KeyboardInterrupt()):
        loop = Loop(*parts, max_steps=4)
        with pytest.raises(type(error)):
            _fail(loop, error)
        sentences.append(str(loop.result))
        assert loop.result.error is error
    assert sentences == [
        "failed after update 1: ValueError: bad data (75 % of 4 planned updates not spent)",
        "interrupted after update 1: KeyboardInterrupt (75 % of 4 planned updates not spent)",
    ]


def test_an_error_that_cannot_be_printed_is_raised_unchanged_all_the_same(parts):
    class MuteError(Exception):
        def __str__(self):
            raise TypeError("no text")

    loop, error = Loop(*parts, max_steps=4), MuteError()
    with pytest.raises(MuteError) as caught:
        _fail(loop, error)
    assert caught.value is error
    assert (loop.result.status, loop.result.reason) == ("failed", "MuteError")


def test_a_handler_under_raise_fails_the_run_with_its_own_error(parts):
    model, optimizer = parts
    loop, error = Loop(model, optimizer, max_epochs=1), OSError("no space")
    calls = []

    @loop.bus.on("step_end", failure="raise", name="saver")
    def save(event, state):
        raise error

    loop.bus.on("step_end", lambda event, state: calls.append("behind") or Stop("too"), name="behind")
    loop.bus.on("run_failed", lambda event, state: calls.append(event.error))
    with pytest.raises(OSError, match="no space") as caught:
        train(loop, model, batches(3))
    assert caught.value is error
    assert calls == ["behind", error]
    assert any("Stop by behind" in note for note in error.__notes__)
    assert [(e.who, e.fate) for e in loop.result.ledger] == [("behind", "expired")]


def test_a_report_reaches_the_handlers_behind_it_and_the_next_event(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    seen = []
    loop.bus.on("gradients_ready", lambda event, state: Report(measure=state.update), priority=10)
    loop.bus.on("gradients_ready", lambda event, state: seen.append(state.metrics["measure"]))
    loop.bus.on("step_end", lambda event, state: seen.append(state.metrics["measure"]))
    train(loop, model, batches(2))
    assert seen == [1.0, 1.0, 2.0, 2.0]


class Talker:
    """Has a ``summary`` of its own kind."""

    def __init__(self, summary):
        self.summary = summary

    def on_step_end(self, event, state):
        pass


def test_a_summary_that_fails_or_tells_something_else_costs_neither_the_result_nor_the_best(parts):
    model, optimizer = parts
    best = {"monitor": "eval_loss", "best": 0.5, "best_step": 1}
    talkers = [Talker(lambda: 1 / 0), Talker(lambda: "fine"), Talker(lambda: {"best": 3}), Talker(lambda: best)]
    result = train(Loop(model, optimizer, max_steps=1, callbacks=talkers), model, batches(1))
    assert str(result.best) == "eval_loss 0.5 at step 1"
    assert [str(f) for f in result.failures] == [
        "Talker failed at summary of step 1: ZeroDivisionError: division by zero"
    ]


def test_the_best_is_that_of_the_first_who_watches_with_the_path_that_another_knows():
    """Fails if each that tells of a best takes the place of the one before, or if the path of another step is taken."""
    first, other = ({"monitor": name, "best": 0.5, "best_step": 2} for name in ("eval_loss", "accuracy"))
    late, there = {**first, "best_step": 3, "best_path": "late"}, {**first, "best_path": "there"}
    none = {"monitor": "none yet", "best": None, "best_step": None}
    assert best_of([none, first, late, there, other]) == Best("eval_loss", 0.5, 2, "there")


def test_the_loops_own_error_keeps_its_traceback_though_observers_of_it_fail_too(parts):
    loop = Loop(*parts, max_steps=4)
    for event in ("run_failed", "train_end"):
        loop.bus.on(event, lambda event, state: 1 / 0, name=event)
    with pytest.raises(Deliberate) as caught:
        _fail(loop, Deliberate("planned"))
    assert caught.traceback[-1].name == "_fail"
    assert loop.result.failure_counts == {"run_failed": 1, "train_end": 1}
