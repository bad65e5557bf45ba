"""Whole runs of a `Loop`: the order of life, loaders of all kinds, and the ways to leave one."""

import pytest
import torch
from loops import Sizeless, ask, batches, loss_of, model_and_optimizer, recorded, train, weights

from eventloop import Loop, Stop


@pytest.fixture
def parts():
    return model_and_optimizer()


# -- the order of life -------------------------------------------------------------------------------------------------


def test_a_run_publishes_the_order_of_life(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1, evaluate=lambda: {"eval_loss": 1.0})
    lines = recorded(loop)
    train(loop, model, batches(2))
    assert lines == [
        ("train_begin", 0),
        ("epoch_begin", 0),
        ("step_begin", 0),
        ("gradients_ready", 0),
        ("step_end", 1),
        ("step_begin", 1),
        ("gradients_ready", 1),
        ("step_end", 2),
        ("eval_begin", 2),
        ("eval_end", 2),
        ("epoch_end", 2),
        ("train_end", 2),
    ]


def test_the_counters_count_updates_micro_batches_samples_and_epochs(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=2, accumulate=2)
    seen = recorded(loop, lambda event, s: (s.epoch, s.update, s.micro, s.samples, s.total))
    train(loop, model, batches(3))
    assert [line[1:] for line in seen if line[0] in ("step_begin", "step_end")] == [
        (0, (1, 1, 0, 0, 4)),
        (1, (1, 1, 2, 6, 4)),
        (1, (1, 2, 2, 6, 4)),
        (2, (1, 2, 3, 9, 4)),
        (2, (2, 3, 3, 9, 4)),
        (3, (2, 3, 5, 15, 4)),
        (3, (2, 4, 5, 15, 4)),
        (4, (2, 4, 6, 18, 4)),
    ]


def test_the_total_is_unknown_until_the_first_batches(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=2)
    totals = recorded(loop, lambda event, state: state.total)
    train(loop, model, batches(3))
    assert [(name, total) for name, _, total in totals][:3] == [
        ("train_begin", None),
        ("epoch_begin", None),
        ("step_begin", 6),
    ]
    assert loop.result.total == 6


@pytest.mark.parametrize(
    ("loader", "limits", "total"),
    [
        (batches(5), {"max_epochs": 2}, 6),  # 2, 2 and a short window
        (batches(4), {"max_epochs": 2}, 4),
        (batches(5), {"max_epochs": 2, "max_steps": 3}, 3),
        (iter(batches(5)), {"max_epochs": 1}, None),
        (iter(batches(5)), {"max_epochs": 1, "max_steps": 2}, 2),
    ],
)
def test_the_plan_is_what_the_limits_and_the_loaders_length_tell(parts, loader, limits, total):
    model, optimizer = parts
    loop = Loop(model, optimizer, accumulate=2, **limits)
    assert train(loop, model, loader).total == total


# -- loaders -----------------------------------------------------------------------------------------------------------


class Endless(torch.utils.data.IterableDataset):
    """Says that it has a length, and refuses to tell it when it is asked."""

    def __iter__(self):
        return iter(batches(4))


LOADERS = {
    "list": lambda: batches(4),
    "loader": lambda: torch.utils.data.DataLoader(torch.cat(batches(4)), batch_size=3),
    "iterable dataset": lambda: torch.utils.data.DataLoader(Endless(), batch_size=None),
    "sizeless": Sizeless,
    "generator": lambda: (x for x in batches(4)),
}


@pytest.mark.parametrize("kind", LOADERS)
@pytest.mark.parametrize("accumulate", [1, 3])
def test_every_kind_of_loader_gives_the_same_updates(kind, accumulate):
    ends = []
    for make in (LOADERS[kind], LOADERS["list"]):
        model, optimizer = model_and_optimizer()
        loop = Loop(model, optimizer, max_epochs=2, accumulate=accumulate)
        completed = recorded(loop, lambda event, state: getattr(event, "completed", None))
        with loop:
            for _ in loop.epochs():
                for x in loop.batches(make()):
                    loop.backward(loss_of(model, x))
                    loop.update()
        ends.append((loop.result.step, weights(model).tolist(), [c for _, _, c in completed if c is not None]))
    assert ends[0] == ends[1]
    assert ends[0][2] == [True, True]


def test_a_generator_that_was_read_before_is_an_error(parts):
    model, optimizer = parts
    with pytest.raises(ValueError, match=r"the loader gave no batch in epoch 2 \(a generator can be read once"):
        train(Loop(model, optimizer, max_epochs=2), model, (x for x in batches(2)))


@pytest.mark.parametrize("accumulate", [1, 2])
@pytest.mark.parametrize("loader", [[], iter([])])
def test_an_empty_loader_is_an_error(parts, loader, accumulate):
    model, optimizer = parts
    with pytest.raises(ValueError, match="the loader gave no batch in epoch 1"):
        train(Loop(model, optimizer, max_epochs=1, accumulate=accumulate), model, loader)


def test_the_sampler_is_told_the_epoch_from_0(parts):
    model, optimizer = parts
    told = []

    class Sampler(torch.utils.data.SequentialSampler):
        def set_epoch(self, epoch):
            told.append(epoch)

    data = torch.cat(batches(2))
    train(Loop(model, optimizer, max_epochs=3), model, torch.utils.data.DataLoader(data, 3, sampler=Sampler(data)))
    assert told == [0, 1, 2]


