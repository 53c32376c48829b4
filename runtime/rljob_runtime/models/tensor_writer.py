"""Write safetensors files one tensor at a time, in shards with an index if there are several.

`weights` calls this. The format: an 8-byte length, a JSON header with dtype, shape and byte range of each
tensor, then their bytes.
"""

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import prod
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from rljob_runtime.models.tensor_files import INDEX_FILE, TYPES, WEIGHTS_FILE

MAX_SHARD_BYTES = 5 * 10**9
TYPE_NAMES = {dtype: name for name, dtype in TYPES.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorToWrite:
    """A tensor to write. read: called once, when the tensor is written; its result is cast to dtype."""

    name: str
    shape: torch.Size
    dtype: torch.dtype
    read: Callable[[], Tensor]

    @classmethod
    def of(cls, name: str, tensor: Tensor) -> "TensorToWrite":
        """Wrap a tensor that is in memory."""
        return cls(name=name, shape=tensor.shape, dtype=tensor.dtype, read=lambda: tensor)

    @property
    def num_bytes(self) -> int:
        """Return the tensor's bytes in the file."""
        return prod(self.shape) * self.dtype.itemsize


def write_tensors(
    tensors: Iterable[TensorToWrite], folder: Path, *, max_shard_bytes: int = MAX_SHARD_BYTES
) -> None:
    """Write tensors in order; a nonempty shard is closed before it exceeds max_shard_bytes."""
    shards: list[list[TensorToWrite]] = [[]]
    size = 0
    for tensor in tensors:
        if shards[-1] and size + tensor.num_bytes > max_shard_bytes:
            shards.append([])
            size = 0
        shards[-1].append(tensor)
        size += tensor.num_bytes
    if len(shards) == 1:
        write_file(shards[0], folder / WEIGHTS_FILE)
        return
    stem, _, ending = WEIGHTS_FILE.partition(".")
    weight_map: dict[str, str] = {}
    for number, shard in enumerate(shards, start=1):
        file = f"{stem}-{number:05d}-of-{len(shards):05d}.{ending}"
        write_file(shard, folder / file)
        weight_map |= dict.fromkeys((tensor.name for tensor in shard), file)
    total = sum(tensor.num_bytes for shard in shards for tensor in shard)
    _write_json({"metadata": {"total_size": total}, "weight_map": weight_map}, folder / INDEX_FILE)


def write_file(tensors: Sequence[TensorToWrite], path: Path) -> None:
    """Write one safetensors file."""
    # The widest types first, so that every tensor is aligned for readers that map the file.
    ordered = sorted(tensors, key=lambda tensor: -tensor.dtype.itemsize)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    end = 0
    for tensor in ordered:
        start, end = end, end + tensor.num_bytes
        header[tensor.name] = {
            "dtype": TYPE_NAMES[tensor.dtype],
            "shape": list(tensor.shape),
            "data_offsets": [start, end],
        }
    text = json.dumps(header, separators=(",", ":")).encode()
    text += b" " * (-len(text) % 8)
    with path.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for tensor in ordered:
            _write_bytes(tensor, file)


def _write_bytes(tensor: TensorToWrite, file: BinaryIO) -> None:
    contiguous = tensor.read().detach().to("cpu", tensor.dtype).contiguous()
    assert contiguous.shape == tensor.shape, f"{tensor.name} changed its shape while it was saved"
    if contiguous.numel():
        file.write(bytes_in(contiguous))


def _write_json(entries: Mapping[str, object], path: Path) -> None:
    path.write_text(json.dumps(entries, indent=2) + "\n")


def bytes_in(tensor: Tensor) -> memoryview:
    """Copy a tensor's bytes: numpy would keep a live tensor's storage from being freed by its owner."""
    return tensor.reshape(-1).clone().view(torch.uint8).numpy().data
