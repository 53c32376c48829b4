"""Memory of a reshard in the ledgers of ranks. Called by `__main__`."""

from typing import Any

import torch

from benchmarks.reshard.sides import dense, plan_of, slices, sparse, traced
from benchmarks.support.figures import Figures
from benchmarks.support.ranks import on_ranks
from rljob_api.model.architecture import Shape
from rljob_api.model.volumes import redundant_bytes
from rljob_plan.resharding.figures import count_bytes, largest_bucket
from rljob_plan.resharding.resharding_plan import ReshardPlan
from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.models.expert_names import weight_dtype
from rljob_runtime.weights.reshard.executor import Resharder
from rljob_runtime.weights.reshard.strategies import STRATEGIES

MIB = 2**20
PAIRS: dict[str, tuple[bool, dict[str, int], dict[str, int]]] = {
    "TP2 DP2 → TP4": (False, {"data": 2, "tensor": 2}, {"data": 1, "tensor": 4}),
    "TP4 → TP2 DP2": (False, {"data": 1, "tensor": 4}, {"data": 2, "tensor": 2}),
    "TP4 → DP4": (False, {"data": 1, "tensor": 4}, {"data": 4}),
    "PP4 → TP4": (False, {"data": 1, "pipeline": 4}, {"data": 1, "tensor": 4}),
    "PP2 TP2 → TP2 DP2": (False, {"data": 1, "pipeline": 2, "tensor": 2}, {"data": 2, "tensor": 2}),
    "PP2 VPP2 → DP2": (False, {"data": 1, "pipeline": 2, "virtual_pipeline": 2}, {"data": 2}),
    "ZeRO 3 over DP4 → TP2 DP2": (False, {"data": 4, "zero": 3}, {"data": 2, "tensor": 2}),
    "CP2 TP2 → DP4": (False, {"data": 1, "context": 2, "tensor": 2}, {"data": 4}),
    "MoE: TP2 EP2 DP2 → EP4 DP4": (
        True, {"data": 2, "tensor": 2, "expert": 2}, {"data": 4, "expert": 4},
    ),
    "MoE: EP4 DP4 → TP2 EP2 DP2": (
        True, {"data": 4, "expert": 4}, {"data": 2, "tensor": 2, "expert": 2},
    ),
    "MoE: EP2 DP4 → TP4": (True, {"data": 4, "expert": 2}, {"data": 1, "tensor": 4}),
    "MoE: TP4 → EP4 DP4": (True, {"data": 1, "tensor": 4}, {"data": 4, "expert": 4}),
    "MoE: PP2 EP2 DP2 → EP4 DP4": (
        True, {"data": 2, "pipeline": 2, "expert": 2}, {"data": 4, "expert": 4},
    ),
    "MoE: ZeRO 3 over DP4 → EP4 DP4": (True, {"data": 4, "zero": 3}, {"data": 4, "expert": 4}),
}  # fmt: skip


def generate_step(plan: ReshardPlan, rank: int, strategy: str) -> dict[str, Any]:
    """A rank's bytes over a reshard and back, in the ledger."""
    backend = CpuBackend(name=f"emulated:{rank}")
    trace = traced(backend)
    update = slices(plan.update, rank)
    backend.ledger.track(MemoryKind.UPDATE_WEIGHTS, update.values())
    way = STRATEGIES[strategy](
        Resharder(plan, backend, sent=torch.bfloat16, timeout_seconds=300), update, backend
    )

    def new(piece: Any) -> torch.Tensor:
        size = piece.box.size[: len(piece.tensor.shape)]
        tensor = torch.empty(size, dtype=weight_dtype(piece.tensor.name, torch.bfloat16))
        backend.ledger.track(MemoryKind.ROLLOUT_WEIGHTS, [tensor])
        return tensor

    trace.clear()  # of making it
    backend.ledger.reset_peaks()
    found = dict(way.to_rollout(new))
    backend.ledger.track(MemoryKind.BUFFERS, [])  # a point of the trace
    generating = backend.ledger.report()
    found.clear()
    way.to_update()
    return {
        "trace": trace,
        "peak": generating.total_peak_bytes,
        "kept": generating.kind_bytes.get(str(MemoryKind.UPDATE_WEIGHTS), 0),
        "update": sum(tensor.nbytes for tensor in update.values()),
    }


def measure_peaks(shape: Shape, figures: Figures) -> dict[str, Any]:
    """Bytes of rank 0 over the events of a reshard, by strategy: the paper's Fig. 10."""
    plan = plan_of(shape, {"data": 1, "tensor": 4}, {"data": 2, "tensor": 2})
    found = {
        strategy: on_ranks(4, lambda rank, name=strategy: generate_step(plan, rank, name))[0]  # type: ignore[misc]
        for strategy in STRATEGIES
    }
    rollout = sum(plan.sent_bytes(piece) for piece in plan.rollout.local_boxes(0))
    update = found["allgather"]["update"]
    bound = max(update, rollout) + 2 * largest_bucket(plan)
    for strategy, one in found.items():
        limit = bound / MIB if strategy == "allgather-swap" else None
        figures.add(f"{strategy}: peak of a device", one["peak"] / MIB, "MiB", limit)
        figures.add(f"{strategy}: update weights while generating", one["kept"] / MIB, "MiB")
    return {strategy: one["trace"] for strategy, one in found.items()}


def table_of_pairs(hidden: int, figures: Figures) -> list[dict[str, Any]]:
    """R before and after the swap, planned and in the ledgers of all ranks."""
    rows = []
    for name, (experts, update, rollout) in PAIRS.items():
        shape = (sparse if experts else dense)(hidden, 4, 512)
        plan = plan_of(shape, update, rollout)
        size = max(plan.update.devices.stop, plan.rollout.devices.stop)
        kept = {
            strategy: sum(
                one["kept"]
                for one in on_ranks(
                    size,
                    lambda rank, plan=plan, way=strategy: generate_step(plan, rank, way),  # type: ignore[misc]
                )
            )
            for strategy in STRATEGIES
        }
        whole = shape.total()
        rows.append(
            {
                "pair": name,
                "equation": redundant_bytes(
                    tensor_bytes=2 * whole.tensor,
                    expert_bytes=2 * whole.experts,
                    update_tensor=update.get("tensor", 1),
                    rollout_expert=rollout.get("expert", 1),
                    rollout_data=rollout["data"],
                ),
                "planned": count_bytes(plan).retained,
                **kept,
            }
        )
        print(rows[-1], flush=True)
    free = sum(row["allgather-swap"] == 0 for row in rows)
    figures.add("layout pairs without a redundant byte", free, f"of {len(rows)}", least=len(rows))
    right = sum(row["allgather"] == row["planned"] for row in rows)
    figures.add("pairs that keep what is planned", right, f"of {len(rows)}", least=len(rows))
    return rows
