"""The demo: a small CNN on scikit-learn's digits, stopped by a real rise of its evaluation loss."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from tabulate import tabulate
from torch import Tensor, nn
from torch.utils.data import DataLoader, TensorDataset

from .callbacks import (
    EarlyStopping,
    GradNormMonitor,
    JSONLLogger,
    LearningRateMonitor,
    ModelCheckpoint,
    NaNGuard,
    ProgressBar,
    SignalStop,
    TensorBoardLogger,
    WarmupCosine,
)
from .events import StepEnd
from .explain import HandlerCost
from .loop import Loop
from .testing import full_disk

FULL_AT = 48 * 1024  # bytes a file: the checkpoints of the small network fit, the logs of a run do not
TRAINING_IMAGES = 400  # so few that the network begins to learn them by heart: then eval_loss rises


def load_digits() -> tuple[TensorDataset, TensorDataset]:
    """Training and evaluation images (N, 1, 8, 8) in [0, 1] with their labels (N,).

    Raises:
        ImportError: scikit-learn, which holds the images, is not installed.
    """
    try:
        from sklearn.datasets import load_digits as digits
    except ImportError:
        raise ImportError("the demo's images are in scikit-learn: pip install 'torch-eventloop[demo]'") from None
    data = digits()
    images = torch.tensor(data.images, dtype=torch.float32).unsqueeze(1) / 16
    labels = torch.tensor(data.target)
    order = torch.randperm(len(labels), generator=torch.Generator().manual_seed(0))
    parts = order[:TRAINING_IMAGES], order[TRAINING_IMAGES:]
    training, evaluation = (TensorDataset(images[part], labels[part]) for part in parts)
    return training, evaluation


def network(width: int) -> nn.Module:
    """Two convolutions and a linear layer."""
    return nn.Sequential(
        nn.Conv2d(1, width, 3, padding=1),
        nn.ReLU(),
        nn.Conv2d(width, 2 * width, 3, padding=1),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Flatten(),
        nn.Linear(32 * width, 10),
    )


def run_demo(
    run_dir: Path, *, patience: int, max_epochs: int, seed: int, resume: bool, fail_logger: bool
) -> tuple[str, int]:
    """Train; returns the story of the run, and the process's exit code."""
    torch.manual_seed(seed)
    training, evaluation = load_digits()
    model = network(4 if fail_logger else 32)
    optimizer = torch.optim.AdamW(model.parameters(), lr=3e-3)
    train_loader = DataLoader(training, batch_size=32, shuffle=True)
    eval_loader = DataLoader(evaluation, batch_size=512)

    def measure(batch: list[Tensor]) -> dict[str, Tensor]:
        images, labels = batch
        scores = model(images)
        return {
            "eval_loss": F.cross_entropy(scores, labels),
            "eval_accuracy": (scores.argmax(1) == labels).float().mean(),
        }

    callbacks = [
        WarmupCosine(warmup_steps=26, eta_min=1e-4),
        LearningRateMonitor(),
        GradNormMonitor(),
        NaNGuard(),
        TensorBoardLogger(every=1 if fail_logger else 10),
        JSONLLogger(every=1 if fail_logger else 10),
        ProgressBar(),
        EarlyStopping("eval_loss", patience=patience, restore_best=True),
        ModelCheckpoint("eval_loss", save_top_k=2),
        SignalStop(),
    ]
    loop = Loop(
        model,
        optimizer,
        run_dir=run_dir,
        journal="short" if fail_logger else "full",  # the disk that fills up is the loggers'
        max_epochs=max_epochs,
        evaluate=lambda: loop.mean_over(eval_loader, measure),
        callbacks=callbacks,
        resume="auto" if resume else None,
    )
    with loop, full_disk(FULL_AT) if fail_logger else contextlib.nullcontext():
        for _ in loop.epochs():
            for images, labels in loop.batches(train_loader):
                loop.backward(F.cross_entropy(model(images), labels))
                loop.update()
    return _story(loop, run_dir), loop.result.exit_code


def _story(loop: Loop, run_dir: Path) -> str:
    result = loop.result
    best = f"best: {result.best}" if result.best else "best: none"
    failures = [f"  {f}" for f in result.failures] or ["  none"]
    lost = [
        f"  {name}: {told['dropped']} rows lost of {told['dropped'] + told['written']}"
        for name, thing in loop.bus.objects
        if hasattr(thing, "summary") and (told := thing.summary()).get("dropped")
    ]
    return "\n".join(
        [
            "",
            str(result),
            f"updates not spent: {result.unspent} of {result.total}",
            best,
            "",
            str(loop.bus.explain(StepEnd)),
            "",
            _cost_table(loop.bus.costs()),
            "",
            "failures:",
            *failures,
            *(["lost:", *lost] if lost else []),
            "",
            f"curves: tensorboard --logdir {run_dir / 'tb'}",
            f"with other settings, untrained: eventloop replay {run_dir} --set EarlyStopping.patience=1,2,5",
            f"everything else: {run_dir}",
        ]
    )


def _cost_table(costs: list[HandlerCost]) -> str:
    rows: list[list[Any]] = [
        [c.name, c.event, c.calls, c.mean * 1e6, c.worst * 1e6, c.seconds * 1e3] for c in costs if c.calls
    ]
    headers = ["handler", "event", "calls", "mean us", "worst us", "total ms"]
    return tabulate(rows[:12], headers, floatfmt=".1f")
