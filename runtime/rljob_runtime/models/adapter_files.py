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
from rljob_runtime.models.tensor_writer import Written, write_file

ADAPTER_FOLDER = "adapter"
ADAPTER_FILE, CONFIG_FILE = "adapter_model.safetensors", "adapter_config.json"
PREFIX = "base_model.model."
"""Of names in PEFT's files, before the model's own."""


def save_adapter(
    adapters: Iterable[tuple[str, Tensor]], lora: Lora, *, base: Path, folder: Path
) -> None:
    """Write the directory. adapters: whole, by their names in the model. base: of the frozen model."""
    folder.mkdir(parents=True)
    tensors = [Written.of(PREFIX + name, tensor.detach()) for name, tensor in adapters]
    write_file(tensors, folder / ADAPTER_FILE)
    entries = {
        "peft_type": "LORA",
        "task_type": "CAUSAL_LM",
        "base_model_name_or_path": str(base),
        "r": lora.rank,
        "lora_alpha": lora.alpha,
        "lora_dropout": 0.0,
        "target_modules": sorted({tensor.name.split(".")[-3] for tensor in tensors}),
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
    found = {name.removeprefix(PREFIX): tensor for name, tensor in stored.items()}
    for name, shape in wanted.items():
        if name not in found or found[name].shape != tuple(shape):
            there = f"is {[*found[name].shape]}" if name in found else "is missing"
            raise CheckpointError(
                f"{file}: {name} {there}, must be {[*shape]}; resume from an earlier checkpoint"
            )
    return found
