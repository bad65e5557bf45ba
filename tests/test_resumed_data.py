"""A resumed run goes on with the data that the interrupted one would have seen next."""

import logging

import torch
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
