"""Weights as files and as fingerprints: safetensors in and out, checksums.

Called by `loading`, the checkpoints and the weight sync. Knows names, shapes and bytes, no models.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import cast

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from rljob_runtime.errors import ConfigError, WeightsError
from rljob_runtime.models.architecture import read_config
from rljob_runtime.models.base import PolicyModel

WEIGHTS_FILE = "model.safetensors"
INDEX_FILE = "model.safetensors.index.json"
HEAD = "lm_head.weight"
NOT_COPIED = (".safetensors", ".index.json", ".bin", ".pt", ".pth", ".gguf", ".h5", ".msgpack")


def read_weights(path: Path) -> dict[str, Tensor]:
    """All tensors of a Hugging Face directory by name, in one file or in shards with an index.

    A tied head is left out, as are the constant rotary buffers of old checkpoints. Raises
    ConfigError without safetensors, WeightsError for an unreadable or missing shard.
    """
    weights: dict[str, Tensor] = {}
    for file in _weight_files(path):
        try:
            weights |= load_file(file)
        except (OSError, SafetensorError) as error:
            raise WeightsError(f"{file} cannot be read: {error}; copy the model again") from error
    if read_config(path).get("tie_word_embeddings", False):
        weights.pop(HEAD, None)
    return {name: tensor for name, tensor in weights.items() if not name.endswith(".inv_freq")}


def check_weights(
    weights: Mapping[str, Tensor], shapes: Mapping[str, torch.Size], *, where: str
) -> None:
    """Raise WeightsError that names every missing, extra and misshapen tensor."""
    problems = [f"{name} is missing" for name in sorted(shapes.keys() - weights.keys())]
    problems += [f"{name} is not expected" for name in sorted(weights.keys() - shapes.keys())]
    problems += [
        f"{name} is {list(weights[name].shape)}, not {list(shapes[name])}"
        for name in sorted(shapes.keys() & weights.keys())
        if weights[name].shape != shapes[name]
    ]
    if problems:
        raise WeightsError(
            f"weights of {where} do not fit its config.json ({len(problems)} tensors): "
            f"{'; '.join(problems)}; use a complete copy of the model"
        )


def load_weights_into(policy: PolicyModel, path: Path) -> None:
    """Copy a directory's tensors into a model, all or none. Raises as `read_weights`."""
    weights = read_weights(path)
    parameters = dict(policy.named_hf_parameters())
    check_weights(weights, {k: p.shape for k, p in parameters.items()}, where=str(path))
    with torch.no_grad():
        for name, parameter in parameters.items():
            parameter.copy_(weights[name])


def save_hf(
    weights: Iterable[tuple[str, Tensor]],
    *,
    folder: Path,
    source: Path | None = None,
    config: Mapping[str, object] | None = None,
) -> None:
    """Write a Hugging Face directory by one rename; replaces `folder` if it is there.

    weights: by Hugging Face name, tied ones once. source: directory whose other files (tokenizer,
    chat template, generation settings, config.json) come along. config: instead of source's.
    """
    assert source is not None or config is not None, "a model directory needs a config.json"
    tensors = {name: tensor.detach().cpu().contiguous() for name, tensor in weights}
    entries = dict(config if config is not None else read_config(cast(Path, source)))
    entries.pop("torch_dtype", None)
    entries["dtype"] = str(next(iter(tensors.values())).dtype).removeprefix("torch.")
    folder.parent.mkdir(parents=True, exist_ok=True)
    draft = folder.with_name(f".{folder.name}.draft-{os.getpid()}")
    shutil.rmtree(draft, ignore_errors=True)
    draft.mkdir()
    try:
        _copy_other_files(source, draft)
        (draft / "config.json").write_text(json.dumps(entries, indent=2) + "\n")
        save_file(tensors, draft / WEIGHTS_FILE, metadata={"format": "pt"})
        _replace(folder, draft)
    finally:
        shutil.rmtree(draft, ignore_errors=True)


def weights_checksum(
    weights: Iterable[tuple[str, Tensor]], *, dtype: torch.dtype | None = None
) -> str:
    """Digest of names, types, shapes and bytes, whatever the order (BLAKE2b, 32 hex digits).

    dtype: cast to it first, to compare with an engine that holds the weights so.
    """
    lines = []
    for name, tensor in weights:
        held = tensor.detach().to("cpu", dtype or tensor.dtype).contiguous()
        digest = hashlib.blake2b(held.view(-1).view(torch.uint8).numpy().data, digest_size=16)
        lines.append(f"{name} {held.dtype} {list(held.shape)} {digest.hexdigest()}")
    return hashlib.blake2b("\n".join(sorted(lines)).encode(), digest_size=16).hexdigest()


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
        names = sorted(set(json.loads(index.read_text())["weight_map"].values()))
    except (OSError, ValueError, KeyError, AttributeError, TypeError) as error:
        raise WeightsError(f"{index} cannot be read: {error!r}; copy the model again") from error
    absent = [name for name in names if not (path / name).is_file()]
    if absent:
        raise WeightsError(f"{path} lacks {', '.join(absent)}, which {INDEX_FILE} names")
    return [path / name for name in names]


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
