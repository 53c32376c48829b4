"""Weights as Hugging Face directories and as fingerprints: loading, saving, checksums.

`loading`, the rollout engines, the checkpoints and the weight sync call this. It handles names, shapes and
bytes, not models: a model is its weights by name, as views that share its memory.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Protocol, cast

import torch
from torch import Tensor

from rljob_api.model.vision import TOWER
from rljob_runtime.errors import WeightsError
from rljob_runtime.models.config import read_config
from rljob_runtime.models.expert_names import weight_dtype
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.models.tensor_files import Box, TensorFiles
from rljob_runtime.models.tensor_writer import (
    MAX_SHARD_BYTES,
    TensorToWrite,
    bytes_in,
    write_tensors,
)
from rljob_runtime.models.vision.names import file_name, has_tower

MAX_LISTED_TENSORS = 100
"""Maximum tensors that an error names: an invalid config.json may describe millions."""
NOT_COPIED = (".safetensors", ".index.json", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")

BoxOf = Callable[[str, torch.Size], Box | None]
"""Returns a rank's box of a tensor of this name and full shape; None: the rank has nothing of it."""


class HasShape(Protocol):
    """A tensor, or the description of one in a file."""

    @property
    def shape(self) -> torch.Size:
        """Return the shape of the tensor."""
        ...


class CopyTarget(HasShape, Protocol):
    """A tensor, or an object that is built from one."""

    def copy_(self, source: Tensor, /) -> object:
        """Copy these values into this object."""
        ...


def read_weights(path: Path) -> dict[str, Tensor]:
    """Return all tensors of a Hugging Face directory by name, experts one by one. Raises as `TensorFiles`."""
    return dict(stored_weights(path))


def stored_weights(path: Path) -> Iterator[tuple[str, Tensor]]:
    """Yield all tensors of a Hugging Face directory by name, one at a time."""
    files = TensorFiles(path).split_stacks()
    for name in files.tensors:
        yield name, files.read(name)


def load_weights(
    into: Mapping[str, CopyTarget],
    path: Path,
    *,
    box_of: BoxOf | None = None,
    left_out: Collection[str] = (),
) -> None:
    """Copy a directory's tensors into these, all or none, one at a time.

    into: by Hugging Face name, of the shape of the box that `box_of` returns; without it, full tensors. For a
    vision-language model, those of its decoder, of its vision tower, or of both.
    left_out: tensors that are not loaded.
    Raises as `TensorFiles`, and WeightsError naming every tensor that is missing, extra or misshapen.
    """
    files = TensorFiles(path).split_stacks(stacked=into)
    towers = {name.startswith(TOWER) for name in into}
    listed = ({} if towers == {True} else files.tensors) | (files.tower if True in towers else {})
    stored_in = {n: stored for n, stored in listed.items() if n not in left_out}
    boxes: dict[str, Box | None] = dict.fromkeys(stored_in)
    if box_of is not None:
        named_boxes = ((name, box_of(name, stored.shape)) for name, stored in stored_in.items())
        boxes = {name: box for name, box in named_boxes if box is not None}
    outlines = {name: stored_in[name].cut(box) for name, box in boxes.items()}
    check_weights(outlines, {name: target.shape for name, target in into.items()}, where=str(path))
    with torch.no_grad():
        for name, target in into.items():
            target.copy_(files.read(name, boxes[name]))


def load_weights_into(policy: PolicyModel, path: Path) -> None:
    """Copy a directory's tensors into a full model; see `load_weights`."""
    load_weights(dict(policy.named_hf_parameters()), path)


def check_weights(
    outlines: Mapping[str, HasShape], shapes: Mapping[str, torch.Size], *, where: str
) -> None:
    """Raise WeightsError that names missing, extra and misshapen tensors, the first MAX_LISTED_TENSORS of
    them."""
    problems = [f"{name} is missing" for name in sorted(shapes.keys() - outlines.keys())]
    problems += [f"{name} is not expected" for name in sorted(outlines.keys() - shapes.keys())]
    problems += [
        f"{name} is {list(outlines[name].shape)}, not {list(shapes[name])}"
        for name in sorted(shapes.keys() & outlines.keys())
        if outlines[name].shape != shapes[name]
    ]
    if problems:
        more = (
            f"; and {len(problems) - MAX_LISTED_TENSORS} others"
            if len(problems) > MAX_LISTED_TENSORS
            else ""
        )
        raise WeightsError(
            f"weights of {where} do not fit its config.json ({len(problems)} tensors): "
            f"{'; '.join(problems[:MAX_LISTED_TENSORS])}{more}; use a complete copy of the model"
        )


