"""Weights as Hugging Face directories and as fingerprints: in, out, checksums.

Called by `loading`, the rollout engines, the checkpoints and the weight sync. Knows names, shapes and
bytes, no models: a model is its weights by name, as views that share its memory.
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
from rljob_runtime.models.expert_names import held_dtype
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.models.tensor_files import Box, TensorFiles
from rljob_runtime.models.tensor_writer import MAX_SHARD_BYTES, Written, bytes_in, write_tensors
from rljob_runtime.models.vision.names import file_name, has_tower

MOST_TOLD = 100
"""Tensors that an error names: a spoiled config.json has room for millions."""
NOT_COPIED = (".safetensors", ".index.json", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")

PartOf = Callable[[str, torch.Size], Box | None]
"""What a rank holds of a tensor of this name and full shape; None: nothing of it."""


class Shaped(Protocol):
    """A tensor, or one in a file."""

    @property
    def shape(self) -> torch.Size:
        """Its shape."""
        ...


class Filled(Shaped, Protocol):
    """A tensor, or what is made from one."""

    def copy_(self, source: Tensor, /) -> object:
        """Take these values."""
        ...


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a Hugging Face directory by name, experts one by one. Raises as `TensorFiles`."""
    return dict(stored_weights(path))


def stored_weights(path: Path) -> Iterator[tuple[str, Tensor]]:
    """The same, one at a time."""
    files = TensorFiles(path).split_stacks()
    for name in files.tensors:
        yield name, files.read(name)


def load_weights(
    into: Mapping[str, Filled],
    path: Path,
    *,
    part_of: PartOf | None = None,
    left_out: Collection[str] = (),
) -> None:
    """Copy a directory's tensors into these, all or none, one at a time.

    into: by Hugging Face name, of the shape of the part that `part_of` names; without it, whole. Of a
    vision-language model those of its decoder, of its vision tower, or of both.
    left_out: tensors that are not wanted.
    Raises as `TensorFiles`, and WeightsError naming every tensor that is missing, extra or misshapen.
    """
    files = TensorFiles(path).split_stacks(kept=into)
    towers = {name.startswith(TOWER) for name in into}
    listed = ({} if towers == {True} else files.tensors) | (files.tower if True in towers else {})
    stored_in = {n: stored for n, stored in listed.items() if n not in left_out}
    parts: dict[str, Box | None] = dict.fromkeys(stored_in)
    if part_of is not None:
        named = ((name, part_of(name, stored.shape)) for name, stored in stored_in.items())
        parts = {name: part for name, part in named if part is not None}
    found = {name: stored_in[name].cut(part) for name, part in parts.items()}
    check_weights(found, {name: held.shape for name, held in into.items()}, where=str(path))
    with torch.no_grad():
        for name, held in into.items():
            held.copy_(files.read(name, parts[name]))


def load_weights_into(policy: PolicyModel, path: Path) -> None:
    """`load_weights` of a whole model."""
    load_weights(dict(policy.named_hf_parameters()), path)


def check_weights(
    found: Mapping[str, Shaped], shapes: Mapping[str, torch.Size], *, where: str
) -> None:
    """Raise WeightsError that names missing, extra and misshapen tensors, the first MOST_TOLD of them."""
    problems = [f"{name} is missing" for name in sorted(shapes.keys() - found.keys())]
    problems += [f"{name} is not expected" for name in sorted(found.keys() - shapes.keys())]
    problems += [
        f"{name} is {list(found[name].shape)}, not {list(shapes[name])}"
        for name in sorted(shapes.keys() & found.keys())
        if found[name].shape != shapes[name]
    ]
    if problems:
        more = f"; and {len(problems) - MOST_TOLD} others" if len(problems) > MOST_TOLD else ""
        raise WeightsError(
            f"weights of {where} do not fit its config.json ({len(problems)} tensors): "
            f"{'; '.join(problems[:MOST_TOLD])}{more}; use a complete copy of the model"
        )


