"""Checks of one device: its presence, memory, kernels, and copies to the host and back."""

import time
from typing import TYPE_CHECKING, Any

import torch

from rljob_runtime.cli.bring_up.equipment import ANY_NPU, open_device, synchronize
from rljob_runtime.cli.bring_up.kernel_cases import (
    CASES,
    TOLERANCE,
    kernel_of,
    outputs_and_gradients,
    worst_share,
)
from rljob_runtime.cli.bring_up.place import CheckContext, WrongResult
from rljob_runtime.cli.bring_up.record import Figures
from rljob_runtime.devices.ascend import product
from rljob_runtime.devices.backend import Backend
from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.devices.host_swap import HostSwap
from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.errors import DeviceMemoryError

if TYPE_CHECKING:
    from torch import Tensor

EMULATED_DEVICES = 2
GIB, MIB = 2**30, 2**20
MATRIX_SIZE = 512
PRODUCT_TOLERANCE = 1e-4
BLOCKS = 8
SWAP_BYTES = {True: 64 * MIB, False: 2 * GIB}
"""Bytes to swap on emulated devices (True) and on others (False)."""
REPEATS = 3
SHOWN_CASES = 3


def device(context: CheckContext) -> Figures:
    """Open the first device and inspect all. Raises WrongResult for another type than the requested one."""
    backend = open_device(context)
    module: Any = None if context.emulated else getattr(torch, backend.device.type)
    number = EMULATED_DEVICES if module is None else int(module.device_count())
    names = ["CPU" if module is None else module.get_device_name(i) for i in range(number)]
    if len(set(names)) > 1:
        raise WrongResult(f"devices are of several types: {', '.join(sorted(set(names)))}")
    device_type = product() if backend.device.type == "npu" else context.accelerator
    if device_type is None or context.accelerator not in (device_type, ANY_NPU):
        raise WrongResult(
            f"{names[0]} is {device_type or 'of no type that rljob knows'}, and "
            f"{context.accelerator} was asked for; name another --accelerator"
        )
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(MATRIX_SIZE, MATRIX_SIZE, generator=generator) for _ in range(2))
    expected = left @ right
    gap = float(
        (left.to(backend.device) @ right.to(backend.device)).cpu().sub(expected).abs().max()
    )
    if gap > PRODUCT_TOLERANCE * float(expected.abs().max()):
        raise WrongResult(
            f"a product of {MATRIX_SIZE} × {MATRIX_SIZE} matrices is off by {gap:.2g} from the host's"
        )
    return {"accelerator": device_type, "devices": number, "names": names, "product_gap": gap}


def memory(context: CheckContext) -> Figures:
    """Allocate half of the free memory in blocks, write, read and free them; then request too much."""
    backend = open_device(context)
    before = backend.memory()
    blocks = _fill_blocks(backend, _free_half(backend) // BLOCKS)
    allocated_bytes = backend.memory().allocated_bytes - before.allocated_bytes
    wrong = [n for n, block in enumerate(blocks) if not bool((block == n + 1).all())]
    if wrong:
        raise WrongResult(f"{len(wrong)} of {BLOCKS} blocks do not hold what was written")
    size = sum(block.nbytes for block in blocks)
    if allocated_bytes < size:
        raise WrongResult(
            f"{size} bytes were taken, and the allocator's account has {allocated_bytes}"
        )
    blocks.clear()
    leaked_bytes = backend.memory().allocated_bytes - before.allocated_bytes
    if leaked_bytes > MIB:
        raise WrongResult(f"{leaked_bytes} bytes were not given back")
    _check_refusal(backend)
    total = before.total_bytes
    return {"taken_gib": size / GIB, "total_gib": "no limit" if total is None else total / GIB}


def _free_half(backend: Backend) -> int:
    """Return half of the free bytes; 64 MiB on emulated devices."""
    if isinstance(backend, CpuBackend):
        return 64 * MIB
    module: Any = getattr(torch, backend.device.type)
    return int(module.mem_get_info(backend.device)[0]) // 2


def _fill_blocks(backend: Backend, size: int) -> "list[Tensor]":
    blocks = []
    for number in range(BLOCKS):
        block = torch.full((size,), number + 1, dtype=torch.uint8, device=backend.device)
        backend.ledger.track(MemoryKind.ACTIVATIONS, [block])
        blocks.append(block)
    return blocks


def _check_refusal(backend: Backend) -> None:
    """Check that a too large allocation fails. An emulated device has only a ledger's limit, tested
    elsewhere."""
    if isinstance(backend, CpuBackend):
        return
    try:
        with backend.naming_memory_errors():
            torch.empty(2**48, dtype=torch.uint8, device=backend.device)
    except DeviceMemoryError:
        return
    raise WrongResult("256 TiB were not refused")


def kernels(context: CheckContext) -> Figures:
    """Compare each case of each kernel, in float32 and bfloat16, with its reference on the host."""
    target = str(open_device(context).device)
    worst: dict[str, float] = {}
    wrong = []
    for dtype in TOLERANCE:
        for case in CASES:
            kernel, name = kernel_of(case), case.split()[0]
            expected = outputs_and_gradients(kernel.reference, case, dtype)
            try:
                actual = outputs_and_gradients(kernel.kernel, case, dtype, target)
                share = worst_share(actual, expected, dtype)
            except Exception as error:  # the other kernels still run: their errors help too
                message = str(error).partition("\n")[0]
                wrong.append(f"{case} in {dtype}: {type(error).__name__}: {message}")
                continue
            worst[name] = max(worst.get(name, 0.0), share)
            if not share <= 1:
                wrong.append(f"{case} in {dtype} is off by {share:.2g} times its tolerance")
    cases = len(CASES) * len(TOLERANCE)
    if wrong:
        more = f"; and {len(wrong) - SHOWN_CASES} more" if len(wrong) > SHOWN_CASES else ""
        raise WrongResult(f"{len(wrong)} of {cases} cases: {'; '.join(wrong[:SHOWN_CASES])}{more}")
    return {"cases": cases} | {f"{name}_of_tolerance": share for name, share in worst.items()}


def host_swap(context: CheckContext) -> Figures:
    """Swap tensors several times through the same host memory; return the best rates."""
    backend = open_device(context)
    size = SWAP_BYTES[context.emulated]
    values = torch.arange(size // 8, device=backend.device)
    synchronize(backend)
    out_seconds, back_seconds = [], []
    swapped = HostSwap(backend).out([values])
    swapped.release()
    for number in range(REPEATS):
        started = time.perf_counter()
        swapped.back()
        swapped.ready()  # bits are compared, which waits for the copy
        synchronize(backend)
        back_seconds.append(time.perf_counter() - started)
        if number < REPEATS - 1:
            started = time.perf_counter()
            swapped.again()
            swapped.release()
            out_seconds.append(time.perf_counter() - started)
    if not bool((values == torch.arange(size // 8, device=backend.device)).all()):
        raise WrongResult("values came back as others")
    rates = {"to_host": size / min(out_seconds) / 1e9, "to_device": size / min(back_seconds) / 1e9}
    return {f"{direction}_gb_per_s": rate for direction, rate in rates.items()} | {
        "gib": size / GIB
    }
