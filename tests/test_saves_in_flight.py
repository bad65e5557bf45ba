"""A save is on its way when something happens: another one, a failure, the end of the run, of whatever kind."""

import signal

import pytest
from forks import run as run_child
from gated_runs import Gate, Life, Losing, asks, run, weights
from killed_runs import end_in_mid_save
from small_runs import checkpoints, leftovers

from eventloop import Stop

# -- it fails, and that is told, at the latest when the run ends -------------------------------------------------------


MOMENTS = {  # when it is told, how the save of update 2 is held until then, which are asked for, and what comes next
    "at the next event": (3, lambda gate: {2: gate.shut, 3: gate.let_go}, {2}, ("step", 4)),
    "at the next save": (3, lambda gate: {2: lambda: gate.shut_until("finish_saving")}, {2, 3}, ("step", 4)),
    "at the end": (4, lambda gate: {2: lambda: gate.shut_until("save_last")}, {2}, ("saved", 4, 4)),
}


@pytest.fixture(params=MOMENTS)
def moment(request):
    return MOMENTS[request.param]


def test_a_failure_is_told_once_by_the_policy_and_has_a_second_line(tmp_path, moment):
    """Fails if a failure in the background is dropped, or told only when the run ends."""
    step, when, steps, then = moment
    gate = Losing(tmp_path)
    loop, lines = run(tmp_path, asks(steps), gate, at=when(gate))
    (failed,) = [line for line in lines if line[0] == "failed"]
    i = lines.index(failed)
    assert lines[i - 1] == ("step", step)
    assert next(line for line in lines[i + 1 :] if line != ("saved", 3, 3)) == then
    fates = [(e.fate, e.decided) for e in loop.result.ledger]
    assert fates[:2] == [("granted", 2), ("refused", step)]
    assert loop.result.failure_counts == {"Asks": 1}
    assert "MANIFEST.json cannot be written" in loop.result.refused[0].note
    assert weights(tmp_path) == {n: float(n) for n in {*steps, 4} - {2}}
    assert (leftovers(tmp_path), lines[-1]) == ([], ("completed", 4))


def test_under_raise_it_ends_the_run_with_the_error_unchanged(tmp_path, moment):
    """Fails if the error of the thread that writes is wrapped, or swallowed."""
    step, when, steps, _ = moment
    gate, life = Losing(tmp_path), Life()
    with pytest.raises(OSError, match=r"MANIFEST\.json cannot be written") as caught:
        run(tmp_path, asks(steps, policy="raise"), gate, life, at=when(gate))
    assert caught.value is gate.saving.future.exception()
    assert caught.value.__notes__ == ["while saving the checkpoint of step 2, asked for by Asks"]
    assert life.lines[-2:] == [("failed", "Asks", step), ("failed", step)]
    assert gate.loop.result.failure_counts == {"Asks": 1}


def test_under_stop_it_stops_the_run_which_saves_its_end(tmp_path):
    gate = Losing(tmp_path)
    loop, _ = run(tmp_path, asks({2}, policy="stop"), gate, at={2: gate.shut, 3: gate.let_go}, max_steps=9)
    assert (loop.result.status, loop.result.stopped_by, loop.result.step) == ("stopped", "Asks", 3)
    assert weights(tmp_path) == {3: 3.0}


def test_a_last_save_that_fails_is_tried_again(tmp_path):
    """Fails if what could not be written counts as saved."""
    gate = Losing(tmp_path)
    loop, lines = run(tmp_path, asks({4}), gate)
    assert lines[-4:] == [("step", 4), ("failed", "Asks", 4), ("saved", 4, 4), ("completed", 4)]
    assert weights(tmp_path) == {4: 4.0}
    assert loop.result.failure_counts == {"Asks": 1}


def test_a_last_save_that_fails_again_is_told_again(tmp_path):
    loop, lines = run(tmp_path, asks({4}), Losing(tmp_path, saves=2))
    assert [line for line in lines if line[0] in ("failed", "saved")] == [("failed", "Asks", 4)] * 2
    assert (checkpoints(tmp_path), loop.result.failure_counts) == ({}, {"Asks": 2})


@pytest.mark.parametrize("error", [ValueError("mine"), KeyboardInterrupt(), SystemExit(3)], ids=repr)
def test_it_is_not_dropped_either_when_the_run_ends_by_an_error_meanwhile(tmp_path, caplog, error):
    """Fails if the save on its way is let go when an error ends the run."""
    gate = Losing(tmp_path)

    def fail():
        raise error

    with pytest.raises(type(error)) as caught:
        run(tmp_path, asks({2}), gate, at={2: lambda: gate.shut_until("_drain"), 3: fail})
    assert caught.value is error
    (failure,) = gate.loop.result.failures
    assert (failure.subscription, failure.error) == ("Asks", gate.saving.future.exception())
    assert "the checkpoint of step 2 was not written: FileNotFoundError" in caplog.text


def test_it_is_not_dropped_either_when_ctrl_c_is_pressed_again_in_the_wait_for_it(tmp_path):
    """Fails if a run that was interrupted in its closing does not look at the save once more."""
    gate = Losing(tmp_path)

    def fail():
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a shell's background jobs are without
    with pytest.raises(KeyboardInterrupt):
        run(tmp_path, asks({2}), gate, at={2: lambda: gate.shut_until("shutdown", interrupt_in="_drain"), 3: fail})
    signal.signal(signal.SIGINT, before)
    assert [str(failure.subscription) for failure in gate.loop.result.failures] == ["Asks"]


# -- it ends well, however the run ends --------------------------------------------------------------------------------


class FailsAt:
    """A handler under the policy ``raise`` that fails at a step."""

    failure = "raise"

    def __init__(self, step):
        self.step = step

    def on_step_begin(self, event, state):
        if state.step == self.step:
            raise RuntimeError("mine")


def test_a_handler_that_ends_the_run_does_not_end_the_save(tmp_path):
    gate = Gate()
    with pytest.raises(RuntimeError, match="mine"):
        run(tmp_path, asks({2}), gate, FailsAt(3), at={2: lambda: gate.shut_until("_drain")})
    assert (weights(tmp_path), leftovers(tmp_path)) == ({2: 2.0}, [])


def test_a_stop_waits_for_it_and_then_saves_the_end(tmp_path):
    gate = Gate()
    stopper = type("Stops", (), {"on_step_end": lambda self, event, state: Stop("now") if state.step == 3 else None})()
    _, lines = run(tmp_path, asks({2}), gate, stopper, at={2: lambda: gate.shut_until("save_last")})
    assert lines[-4:] == [("step", 3), ("saved", 2, 3), ("saved", 3, 3), ("stopped", 3)]
    assert weights(tmp_path) == {2: 2.0, 3: 3.0}


ENDS = {
    "break": (0, {2, 3}),
    "sys.exit": (7, {2}),
    "SIGINT": (1, {2}),
    "SIGINT and a flag": (0, {2, 4}),  # the update that the stop finds open is done
    "SIGTERM and a flag": (0, {2, 4}),
    "SIGTERM": (-15, set()),
}


@pytest.mark.parametrize("how", ENDS)
def test_a_process_that_ends_while_it_is_on_its_way(tmp_path, how):
    """Fails if the interpreter goes down without waiting for the thread that writes."""
    code, steps = ENDS[how]
    assert run_child(end_in_mid_save, tmp_path, how) == code
    assert weights(tmp_path) == {step: float(step) for step in steps}
    if steps:
        assert leftovers(tmp_path) == []
        assert (tmp_path / "checkpoints" / "latest").read_text() == f"step-{max(steps):08d}"