def save_hf(
    weights: Iterable[tuple[str, Tensor]],
    *,
    folder: Path,
    source: Path | None = None,
    config: Mapping[str, object] | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write a Hugging Face directory by one rename; replaces `folder` if it exists.

    weights: by Hugging Face name, tied ones once; copied to the host one at a time. source, config: as in
    `write_directory`.
    """
    tensors = [TensorToWrite.of(name, tensor) for name, tensor in weights]
    write_directory(
        tensors, folder=folder, source=source, config=config, max_shard_bytes=max_shard_bytes
    )


def write_directory(
    tensors: list[TensorToWrite],
    *,
    folder: Path,
    source: Path | None = None,
    config: Mapping[str, object] | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write a Hugging Face directory like `save_hf`, from tensors that may still be in files.

    source: directory whose other files (tokenizer, chat template, generation settings, config.json) are
    copied, and its vision tower if none of the tensors is of a tower. config: used instead of source's.
    """
    assert source is not None or config is not None, "a model directory needs a config.json"
    entries = dict(config if config is not None else read_config(cast(Path, source)))
    entries.pop("torch_dtype", None)
    entries["dtype"] = str(tensors[0].dtype).removeprefix("torch.")
    if isinstance(text := entries.get("text_config"), dict) and "dtype" in text:
        entries["text_config"] = text | {"dtype": entries["dtype"]}
    if entries.get("num_nextn_predict_layers"):
        entries["num_nextn_predict_layers"] = 0  # `TensorFiles` leaves them out
    named = [*tensors, *_tower_to_copy(tensors, source, entries)]
    tensors = [replace(tensor, name=file_name(tensor.name, entries)) for tensor in named]
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}.draft-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        _copy_other_files(source, draft)
        (draft / "config.json").write_text(json.dumps(entries, indent=2) + "\n")
        write_tensors(tensors, draft, max_shard_bytes=max_shard_bytes)
        _replace(folder, draft)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def weights_checksum(
    weights: Iterable[tuple[str, Tensor]], *, dtype: torch.dtype | None = None
) -> str:
    """Return a digest of names, dtypes, shapes and bytes, in any order (BLAKE2b, 32 hex digits).

    dtype: cast to it first, to compare with an engine that holds the weights in it.
    """
    digest = WeightsDigest(dtype)
    for _ in digest.of(weights):
        pass
    return digest.hex()


class WeightsDigest:
    """Computes `weights_checksum` while another consumer iterates over the weights."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self._dtype, self._lines = dtype, list[str]()

    def of(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """Yield the weights unchanged, adding each to the digest."""
        for name, tensor in weights:
            on_host, dtype = tensor.detach(), self._dtype
            on_host = on_host.to(
                "cpu", weight_dtype(name, dtype) if dtype else on_host.dtype
            ).contiguous()
            digest = hashlib.blake2b(bytes_in(on_host), digest_size=16)
            self._lines.append(f"{name} {on_host.dtype} {list(on_host.shape)} {digest.hexdigest()}")
            yield name, tensor

    def hex(self) -> str:
        """Return the digest of all weights so far."""
        return hashlib.blake2b("\n".join(sorted(self._lines)).encode(), digest_size=16).hexdigest()


def _tower_to_copy(
    tensors: list[TensorToWrite], source: Path | None, config: Mapping[str, object]
) -> list[TensorToWrite]:
    """Return the source's vision tower, if the tensors have none."""
    if (
        source is None
        or not has_tower(config)
        or any(tensor.name.startswith(TOWER) for tensor in tensors)
    ):
        return []
    files = TensorFiles(source)
    return [
        TensorToWrite(
            name=name, shape=stored.shape, dtype=stored.dtype, read=partial(files.read, name)
        )
        for name, stored in files.tower.items()
    ]


def _copy_other_files(source: Path | None, folder: Path) -> None:
    for file in sorted(source.iterdir()) if source is not None else ():
        if file.is_file() and not file.name.startswith(".") and not file.name.endswith(NOT_COPIED):
            shutil.copyfile(file, folder / file.name)


def _replace(folder: Path, draft: Path) -> None:
    """Replace a folder: a nonempty directory cannot be renamed over, so the old one is moved aside first."""
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    draft.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
