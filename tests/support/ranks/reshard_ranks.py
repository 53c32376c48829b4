"""Layout pairs of small models, and what their ranks have before and after a reshard."""

from typing import Any

import torch
from reshards import SHAPES
from torch import Tensor

from rljob_api.model.architecture import Shape
from rljob_api.model.tensors import tensors_of
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_plan.resharding.boxes import Box, TensorBox
from rljob_plan.resharding.layouts import LayoutTable, rollout_layout, update_layout
from rljob_plan.resharding.resharding_plan import ReshardPlan, make_reshard_plan
from rljob_plan.resharding.widths import Widths
from rljob_runtime.devices.memory_ledger import MemoryKind, MemoryLedger
from rljob_runtime.models.expert_names import weight_dtype
from rljob_runtime.weights.reshard.parcels import box_view

PAIRS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "fewer tensor ranks": ("llama", {"data": 1, "tensor": 4}, {"data": 2, "tensor": 2}),
    "more tensor ranks": ("biases", {"data": 2, "tensor": 2}, {"data": 1, "tensor": 4}),
    "a pipeline in training": ("tied", {"data": 1, "tensor": 2, "pipeline": 2}, {"data": 4}),
    "a virtual pipeline": (
        "llama",
        {"data": 1, "pipeline": 2, "virtual_pipeline": 3},
        {"data": 1, "tensor": 2},
    ),
    "pipelines in both": ("tied", {"data": 1, "pipeline": 4}, {"data": 2, "pipeline": 2}),
    "experts by number, as in figure 3": (
        "qwen3_moe",
        {"data": 2, "tensor": 2, "expert": 2},
        {"data": 4, "expert": 4},
    ),
    "fewer expert ranks": (
        "deepseek",
        {"data": 2, "context": 2, "expert": 4},
        {"data": 2, "tensor": 2, "expert": 2},
    ),
    "experts cut as matrices": ("qwen3_moe", {"data": 1, "tensor": 4}, {"data": 3, "expert": 3}),
    "ZeRO 3": ("llama", {"data": 3, "zero": 3}, {"data": 1, "tensor": 2}),
    "ZeRO 3 of experts": ("deepseek", {"data": 4, "zero": 3}, {"data": 4, "expert": 4}),
    "equal layouts": ("qwen3_moe", {"data": 2, "tensor": 2}, {"data": 2, "tensor": 2}),
}


def plan_of(name: str, *, nodes: int | None, separated: bool, widths: Widths) -> ReshardPlan:
    family, update, rollout = PAIRS[name]
    shape = SHAPES[family]
    trained = update_layout(shape, UpdateDegrees.model_validate(update))
    first = len(trained.shards) if separated else 0
    generated = rollout_layout(shape, RolloutDegrees.model_validate(rollout), first_device=first)
    return make_reshard_plan(trained, generated, widths, node_devices=nodes)


def full_weights(shape: Shape, dtype: torch.dtype) -> dict[str, Tensor]:
    random = torch.Generator().manual_seed(5)
    return {
        tensor.name: torch.randn(tensor.shape, generator=random).to(
            weight_dtype(tensor.name, dtype)
        )
        for tensor in tensors_of(shape)
    }


def slices_of(whole: dict[str, Tensor], layout: LayoutTable, device: int) -> dict[str, Tensor]:
    found: dict[str, Tensor] = {}
    for tensor, box in layout.local_boxes(device):
        rows, columns = (*tensor.shape, 1)[:2]
        found[tensor.name] = box_view(whole[tensor.name], Box(0, rows, 0, columns), box).clone()
    return found


def made(piece: TensorBox, dtype: torch.dtype, ledger: MemoryLedger) -> Tensor:
    size = piece.box.size[: len(piece.tensor.shape)]
    tensor = torch.full(size, torch.nan, dtype=weight_dtype(piece.tensor.name, dtype))
    ledger.track(MemoryKind.ROLLOUT_WEIGHTS, [tensor])
    return tensor
