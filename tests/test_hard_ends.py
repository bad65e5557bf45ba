"""Ends and overlaps that a run must survive: errors in the closing, requests in a failure, runs inside runs."""

from dataclasses import dataclass

import pytest
import torch

from callbacks import JSONLLogger, ModelCheckpoint
from eventloop import Bus, Event, HandlerFailed, Loop, Request, Save, StepEnd, Stop
from eventloop.checkpoint import Checkpoints


def parts(inputs=1):
    model = torch.nn.Linear(inputs, 1)
    return model, torch.optim.SGD(model.parameters(), lr=0.1)


def drive(loop, body=lambda step: None):
    with loop:
        for step in loop.updates():
            body(step)
            loop.step_end(loss=1.0)


def run(*callbacks, steps=3, body=lambda step: None, **options):
    loop = Loop(*parts(), max_steps=steps, callbacks=callbacks, **options)
    drive(loop, body)
    return loop


class Closes:
    def __init__(self, error=None):
        self.closed, self.error = 0, error

    def on_step_end(self, event, state):
        pass

    def close(self):
        self.closed += 1
        if self.error is not None:
            raise self.error


class FailsAtTheEnd:
    failure = "raise"

    def on_train_end(self, event, state):
        raise KeyError("late")


@pytest.mark.parametrize("error", [ValueError("body"), KeyboardInterrupt()])
def test_a_failure_at_train_end_does_not_take_the_place_of_the_loops_own_error(error):
    def body(step):
        raise error

    with pytest.raises(type(error)) as caught:
        run(FailsAtTheEnd(), body=body)
    assert caught.value is error


def test_an_interrupt_in_one_close_leaves_no_other_open_and_there_is_a_result():
    first, second, third = Closes(), Closes(KeyboardInterrupt()), Closes()
    loop = Loop(*parts(), max_steps=1, callbacks=[first, second, third])
    with pytest.raises(KeyboardInterrupt):
        drive(loop)
    assert (first.closed, second.closed, third.closed) == (1, 1, 1)
    assert loop.result.step == 1


def test_a_save_asked_for_because_a_save_has_failed_is_not_made_again(tmp_path):
    class Full:
        failure = "raise"

        def on_step_end(self, event, state):
            pass

        def state_dict(self):
            raise OSError(28, "No space left on device")

    bus = Bus()
    bus.attach(ModelCheckpoint(every_steps=1), failure="isolate")
    bus.on(HandlerFailed, lambda event, state: Save("emergency"), name="emergency")
    with pytest.raises(OSError, match="No space left"):
        run(Full(), bus=bus, run_dir=tmp_path / "run")
    assert len(bus.failures) < 20


@dataclass(frozen=True)
class Note(Request):
    text: str = ""


class Ping(Event):
    __slots__ = ()


def test_what_is_asked_for_at_a_publish_inside_a_handler_is_carried_out_once():
    obeyed = []
    loop = Loop(*parts(), max_steps=5)
    loop.carry_out(Note, obeyed.append)
    loop.bus.on(StepEnd, lambda event, state: loop.publish(Ping()) and None, name="publishes")
    loop.bus.on(Ping, lambda event, state: (Note("once"), Stop("enough")), name="asks")
    drive(loop)
    assert obeyed == [Note("once")]
    assert [(e.request, e.fate) for e in loop.result.ledger] == [("Note", "granted"), ("Stop", "granted")]


def test_a_second_run_on_a_bus_in_the_middle_of_the_first_is_refused_and_harms_nothing(tmp_path):
    bus = Bus()

    def body(step):
        if step == 2:
            with pytest.raises(RuntimeError, match="in the run of another Loop"):
                run(bus=bus)

    loop = run(JSONLLogger(every=1), steps=4, body=body, bus=bus, run_dir=tmp_path / "run")
    assert not loop.result.failures
    assert len((tmp_path / "run/metrics.jsonl").read_text().splitlines()) == 4
    assert run(bus=bus, run_dir=tmp_path / "next").result.status == "completed"


def test_an_evaluation_that_draws_training_batches_is_told_what_to_draw():
    loop = Loop(*parts(), max_steps=1, evaluate=lambda: dict.fromkeys("a", len(list(loop.batches([1])))))
    with pytest.raises(RuntimeError, match=r"loop\.eval_batches"):
        drive(loop)


def test_with_nothing_left_to_do_what_train_begin_asked_for_expires(tmp_path):
    class Eager:
        def on_train_begin(self, event, state):
            return Save("eager")

    loop = run(Eager(), steps=0, run_dir=tmp_path / "run")
    assert [(e.request, e.fate) for e in loop.result.ledger] == [("Save", "expired")]
    assert not (tmp_path / "run/checkpoints").exists()


SCORES = {1: 0.1, 2: 0.5, 3: 0.6, 4: 0.7, 5: 0.8}


def scored(folder, savers, steps, **options):
    scores = {"evaluate": lambda: {"eval_loss": SCORES[loop.state.step]}, "eval_every": 1}
    loop = Loop(*parts(), run_dir=folder, max_steps=steps, callbacks=savers, **scores, **options)
    drive(loop)
    return {c.step for c in Checkpoints(folder / "checkpoints", "").list()}


def test_the_best_stays_though_a_resumed_run_has_another_saver_in_front(tmp_path):
    assert scored(tmp_path, [ModelCheckpoint("eval_loss")], 3) == {1, 3}
    best = ModelCheckpoint("eval_loss")
    assert 1 in scored(tmp_path, [ModelCheckpoint(every_steps=1), best], 5, resume="auto")
    assert (best.best_step, best.best_score) == (1, 0.1)


def test_a_resume_that_does_not_fit_leaves_the_folder_as_it_was(tmp_path):
    scored(tmp_path, [ModelCheckpoint(save_top_k=-1, every_steps=1)], 4)

    def files():
        written = ("journal.jsonl", ".lock")
        return {p: p.stat().st_mtime_ns for p in tmp_path.rglob("*") if p.is_file() and p.name not in written}

    before = files()
    loop = Loop(*parts(inputs=3), run_dir=tmp_path, max_steps=9, resume=2)
    with pytest.raises(RuntimeError, match="size mismatch"), loop:
        list(loop.updates())
    assert files() == before
