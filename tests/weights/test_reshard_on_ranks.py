"""Plans run on ranks over gloo: each ends bitwise with its slices, within the memory that was planned."""

from collections.abc import Sequence
from functools import partial

import pytest
import torch
from forked_ranks import RanksFailed, on_ranks
from reshard_ranks import PAIRS, full_weights, made, plan_of, slices_of
from torch import Tensor

from rljob_plan.resharding.figures import peaks
from rljob_plan.resharding.resharding_plan import ReshardPlan
from rljob_plan.resharding.widths import Widths
from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryReport
from rljob_runtime.models.expert_names import weight_dtype
from rljob_runtime.weights.reshard.executor import Resharder


def reshard(
    plan: ReshardPlan,
    device: int,
    trained: torch.dtype,
    generated: torch.dtype,
    *,
    times: int = 1,
    shares_memory: bool = True,
) -> MemoryReport:
    """Runs it, and checks that the device ends with its slices and nothing else."""
    whole = full_weights(plan.update.shape, trained)
    backend = CpuBackend(name=f"emulated:{device}")
    ledger = backend.ledger
    sent = min(trained, generated, key=lambda dtype: dtype.itemsize)
    resharder = Resharder(plan, backend, sent=sent, timeout_seconds=30, shares_memory=shares_memory)
    for _ in range(times):
        update = slices_of(whole, plan.update, device)
        ledger.track(MemoryKind.UPDATE_WEIGHTS, update.values())
        ledger.reset_peaks()

        found = dict(
            resharder.run(
                update,
                lambda piece: made(piece, generated, ledger),
                release=lambda names, update=update: partial(forget, update, names),  # type: ignore[misc]
            )
        )

        assert not update
        peak = ledger.report()
        expected = slices_of(whole, plan.rollout, device)
        assert set(found) == set(expected)
        for name, tensor in expected.items():
            assert torch.equal(found[name], tensor.to(weight_dtype(name, generated))), name
        del found
    return peak


def forget(update: dict[str, Tensor], names: Sequence[str]) -> None:
    for name in names:
        del update[name]


@pytest.mark.parametrize("shares_memory", [True, False], ids=["shared memory", "collectives"])
@pytest.mark.parametrize("nodes", [None, 2], ids=["one node", "nodes of two"])
@pytest.mark.parametrize("name", PAIRS)
def test_each_rank_ends_with_its_slices_within_the_planned_peak(
    name: str, nodes: int | None, shares_memory: bool
):
    plan = plan_of(name, nodes=nodes, separated=False, widths=Widths(update=4, rollout=4))
    size = max(len(plan.update.shards), len(plan.rollout.shards))

    reports = on_ranks(
        size,
        lambda rank: reshard(plan, rank, torch.float32, torch.float32, shares_memory=shares_memory),
    )

    # with nodes, what is passed on within them has no buffer while its bucket comes from others; with
    # shared memory, nothing is received into buffers
    exact = nodes is None and not shares_memory
    for kind, peak in zip(plan.loads.kinds, peaks(plan, swaps=True), strict=True):
        for device in kind:
            found = reports[device].total_peak_bytes
            assert found == peak.total if exact else found <= peak.total


def test_a_narrower_type_is_sent_and_router_biases_stay_float32():
    plan = plan_of(
        "fewer expert ranks", nodes=None, separated=False, widths=Widths(update=4, rollout=2)
    )

    reports = on_ranks(
        4, lambda rank: reshard(plan, rank, torch.float32, torch.bfloat16, shares_memory=False)
    )

    for kind, peak in zip(plan.loads.kinds, peaks(plan, swaps=True), strict=True):
        assert {reports[device].total_peak_bytes for device in kind} == {peak.total}


def test_other_devices_generate():
    plan = plan_of(
        "fewer tensor ranks", nodes=2, separated=True, widths=Widths(update=4, rollout=4)
    )

    on_ranks(8, lambda rank: reshard(plan, rank, torch.float32, torch.float32))


def test_a_plan_runs_many_times():
    plan = plan_of(
        "a pipeline in training", nodes=2, separated=False, widths=Widths(update=2, rollout=2)
    )

    on_ranks(4, lambda rank: reshard(plan, rank, torch.bfloat16, torch.bfloat16, times=3))


def test_buffers_that_do_not_fit_are_refused_by_name():
    plan = plan_of(
        "more tensor ranks", nodes=None, separated=False, widths=Widths(update=4, rollout=4)
    )

    def without_room(rank: int) -> None:
        update = slices_of(full_weights(plan.update.shape, torch.float32), plan.update, rank)
        backend = CpuBackend(name="emulated:0", limit_bytes=1)
        resharder = Resharder(plan, backend, sent=torch.float32, timeout_seconds=30)
        dict(resharder.run(update, lambda piece: torch.empty(piece.box.size)))

    with pytest.raises(RanksFailed, match="DeviceMemoryError: device emulated:0: buffers need"):
        on_ranks(4, without_room)
