"""A resumed run goes on with the data that the interrupted one would have seen next."""

import logging
import weakref
from functools import partial

import pytest
import torch
from data_runs import LOADERS, Keeping, Numbers, own_generator, plain, read, seeded
from data_runs import shuffled as shuffled_numbers
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from torch.utils.data import BatchSampler, DataLoader, RandomSampler

from callbacks import ModelCheckpoint
from eventloop import Loop

DATA = [torch.tensor([float(i)]) for i in range(24)]


def shuffled(size):
    order = RandomSampler(DATA, generator=torch.Generator().manual_seed(5))
    return DataLoader(DATA, batch_sampler=BatchSampler(order, size, drop_last=False))


def seen(folder, loader, max_steps, **options):
    model = torch.nn.Linear(1, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.001)
    found = []
    callbacks = [ModelCheckpoint(every_steps=1)]
    with Loop(model, optimizer, run_dir=folder, max_steps=max_steps, callbacks=callbacks, **options) as loop:
        for _ in loop.epochs():
            for batch in loop.batches(loader):
                found.append(batch.flatten().tolist())
                loop.backward(model(batch).mean())
                loop.update()
    return found


def test_a_generator_inside_a_batch_sampler_is_part_of_the_state(tmp_path):
    whole = seen(tmp_path / "whole", shuffled(2), 20)
    first = seen(tmp_path / "cut", shuffled(2), 9)
    assert first + seen(tmp_path / "cut", shuffled(2), 20, resume="auto") == whole


def test_a_loader_that_has_become_shorter_is_said(tmp_path, caplog):
    seen(tmp_path, shuffled(2), 9)
    with caplog.at_level(logging.WARNING, logger="eventloop"):
        seen(tmp_path, shuffled(8), 10, resume="auto")
    assert "wound the loader forward over 3 batches of epoch 1" in caplog.messages
    assert "9 were made before the checkpoint: the loader is another one, and data is left out" in caplog.messages


# -- every loader, wherever it is cut ----------------------------------------------------------------------------------


def checkpoint_of(folder, step):
    return folder / "checkpoints" / f"step-{step:08d}"


@given(
    kind=st.sampled_from(list(LOADERS)),
    accumulate=st.integers(1, 3),
    own_update=st.booleans(),
    n=st.integers(5, 9),
    where=st.floats(0, 1, exclude_max=True),
)
@settings(max_examples=25, deadline=None)
def test_the_rest_of_the_data_is_what_the_uncut_run_had_whatever_the_loader_and_the_cut(
    tmp_path_factory, kind, accumulate, own_update, n, where
):
    """Cuts in mid-epoch, in mid-accumulation and on both sides of an epoch's edge.

    Breaks seen: the loader's state taken behind the batch that was read ahead; not loaded at an epoch's edge; the
    iterator of the next epoch made in the random states of the one before.
    """
    assume(not (own_update and accumulate > 1 and "global" in kind))  # see `Reading.peek`
    folder, options = tmp_path_factory.mktemp("run"), {"accumulate": accumulate, "own_update": own_update}
    whole = read(folder / "whole", LOADERS[kind](n, 2), **options)
    step = 1 + int(where * (len(whole.at) - 1))
    rest = read(folder / "rest", LOADERS[kind](n, 2), resume=checkpoint_of(folder / "whole", step), seed=99, **options)
    assert rest.batches == whole.batches[whole.at[step] :]
    assert rest.weights == whole.weights
    assert whole.ids(1) == whole.ids(2) == list(range(n))


@pytest.mark.parametrize("kind", LOADERS)
def test_on_both_sides_of_an_epochs_edge_no_sample_is_lost_or_repeated(tmp_path, kind):
    """Break seen: a loader that says its end again when it is given the state of it is believed."""
    whole = read(tmp_path / "whole", LOADERS[kind](6, 2), accumulate=2)
    assert whole.at == {1: 2, 2: 3, 3: 5, 4: 6}
    for step in (1, 2, 3):
        path = checkpoint_of(tmp_path / "whole", step)
        rest = read(tmp_path / str(step), LOADERS[kind](6, 2), accumulate=2, resume=path, seed=99)
        assert (rest.batches, rest.weights) == (whole.batches[whole.at[step] :], whole.weights)


@pytest.mark.parametrize("loader", [shuffled_numbers, partial(seeded, noise=True)])
def test_workers_that_read_ahead_leave_no_gap(tmp_path, loader):
    whole = read(tmp_path / "whole", loader(9, 2, workers=2))
    for step in (2, 5, 6):
        path = checkpoint_of(tmp_path / "whole", step)
        rest = read(tmp_path / str(step), loader(9, 2, workers=2), resume=path, seed=99)
        assert rest.batches == whole.batches[whole.at[step] :]


