"""Checks over all devices: their collectives, and a reshard between two layouts."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from rljob_api.model.architecture import Shape, read_shape
from rljob_api.model.tensors import tensors_of
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_plan.resharding.boxes import Box, TensorBox
from rljob_plan.resharding.figures import count_bytes
from rljob_plan.resharding.layouts import LayoutTable, rollout_layout, update_layout
from rljob_plan.resharding.resharding_plan import ReshardPlan, make_reshard_plan
from rljob_plan.resharding.widths import Widths
from rljob_runtime.cli.bring_up.equipment import MODEL, SEED, join_group, open_device, synchronize
from rljob_runtime.cli.bring_up.place import CheckContext, WrongResult
from rljob_runtime.cli.bring_up.record import Figures
from rljob_runtime.devices.backend import Backend
from rljob_runtime.devices.collectives import union_over_ranks
from rljob_runtime.devices.wire import (
    start_broadcast,
    start_exchange,
    start_gather,
    start_scatter_sum,
    start_shift,
    start_sum,
)
from rljob_runtime.weights.reshard.executor import Resharder
from rljob_runtime.weights.reshard.parcels import box_view
from rljob_runtime.weights.reshard.strategies import AllgatherSwap

ROWS = 3
ALL_REDUCE_VALUES = {True: 2**22, False: 2**27}
"""float32 values of the timed all-reduce, on emulated devices (True) and on others (False)."""
REPEATS = 3


def collectives(context: CheckContext) -> Figures:
    """Check each collective that engines use, on values that identify their rank; then time an all-reduce."""
    backend = open_device(context)
    started = time.perf_counter()
    join_group(context, backend)
    _check_collectives(context, backend)
    first = time.perf_counter() - started
    names = union_over_ranks([f"rank {context.rank}"], dist.group.WORLD)
    if names != [f"rank {rank}" for rank in range(context.size)]:
        raise WrongResult(f"ranks told each other from the host: {names}")
    values = torch.ones(ALL_REDUCE_VALUES[context.emulated], device=backend.device)
    durations = []
    for _ in range(REPEATS):
        synchronize(backend)
        started = time.perf_counter()
        dist.all_reduce(values)
        synchronize(backend)
        durations.append(time.perf_counter() - started)
    moved_bytes = 2 * values.nbytes * (context.size - 1) / context.size
    dist.barrier()
    return {
        "devices": context.size,
        "library": backend.collectives,
        "first_seconds": first,
        "all_reduce_gb_per_s": moved_bytes / min(durations) / 1e9,
    }


def _check_collectives(context: CheckContext, backend: Backend) -> None:
    rank, size, world = context.rank, context.size, dist.group.WORLD
    device = backend.device

    def rows_of(number: int) -> Tensor:
        """Return the input of a rank, [ROWS, 2]."""
        return (
            torch.arange(2 * ROWS, dtype=torch.float32, device=device).view(ROWS, 2) + 100 * number
        )

    everyone = torch.stack([rows_of(number) for number in range(size)])
    gathered = everyone.flatten(0, 1)
    send_counts = [number % 2 + 1 for number in range(size)]  # rows to each rank
    rows = torch.cat([rows_of(rank)[:count] for count in send_counts])
    cases: dict[str, tuple[Callable[[], Tensor], Tensor]] = {
        "all_reduce": (lambda: start_sum(rows_of(rank), world).wait(), everyone.sum(0)),
        "all_gather": (lambda: start_gather(rows_of(rank), world).wait(), gathered),
        "reduce_scatter": (
            lambda: start_scatter_sum(gathered + rank, world).wait(),
            size * rows_of(rank) + sum(range(size)),
        ),
        "broadcast": (
            lambda: start_broadcast(rows_of(rank), size - 1, world).wait(),
            rows_of(size - 1),
        ),
        "all_to_all": (
            lambda: start_exchange(rows, send_counts, [send_counts[rank]] * size, world).wait(),
            torch.cat([rows_of(number)[: send_counts[rank]] for number in range(size)]),
        ),
    }
    if size > 1:
        before = (rank - 1) % size
        received = torch.empty_like(rows_of(before))
        cases["send and receive"] = (
            lambda: start_shift(rows_of(rank), received, world).wait(),
            rows_of(before),
        )
    for name, (work, expected) in cases.items():
        actual = work().cpu()
        if not torch.equal(actual, expected.cpu()):
            raise WrongResult(f"{name} over {size} devices gave {actual.tolist()} on rank {rank}")


def reshard(context: CheckContext) -> Figures:
    """Reshard twice from a tensor-parallel layout to one of full models; compare slices and count bytes."""
    backend = open_device(context)
    join_group(context, backend)
    shape = read_shape(MODEL, name="the model of the bring-up")
    assert shape is not None, "the model is of a family of the contract"
    plan = _plan(shape, context.size)
    full_weights = _random_weights(shape)
    trained = _local_slices(full_weights, plan.update, context.rank, backend)
    resharder = Resharder(
        plan, backend, sent=torch.float32, timeout_seconds=context.seconds, shares_memory=False
    )
    strategy = AllgatherSwap(resharder, trained, backend)

    def allocate(region: TensorBox) -> Tensor:
        return torch.empty(region.box.size[: len(region.tensor.shape)], device=backend.device)

    for _ in range(2):
        started = time.perf_counter()
        rollout_slices = dict(strategy.to_rollout(allocate))
        synchronize(backend)
        seconds = time.perf_counter() - started
        _compare_slices(
            "the rollout's",
            rollout_slices,
            _local_slices(full_weights, plan.rollout, context.rank, backend),
        )
        if any(tensor.untyped_storage().nbytes() for tensor in trained.values()):
            raise WrongResult("weights to train are on the device while it generates")
        strategy.to_update()
        _compare_slices(
            "the update's", trained, _local_slices(full_weights, plan.update, context.rank, backend)
        )
    figures = count_bytes(plan)
    moved_bytes = torch.tensor([resharder.received_bytes], device=backend.device)
    dist.all_reduce(moved_bytes)
    if int(moved_bytes) != figures.moved:
        raise WrongResult(f"{int(moved_bytes)} bytes were moved, and {figures.moved} were planned")
    return {
        "devices": context.size,
        "moved_bytes": int(moved_bytes),
        "planned_bytes": figures.moved,
        "seconds": seconds,
    }


def _plan(shape: Shape, size: int) -> ReshardPlan:
    tensor = max(degree for degree in (1, 2, 4, 8) if size % degree == 0)
    degrees = UpdateDegrees(data=size // tensor, tensor=tensor)
    return make_reshard_plan(
        update_layout(shape, degrees),
        rollout_layout(shape, RolloutDegrees(data=size)),
        Widths(update=4, rollout=4),
    )


def _random_weights(shape: Shape) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    return {
        tensor.name: torch.randn(tensor.shape, generator=generator) for tensor in tensors_of(shape)
    }


def _local_slices(
    full_weights: dict[str, Tensor], layout: LayoutTable, rank: int, backend: Backend
) -> dict[str, Tensor]:
    slices: dict[str, Tensor] = {}
    for tensor, box in layout.local_boxes(rank):
        rows, columns = (*tensor.shape, 1)[:2]
        local_slice = box_view(full_weights[tensor.name], Box(0, rows, 0, columns), box)
        slices[tensor.name] = local_slice.clone().to(backend.device)
    return slices


def _compare_slices(owner: str, actual: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    if actual.keys() != expected.keys():
        raise WrongResult(f"{owner} slices have other names")
    wrong = [name for name, tensor in expected.items() if not torch.equal(actual[name], tensor)]
    if wrong:
        raise WrongResult(
            f"{len(wrong)} of {len(expected)} of {owner} slices differ, such as {wrong[0]}"
        )
