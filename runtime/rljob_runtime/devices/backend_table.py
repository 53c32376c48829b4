"""The table of backends by `spec.accelerator.type`. Called by the device worker."""

from collections.abc import Callable

from rljob_api.spec.infrastructure import Accelerator
from rljob_api.spec.section import parse_quantity
from rljob_runtime.devices.ascend import open_ascend
from rljob_runtime.devices.backend import Backend
from rljob_runtime.devices.cpu import CpuBackend

BACKENDS: dict[str, Callable[..., Backend]] = {
    "emulated": CpuBackend,
    "ascend910b": open_ascend,
    "ascend910c": open_ascend,
    "ascend950": open_ascend,
}


def open_backend(accelerator: Accelerator, *, rank: int) -> Backend:
    """Open the device of this process. rank: of the device in the job, for messages.

    Raises ConfigError where the device or its software is missing.
    """
    limit = parse_quantity(accelerator.memory) if accelerator.memory else None
    return BACKENDS[accelerator.type](name=f"{accelerator.type}:{rank}", limit_bytes=limit)