@pytest.mark.parametrize("kind", LOADERS)
def test_an_epoch_over_two_loaders_goes_on_in_the_one_that_was_cut(tmp_path, kind):
    """Break seen: the first loader of the epoch is read once more when the second was cut."""
    whole = read(tmp_path / "whole", LOADERS[kind](5, 2), own_generator(6, 2))
    for step in range(1, 12):
        path = checkpoint_of(tmp_path / "whole", step)
        rest = read(tmp_path / str(step), LOADERS[kind](5, 2), own_generator(6, 2), resume=path, seed=99)
        assert rest.batches == whole.batches[step:], step
        assert rest.weights == whole.weights


def test_two_loaders_read_side_by_side_both_go_on(tmp_path):
    whole = read(tmp_path / "whole", seeded(8, 2), own_generator(8, 2), together=True)
    for step in (1, 3, 5):
        path = checkpoint_of(tmp_path / "whole", step)
        rest = read(tmp_path / str(step), seeded(8, 2), own_generator(8, 2), together=True, resume=path, seed=99)
        assert rest.batches == whole.batches[whole.at[step] :]


def test_a_loader_that_the_body_has_left_for_the_next_one_is_not_gone_back_to(tmp_path):
    """Break seen: only a loader that has come to its end counts as done with."""
    whole = read(tmp_path / "whole", seeded(8, 2), own_generator(8, 2), of_each=2)
    for step in (3, 7):
        path = checkpoint_of(tmp_path / "whole", step)
        rest = read(tmp_path / str(step), seeded(8, 2), own_generator(8, 2), of_each=1, resume=path, seed=99)
        assert rest.batches[0] == whole.batches[step]


def test_one_stateful_loader_twice_in_an_epoch_goes_on_in_its_second_reading(tmp_path):
    first, second = Keeping(5, 2, says_end_again=True), Keeping(5, 2, says_end_again=True)
    whole = read(tmp_path / "whole", first, first)
    for step in (2, 4, 5, 8):
        rest = read(tmp_path / str(step), second, second, resume=checkpoint_of(tmp_path / "whole", step))
        assert rest.batches == whole.batches[step:], step
        second = Keeping(5, 2, says_end_again=True)


# -- how it gets there -------------------------------------------------------------------------------------------------


def test_a_sampler_that_can_skip_is_told_to_and_nothing_is_read_in_vain(tmp_path, caplog):
    """Break seen: the loader is wound forward all the same."""
    read(tmp_path, seeded(20, 2), max_steps=7)
    loader = seeded(20, 2)
    with caplog.at_level(logging.WARNING, logger="eventloop"):
        read(tmp_path, loader, max_steps=9, resume="auto")
    assert loader.dataset.reads == 4
    assert not any("wound" in text for text in caplog.messages)


def test_a_loader_with_a_state_is_not_wound(tmp_path, caplog):
    read(tmp_path, Keeping(20, 2, says_end_again=False), max_steps=7)
    with caplog.at_level(logging.WARNING, logger="eventloop"):
        read(tmp_path, Keeping(20, 2, says_end_again=False), max_steps=9, resume="auto")
    assert not any("wound" in text for text in caplog.messages)


def test_a_shorter_loader_that_is_skipped_is_said_too(tmp_path, caplog):
    read(tmp_path, seeded(20, 2), max_steps=7)
    with caplog.at_level(logging.WARNING, logger="eventloop"):
        read(tmp_path, seeded(8, 2), max_steps=9, resume="auto")
    assert "7 were made before the checkpoint: the loader is another one, and data is left out" in caplog.messages


def test_an_iterator_in_mid_epoch_is_a_warning_and_goes_on_from_where_it_stands(tmp_path, caplog):
    read(tmp_path, plain(20, 2), max_steps=3)
    data = iter(plain(20, 2)[3:])
    with caplog.at_level(logging.WARNING, logger="eventloop"):
        rest = read(tmp_path, data, max_steps=5, resume="auto")
    assert [batch[0][0] for _, batch in rest.batches] == [6.0, 8.0]
    assert any(text.startswith("3 batches of epoch 1 were made before the checkpoint, but") for text in caplog.messages)


def test_the_iterator_is_let_go_when_the_body_leaves_it():
    """Break seen: it is kept, and its workers with it, until the next epoch."""

    class Once:
        def __init__(self):
            self.held = weakref.WeakSet()

        def __iter__(self):
            batches = (batch for batch in plain(8, 2))
            self.held.add(batches)
            return batches

    loader, model = Once(), torch.nn.Linear(1, 1)
    with Loop(model, torch.optim.SGD(model.parameters(), lr=0.1), max_epochs=1) as loop:
        for _ in loop.epochs():
            for batch in loop.batches(loader):
                loop.backward(model(batch[:, :1]).mean())
                loop.update()
                assert len(loader.held) == 1
                break
            assert not loader.held


def test_a_dataset_is_told_the_epoch_from_0_as_the_samplers_are():
    told = []
    data = Numbers(4)
    data.set_epoch = told.append
    read(None, DataLoader(data, batch_size=2))
    assert told == [0, 1]
