"""Export the model of a run or of a checkpoint as a Hugging Face directory, or its adapters in PEFT's format.

`rljob export` calls this. Tensors are copied one by one, so that a model may be larger than memory.
"""

import shutil
from functools import partial
from pathlib import Path

import torch

from rljob_api.model.model_places import model_folder
from rljob_runtime.errors import CheckpointError, ConfigError
from rljob_runtime.models.adapter_files import ADAPTER_FILE, ADAPTER_FOLDER, CONFIG_FILE
from rljob_runtime.models.expert_names import weight_dtype
from rljob_runtime.models.tensor_files import TensorFiles
from rljob_runtime.models.tensor_writer import MAX_SHARD_BYTES, TensorToWrite
from rljob_runtime.models.weights import write_directory
from rljob_runtime.record.best import stored_best
from rljob_runtime.record.checkpoint import MODEL_FOLDER, CheckpointStore
from rljob_runtime.record.checksums import check_files


def export_model(
    location: Path,
    target: Path,
    *,
    dtype: torch.dtype | None = None,
    best: bool = False,
    max_shard_bytes: int = MAX_SHARD_BYTES,
) -> Path:
    """Write the model at `location` to `target`; returns the directory that it came from.

    location: a run's folder (its newest checkpoint, or the best), a checkpoint or a model's directory. dtype:
    of the written weights, None to leave it; a router's correction bias stays float32. Raises ConfigError if
    there is no model or `target` is not empty, WeightsError for unreadable files.
    """
    source = find_best(location) if best else find_model(location)
    _check_empty(target)
    check_files(source.parent, within=f"{source.name}/")
    files = TensorFiles(source)
    tensors = [
        TensorToWrite(
            name=name,
            shape=stored.shape,
            dtype=_exported_dtype(name, stored.dtype, dtype),
            read=partial(files.read, name),
        )
        for name, stored in (files.tensors | files.tower).items()
    ]
    write_directory(tensors, folder=target, source=source, max_shard_bytes=max_shard_bytes)
    return source


def export_adapter(location: Path, target: Path, *, best: bool = False) -> Path:
    """Write the adapters of a run or of a checkpoint to `target` in PEFT's format; returns their directory.

    Raises ConfigError if there are no adapters or `target` is not empty.
    """
    model = find_best(location) if best else find_model(location)
    source = model.parent / ADAPTER_FOLDER
    if model.name != MODEL_FOLDER or not (source / CONFIG_FILE).is_file():
        raise ConfigError(
            f"{location} has no adapters: all weights were trained; leave --adapter out, or name a run with "
            "spec.update.lora"
        )
    _check_empty(target)
    target.mkdir(parents=True, exist_ok=True)
    check_files(source.parent, within=f"{source.name}/")
    for name in (ADAPTER_FILE, CONFIG_FILE):
        shutil.copyfile(source / name, target / name)
    return source


def find_model(location: Path) -> Path:
    """Return the Hugging Face directory of a run, a checkpoint or a model. Raises ConfigError if there is
    none."""
    if (model := model_folder(location)) is not None:
        return model
    raise ConfigError(
        f"{location} holds neither a checkpoint nor a model; name the folder of a run that has saved "
        "one, a checkpoint in it (checkpoints/step-000020), or a Hugging Face directory"
    )


def find_best(run: Path) -> Path:
    """Return the model of a run's best checkpoint. Raises ConfigError if there is none."""
    store = CheckpointStore(folder=run / "checkpoints", keep=1)
    try:
        best = stored_best(store.folder)
    except CheckpointError as error:
        raise ConfigError(f"{error}; or leave --best out") from error
    if best is None or best.step is None:
        raise ConfigError(
            f"{run} has no best checkpoint; name the folder of a run with spec.checkpoint.keepBest: "
            "true that has evaluated a step, or leave --best out"
        )
    model = store.path(best.step) / MODEL_FOLDER
    if not (model / "config.json").is_file():
        raise ConfigError(
            f"the best evaluation of {run} was after step {best.step}, and {model} is not there: "
            "no step was better than the model that the run began with, or spec.checkpoint.keepBest was "
            "not true; leave --best out"
        )
    return model


def _check_empty(target: Path) -> None:
    if target.exists() and (not target.is_dir() or any(target.iterdir())):
        raise ConfigError(f"{target} is not empty; name a folder that does not exist yet")


def _exported_dtype(name: str, stored: torch.dtype, dtype: torch.dtype | None) -> torch.dtype:
    if dtype is None or not stored.is_floating_point:
        return stored
    return weight_dtype(name, dtype)
