"""GPUs, for comparing kernels and engines with another device. No job asks for one."""

import torch

from rljob_runtime.devices.accelerator import AcceleratorBackend


class CudaBackend(AcceleratorBackend):
    """The first GPU that this process sees."""

    collectives = "cpu:gloo,cuda:nccl"

    def __init__(self, *, name: str = "cuda:0", limit_bytes: int | None = None) -> None:
        super().__init__(
            device=torch.device("cuda", 0), module=torch.cuda, name=name, limit_bytes=limit_bytes
        )
