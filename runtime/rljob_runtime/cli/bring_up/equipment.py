"""Create what checks compute with: the process' device, the process group, a small model. Called by the
checks."""

from datetime import timedelta
from pathlib import Path

import torch
import torch.distributed as dist
from torch._C._distributed_c10d import FileStore

from rljob_api.spec.infrastructure import Accelerator
from rljob_runtime.cli.bring_up.place import CheckContext
from rljob_runtime.devices.backend import Backend
from rljob_runtime.devices.backend_table import open_backend
from rljob_runtime.devices.cuda import CudaBackend
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.families import read_architecture
from rljob_runtime.models.tiny_recipe import CONFIG
from rljob_runtime.models.weights import save_hf
from rljob_runtime.task.tokenizer import save_byte_tokenizer

ANY_NPU = "ascend"
"""An NPU of any type; all are opened in the same way."""
SEED = 7
# Head dim as in the models of users: kernels do not support narrower heads.
MODEL = CONFIG | {
    "hidden_size": 256,
    "num_attention_heads": 8,
    "num_key_value_heads": 8,
    "head_dim": 64,
    "intermediate_size": 512,
}


def open_device(context: CheckContext) -> Backend:
    """Return this process' device, set up for repeatable work. Raises ConfigError without a device."""
    if context.accelerator == "cuda":
        backend: Backend = CudaBackend(name=f"cuda:{context.rank}")
    else:
        kind = "ascend910b" if context.accelerator == ANY_NPU else context.accelerator
        backend = open_backend(Accelerator.model_validate({"type": kind}), rank=context.rank)
    backend.set_up(seed=SEED, num_threads=1)
    return backend


def join_group(context: CheckContext, backend: Backend) -> None:
    """Initialize the default process group of the check's processes."""
    dist.init_process_group(
        backend.collectives,
        store=FileStore(str(context.folder / "meeting"), context.size),
        rank=context.rank,
        world_size=context.size,
        timeout=timedelta(seconds=context.seconds),
        pg_options=backend.group_options(),
    )


def make_model(context: CheckContext) -> Path:
    """Write a Hugging Face directory of a small model with seeded random weights; return its path."""
    path = context.folder / "model"
    decoder = Decoder(read_architecture(MODEL))
    decoder.initialize(SEED, std=0.05)
    save_hf(decoder.named_hf_parameters(), folder=path, config=MODEL)
    save_byte_tokenizer(path)
    return path


def synchronize(backend: Backend) -> None:
    """Wait until the device has finished all queued work."""
    torch.zeros(1, device=backend.device).cpu()
