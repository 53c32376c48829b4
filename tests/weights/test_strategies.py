"""Both strategies bring the same weights; one leaves no update weight on the device meanwhile."""

import pytest
import torch
from forked_ranks import on_ranks
from reshard_ranks import full_weights, made, plan_of, slices_of
from torch import Tensor

from rljob_plan.resharding.figures import largest_bucket, peaks
from rljob_plan.resharding.resharding_plan import ReshardPlan
from rljob_plan.resharding.widths import Widths
from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryReport
from rljob_runtime.errors import ConfigError, DeviceMemoryError, WeightsError
from rljob_runtime.weights.reshard.executor import Resharder
from rljob_runtime.weights.reshard.strategies import STRATEGIES
from rljob_runtime.weights.reshard.swap import SwappedTensors

WIDTHS = Widths(update=4, rollout=4)
UPDATE = str(MemoryKind.UPDATE_WEIGHTS)


def a_step(
    plan: ReshardPlan, rank: int, strategy: str, *, steps: int = 2
) -> dict[str, MemoryReport]:
    """Weights go, change, and go again; what the device held at the peak and while it generated."""
    backend = CpuBackend(name=f"emulated:{rank}")
    whole = full_weights(plan.update.shape, torch.float32)
    update = slices_of(whole, plan.update, rank)
    backend.ledger.track(MemoryKind.UPDATE_WEIGHTS, update.values())
    resharder = Resharder(plan, backend, sent=torch.float32, timeout_seconds=30)
    way = STRATEGIES[strategy](resharder, update, backend)
    held: dict[str, MemoryReport] = {}
    for step in range(steps):
        backend.ledger.reset_peaks()
        found = dict(way.to_rollout(lambda piece: made(piece, torch.float32, backend.ledger)))
        held["generating"] = backend.ledger.report()
        assert_slices(found, whole, plan, rank, grown=step)
        found.clear()
        way.prefetch()
        way.to_update()
        for tensor in update.values():
            tensor += 1
    held["training"] = backend.ledger.report()
    return held


def assert_slices(
    found: dict[str, Tensor], whole: dict[str, Tensor], plan: ReshardPlan, rank: int, grown: int
) -> None:
    expected = slices_of(whole, plan.rollout, rank)
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        for _ in range(grown):
            tensor += 1
        assert torch.equal(found[name], tensor), name


@pytest.mark.parametrize("name", ["fewer tensor ranks", "a virtual pipeline", "fewer expert ranks"])
def test_swapped_weights_are_on_the_host_while_generating_and_come_back_bitwise(name: str):
    plan = plan_of(name, nodes=None, separated=False, widths=WIDTHS)

    found = on_ranks(len(plan.update.shards), lambda rank: a_step(plan, rank, "allgather-swap"))

    for kind, peak in zip(plan.loads.kinds, peaks(plan, swaps=True), strict=True):
        for device in (device for device in kind if device in plan.update.devices):
            update = sum(plan.sent_bytes(piece) for piece in plan.update.local_boxes(device))
            rollout = sum(plan.sent_bytes(piece) for piece in plan.rollout.local_boxes(device))
            generating, training = found[device]["generating"], found[device]["training"]
            assert generating.kind_bytes.get(UPDATE, 0) == 0
            assert generating.total_bytes == rollout
            assert training.kind_bytes == {UPDATE: update}
            assert generating.total_peak_bytes <= peak.total
            assert peak.total <= max(update, rollout) + 2 * largest_bucket(plan)


def test_the_baseline_keeps_both_layouts():
    plan = plan_of("fewer tensor ranks", nodes=None, separated=False, widths=WIDTHS)

    found = on_ranks(4, lambda rank: a_step(plan, rank, "allgather"))

    for device, held in enumerate(found):
        update = sum(plan.sent_bytes(piece) for piece in plan.update.local_boxes(device))
        rollout = sum(plan.sent_bytes(piece) for piece in plan.rollout.local_boxes(device))
        assert held["generating"].kind_bytes == {UPDATE: update, "rollout weights": rollout}


def test_weights_that_share_memory_leave_when_the_last_of_them_may():
    backend = CpuBackend(name="emulated:0")
    both = torch.arange(6.0)
    resting = SwappedTensors({"gate": both[:3], "up": both[3:]}, backend)
    backend.ledger.track(MemoryKind.UPDATE_WEIGHTS, [both])

    resting.leave(["gate"])()
    after_one = backend.ledger.total_bytes()
    resting.leave(["up"])()

    assert (after_one, backend.ledger.total_bytes()) == (24, 0)
    resting.back()
    resting.ready()
    assert both.equal(torch.arange(6.0))


@pytest.mark.parametrize("bit", [0, 31, 8 * 20 + 7, 8 * 35])
def test_a_bit_that_flips_while_weights_rest_is_refused_with_their_name(bit: int):
    backend = CpuBackend(name="emulated:0")
    weights = {"gate": torch.arange(9.0), "up": torch.arange(9.0)}
    resting = SwappedTensors(weights, backend)
    resting.leave(["gate", "up"])()
    resting._host[resting._storage_of["up"]][bit // 8] ^= 1 << bit % 8

    assert resting.values(weights["gate"]).equal(torch.arange(9.0))
    with pytest.raises(WeightsError, match=r"bits of 1 of 1 tensors \(such as up\)"):
        resting.values(weights["up"])  # as a checkpoint would read it
    resting.back()
    with pytest.raises(WeightsError, match=r"bits of 1 of 2 tensors \(such as up\) changed"):
        resting.ready()


def test_weights_do_not_come_back_where_there_is_no_room():
    backend = CpuBackend(name="emulated:0", limit_bytes=40)
    weights, cache = torch.zeros(8), torch.zeros(4)
    backend.ledger.track(MemoryKind.UPDATE_WEIGHTS, [weights])
    resting = SwappedTensors({"weights": weights}, backend)
    resting.leave(["weights"])()
    backend.ledger.track(MemoryKind.KV_CACHE, [cache])

    with pytest.raises(DeviceMemoryError, match="update weights need 32 bytes, but 16 of 40"):
        resting.back()

    assert weights.untyped_storage().nbytes() == 0


def test_a_host_without_memory_is_said_before_anything_moves(monkeypatch: pytest.MonkeyPatch):
    """As `host_bytes` counts it: what a container's limit leaves, however much the machine has."""
    monkeypatch.setattr("rljob_runtime.weights.reshard.swap.host_bytes", lambda: 16)

    with pytest.raises(
        ConfigError, match=r"has 0\.0 GiB left.* set resharding\.strategy: allgather"
    ):
        SwappedTensors({"weights": torch.zeros(8)}, CpuBackend(name="emulated:0"))
