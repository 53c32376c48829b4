"""Read and write low-rank adapters in PEFT's format: `adapter_model.safetensors` and `adapter_config.json`.

Checkpoints and `rljob export --adapter` call these functions.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path

from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor

from rljob_api.spec.lora import Lora
from rljob_runtime.errors import CheckpointError
from rljob_runtime.models.config import read_config
from rljob_runtime.models.tensor_writer import TensorToWrite, write_file
from rljob_runtime.models.vision.names import has_tower, module_name, name_of

ADAPTER_FOLDER = "adapter"
ADAPTER_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
"""Prefix of names in PEFT's files, before the model's own names."""
OF_DECODER = r"model\.language_model\..*\.({})"
"""PEFT's pattern that selects modules of a vision-language model's decoder."""


def save_adapter(
    adapters: Iterable[tuple[str, Tensor]], lora: Lora, *, base: Path, folder: Path
) -> None:
    """Write the adapter directory. adapters: full tensors by their names in the model. base: directory of the
    frozen model."""
    config = read_config(base)
    folder.mkdir(parents=True)
    tensors = [
        TensorToWrite.of(PREFIX + module_name(name, config), tensor.detach())
        for name, tensor in adapters
    ]
    write_file(tensors, folder / ADAPTER_FILE)
    targets = sorted({tensor.name.split(".")[-3] for tensor in tensors})
    entries = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        # A vision tower has modules of the same names.
        "target_modules": OF_DECODER.format("|".join(targets)) if has_tower(config) else targets,
        "bias": "none",
        "fan_in_fan_out": False,
        "inference_mode": True,
    }
    (folder / CONFIG_FILE).write_text(json.dumps(entries, indent=2) + "\n")


def read_adapter(folder: Path, shapes: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Return the adapter tensors by their names in the model.

    shapes: the expected shape of each tensor by name. Raises CheckpointError for an unreadable file and for a
    tensor that is missing or has another shape.
    """
    file = folder / ADAPTER_FILE
    try:
        stored = load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{file} cannot be read ({error}); resume from an earlier checkpoint"
        ) from error
    adapters = {name_of(name.removeprefix(PREFIX)): tensor for name, tensor in stored.items()}
    for name, shape in shapes.items():
        if name not in adapters or adapters[name].shape != tuple(shape):
            mismatch = f"is {[*adapters[name].shape]}" if name in adapters else "is missing"
            raise CheckpointError(
                f"{file}: {name} {mismatch}, must be {[*shape]}; resume from an earlier checkpoint"
            )
    return adapters
