"""What the tests of the loop share: a small model with its optimizer, batches, and the usual body."""

import torch

from eventloop.testing import Recorder


def model_and_optimizer(lr=0.1, kind=torch.optim.SGD, seed=0):
    torch.manual_seed(seed)
    model = torch.nn.Linear(2, 1)
    return model, kind(model.parameters(), lr=lr)


def batches(n, size=3, seed=1):
    """``n`` batches of inputs, all different."""
    generator = torch.Generator().manual_seed(seed)
    return [torch.randn(size, 2, generator=generator) for _ in range(n)]


def loss_of(model, x):
    return model(x).square().mean()


def train(loop, model, loader, after=lambda: None):
    """The body of the README; ``after`` is the user's own line behind ``loop.update()``."""
    with loop:
        for _ in loop.epochs():
            for x in loop.batches(loader):
                loop.backward(loss_of(model, x))
                loop.update()
                after()
    return loop.result


def weights(model):
    return torch.cat([p.detach().flatten() for p in model.parameters()])


def by_hand(model, optimizer, data, accumulate, epochs, clip=None):
    """Accumulation as one would write it: each loss divided, a short window's gradients scaled up to a mean."""
    norms = []
    for _ in range(epochs):
        for first in range(0, len(data), accumulate):
            window = data[first : first + accumulate]
            for x in window:
                (loss_of(model, x) / accumulate if accumulate > 1 else loss_of(model, x)).backward()
            if len(window) < accumulate:
                for p in model.parameters():
                    p.grad.mul_(accumulate / len(window))
            if clip is not None:
                norms.append(torch.nn.utils.clip_grad_norm_(model.parameters(), clip).item())
            optimizer.step()
            optimizer.zero_grad()
    return norms


class Sizeless:
    def __iter__(self):
        return iter(batches(4))


def recorded(loop, extra=None):
    return Recorder(loop.bus, extra)


def ask(loop, event, request, **options):
    """A handler that always asks for the same."""
    return loop.bus.on(event, lambda event, state: request, **options)
