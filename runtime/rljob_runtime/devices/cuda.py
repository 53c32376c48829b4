"""GPUs, to compare kernels and engines on another device. Jobs do not use them."""

import torch

from rljob_runtime.devices.accelerator import AcceleratorBackend


class CudaBackend(AcceleratorBackend):
    """The backend of the first visible GPU of this process."""

    collectives = "cpu:gloo,cuda:nccl"

    def __init__(self, *, name: str = "cuda:0", limit_bytes: int | None = None) -> None:
        super().__init__(
            device=torch.device("cuda", 0), module=torch.cuda, name=name, limit_bytes=limit_bytes
        )
