"""What checks compute with: the process' device, the group of all, a small model. Called by the checks."""

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from rljob_api.spec.infrastructure import Accelerator
from rljob_runtime.cli.bring_up.place import Place
from rljob_runtime.devices.backend import Backend
from rljob_runtime.devices.backend_table import open_backend
from rljob_runtime.devices.cuda import CudaBackend
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.tiny_recipe import CONFIG
from rljob_runtime.models.weights import save_hf
from rljob_runtime.task.tokenizer import save_byte_tokenizer

ANY_NPU = "ascend"
"""Of whichever type; all open alike."""
SEED = 7
# Heads as wide as those of models that users have: kernels have no form for narrower ones.
MODEL = CONFIG | {
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 512,
}


def open_device(place: Place) -> Backend:
    """This process' device, ready for repeatable work. Raises ConfigError where there is none."""
    if place.accelerator == "cuda":
        backend: Backend = CudaBackend(name=f"cuda:{place.rank}")
    else:
        kind = "ascend910b" if place.accelerator == ANY_NPU else place.accelerator
        backend = open_backend(Accelerator.model_validate({"type": kind}), rank=place.rank)
    backend.set_up(seed=SEED, num_threads=1)
    return backend


def meet(place: Place, backend: Backend) -> None:
    """Make the default process group of the check's processes."""
    dist.init_process_group(
        backend.collectives,
        store=FileStore(str(place.folder / "meeting"), place.size),
        rank=place.rank,
        world_size=place.size,
        timeout=timedelta(seconds=place.seconds),
        pg_options=backend.group_options(),
    )


def make_model(place: Place) -> Path:
    """A Hugging Face directory of a small model whose weights are random and always the same."""
    path = place.folder / "model"
    decoder = Decoder(read_architecture(MODEL))
    decoder.initialize(SEED, std=0.05)
    save_hf(decoder.named_hf_parameters(), folder=path, config=MODEL)
    save_byte_tokenizer(path)
    return path


def awaited(backend: Backend) -> None:
    """Wait until the device has done what it was given."""
    torch.zeros(1, device=backend.device).cpu()
