"""Checkpoints: how long a save stalls the training, and how long it takes until it is on the disk.

Both are read on the wall, for a save waits for memory and for the disk. Each way to save has written, synced and
removed its files before the next one's turn, and finds the processor's caches full of something else.
"""

from __future__ import annotations

import gc
import os
import random
import shutil
import time
import warnings
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator
from itertools import count, cycle, islice
from pathlib import Path
from tempfile import TemporaryDirectory, gettempdir
from typing import Any, Final, NamedTuple

import torch
from torch import Tensor, nn
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_saver import async_save, save

from eventloop.checkpoint import Checkpoints
from eventloop.checkpoint.service import Stateful
from eventloop.model import Model
from eventloop.optimizers import Optimizers

from .plain import KeptBuffers
from .size import Saved, Size
from .table import Row
from .timing import Samples

OURS: Final = "Checkpoints.save"
BASES: Final = ("copy", "write")
PEERS_EVERY: Final = 3  # rounds: they take their time, and no verdict hangs on them
STALL: Final = 1.1  # of one copy
DURABLE: Final = 1.6  # of the same bytes written and synced
SCRATCH: Final = 256 << 20  # bytes that push what was used before out of the caches
ROOM: Final = 8  # times a state: all the copies of it that are kept, and files

Way = Callable[[Path], Callable[[], object]]
"""Saves under a new path; returns when the training may go on, with what waits until the bytes are on the disk."""


class Spent(NamedTuple):
    """What one save took, in nanoseconds."""

    stall: float  # on the wall, until the training could go on
    cpu: float  # of the training thread, until then
    durable: float  # on the wall, until it was on the disk


class Training:
    """A model and AdamW after its first update."""

    def __init__(self, saved: Saved) -> None:
        torch.manual_seed(0)
        sizes = islice(cycle(saved.floats), saved.parameters)
        self.model = nn.ParameterList([nn.Parameter(torch.rand(floats)) for floats in sizes])
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        for parameter in self.model:
            parameter.grad = parameter.detach().clone()
        self.optimizer.step()
        self.optimizer.zero_grad()

    def state(self) -> dict[str, Any]:
        """As one saves it by hand."""
        return {"model": self.model.state_dict(), "optimizer": self.optimizer.state_dict()}

    def tensors(self) -> list[Tensor]:
        """All that is in it."""
        moments = [value for state in self.optimizer.state.values() for value in state.values()]
        return [parameter.detach() for parameter in self.model] + moments


class Ours(Checkpoints):
    """The service as `Loop` has it."""

    def __init__(self, root: Path, training: Training) -> None:
        super().__init__(root, "bench", background=True)
        model = Model(training.model)
        self._of_training: dict[str, Stateful] = {
            "model": model,
            "optimizer": Optimizers({"": training.optimizer}, model.names),
        }
        self._step = count(1)
        self.keep("bench", frozenset())

    def begin(self, path: Path) -> Callable[[], object]:
        """The next step's, beside the others; the one before is removed once it is there."""
        return self.save(next(self._step), self._of_training, {"bench": ["last"]}, {}).result

    def idle(self) -> None:
        """Wait until the thread has nothing left to do."""
        self._submit(int).result()


def ways(training: Training, plain: KeptBuffers, ours: Ours, stager: DefaultStager) -> dict[str, Way]:
    """The ways to save, by name."""

    def copy(path: Path) -> Callable[[], object]:
        plain.copy()
        return lambda: None

    def write(path: Path) -> Callable[[], object]:
        plain.write(path)
        return lambda: None

    def torch_save(path: Path) -> Callable[[], object]:
        with path.open("xb") as file:
            torch.save(training.state(), file)
            file.flush()
            os.fsync(file.fileno())
        return lambda: None

    def dcp_save(path: Path) -> Callable[[], object]:
        save(training.state(), checkpoint_id=path, no_dist=True)
        return lambda: None

    def dcp_async_save(path: Path) -> Callable[[], object]:
        future: Any = async_save(training.state(), checkpoint_id=path, no_dist=True, async_stager=stager)
        return future.result  # type: ignore[no-any-return]  # torch's

    peers = {"torch.save + fsync": torch_save, "dcp.save": dcp_save, "dcp.async_save": dcp_async_save}
    return {OURS: ours.begin, **peers, "copy": copy, "copy again": copy, "write": write,
            "write again": write}  # fmt: skip


