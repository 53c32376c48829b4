"""Low-rank adapters as a directory in PEFT's format: `adapter_model.safetensors`, `adapter_config.json`.

Called where a checkpoint is written and read, and by `rljob export --adapter`.
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
from rljob_runtime.models.tensor_writer import Written, write_file
from rljob_runtime.models.vision.names import has_tower, module_name, name_of

ADAPTER_FOLDER = "adapter"
ADAPTER_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
"""Of names in PEFT's files, before the model's own."""
OF_DECODER = r"model\.language_model\..*\.({})"
"""PEFT's pattern for modules of a vision-language model's decoder."""


def save_adapter(
    adapters: Iterable[tuple[str, Tensor]], lora: Lora, *, base: Path, folder: Path
) -> None:
    """Write the directory. adapters: whole, by their names in the model. base: of the frozen model."""
    config = read_config(base)
    folder.mkdir(parents=True)
    tensors = [
        Written.of(PREFIX + module_name(name, config), tensor.detach()) for name, tensor in adapters
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


def read_adapter(folder: Path, wanted: Mapping[str, Sequence[int]]) -> dict[str, Tensor]:
    """Its tensors by their names in the model. wanted: those that are asked for, and their shapes. Raises
    CheckpointError."""
    file = folder / ADAPTER_FILE
    try:
        stored = load_file(file)
    except (OSError, SafetensorError) as error:
        raise CheckpointError(
            f"{file} cannot be read ({error}); resume from an earlier checkpoint"
        ) from error
    found = {name_of(name.removeprefix(PREFIX)): tensor for name, tensor in stored.items()}
    for name, shape in wanted.items():
        if name not in found or found[name].shape != tuple(shape):
            there = f"is {[*found[name].shape]}" if name in found else "is missing"
            raise CheckpointError(
                f"{file}: {name} {there}, must be {[*shape]}; resume from an earlier checkpoint"
            )
    return found
