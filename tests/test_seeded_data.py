"""Seeded data: order and randomness are functions of (seed, epoch, index), so there is nothing to save."""

import pickle
import random

import numpy
import pytest
import torch
from data_runs import Numbers
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, IterableDataset

from eventloop.data import SeededDataset, SeededSampler


def states():
    return random.getstate(), torch.get_rng_state().tolist(), numpy.random.get_state()[1].tolist()


def samples(dataset, indices):
    return [dataset[i].tolist() for i in indices]


# -- the sampler -------------------------------------------------------------------------------------------------------


@given(st.integers(0, 40), st.integers(0, 2**40), st.integers(0, 5), st.integers(0, 50), st.booleans())
def test_the_order_is_a_permutation_of_seed_and_epoch_and_a_skip_leaves_out_its_beginning(n, seed, epoch, skip, mixed):
    """Break seen: the generator is seeded with the seed alone, or the skip lasts."""
    sampler, other = SeededSampler(n, seed, mixed), SeededSampler(range(n), seed, mixed)
    other.set_epoch(3)
    list(other)
    for one in (sampler, other):
        one.set_epoch(epoch)
    order = list(sampler)
    other.skip(skip)
    assert (list(other), list(other), len(other)) == (order[skip:], order, n)
    assert sorted(order) == list(range(n))


def test_another_epoch_and_another_seed_give_another_order():
    """Break seen: the epoch has no part in the seed."""
    sampler, orders = SeededSampler(50), []
    for epoch in range(3):
        sampler.set_epoch(epoch)
        orders.append(list(sampler))
    orders.append(list(SeededSampler(50, seed=1)))
    assert len({tuple(order) for order in orders}) == 4
    assert list(SeededSampler(4, shuffle=False)) == [0, 1, 2, 3]


def test_what_another_epoch_was_to_skip_is_forgotten():
    sampler = SeededSampler(6, shuffle=False)
    sampler.skip(4)
    sampler.set_epoch(0)
    assert list(sampler) == [4, 5]
    sampler.skip(4)
    sampler.set_epoch(1)
    assert list(sampler) == [0, 1, 2, 3, 4, 5]


def test_the_sampler_neither_reads_nor_moves_the_global_random_states():
    torch.manual_seed(1)
    before, order = states(), list(SeededSampler(9))
    assert states() == before
    torch.manual_seed(2)
    assert list(SeededSampler(9)) == order


# -- the dataset -------------------------------------------------------------------------------------------------------


def test_a_sample_is_a_function_of_seed_epoch_and_index():
    """Break seen: the index, or the epoch, has no part in the seed."""
    data = SeededDataset(Numbers(5, noise=True), seed=3)
    first = samples(data, range(5))
    torch.manual_seed(9)
    assert samples(data, [4, 2])[::-1] == [first[2], first[4]]
    assert samples(data, [numpy.int64(2), torch.tensor(2)]) == [first[2], first[2]]
    data.set_epoch(1)
    again = samples(data, range(5)) + samples(SeededDataset(Numbers(5, noise=True), seed=4), range(5))
    assert len({tuple(sample[1:]) for sample in first + again}) == 15
    data.set_epoch(0)
    assert samples(data, range(5)) == first


def test_the_random_states_are_as_before_even_when_a_sample_fails():
    """Break seen: the states are not put back."""
    data, before = SeededDataset(Numbers(5, noise=True)), states()
    data[0]
    with pytest.raises(IndexError):
        data[7]
    assert states() == before


@pytest.mark.parametrize("persistent", [False, True])
def test_workers_see_the_epoch_and_give_what_the_main_process_gives(persistent):
    """Break seen: the epoch is a plain number, which workers that live on keep from their first epoch."""
    data = SeededDataset(Numbers(6, noise=True))
    loader = DataLoader(data, batch_size=2, num_workers=2, persistent_workers=persistent)
    for epoch in range(3):
        data.set_epoch(epoch)
        assert torch.cat(list(loader)).tolist() == samples(data, range(6))


def test_the_batch_method_of_the_wrapped_dataset_does_not_bypass_the_seeds():
    """Break seen: special methods are passed on like any attribute."""

    class Batched(Numbers):
        def __getitems__(self, indices):
            return [self[i] for i in indices]

    data = SeededDataset(Batched(4, noise=True))
    assert torch.cat(list(DataLoader(data, batch_size=2))).tolist() == samples(data, range(4))


def test_length_attributes_and_the_epoch_are_passed_on_and_a_copy_is_whole():
    data, told = SeededDataset(Numbers(4, noise=True)), []
    assert (len(data), data.n) == (4, 4)
    assert samples(pickle.loads(pickle.dumps(data)), range(4)) == samples(data, range(4))
    data.dataset.set_epoch = told.append
    data.set_epoch(2)
    assert told == [2]
    with pytest.raises(AttributeError, match="nothing_here"):
        data.nothing_here  # noqa: B018  # the reading of it is the test


class Endless(IterableDataset):
    def __iter__(self):
        return iter(range(9))


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: SeededSampler(-1), r"source=-1 must be a whole number >= 0"),
        (lambda: SeededSampler(3, seed=1.5), r"seed=1.5 must be a whole number"),
        (lambda: SeededSampler(3, shuffle="no"), r"shuffle='no' must be True or False"),
        (lambda: SeededSampler(3).skip(-2), r"samples=-2 must be a whole number"),
        (lambda: SeededSampler(3).set_epoch(None), r"epoch=None must be a whole number"),
        (lambda: SeededDataset(Numbers(2), seed=-1), r"seed=-1 must be a whole number"),
        (lambda: SeededDataset(Numbers(2)).set_epoch(-1), r"epoch=-1 must be a whole number"),
        (lambda: SeededDataset(Endless()), r"dataset=.*Endless.* must be a map-style dataset"),
        (lambda: SeededDataset(5), r"dataset=5 must be a map-style dataset"),
    ],
)
def test_a_wrong_argument_is_named_with_its_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()