def test_requests_are_carried_out_before_the_next_batch_is_drawn(parts):
    model, optimizer = parts
    drawn = []

    def source():
        for i, x in enumerate(batches(5)):
            drawn.append(i)
            yield x

    loop = Loop(model, optimizer, max_epochs=1)
    ask(loop, "step_end", Stop("enough"), once=2)
    train(loop, model, source())
    assert drawn == [0, 1]


def test_an_iterator_of_an_earlier_epoch_raises(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=2)
    kept = None
    with loop:
        for epoch in loop.epochs():
            kept = kept or loop.batches(batches(3))
            if epoch == 1:
                next(kept)
                loop.step_end()
            else:
                with pytest.raises(
                    RuntimeError, match=r"this iterator is of epoch 1; call loop.batches\(loader\) again"
                ):
                    next(kept)


def test_an_iterator_that_outlives_the_run_raises(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    with loop:
        kept = loop.batches(batches(3))
        next(kept)
    with pytest.raises(RuntimeError, match="this iterator is of epoch 1"):
        next(kept)


# -- leaving early -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("held", [False, True])
def test_a_break_in_mid_window_ends_the_update_as_skipped_and_drops_its_gradients(parts, held):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=2, accumulate=2)
    ends = recorded(loop, lambda event, s: (getattr(event, "skipped", None), getattr(event, "completed", None)))
    before, kept = weights(model), []
    with loop:
        for _ in loop.epochs():
            bar = loop.batches(batches(4))  # a progress bar holds on to what it iterates over
            kept += [bar] * held
            for x in bar:
                loop.backward(loss_of(model, x))
                break
            del bar
    assert [end for name, _, end in ends if name in ("step_end", "epoch_end")] == [(True, None), (None, False)] * 2
    assert torch.equal(weights(model), before)
    assert model.weight.grad is None
    assert (loop.result.step, loop.state.skipped) == (0, 2)


def test_return_closes_update_and_epoch_and_the_run_still_evaluates(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=2, evaluate=lambda: {"eval_loss": 1.0})
    lines = recorded(loop)

    def body():
        with loop:
            for _ in loop.epochs():
                for i, x in enumerate(loop.batches(batches(3))):
                    if i == 1:
                        return
                    loop.backward(loss_of(model, x))
                    loop.update()

    body()
    assert lines.names[-6:] == ["step_begin", "step_end", "eval_begin", "eval_end", "epoch_end", "train_end"]
    assert loop.result.status == "completed"


def test_a_batch_without_an_update_is_consumed_and_is_no_update(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)
    lines = recorded(loop)
    with loop:
        for _ in loop.epochs():
            for i, x in enumerate(loop.batches(batches(4))):
                if i == 1:
                    continue
                loop.backward(loss_of(model, x))
                loop.update()
    assert loop.result.step == lines.names.count("step_begin") == 3
    assert loop.state.samples == 12


def test_an_epoch_with_batches_and_no_update_is_an_error(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=1)

    def forgetful():
        with loop:
            for x in loop.batches(batches(2)):
                loss_of(model, x).backward()

    with pytest.raises(RuntimeError, match=r"epoch 1 drew 2 batches and made no update: call loop\.backward"):
        forgetful()


def test_batches_outside_epochs_is_one_epoch_each(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=3)
    ends = recorded(loop, lambda event, state: (state.epoch, getattr(event, "completed", None)))
    with loop:
        for turns in (2, 1, 9, 9):  # the second is left by a break; of the fourth nothing comes
            for i, x in enumerate(loop.batches(batches(2)), 1):
                loop.backward(loss_of(model, x))
                loop.update()
                if i == turns:
                    break
    assert [end for name, _, end in ends if name == "epoch_end"] == [(1, False), (2, False), (3, True)]
    assert loop.result.step == 5


def test_epochs_goes_on_after_a_break(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=3)
    lines = recorded(loop)
    with loop:
        for _ in loop.epochs():
            break
        assert list(loop.epochs()) == [2, 3]
    assert lines.names == ["train_begin", *["epoch_begin", "epoch_end"] * 3, "train_end"]


def test_two_loaders_may_be_drawn_from_side_by_side(parts):
    model, optimizer = parts
    loop = Loop(model, optimizer, max_epochs=2)
    with loop:
        for _ in loop.epochs():
            for x, y in zip(loop.batches(batches(3)), loop.batches(batches(3, seed=2)), strict=True):
                loop.backward(loss_of(model, x) + loss_of(model, y))
                loop.update()
    assert (loop.result.step, loop.state.epoch) == (6, 2)


def test_a_loop_makes_one_run_and_only_inside_its_block(parts):
    loop = Loop(*parts, max_epochs=1)
    with pytest.raises(RuntimeError, match="use the loop inside its block"):
        next(loop.epochs())
    with pytest.raises(RuntimeError, match=r"loop.result is there when the `with` block has ended"):
        _ = loop.result
    with loop:
        pass
    with pytest.raises(RuntimeError, match="a Loop makes one run"), loop:
        pass
    assert str(loop.result) == "completed after update 0"
