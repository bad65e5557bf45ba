"""A resume with workers that live on from epoch to epoch: one seed for them in the whole run, not one an epoch."""

import pytest
import torch
from data_runs import Numbers, read
from torch.utils.data import DataLoader, Dataset, get_worker_info

from eventloop.data import SeededDataset, SeededSampler


class WorkerSeeds(Dataset):
    """Each sample with the seed of its worker, and the epoch that the worker's copy was told."""

    epoch = -1

    def set_epoch(self, epoch):
        self.epoch = epoch

    def __len__(self):
        return 6

    def __getitem__(self, index):
        return torch.tensor([float(index), float(get_worker_info().seed % 2**20), float(self.epoch)])


def persistent(data, **options):
    return DataLoader(data, 2, num_workers=2, persistent_workers=True, **options)


LOADERS = {
    "shuffled": lambda: persistent(Numbers(6), shuffle=True),
    "a generator of its own": lambda: persistent(Numbers(6), shuffle=True, generator=torch.Generator().manual_seed(5)),
    "seeded": lambda: persistent(SeededDataset(Numbers(6, noise=True)), sampler=SeededSampler(6)),
    "worker seeds": lambda: persistent(WorkerSeeds(), shuffle=True),
}


def run(folder, *kinds, twice=False, **options):
    """A run over new loaders, whose workers are ended with it."""
    loaders = [LOADERS[kind]() for kind in kinds]
    try:
        return read(folder, *loaders * (1 + twice), **options)
    finally:
        for loader in loaders:
            if loader._iterator is not None:
                loader._iterator._shutdown_workers()


def same_rest(folder, steps, *kinds, **options):
    """Whether a run that is cut at one of the steps goes on as the uncut one, by step."""
    whole, same = run(folder / "whole", *kinds, **options), {}
    for step in steps:
        path = folder / "whole" / "checkpoints" / f"step-{step:08d}"
        rest = run(folder / str(step), *kinds, resume=path, seed=99, **options)
        same[step] = (rest.batches, rest.weights) == (whole.batches[step:], whole.weights)
    return same


@pytest.mark.parametrize("kind", LOADERS)
def test_a_kept_iterator_is_made_once_wherever_the_run_is_cut(tmp_path, kind):
    """In the midst of the first and of later epochs, and at both edges.

    Breaks seen: the resumed epoch makes its iterator, and so draws a seed that the uncut run has not drawn; the workers
    copy the dataset in the epoch of the cut.
    """
    assert all(same_rest(tmp_path, (2, 3, 4, 6, 8), kind, max_epochs=3).values())


def test_a_run_that_was_cut_twice_still_knows_how_its_first_iterator_was_made(tmp_path):
    """Break seen: the second process forgets the states of the first one's beginning."""
    kind, again = "worker seeds", {"seed": 99, "resume": "auto"}
    whole = run(None, kind, max_epochs=4)
    run(tmp_path, kind, max_epochs=4, max_steps=4)
    run(tmp_path, kind, max_epochs=4, max_steps=9, **again)
    rest = run(tmp_path, kind, max_epochs=4, **again)
    assert (rest.batches, rest.weights) == (whole.batches[9:], whole.weights)


def test_a_loader_that_was_done_with_before_the_cut_is_kept_too(tmp_path):
    """Break seen: only the loader in which the run was cut has its first iterator back."""
    assert all(same_rest(tmp_path, (4, 6, 11), "shuffled", "worker seeds", max_epochs=3).values())


def test_one_loader_twice_in_an_epoch_has_one_iterator(tmp_path):
    """Break seen: the place of an epoch, not the loader, has the iterator."""
    assert all(same_rest(tmp_path, (2, 5, 6, 8, 10), "worker seeds", twice=True).values())
