"""The one copy for which a save stalls the training: into host memory that is kept from save to save."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from .layout import Layout, local, plan, signature
from .tensor_file import write_tensors


class Staging:
    """Host memory for the tensors of one file. One save at a time may use it."""

    def __init__(self) -> None:
        self._copied: list[Any] = []  # events of the devices that still copy
        self.release()

    def release(self) -> None:
        """Give the memory back."""
        self._signature: list[Any] = []
        self._layout = Layout((), {})
        self._buffer: Any = None
        self._views: list[Any] = []

    def take(self, tensors: Mapping[str, Any]) -> Layout:
        """Copy the tensors as they are now; returns where each lies.

        On a CUDA device the copies are put into the current stream and not waited for: whatever changes the tensors
        comes behind them in that stream.

        Raises:
            TypeError: a tensor that the format cannot hold.
            RuntimeError: there is no memory for the copy.
        """
        import torch

        now = signature(tensors)
        if now != self._signature or self._buffer is None:
            self._signature = []
            self._layout = plan(tensors)
            self._make_room(any(tensor.is_cuda for tensor in tensors.values()))
            self._signature = now
        with torch.no_grad():
            sources = [_plain(tensors[entry.name]) for entry in self._layout.entries]
            if sources:
                torch._foreach_copy_(self._views, sources, non_blocking=True)
        for device in {source.device for source in sources}:
            self._note(device)
        return self._layout

    def _make_room(self, pinned: bool) -> None:
        import torch

        size = self._layout.size
        self._views = []
        if self._buffer is None or self._buffer.numel() < size or (pinned and not self._buffer.is_pinned()):
            self._buffer = None  # let go of the old one first
            self._buffer = torch.empty(size, dtype=torch.uint8, pin_memory=pinned)
        for e in self._layout.entries:
            self._views.append(self._buffer[e.start : e.start + e.size].view(e.dtype).view(e.shape))

    def _note(self, device: Any) -> None:
        import torch

        if device.type == "cuda":
            event = torch.cuda.Event()  # type: ignore[no-untyped-call]  # torch leaves it untyped
            event.record(torch.cuda.current_stream(device))
            self._copied.append(event)
        elif device.type != "cpu":
            torch.accelerator.synchronize(device)

    def data(self) -> memoryview:
        """The bytes behind the header, once they are all there. For the writer's thread."""
        for event in self._copied:
            event.synchronize()
        self._copied.clear()
        return memoryview(self._buffer.numpy())[: self._layout.size]


def _plain(tensor: Any) -> Any:
    """Its memory here; conjugate and negative views are lazy bits that a copy of many at once would lose."""
    return local(tensor).resolve_conj().resolve_neg()


def write_file(path: Path, tensors: Mapping[str, Any]) -> tuple[int, str]:
    """Write tensors as one safetensors file, synced; returns its size and hash.

    Raises:
        TypeError: a tensor that the format cannot hold; the message names it.
        OSError: the disk.
    """
    staging = Staging()
    header = staging.take(tensors).header()
    return write_tensors(path, header, staging.data())
