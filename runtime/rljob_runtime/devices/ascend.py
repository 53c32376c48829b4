"""Ascend NPUs: torch_npu's device, HCCL and its buffers. Made by `backend_table` for types of Ascend.

torch_npu is imported here alone, and only when a backend is opened.
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
# Read by HCCL, ATB and CANN when they start; a value of the pod's own is kept.
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
"""torch_npu's numbers of the chips of a product."""


class _Options(Protocol):
    hccl_config: dict[str, object]


class AscendBackend(AcceleratorBackend):
    """An NPU. Ray leaves each device worker one, so that it is the process' first."""

    collectives = "cpu:gloo,npu:hccl"

    def set_up(self, *, seed: int, num_threads: int) -> None:
        """Also asks HCCL and CANN for deterministic sums, at some cost of speed."""
        for name, value in DETERMINISTIC.items():
            os.environ.setdefault(name, value)
        super().set_up(seed=seed, num_threads=num_threads)

    def group_options(self, *, buffer_mib: int | None = None) -> object | None:
        """HCCL keeps HCCL_BUFFSIZE or 200 MiB a group, which adds up where there are many."""
        if buffer_mib is None:
            return None
        import torch_npu

        hccl: Any = torch_npu._C._distributed_c10d.ProcessGroupHCCL
        options: _Options = hccl.Options()
        options.hccl_config = {"hccl_buffer_size": buffer_mib}
        return options

    def profiler(self) -> Profiler:
        """torch_npu's own, as torch's sees no NPU. Its calls only warn where they fail: the trace is missing
        then."""
        import torch_npu

        kinds = torch_npu.profiler.ProfilerActivity
        made: Profiler = torch_npu.profiler.profile(activities=[kinds.CPU, kinds.NPU])
        return made


def open_ascend(*, name: str, limit_bytes: int | None) -> AscendBackend:
    """The NPU of this process. Raises ConfigError where torch_npu or a visible NPU is missing."""
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
    """`spec.accelerator.type` of the NPUs here; None for a chip of another product."""
    import torch_npu

    chip = torch_npu.npu.get_soc_version()
    return next((name for name, chips in CHIPS.items() if chip in chips), None)
