"""The gradients of an update: accumulated, scaled and clipped to the last bit as by hand."""

import pytest
import torch
from loops import ask, batches, by_hand, loss_of, model_and_optimizer, recorded, train, weights

from eventloop import Loop, Save, SkipUpdate


@pytest.fixture
def parts():
    return model_and_optimizer()


@pytest.mark.parametrize("accumulate", [1, 2, 3, 4, 7])
@pytest.mark.parametrize("kind", [torch.optim.SGD, torch.optim.AdamW])
def test_the_weights_are_those_of_a_hand_written_loop_to_the_last_bit(accumulate, kind):
    model, optimizer = model_and_optimizer(kind=kind)
    train(Loop(model, optimizer, max_epochs=2, accumulate=accumulate), model, batches(5))
    other, same = model_and_optimizer(kind=kind)
    by_hand(other, same, batches(5), accumulate, epochs=2)
    assert torch.equal(weights(model), weights(other))


def test_a_short_window_is_the_mean_of_its_own_losses(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1, accumulate=4)
    seen = []

    @loop.bus.on("gradients_ready")
    def look(event, state):
        seen.append((model.weight.grad.clone(), state.metrics["loss"]))

    train(loop, model, batches(2))
    other, _ = model_and_optimizer()
    losses = [loss_of(other, x) for x in batches(2)]
    (sum(losses) / 2).backward()
    assert torch.allclose(seen[0][0], other.weight.grad, atol=1e-7)
    assert seen[0][1] == pytest.approx(sum(v.item() for v in losses) / 2)


def test_batches_passed_over_at_the_end_do_not_lose_a_short_window(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1, accumulate=2)
    with loop:
        for _ in loop.epochs():
            for i, x in enumerate(loop.batches(batches(4))):
                if i == 3:
                    continue
                loop.backward(loss_of(model, x))
                loop.update()
    other, same = model_and_optimizer()
    by_hand(other, same, batches(4)[:3], 2, epochs=1)
    assert (loop.result.step, loop.state.skipped) == (2, 0)
    assert torch.equal(weights(model), weights(other))


def test_update_says_whether_the_window_was_full(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1, accumulate=2)
    made = []
    with loop:
        for x in loop.batches(batches(3)):
            loop.backward(loss_of(model, x))
            made.append(loop.update())
    assert made == [False, True, True]


def test_update_without_backward_is_an_error(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    with loop:
        next(loop.batches(batches(1)))
        with pytest.raises(RuntimeError, match=r"loop.update\(\) without loop.backward\(loss\)"):
            loop.update()


def test_a_save_asked_for_in_mid_accumulation_is_deferred_to_the_end_of_the_update(parts, tmp_path):
    model, optimizer = parts
    loop = Loop(model, optimizer, run_dir=tmp_path / "run", max_epochs=1, accumulate=2, saves="sync")
    ask(loop, "step_begin", Save("mid"), once=2, name="saver")
    lines = recorded(loop)
    result = train(loop, model, batches(5))
    assert lines.names.index("checkpoint_saved") == lines.index(("step_end", 2)) + 1
    assert [(e.fate, e.step, e.decided) for e in result.ledger] == [("deferred", 2, 2), ("granted", 2, 2)]


class Overflow(torch.amp.GradScaler):
    """A scaler on the CPU with a small scale, so that a loss decides whether the gradients overflow."""

    def __init__(self):
        super().__init__("cpu", init_scale=4.0, growth_interval=1000)


def test_an_update_that_the_scaler_skips_advances_nothing_but_skipped(parts):
    model, optimizer = parts
    scaler = Overflow()
    loop = Loop(model, optimizer, max_epochs=1, scaler=scaler)
    ends = recorded(loop, lambda event, state: (getattr(event, "skipped", None), state.skipped))
    with loop:
        for i, x in enumerate(loop.batches(batches(3))):
            before = weights(model)
            loop.backward(loss_of(model, x) * (float("inf") if i == 1 else 1.0))
            assert loop.update()
            assert torch.equal(weights(model), before) == (i == 1)
    assert [line[1:] for line in ends if line[0] == "step_end"] == [(1, (False, 0)), (1, (True, 1)), (2, (False, 1))]
    assert scaler.get_scale() == 2.0


def test_with_a_scaler_the_weights_are_those_of_torchs_own_recipe(parts):
    model, optimizer = parts
    train(Loop(model, optimizer, max_epochs=2, scaler=Overflow(), clip_norm=0.5), model, batches(3))
    (other, same), scaler = model_and_optimizer(), Overflow()
    for x in batches(3) * 2:
        scaler.scale(loss_of(other, x)).backward()
        scaler.unscale_(same)
        torch.nn.utils.clip_grad_norm_(other.parameters(), 0.5)
        scaler.step(same)
        scaler.update()
        same.zero_grad()
    assert torch.equal(weights(model), weights(other))


def test_gradients_are_unscaled_at_gradients_ready_and_a_skip_leaves_the_scale_as_it_is(parts):
    model, optimizer = parts
    scaler, seen = Overflow(), []
    loop = Loop(model, optimizer, max_epochs=1, scaler=scaler)

    @loop.bus.on("gradients_ready")
    def skip_the_first(event, state):
        seen.append(model.weight.grad.clone())
        return SkipUpdate("look") if state.update == 1 and not state.skipped else None

    train(loop, model, batches(2))
    loss_of((other := model_and_optimizer()[0]), batches(1)[0]).backward()
    assert torch.equal(seen[0], other.weight.grad)
    assert (scaler.get_scale(), loop.result.step, loop.state.skipped) == (4.0, 1, 1)


@pytest.mark.parametrize("accumulate", [1, 3])
def test_clipping_equals_torchs_to_the_last_bit_and_the_norm_is_reported(accumulate):
    model, optimizer = model_and_optimizer()
    loop = Loop(model, optimizer, max_epochs=2, accumulate=accumulate, clip_norm=0.1)
    norms = recorded(loop, lambda event, state: state.metrics.get("grad_norm") if event.name == "step_end" else None)
    train(loop, model, batches(4))
    other, same = model_and_optimizer()
    expected = by_hand(other, same, batches(4), accumulate, epochs=2, clip=0.1)
    assert [norm for name, _, norm in norms if name == "step_end"] == expected
    assert min(expected) > 0.1  # it did clip
    assert torch.equal(weights(model), weights(other))


def test_a_skipped_update_changes_no_weight_and_fires_no_interval(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    ask(loop, "gradients_ready", SkipUpdate("bad batch"), when=lambda event, state: state.samples == 6, name="guard")
    fired = []
    loop.bus.on("step_end", lambda event, state: fired.append(state.step), every=2)
    result = train(loop, model, batches(5))
    other, same = model_and_optimizer()
    by_hand(other, same, [x for i, x in enumerate(batches(5)) if i != 1], 1, epochs=1)
    assert torch.equal(weights(model), weights(other))
    assert (result.step, loop.state.skipped, fired) == (4, 1, [2, 4])
    assert [(e.who, e.request, e.detail, e.fate) for e in result.ledger] == [
        ("guard", "SkipUpdate", "bad batch", "granted")
    ]
