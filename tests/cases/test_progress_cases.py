"""Progress bars as they have failed elsewhere: case C75."""

import io

import pytest
import torch

from callbacks import ProgressBar
from eventloop import Loop


def endless():
    while True:
        yield torch.tensor(1.0)


def train(file, batches, **options):
    model = torch.nn.Linear(1, 1)
    loop = Loop(
        model,
        torch.optim.SGD(model.parameters(), lr=0.1),
        accumulate=4,
        evaluate=lambda: loop.mean_over([torch.tensor([1.0])] * 7, lambda batch: {"eval_loss": batch}),
        callbacks=[ProgressBar(file)],
        **options,
    )
    with loop:
        for loss in loop.batches(batches):
            loop.backward(model.weight.sum() * 0 + loss)
            loop.update()
    return file.getvalue()


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_c75_count_and_total_are_both_updates():
    shown = train(io.StringIO(), endless(), max_steps=5)
    assert shown.splitlines()[-1].startswith("completed: 5/5 updates")
    assert "20" not in shown
    assert "35" not in shown


def test_c75_without_any_limit_the_bar_shows_the_count_alone():
    shown = train(io.StringIO(), [torch.tensor(1.0)] * 20)
    assert shown.splitlines()[-1].startswith("completed: 5 updates")
    assert "/" not in shown


@pytest.mark.parametrize("file", [io.StringIO(), Terminal()], ids=["pipe", "terminal"])
def test_c75_control_characters_are_for_terminals_alone(monkeypatch, file):
    monkeypatch.setenv("TERM", "xterm")
    shown = train(file, endless(), max_steps=5)
    assert ("\r" in shown) == file.isatty()
    assert "\x1b" not in shown
