"""Checks of all devices together: their collectives, and a reshard between two layouts."""

import time
from collections.abc import Callable

import torch
import torch.distributed as dist
from torch import Tensor

from rljob_api.model.architecture import Shape, read_shape
from rljob_api.model.tensors import tensors_of
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_plan.resharding.boxes import Box, Piece
from rljob_plan.resharding.figures import count_bytes
from rljob_plan.resharding.layouts import Layout, rollout_layout, update_layout
from rljob_plan.resharding.resharding_plan import ReshardPlan, make_reshard_plan
from rljob_plan.resharding.widths import Widths
from rljob_runtime.cli.bring_up.equipment import MODEL, SEED, awaited, meet, open_device
from rljob_runtime.cli.bring_up.place import Differs, Place
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
from rljob_runtime.weights.reshard.parcels import part
from rljob_runtime.weights.reshard.strategies import AllgatherSwap

ROWS = 3
SUMMED = {True: 2**22, False: 2**27}
"""float32 values of the all-reduce that is timed, on emulated devices and on others."""
TIMES = 3


def collectives(place: Place) -> Figures:
    """Each that engines use, on values that tell whose they are; then an all-reduce in time."""
    backend = open_device(place)
    started = time.perf_counter()
    meet(place, backend)
    _each(place, backend)
    first = time.perf_counter() - started
    names = union_over_ranks([f"rank {place.rank}"], dist.group.WORLD)
    if names != [f"rank {rank}" for rank in range(place.size)]:
        raise Differs(f"ranks told each other from the host: {names}")
    values = torch.ones(SUMMED[place.emulated], device=backend.device)
    taken = []
    for _ in range(TIMES):
        awaited(backend)
        started = time.perf_counter()
        dist.all_reduce(values)
        awaited(backend)
        taken.append(time.perf_counter() - started)
    moved = 2 * values.nbytes * (place.size - 1) / place.size
    dist.barrier()
    return {
        "devices": place.size,
        "library": backend.collectives,
        "first_seconds": first,
        "all_reduce_gb_per_s": moved / min(taken) / 1e9,
    }


def _each(place: Place, backend: Backend) -> None:
    rank, size, world = place.rank, place.size, dist.group.WORLD
    device = backend.device

    def of(number: int) -> Tensor:
        """What a rank gives, [ROWS, 2]."""
        return (
            torch.arange(2 * ROWS, dtype=torch.float32, device=device).view(ROWS, 2) + 100 * number
        )

    everyone = torch.stack([of(number) for number in range(size)])
    whole = everyone.flatten(0, 1)
    sent = [number % 2 + 1 for number in range(size)]  # rows to each rank
    rows = torch.cat([of(rank)[:count] for count in sent])
    works: dict[str, tuple[Callable[[], Tensor], Tensor]] = {
        "all_reduce": (lambda: start_sum(of(rank), world).wait(), everyone.sum(0)),
        "all_gather": (lambda: start_gather(of(rank), world).wait(), whole),
        "reduce_scatter": (
            lambda: start_scatter_sum(whole + rank, world).wait(),
            size * of(rank) + sum(range(size)),
        ),
        "broadcast": (lambda: start_broadcast(of(rank), size - 1, world).wait(), of(size - 1)),
        "all_to_all": (
            lambda: start_exchange(rows, sent, [sent[rank]] * size, world).wait(),
            torch.cat([of(number)[: sent[rank]] for number in range(size)]),
        ),
    }
    if size > 1:
        before = (rank - 1) % size
        into = torch.empty_like(of(before))
        works["send and receive"] = (lambda: start_shift(of(rank), into, world).wait(), of(before))
    for name, (work, expected) in works.items():
        found = work().cpu()
        if not torch.equal(found, expected.cpu()):
            raise Differs(f"{name} over {size} devices gave {found.tolist()} on rank {rank}")


def reshard(place: Place) -> Figures:
    """From a layout of tensor ranks to one of whole models, twice; what arrives is compared and counted."""
    backend = open_device(place)
    meet(place, backend)
    shape = read_shape(MODEL, name="the model of the bring-up")
    assert shape is not None, "the model is of a family of the contract"
    plan = _plan(shape, place.size)
    whole = _whole(shape)
    trained = _slices(whole, plan.update, place.rank, backend)
    resharder = Resharder(
        plan, backend, sent=torch.float32, timeout_seconds=place.seconds, shares_memory=False
    )
    strategy = AllgatherSwap(resharder, trained, backend)

    def new(piece: Piece) -> Tensor:
        return torch.empty(piece.box.size[: len(piece.tensor.shape)], device=backend.device)

    for _ in range(2):
        started = time.perf_counter()
        found = dict(strategy.to_rollout(new))
        awaited(backend)
        seconds = time.perf_counter() - started
        _compare("the rollout's", found, _slices(whole, plan.rollout, place.rank, backend))
        if any(tensor.untyped_storage().nbytes() for tensor in trained.values()):
            raise Differs("weights to train are on the device while it generates")
        strategy.to_update()
        _compare("the update's", trained, _slices(whole, plan.update, place.rank, backend))
    figures = count_bytes(plan)
    moved = torch.tensor([resharder.received_bytes], device=backend.device)
    dist.all_reduce(moved)
    if int(moved) != figures.moved:
        raise Differs(f"{int(moved)} bytes were moved, and {figures.moved} were planned")
    return {
        "devices": place.size,
        "moved_bytes": int(moved),
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


def _whole(shape: Shape) -> dict[str, Tensor]:
    generator = torch.Generator().manual_seed(SEED)
    return {
        tensor.name: torch.randn(tensor.shape, generator=generator) for tensor in tensors_of(shape)
    }


def _slices(
    whole: dict[str, Tensor], layout: Layout, rank: int, backend: Backend
) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for tensor, box in layout.held(rank):
        rows, columns = (*tensor.shape, 1)[:2]
        own = part(whole[tensor.name], Box(0, rows, 0, columns), box)
        found[tensor.name] = own.clone().to(backend.device)
    return found


def _compare(whose: str, found: dict[str, Tensor], expected: dict[str, Tensor]) -> None:
    if found.keys() != expected.keys():
        raise Differs(f"{whose} slices have other names")
    wrong = [name for name, tensor in expected.items() if not torch.equal(found[name], tensor)]
    if wrong:
        raise Differs(
            f"{len(wrong)} of {len(expected)} of {whose} slices differ, such as {wrong[0]}"
        )
