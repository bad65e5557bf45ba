"""Bodies that draw batches, make updates or run loops of their own."""

import pytest
import torch
from loops import ask, batches, by_hand, loss_of, model_and_optimizer, recorded, train, weights

from eventloop import Event, Loop, Report, Request, Save, SetLR, SkipUpdate, Stop, fit


@pytest.fixture
def parts():
    return model_and_optimizer()


def test_two_optimizers_are_two_named_groups_that_step_together():
    (g, og), (d, od) = model_and_optimizer(lr=0.1), model_and_optimizer(lr=0.2, seed=5)
    od.add_param_group({"params": [torch.nn.Parameter(torch.ones(1))], "name": "extra"})
    before = weights(g), weights(d)
    loop = Loop(g, {"g": og, "d": od}, max_epochs=1)
    assert dict(loop.state.lr) == {"g": 0.1, "d/group_0": 0.2, "d/extra": 0.2}
    with loop:
        for x in loop.batches(batches(1)):
            loop.backward(loss_of(g, x) + loss_of(d, x))
            loop.update()
    assert not torch.equal(weights(g), before[0])
    assert not torch.equal(weights(d), before[1])


def test_a_gan_makes_its_own_update_and_says_step_end():
    (g, og), (d, od) = model_and_optimizer(), model_and_optimizer(seed=5)
    loop = Loop(torch.nn.ModuleDict({"g": g, "d": d}), {"g": og, "d": od}, max_epochs=1)
    seen = recorded(loop, lambda event, s: (s.micro, dict(s.metrics), dict(s.lr)) if event.name == "step_end" else None)
    with loop:
        for x in loop.batches(batches(3)):
            d_loss, g_loss = loss_of(d, x), loss_of(g, x)
            for loss, optimizer in ((d_loss, od), (g_loss, og)):
                loss.backward()
                optimizer.step()
                optimizer.zero_grad()
            loop.step_end(loss=g_loss, d_loss=d_loss.item())
    last = [line[1:] for line in seen if line[0] == "step_end"][-1]
    assert last == (3, (3, {"loss": g_loss.item(), "d_loss": d_loss.item()}, {"g": 0.1, "d": 0.1}))
    assert all(type(rate) is float for rate in last[1][2].values())


