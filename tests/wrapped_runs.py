"""Runs of wrapped models, in a process of their own: a process group is the process's, and FSDP changes classes."""

import logging
import os
from pathlib import Path

import torch
from torch import nn
from torch.nn.functional import cross_entropy
from torch.nn.parallel import DistributedDataParallel

from callbacks import ModelCheckpoint
from eventloop import Loop
from eventloop.checkpoint import export, load, save

X = torch.randn(12, 4, generator=torch.Generator().manual_seed(3))
Y = (X[:, 0] > 0).long()


def network(seed):
    """Tied weights, a buffer, an integer buffer and a part that is compiled by itself."""
    torch.manual_seed(seed)
    model = nn.Sequential(nn.Linear(4, 4), nn.BatchNorm1d(4), nn.ReLU(), nn.Linear(4, 4), nn.Linear(4, 2))
    model[3].weight = model[0].weight
    return model


def sharded(model):
    from torch.distributed.fsdp import fully_shard

    for part in (model[4], model):
        fully_shard(part)
    return model


WRAPS = {
    "plain": lambda model: model,
    "compiled": lambda model: torch.compile(model, backend="eager"),
    "ddp": DistributedDataParallel,
    "ddp_compiled": lambda model: torch.compile(DistributedDataParallel(model), backend="eager"),
    "fsdp2": sharded,
}


def group(folder):
    """A process group of one, which meets in a file."""
    os.environ["GLOO_SOCKET_IFNAME"] = "lo"
    torch.distributed.init_process_group("gloo", init_method=f"file://{folder}/store", rank=0, world_size=1)


def whole(value):
    """All of a tensor, of which this process may have a part."""
    return value.full_tensor() if hasattr(value, "full_tensor") else value


def train(wrap, run_dir, max_steps, seed=0):
    """Two batches an epoch; the losses, the plain weights at the end and the optimizer's moments."""
    wrapped = WRAPS[wrap](network(seed))
    optimizer = torch.optim.AdamW(wrapped.parameters(), lr=0.05)
    losses, saver = [], ModelCheckpoint(save_top_k=-1, every_steps=1)
    with Loop(wrapped, optimizer, run_dir=run_dir, max_steps=max_steps, resume="auto", callbacks=[saver]) as loop:
        for _ in loop.epochs():
            for i in loop.batches([slice(6), slice(6, 12)]):
                loss = cross_entropy(wrapped(X[i]), Y[i])
                losses.append(loss.item())
                loop.backward(loss)
                loop.update()
    moments = [
        {key: whole(value).tolist() for key, value in s.items()} for s in optimizer.state_dict()["state"].values()
    ]
    inner = getattr(wrapped, "_orig_mod", wrapped)
    inner = getattr(inner, "module", inner)
    return losses, {name: whole(value).detach().clone() for name, value in inner.state_dict().items()}, moments


def cut_and_exported(wrap, other, folder, pipe):
    """Train five updates at once, and the same with a cut behind the third, resumed in another wrapper; export both."""
    logging.getLogger("eventloop").setLevel(logging.ERROR)
    folder = Path(folder)
    group(folder)
    losses, weights, moments = train(wrap, folder / "whole", 5)
    first, _, _ = train(wrap, folder / "cut", 3)
    rest, again, moments_again = train(other, folder / "cut", 5, seed=9)
    export(folder / "cut", folder / "weights.safetensors")
    told = {
        "losses": (losses, first + rest),
        "moments": (moments, moments_again),
        "weights": ({k: v.tolist() for k, v in weights.items()}, {k: v.tolist() for k, v in again.items()}),
    }
    torch.distributed.destroy_process_group()
    pipe.send(told)


def saved_and_loaded(wrap, folder, pipe):
    """Two modules under one optimizer in a loop of one's own: saved, loaded into others, and updated."""
    logging.getLogger("eventloop").setLevel(logging.ERROR)
    group(folder)
    first, other = (both(wrap, seed) for seed in (0, 9))
    update(first)
    save(folder, first, step=1)
    report = load(folder, other)
    for parts in (first, other):
        update(parts)
    told = [numbers_of(parts) for parts in (first, other)]
    torch.distributed.destroy_process_group()
    pipe.send((report.restored, *told))


def both(wrap, seed):
    model, critic = WRAPS[wrap](network(seed)), WRAPS[wrap](network(seed + 1))
    optimizer = torch.optim.AdamW([*critic.parameters(), *model.parameters()], lr=0.05)
    return {"model": model, "critic": critic, "optimizer": optimizer}


def update(parts):
    parts["optimizer"].zero_grad()
    (cross_entropy(parts["model"](X), Y) + cross_entropy(parts["critic"](X), Y)).backward()
    parts["optimizer"].step()


def numbers_of(parts):
    states = parts["optimizer"].state_dict()["state"].values()
    weights = [*parts["model"].state_dict().values(), *parts["critic"].state_dict().values()]
    moments = [{key: whole(value).tolist() for key, value in state.items()} for state in states]
    return moments, [whole(value).tolist() for value in weights]
