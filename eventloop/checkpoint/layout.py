"""Where each tensor lies in a safetensors file: planned once by torch's own planner, and kept while nothing changes."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any, Final

DTYPES: Final = {
    "float64": "F64",
    "float32": "F32",
    "float16": "F16",
    "bfloat16": "BF16",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e5m2": "F8_E5M2",
    "complex64": "C64",
    "int64": "I64",
    "int32": "I32",
    "int16": "I16",
    "int8": "I8",
    "uint64": "U64",
    "uint32": "U32",
    "uint16": "U16",
    "uint8": "U8",
    "bool": "BOOL",
}
"""The dtypes of the safetensors format, by torch's names."""
ALIASES: Final = "aliases"
SHARDS: Final = "shards"
CACHE_LINE: Final = 64
ALIGNED: Final = 8  # a header's length is a multiple of it, so that every tensor lies on a multiple of its item size


@dataclass(frozen=True, slots=True)
class Entry:
    """One tensor of the file, or the part of it that this process holds.

    Attributes:
        name: the tensor's name; also its key in the file.
        dtype: torch's.
        shape: of what lies in the file.
        start: where it begins, in bytes behind the header.
        size: its bytes.
        whole: the shape of the whole tensor.
        offsets: where the part begins in the whole.
    """

    name: str
    dtype: Any
    shape: tuple[int, ...]
    start: int
    size: int
    whole: tuple[int, ...]
    offsets: tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Layout:
    """What a file holds: its entries in order, and which further names stand for the same tensor."""

    entries: tuple[Entry, ...]
    aliases: Mapping[str, str]

    @property
    def size(self) -> int:
        """The bytes behind the header."""
        return self.entries[-1].start + self.entries[-1].size if self.entries else 0

    def header(self) -> bytes:
        """The beginning of the file, as the safetensors format has it.

        What else there is to tell stands in its free part: further names of a tensor, and of what a part is one.
        """
        facts = {"format": "pt"}
        parts = {e.name: [e.whole, e.offsets] for e in self.entries if e.shape != e.whole}
        facts |= {SHARDS: json.dumps(parts)} if parts else {}
        facts |= {ALIASES: json.dumps(dict(self.aliases))} if self.aliases else {}
        told: dict[str, Any] = {"__metadata__": facts}
        for e in self.entries:
            dtype = DTYPES[str(e.dtype).removeprefix("torch.")]
            told[e.name] = {"dtype": dtype, "shape": e.shape, "data_offsets": [e.start, e.start + e.size]}
        text = json.dumps(told, separators=(",", ":")).encode()
        text += b" " * (-len(text) % ALIGNED)
        return len(text).to_bytes(8, "little") + text


def plan(tensors: Mapping[str, Any]) -> Layout:
    """Lay tensors out; of those that are spread over processes the parts that this one holds, by torch's planner.

    Raises:
        TypeError: a tensor that the format cannot hold; the message names it.
    """
    for name, tensor in tensors.items():
        check(name, tensor)
    aliases = same(tensors)
    parts: list[Entry] = []
    spread: dict[str, Any] = {}
    for name, tensor in tensors.items():
        if name in aliases:
            continue
        if is_spread(tensor):
            spread[name] = tensor
        else:
            shape = tuple(tensor.shape)
            parts.append(Entry(name, tensor.dtype, shape, 0, tensor.nbytes, shape, (0,) * len(shape)))
    if spread:  # loading the planner takes seconds, which a model in one process need not pay
        parts += _planned(spread)
    entries: list[Entry] = []
    start = 0
    for part in sorted(parts, key=_order):
        entries.append(replace(part, start=start))
        start += part.size
    return Layout(tuple(entries), aliases)


def _order(part: Entry) -> tuple[bool, int]:
    """Each lies on a multiple of its item size, and the large ones on whole cache lines: these are copied faster."""
    return part.size % CACHE_LINE != 0, -part.dtype.itemsize


def _planned(tensors: dict[str, Any]) -> Iterator[Entry]:
    from torch.distributed.checkpoint.default_planner import DefaultSavePlanner

    planner = DefaultSavePlanner(flatten_state_dict=False, flatten_sharded_tensors=False)
    planner.set_up_planner(tensors, None, is_coordinator=True)
    plans, _ = planner.create_global_plan([planner.create_local_plan()])
    for item in planner.finish_plan(plans[0]).items:
        data: Any = item.tensor_data
        dtype, shape = data.properties.dtype, tuple(data.chunk.sizes)
        size = math.prod(shape) * dtype.itemsize
        yield Entry(item.index.fqn, dtype, shape, 0, size, tuple(data.size), tuple(data.chunk.offsets))


def signature(tensors: Mapping[str, Any]) -> list[Any]:
    """What a layout depends on: as long as it is the same, so is the layout."""
    told = [(name, tensor.shape, tensor.dtype, tensor.layout) for name, tensor in tensors.items()]
    return [told, same(tensors)]


def same(tensors: Mapping[str, Any]) -> dict[str, str]:
    """Which names stand for a tensor that an earlier name stands for too (tied weights)."""
    seen: dict[Any, str] = {}
    aliases: dict[str, str] = {}
    for name, tensor in tensors.items():
        if not tensor.numel() or tensor.is_meta or tensor.layout is not _strided():
            continue
        memory = local(tensor)
        lazy = tensor.is_conj(), tensor.is_neg()
        key = (memory.data_ptr(), tensor.device, tensor.dtype, tensor.shape, memory.stride(), lazy)
        first = seen.setdefault(key, name)
        if first is not name:
            aliases[name] = first
    return aliases


def is_spread(tensor: Any) -> bool:
    """Whether it is a DTensor, of which this process has a part."""
    return hasattr(tensor, "to_local")


def local(tensor: Any) -> Any:
    """The memory that this process has of a tensor."""
    return tensor.to_local() if is_spread(tensor) else tensor


def _strided() -> Any:
    import torch

    return torch.strided


def check(name: str, tensor: Any) -> None:
    """Whether a file can hold the tensor.

    Raises:
        TypeError: it cannot; the message names it.
    """
    known = str(tensor.dtype).removeprefix("torch.") in DTYPES
    if not known or tensor.is_quantized or tensor.is_meta or tensor.layout is not _strided():
        kind = "meta" if tensor.is_meta else f"{tensor.layout} {tensor.dtype}"
        raise TypeError(f"{name} is a {kind} tensor; a checkpoint holds dense tensors of the dtypes of safetensors")
