"""Read the tensors of a Hugging Face directory, one at a time and, on request, only a slice of one.

`weights` and the export call this. Data is read on request only: names, shapes and dtypes come from the
files' headers.
"""

from collections.abc import Container, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from torch import Tensor

from rljob_api.model.vision import TOWER, language_part
from rljob_api.spec.json_text import read_json
from rljob_runtime.errors import ConfigError, WeightsError
from rljob_runtime.models.config import read_config
from rljob_runtime.models.expert_names import StackIndex, stack_indices
from rljob_runtime.models.vision.names import has_tower, name_of

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
HEAD = "lm_head.weight"
TYPES = {
    "F64": torch.float64, "F32": torch.float32, "F16": torch.float16, "BF16": torch.bfloat16,
    "I64": torch.int64, "I32": torch.int32, "I16": torch.int16, "I8": torch.int8,
    "U8": torch.uint8, "BOOL": torch.bool,
}  # fmt: skip

Box = tuple[slice, ...]
"""One slice per dim, without steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredTensor:
    """Location of a tensor in a file. stack_index: its index in a stack of experts, None if it is not in a
    stack."""

    file: Path
    stored_name: str
    shape: torch.Size
    dtype: torch.dtype
    stack_index: StackIndex | None = None

    def cut(self, box: Box | None) -> "StoredTensor":
        """Return the same tensor with the shape of this box."""
        if box is None:
            return self
        bounds = self._bounds(box)
        return replace(self, shape=torch.Size([end - start for start, end in bounds]))

    def index(self, box: Box) -> tuple[int | slice, ...]:
        """Return the index of a box of this tensor within the stored tensor."""
        bounds = self._bounds(box)
        if self.stack_index is None:
            return tuple(slice(start, end) for start, end in bounds)
        expert, rows = self.stack_index
        (start, end), *other_bounds = bounds
        first = slice(rows.start + start, rows.start + end)
        return expert, first, *(slice(start, end) for start, end in other_bounds)

    def _bounds(self, box: Box) -> list[tuple[int, int]]:
        return [cut.indices(size)[:2] for cut, size in zip(box, self.shape, strict=True)]


class TensorFiles:
    """The tensors by name, from one file or from shards with an index.

    `tensors` are the decoder's, and `tower` those of a vision-language model's tower. A tied head and the
    constant rotary buffers of old checkpoints are left out. So are layers after the last one, which predict
    further tokens (DeepSeek-V3). Raises ConfigError without safetensors, WeightsError for an unreadable or
    missing shard.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._open: dict[Path, Any] = {}
        config = read_config(path)
        language_config = language_part(config)
        self.tensors: dict[str, StoredTensor] = {}
        self.tower: dict[str, StoredTensor] = {}
        for file in _weight_files(path):
            for stored_name, stored in self._list(file):
                name = name_of(stored_name)
                if not _is_left_out(name, language_config):
                    in_tower = has_tower(config) and name.startswith(TOWER)
                    (self.tower if in_tower else self.tensors)[name] = stored

    def split_stacks(self, *, stacked: Container[str] = ()) -> "TensorFiles":
        """List stacks of experts expert by expert, except those named in `stacked`; returns self."""
        listed: dict[str, StoredTensor] = {}
        for name, stored in self.tensors.items():
            listed |= {name: stored} if name in stacked else _by_expert(name, stored)
        self.tensors = listed
        return self

    def read(self, name: str, box: Box | None = None) -> Tensor:
        """Read one tensor, or this box of it."""
        stored = self.tensors.get(name) or self.tower[name]
        handle = self._open[stored.file]
        try:
            if box is None and stored.stack_index is None:
                full: Tensor = handle.get_tensor(stored.stored_name)
                return full
            index = stored.index(box or tuple(slice(0, size) for size in stored.shape))
            tensor: Tensor = handle.get_slice(stored.stored_name)[index]
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{stored.file} cannot be read: {error}; copy it again") from error
        return tensor

    def _list(self, file: Path) -> list[tuple[str, StoredTensor]]:
        try:
            handle: Any = safe_open(file, framework="pt")
            self._open[file] = handle
            headers = {name: handle.get_slice(name) for name in handle.keys()}  # noqa: SIM118
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{file} cannot be read: {error}; copy the model again") from error
        unread = [n for n, header in headers.items() if header.get_dtype() not in TYPES]
        if unread:
            raise WeightsError(
                f"{file} holds tensors of types that are not read here: {', '.join(unread)}; "
                "convert the model to bfloat16"
            )
        return [
            (
                name,
                StoredTensor(
                    file=file,
                    stored_name=name,
                    shape=torch.Size(header.get_shape()),
                    dtype=TYPES[header.get_dtype()],
                ),
            )
            for name, header in headers.items()
        ]


def _by_expert(name: str, stored: StoredTensor) -> dict[str, StoredTensor]:
    indices = stack_indices(name, stored.shape)
    if indices is None:
        return {name: stored}
    return {
        expert_name: StoredTensor(
            file=stored.file,
            stored_name=name,
            shape=torch.Size([stack_index[1].stop - stack_index[1].start, *stored.shape[2:]]),
            dtype=stored.dtype,
            stack_index=stack_index,
        )
        for expert_name, stack_index in indices
    }


def _is_left_out(name: str, config: Mapping[str, object]) -> bool:
    if name.endswith(".inv_freq") or (name == HEAD and config.get("tie_word_embeddings", False)):
        return True
    last, further = config.get("num_hidden_layers"), config.get("num_nextn_predict_layers")
    if not isinstance(last, int) or not further or not name.startswith("model.layers."):
        return False
    layer = name.split(".")[2]
    return layer.isdigit() and int(layer) >= last


def _weight_files(path: Path) -> list[Path]:
    index = path / INDEX_FILE
    if not index.is_file():
        if (path / WEIGHTS_FILE).is_file():
            return [path / WEIGHTS_FILE]
        raise ConfigError(
            f"{path} holds neither {WEIGHTS_FILE} nor {INDEX_FILE}; "
            "convert the model to safetensors (transformers' save_pretrained does)"
        )
    try:
        names = sorted(set(read_json(index)["weight_map"].values()))
        if elsewhere := [name for name in names if Path(name).name != name]:
            raise ValueError(f"{elsewhere[0]!r} is no file's name")
        absent = [name for name in names if not (path / name).is_file()]
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise WeightsError(f"{index} cannot be read: {error!r}; copy the model again") from error
    if absent:
        raise WeightsError(f"{path} lacks {', '.join(absent)}, which {INDEX_FILE} names")
    return [path / name for name in names]
