"""Host memory for a kept state, reused step after step: of this process, or in files that outlive it."""

import os
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rljob_runtime.devices.host_arena import HostArena
from rljob_runtime.errors import WorkerError

Outline = dict[str, dict[str, list[Any]]]
"""[shape, dtype] of each tensor, by part and by name."""


class HostRoom:
    """Memory of this process, reallocated if the outline changes."""

    def __init__(self) -> None:
        self._outline: Outline | None = None
        self._parts: dict[str, dict[str, Tensor]] = {}

    def of(self, outline: Outline) -> dict[str, dict[str, Tensor]]:
        """Return tensors of this outline, which overwrite those returned before."""
        if outline != self._outline:
            self._outline, self._parts = None, {}
            sizes = {
                (part_name, name): _num_bytes(*outline_entry)
                for part_name, tensors in outline.items()
                for name, outline_entry in tensors.items()
            }
            arena = HostArena(self._make, sizes)
            self._parts = {
                part_name: {
                    name: _shaped(arena[part_name, name], *outline_entry)
                    for name, outline_entry in tensors.items()
                }
                for part_name, tensors in outline.items()
            }
            self._outline = outline
        return self._parts

    def _make(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8)


class FileRoom(HostRoom):
    """Files in a folder of an in-memory file system; existing contents are preserved."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._blocks = folder, 0

    def of(self, outline: Outline) -> dict[str, dict[str, Tensor]]:
        """Return tensors in files, starting with the first. Raises WorkerError if there is not enough
        memory."""
        if outline != self._outline:
            self._blocks = 0
        return super().of(outline)

    def _make(self, size: int) -> Tensor:
        file, size = self._folder / f"{self._blocks:04d}", max(size, 1)
        self._blocks += 1
        try:
            with file.open("ab") as opened:
                if os.fstat(opened.fileno()).st_size != size:
                    os.truncate(opened.fileno(), 0)
                    os.posix_fallocate(opened.fileno(), 0, size)
        except OSError as error:
            raise WorkerError(
                f"{file}: no room for {size / 2**20:,.0f} MiB of a second copy of what is trained "
                f"({error.strerror}); give the pod more memory, or use spec.update.redundancy: peer or none"
            ) from error
        return torch.from_file(str(file), shared=True, size=size, dtype=torch.uint8)


def _num_bytes(shape: list[int], dtype: str) -> int:
    return prod(shape) * _type(dtype).itemsize


def _shaped(room: Tensor, shape: list[int], dtype: str) -> Tensor:
    return room.view(_type(dtype)).view(shape)


def _type(name: str) -> torch.dtype:
    dtype = getattr(torch, name.removeprefix("torch."))
    assert isinstance(dtype, torch.dtype), f"{name} is no type of tensors"
    return dtype
