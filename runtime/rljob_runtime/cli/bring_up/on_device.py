"""Checks of one device: it is there, its memory, its kernels, copies to the host and back."""

import time
from typing import TYPE_CHECKING, Any

import torch

from rljob_runtime.cli.bring_up.equipment import ANY_NPU, awaited, open_device
from rljob_runtime.cli.bring_up.kernel_cases import (
    CASES,
    TOLERANCE,
    kernel_of,
    outputs_and_gradients,
    worst_share,
)
from rljob_runtime.cli.bring_up.place import Differs, Place
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
SIDE = 512
CLOSE = 1e-4
BLOCKS = 8
SWAPPED = {True: 64 * MIB, False: 2 * GIB}
"""Bytes, on emulated devices and on others."""
TIMES = 3
SHOWN = 3


def device(place: Place) -> Figures:
    """Open the first device, and look at all. Raises Differs for another type than was asked for."""
    backend = open_device(place)
    module: Any = None if place.emulated else getattr(torch, backend.device.type)
    number = EMULATED_DEVICES if module is None else int(module.device_count())
    names = ["CPU" if module is None else module.get_device_name(i) for i in range(number)]
    if len(set(names)) > 1:
        raise Differs(f"devices are of several types: {', '.join(sorted(set(names)))}")
    found = product() if backend.device.type == "npu" else place.accelerator
    if found is None or place.accelerator not in (found, ANY_NPU):
        raise Differs(
            f"{names[0]} is {found or 'of no type that rljob knows'}, and {place.accelerator} was asked for; "
            "name another --accelerator"
        )
    generator = torch.Generator().manual_seed(1)
    left, right = (torch.randn(SIDE, SIDE, generator=generator) for _ in range(2))
    expected = left @ right
    gap = float(
        (left.to(backend.device) @ right.to(backend.device)).cpu().sub(expected).abs().max()
    )
    if gap > CLOSE * float(expected.abs().max()):
        raise Differs(f"a product of {SIDE} × {SIDE} matrices is off by {gap:.2g} from the host's")
    return {"accelerator": found, "devices": number, "names": names, "product_gap": gap}


def memory(place: Place) -> Figures:
    """Take half of what is free in blocks, write, read, give back; ask for more than there is."""
    backend = open_device(place)
    before = backend.memory()
    blocks = _fill(backend, _room(backend) // BLOCKS)
    taken = backend.memory().allocated_bytes - before.allocated_bytes
    wrong = [n for n, block in enumerate(blocks) if not bool((block == n + 1).all())]
    if wrong:
        raise Differs(f"{len(wrong)} of {BLOCKS} blocks do not hold what was written")
    size = sum(block.nbytes for block in blocks)
    if taken < size:
        raise Differs(f"{size} bytes were taken, and the allocator's account has {taken}")
    blocks.clear()
    left = backend.memory().allocated_bytes - before.allocated_bytes
    if left > MIB:
        raise Differs(f"{left} bytes were not given back")
    _refuses(backend)
    total = before.total_bytes
    return {"taken_gib": size / GIB, "total_gib": "no limit" if total is None else total / GIB}


def _room(backend: Backend) -> int:
    """Bytes: half of what is free, 64 MiB on emulated devices."""
    if isinstance(backend, CpuBackend):
        return 64 * MIB
    module: Any = getattr(torch, backend.device.type)
    return int(module.mem_get_info(backend.device)[0]) // 2


def _fill(backend: Backend, size: int) -> "list[Tensor]":
    blocks = []
    for number in range(BLOCKS):
        block = torch.full((size,), number + 1, dtype=torch.uint8, device=backend.device)
        backend.ledger.track(MemoryKind.ACTIVATIONS, [block])
        blocks.append(block)
    return blocks


def _refuses(backend: Backend) -> None:
    """An emulated device has a ledger's limit alone, which its own tests show."""
    if isinstance(backend, CpuBackend):
        return
    try:
        with backend.naming_memory_errors():
            torch.empty(2**48, dtype=torch.uint8, device=backend.device)
    except DeviceMemoryError:
        return
    raise Differs("256 TiB were not refused")


def kernels(place: Place) -> Figures:
    """Every kernel with all of its cases, in float32 and bfloat16, beside its reference on the host."""
    target = str(open_device(place).device)
    worst: dict[str, float] = {}
    wrong = []
    for dtype in TOLERANCE:
        for case in CASES:
            kernel, name = kernel_of(case), case.split()[0]
            expected = outputs_and_gradients(kernel.reference, case, dtype)
            try:
                found = outputs_and_gradients(kernel.kernel, case, dtype, target)
                share = worst_share(found, expected, dtype)
            except Exception as error:  # the other kernels tell more than the first alone
                told = str(error).partition("\n")[0]
                wrong.append(f"{case} in {dtype}: {type(error).__name__}: {told}")
                continue
            worst[name] = max(worst.get(name, 0.0), share)
            if not share <= 1:
                wrong.append(f"{case} in {dtype} is off by {share:.2g} times its tolerance")
    cases = len(CASES) * len(TOLERANCE)
    if wrong:
        more = f"; and {len(wrong) - SHOWN} more" if len(wrong) > SHOWN else ""
        raise Differs(f"{len(wrong)} of {cases} cases: {'; '.join(wrong[:SHOWN])}{more}")
    return {"cases": cases} | {f"{name}_of_tolerance": share for name, share in worst.items()}


def host_swap(place: Place) -> Figures:
    """Several rounds over the same host memory; the rates of the quickest."""
    backend = open_device(place)
    size = SWAPPED[place.emulated]
    values = torch.arange(size // 8, device=backend.device)
    awaited(backend)
    out, back = [], []
    swapped = HostSwap(backend).out([values])
    swapped.release()
    for number in range(TIMES):
        started = time.perf_counter()
        swapped.back()
        swapped.ready()  # bits are compared, which waits for the copy
        awaited(backend)
        back.append(time.perf_counter() - started)
        if number < TIMES - 1:
            started = time.perf_counter()
            swapped.again()
            swapped.release()
            out.append(time.perf_counter() - started)
    if not bool((values == torch.arange(size // 8, device=backend.device)).all()):
        raise Differs("values came back as others")
    rates = {"to_host": size / min(out) / 1e9, "to_device": size / min(back) / 1e9}
    return {f"{way}_gb_per_s": rate for way, rate in rates.items()} | {"gib": size / GIB}
