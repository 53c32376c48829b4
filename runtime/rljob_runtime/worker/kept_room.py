"""Host memory that takes a kept state in, step after step: of this process, or of files that outlive it."""

import os
from math import prod
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from rljob_runtime.devices.host_arena import HostArena
from rljob_runtime.errors import WorkerError

Outline = dict[str, dict[str, list[Any]]]
"""[shape, type] of each tensor, by part and by name."""


class Room:
    """Memory of this process, taken anew where the outline changes."""

    def __init__(self) -> None:
        self._outline: Outline | None = None
        self._parts: dict[str, dict[str, Tensor]] = {}

    def of(self, outline: Outline) -> dict[str, dict[str, Tensor]]:
        """Tensors of this outline, over those that were given before."""
        if outline != self._outline:
            self._outline, self._parts = None, {}
            sizes = {
                (part, name): _num_bytes(*of)
                for part, tensors in outline.items()
                for name, of in tensors.items()
            }
            arena = HostArena(self._make, sizes)
            self._parts = {
                part: {name: _shaped(arena[part, name], *of) for name, of in tensors.items()}
                for part, tensors in outline.items()
            }
            self._outline = outline
        return self._parts

    def _make(self, size: int) -> Tensor:
        return torch.empty(size, dtype=torch.uint8)


class FileRoom(Room):
    """Files of a folder, of a file system in memory; what lies there already stays."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder, self._blocks = folder, 0

    def of(self, outline: Outline) -> dict[str, dict[str, Tensor]]:
        """Files from the first on. Raises WorkerError where there is no room."""
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
    found = getattr(torch, name.removeprefix("torch."))
    assert isinstance(found, torch.dtype), f"{name} is no type of tensors"
    return found