def save_hf(
    weights: Iterable[tuple[str, Tensor]],
    *,
    folder: Path,
    source: Path | None = None,
    config: Mapping[str, object] | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """Write a Hugging Face directory by one rename; replaces `folder` if it is there.

    weights: by Hugging Face name, tied ones once; copied to the host one at a time. source, config:
    as in `write_directory`.
    """
    tensors = [Written.of(name, tensor) for name, tensor in weights]
    write_directory(
        tensors, folder=folder, source=source, config=config, max_shard_bytes=max_shard_bytes
    )


def write_directory(
    tensors: list[Written],
    *,
    folder: Path,
    source: Path | None = None,
    config: Mapping[str, object] | None = None,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> None:
    """The same of tensors that may still lie in files.

    source: directory whose other files (tokenizer, chat template, generation settings, config.json)
    come along, and its vision tower where that is none of the tensors. config: instead of source's.
    """
    assert source is not None or config is not None, "a model directory needs a config.json"
    entries = dict(config if config is not None else read_config(cast(Path, source)))
    entries.pop("torch_dtype", None)
    entries["dtype"] = str(tensors[0].dtype).removeprefix("torch.")
    if isinstance(text := entries.get("text_config"), dict) and "dtype" in text:
        entries["text_config"] = text | {"dtype": entries["dtype"]}
    if entries.get("num_nextn_predict_layers"):
        entries["num_nextn_predict_layers"] = 0  # `TensorFiles` leaves them out
    named = [*tensors, *_tower_beside(tensors, source, entries)]
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
    """Digest of names, types, shapes and bytes, whatever the order (BLAKE2b, 32 hex digits).

    dtype: cast to it first, to compare with an engine that holds the weights so.
    """
    digest = WeightsDigest(dtype)
    for _ in digest.of(weights):
        pass
    return digest.hex()


class WeightsDigest:
    """The same of weights that somebody else goes through."""

    def __init__(self, dtype: torch.dtype | None = None) -> None:
        self._dtype, self._lines = dtype, list[str]()

    def of(self, weights: Iterable[tuple[str, Tensor]]) -> Iterator[tuple[str, Tensor]]:
        """The weights as they come, each counted in."""
        for name, tensor in weights:
            held, dtype = tensor.detach(), self._dtype
            held = held.to("cpu", held_dtype(name, dtype) if dtype else held.dtype).contiguous()
            digest = hashlib.blake2b(bytes_in(held), digest_size=16)
            self._lines.append(f"{name} {held.dtype} {list(held.shape)} {digest.hexdigest()}")
            yield name, tensor

    def hex(self) -> str:
        """Of all that came."""
        return hashlib.blake2b("\n".join(sorted(self._lines)).encode(), digest_size=16).hexdigest()


def _tower_beside(
    tensors: list[Written], source: Path | None, config: Mapping[str, object]
) -> list[Written]:
    """The source's vision tower as it is, where the tensors have none."""
    if (
        source is None
        or not has_tower(config)
        or any(tensor.name.startswith(TOWER) for tensor in tensors)
    ):
        return []
    files = TensorFiles(source)
    return [
        Written(name=name, shape=held.shape, dtype=held.dtype, read=partial(files.read, name))
        for name, held in files.tower.items()
    ]


def _copy_other_files(source: Path | None, folder: Path) -> None:
    for file in sorted(source.iterdir()) if source is not None else ():
        if file.is_file() and not file.name.startswith(".") and not file.name.endswith(NOT_COPIED):
            shutil.copyfile(file, folder / file.name)


def _replace(folder: Path, draft: Path) -> None:
    """A full directory cannot be renamed over: the old one steps aside first."""
    old = folder.with_name(f".{folder.name}.old-{os.getpid()}")
    shutil.rmtree(old, ignore_errors=True)
    if folder.exists():
        folder.rename(old)
    draft.rename(folder)
    shutil.rmtree(old, ignore_errors=True)