def test_batches_since_the_last_step_end_are_the_micro_batches_of_an_own_update(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    micro = recorded(loop, lambda event, state: state.micro)
    with loop:
        for i, x in enumerate(loop.batches(batches(5)), 1):
            loss_of(model, x).backward()
            if i in (2, 5):
                optimizer.step()
                optimizer.zero_grad()
                loop.step_end()
    assert [line[1:] for line in micro if line[0] == "step_end"] == [(1, 2), (2, 5)]
    assert micro.names.count("step_begin") == 2


def test_nothing_is_carried_out_between_the_micro_batches_of_an_own_update(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    carried = []

    class Note(Request):
        pass

    loop.carry_out(Note, lambda request: carried.append(loop.state.micro))
    ask(loop, "step_begin", Note())
    with loop:
        for i, _ in enumerate(loop.batches(batches(6)), 1):
            if i % 3 == 0:
                loop.step_end(loss=1.0)
    assert carried == [3, 6]


def test_an_own_update_obeys_the_skip_of_gradients_ready(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    ask(loop, "gradients_ready", SkipUpdate("odd"), every={"samples": 6}, name="guard")
    skipped = []
    with loop:
        for _ in loop.batches(batches(4)):
            skip = loop.gradients_ready().skip
            skipped.append(skip and skip.who)
            loop.step_end(loss=1.0, skipped=skip is not None)
    assert skipped == [None, "guard", None, "guard"]
    assert (loop.result.step, loop.state.skipped) == (2, 2)


def test_updates_numbers_the_updates_of_a_script_that_draws_its_own_batches(parts):
    model, optimizer = parts
    source = iter(batches(100))
    loop = Loop(model, optimizer, max_steps=4, accumulate=2, evaluate=lambda: {"eval_loss": 1.0}, eval_every=2)
    numbers, lines = [], recorded(loop)
    with loop:
        for n in loop.updates():
            numbers.append(n)
            for _ in range(2):
                loop.backward(loss_of(model, next(source)))
                loop.update()
    other, same = model_and_optimizer()
    by_hand(other, same, batches(100)[:8], 2, epochs=1)
    assert numbers == [1, 2, 3, 4]
    assert torch.equal(weights(model), weights(other))
    assert [step for name, step in lines if name == "eval_end"] == [2, 4]
    assert (loop.result.total, loop.state.micro, lines.names.count("epoch_end")) == (4, 8, 1)


def test_a_save_before_the_last_evaluation_of_its_update_is_not_the_last_save(parts, tmp_path):
    """Fails if saves are told apart by their step alone: the newest would know nothing of the last evaluation."""
    model, optimizer = parts
    options = {"max_steps": 2, "evaluate": lambda: {"eval_loss": 1.0}, "eval_every": None, "saves": "sync"}
    loop = Loop(model, optimizer, run_dir=tmp_path / "run", **options)
    ask(loop, "step_end", Save("mine"), once=2)
    lines = recorded(loop)
    with loop:
        for _ in loop.updates():
            loop.backward(loss_of(model, batches(1)[0]))
            loop.update()
    late = [line for line in lines if line[0] in ("eval_end", "checkpoint_saved")]
    assert late == [("checkpoint_saved", 2), ("eval_end", 2), ("checkpoint_saved", 2)]


def test_updates_gives_the_number_again_until_the_window_is_full_and_carries_nothing_out_meanwhile(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_steps=2, accumulate=2)
    numbers, carried = [], []

    class Note(Request):
        pass

    loop.carry_out(Note, lambda request: carried.append(list(numbers)))
    ask(loop, "step_begin", Note())
    with loop:
        for n in loop.updates():
            numbers.append(n)
            loop.backward(loss_of(model, batches(1)[0]))
            loop.update()
    assert numbers == [1, 1, 2, 2]
    assert carried == [[1, 1], [1, 1, 2, 2]]


def test_a_loop_of_ones_own_without_generators_is_one_epoch_and_asks_whether_it_is_over(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_steps=9, evaluate=lambda: {"eval_loss": 1.0}, eval_every=2)
    ask(loop, "eval_end", Stop("twice"), every=2, name="judge")
    lines = recorded(loop, lambda event, state: getattr(event, "completed", None))
    with loop:
        while not loop.over:
            loop.backward(loss_of(model, batches(1)[0]))
            loop.update()
    assert lines.names[:3] == ["train_begin", "epoch_begin", "step_begin"]
    assert [step for name, step, _ in lines if name == "eval_end"] == [2, 4]
    assert str(loop.result).startswith("stopped after update 4 by judge: twice (56 % of 9")


def test_step_end_alone_carries_requests_out_at_once(parts):
    loop = Loop(*parts)
    ask(loop, "step_end", Stop("three"), once=3, name="counter")
    lines = recorded(loop)
    with loop:
        for n in range(1, 10):
            loop.step_end(loss=1 / n)
            if loop.over:
                break
    assert lines.names == ["train_begin", "epoch_begin", *["step_begin", "step_end"] * 3, "epoch_end", "train_end"]
    assert loop.result.step == n == 3


def test_own_batches_inside_epochs_make_whole_epochs(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=2, accumulate=2)
    ends = recorded(loop, lambda event, state: getattr(event, "completed", None))
    with loop:
        for _ in loop.epochs():
            for x in batches(3):
                loop.backward(loss_of(model, x))
                loop.update()
    other, same = model_and_optimizer()
    by_hand(other, same, batches(3), 2, epochs=2)
    assert torch.equal(weights(model), weights(other))
    assert [line[1:] for line in ends if line[0] == "epoch_end"] == [(2, True), (4, True)]


def test_gradients_ready_without_an_update_in_hand_opens_one(parts):
    loop = Loop(*parts)
    lines = recorded(loop)
    with loop:
        loop.gradients_ready()
        loop.step_end()
    assert lines.names[:5] == ["train_begin", "epoch_begin", "step_begin", "gradients_ready", "step_end"]


def test_fit_is_the_loop_in_one_call():
    (model, optimizer), (other, same) = model_and_optimizer(), model_and_optimizer()
    options = {"max_epochs": 2, "accumulate": 2, "clip_norm": 1.0}
    result = fit(model, optimizer, batches(3), loss_of, **options)
    assert result == train(Loop(other, same, **options), other, batches(3))
    assert torch.equal(weights(model), weights(other))


class Halfway(Event):
    """An event of the script's own."""

    name = "own_updates_halfway"


def test_an_event_published_through_the_loop_is_heard_like_its_own(parts, tmp_path):
    model, optimizer = parts
    loop = Loop(model, optimizer, run_dir=tmp_path / "run", max_epochs=1, accumulate=2)
    ask(loop, Halfway, (Report(measure=2.0), Save("half"), SetLR(0.5), Stop("seen")), name="listener")
    seen = []
    with loop:
        for i, x in enumerate(loop.batches(batches(6)), 1):
            loop.backward(loss_of(model, x))
            loop.update()
            if i == 3:
                assert loop.publish(Halfway()).stop.who == "listener"
                seen.append((dict(loop.state.held), loop.state.metrics["measure"]))
    assert seen == [({"group_0": 0.5}, 2.0)]
    assert [(e.request, e.fate, e.step, e.decided) for e in loop.result.ledger] == [
        ("Save", "deferred", 2, 2),
        ("Stop", "granted", 2, 2),
        ("Save", "granted", 2, 2),
    ]
    assert (loop.result.step, loop.result.stopped_by) == (2, "listener")
