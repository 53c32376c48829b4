"""Ascend NPUs: torch_npu's device, HCCL and its buffers. Created by `backend_table` for types of Ascend.

Only this module imports torch_npu, and only when a backend is opened.
"""

import os
from typing import Any, Protocol

import torch

from rljob_runtime.devices.accelerator import AcceleratorBackend, DeviceModule
from rljob_runtime.devices.backend import Profiler
from rljob_runtime.errors import ConfigError

REMEDY = (
    "run in the image rljob-runtime-ascend, or install torch-npu of the same version as torch beside "
    "CANN and source its set_env.sh (docs/ascend.md), or set spec.accelerator.type to emulated"
)
# Read by HCCL, ATB and CANN when they start; values that the pod sets take precedence.
DETERMINISTIC = {
    "HCCL_DETERMINISTIC": "true",
    "LCCL_DETERMINISTIC": "1",
    "ATB_MATMUL_SHUFFLE_K_ENABLE": "0",
    "ATB_LLM_LCOC_ENABLE": "0",
    "CLOSE_MATMUL_K_SHIFT": "1",
}


CHIPS = {
    "ascend910b": range(220, 226),
    "ascend910c": range(250, 256),
    "ascend950": range(260, 261),
}
"""torch_npu's chip numbers (SoC versions) of each product."""


class _HcclOptions(Protocol):
    hccl_config: dict[str, object]


class AscendBackend(AcceleratorBackend):
    """An NPU. Ray makes one visible to each device worker, so it is the first of the process."""

    collectives = "cpu:gloo,npu:hccl"

    def set_up(self, *, seed: int, num_threads: int) -> None:
        """Set up the process; also configure HCCL and CANN for deterministic sums, at some cost of speed."""
        for name, value in DETERMINISTIC.items():
            os.environ.setdefault(name, value)
        super().set_up(seed=seed, num_threads=num_threads)

    def group_options(self, *, buffer_mib: int | None = None) -> object | None:
        """Return HCCL's options. Its default buffer, HCCL_BUFFSIZE or 200 MiB per group, adds up over many
        groups."""
        if buffer_mib is None:
            return None
        import torch_npu

        hccl: Any = torch_npu._C._distributed_c10d.ProcessGroupHCCL
        options: _HcclOptions = hccl.Options()
        options.hccl_config = {"hccl_buffer_size": buffer_mib}
        return options

    def profiler(self) -> Profiler:
        """Return torch_npu's profiler, as torch's records no NPU. Its failing calls only warn; the trace is
        then missing."""
        import torch_npu

        kinds = torch_npu.profiler.ProfilerActivity
        profiler: Profiler = torch_npu.profiler.profile(activities=[kinds.CPU, kinds.NPU])
        return profiler


def open_ascend(*, name: str, limit_bytes: int | None) -> AscendBackend:
    """Open the NPU of this process. Raises ConfigError where torch_npu or a visible NPU is missing."""
    try:
        import torch_npu  # noqa: F401
    except ImportError as error:
        raise ConfigError(f"device {name} needs torch_npu: {error}; {REMEDY}") from error
    module: DeviceModule = torch.npu  # type: ignore[attr-defined]
    if not module.is_available():
        visible = os.environ.get("ASCEND_RT_VISIBLE_DEVICES", "not set")
        raise ConfigError(
            f"device {name}: torch_npu sees no NPU here (ASCEND_RT_VISIBLE_DEVICES={visible}); check "
            "that the pod asks for accelerator.resourceName and that npu-smi info shows a device"
        )
    return AscendBackend(
        device=torch.device("npu", 0), module=module, name=name, limit_bytes=limit_bytes
    )


def product() -> str | None:
    """Return `spec.accelerator.type` of the NPUs here; None for a chip of another product."""
    import torch_npu

    chip = torch_npu.npu.get_soc_version()
    return next((name for name, chips in CHIPS.items() if chip in chips), None)