class Bench:
    """Ways to save one state, each in its turn in a folder that holds nothing else."""

    def __init__(self, training: Training, folder: Path) -> None:
        self._folder = folder
        start = time.perf_counter_ns()
        plain = KeptBuffers(training.tensors())
        plain.copy()
        self.first_copy = time.perf_counter_ns() - start
        self._ours = Ours(folder / "checkpoints", training)
        self._stager = DefaultStager(StagingOptions(False, False, False, False))  # kept, so its buffers are too
        self._ways = ways(training, plain, self._ours, self._stager)
        self._scratch = scratch_for(plain)

    def once(self, name: str) -> Spent:
        """One save, with nothing else on its way."""
        path, way = self._folder / "new", self._ways[name]
        settle(self._scratch)
        cpu, start = time.thread_time_ns(), time.perf_counter_ns()
        wait = way(path)
        stall, cpu = time.perf_counter_ns() - start, time.thread_time_ns() - cpu
        wait()
        durable = time.perf_counter_ns() - start
        self._ours.idle()
        if path.is_dir():
            shutil.rmtree(path)
        path.unlink(missing_ok=True)
        return Spent(stall, cpu, durable)

    def round(self, *, peers: bool) -> dict[str, Spent]:
        """Ours and the baselines, with or without the peers, in shuffled order."""
        names = [name for name in self._ways if peers or name.startswith((OURS, *BASES))]
        return {name: self.once(name) for name in random.sample(names, len(names))}

    def close(self) -> None:
        """Give thread and memory back."""
        self._ours.close()
        self._stager.close()


def scratch_for(plain: KeptBuffers) -> Tensor:
    """Memory for `settle`."""
    return torch.empty(min(plain.size, SCRATCH), dtype=torch.uint8)


def settle(scratch: Tensor) -> None:
    """Before each measurement: no garbage, and caches that hold nothing of use."""
    gc.collect()
    scratch.fill_(1)


def saves(size: Size) -> Iterator[Row]:
    """Each state, saved in each way."""
    for saved in size.saved:
        yield from measured(saved) if fits(saved) else [Row(f"{saved.name}: no room for it", note="absent")]


def fits(saved: Saved) -> bool:
    """Whether memory and disk have room for all the copies."""
    need = ROOM * 3 * 4 * sum(islice(cycle(saved.floats), saved.parameters))
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    return memory > need and shutil.disk_usage(gettempdir()).free > need


def measured(saved: Saved) -> Iterator[Row]:
    """The rows of one state."""
    with TemporaryDirectory(prefix="bench-") as folder:
        bench = Bench(Training(saved), Path(folder))
        first = bench.once(OURS).stall
        what = f"{saved.name}: the first {OURS}, stall on the wall / buffers and one copy"
        yield Row(what, first / 1e6, bench.first_copy / 1e6, "ms")
        with warnings.catch_warnings():
            warnings.filterwarnings(
                "ignore", "torch.distributed is disabled"
            )  # said whatever no_dist says (torch 2.13)
            bench.round(peers=True)  # what is loaded, and kept, at the first time
            rounds = [bench.round(peers=n % PEERS_EVERY == 0) for n in range(saved.rounds)]
        bench.close()
        yield from compared(saved, rounds)


def compared(saved: Saved, rounds: Iterable[dict[str, Spent]]) -> Iterator[Row]:
    """Each way beside the copy and beside the file."""
    samples: dict[tuple[str, str], Samples] = defaultdict(Samples)
    for spent in rounds:
        for way in [way for way in spent if not way.startswith(BASES)]:
            for column, base in (("stall", "copy"), ("cpu", "copy"), ("durable", "write")):
                three = {"ours": spent[way], "base": spent[base], "again": spent[f"{base} again"]}
                samples[way, column].add({key: getattr(of, column) for key, of in three.items()})
    told = {
        "stall": ("stall on the wall / one copy into kept buffers", STALL),
        "cpu": ("CPU time of the training thread / of that copy", STALL),
        "durable": ("on the wall until durable / the same bytes, one write and fsync", DURABLE),
    }
    for (way, column), found in sorted(samples.items(), key=lambda item: item[0][0] != OURS):
        mine, (what, target) = way == OURS, told[column]
        if mine or column != "cpu":
            judged = target if mine and saved.judged else None
            yield Row.of(f"{saved.name}: {way}, {what}", found.comparison(), judged, "ms")
