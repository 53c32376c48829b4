"""A reshard that went wrong is found on every device, which name parameter, rank and version."""

from collections.abc import Callable
from typing import Any

import pytest
import torch
import torch.distributed as dist
from forked_ranks import on_ranks
from reshards import SHAPES
from torch import Tensor

from rljob_api.model.tensors import tensors_of
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_plan.resharding.boxes import Box
from rljob_plan.resharding.layouts import LayoutTable, rollout_layout, update_layout
from rljob_plan.resharding.resharding_plan import ReshardPlan, make_reshard_plan
from rljob_plan.resharding.widths import Widths
from rljob_runtime.errors import WeightsError
from rljob_runtime.models.expert_names import weight_dtype
from rljob_runtime.models.slice_sums import slice_sum
from rljob_runtime.weights.reshard.parcels import box_view
from rljob_runtime.weights.reshard_checks import ReshardChecks

Slices = dict[str, Tensor]


def plan_of(nodes: int | None = None) -> ReshardPlan:
    shape = SHAPES["deepseek"]
    return make_reshard_plan(
        update_layout(shape, UpdateDegrees(data=2, tensor=2)),
        rollout_layout(shape, RolloutDegrees(data=4)),
        Widths(update=4, rollout=4),
        node_devices=nodes,
    )


def slices_of(layout: LayoutTable, device: int) -> Slices:
    random = torch.Generator().manual_seed(5)
    whole = {
        tensor.name: torch.randn(tensor.shape, generator=random).to(
            weight_dtype(tensor.name, torch.float32)
        )
        for tensor in tensors_of(layout.shape)
    }
    found: Slices = {}
    for tensor, box in layout.local_boxes(device):
        rows, columns = (*tensor.shape, 1)[:2]
        found[tensor.name] = box_view(whole[tensor.name], Box(0, rows, 0, columns), box).clone()
    return found


def told(spoil: Callable[[int, Slices, Slices], None], nodes: int | None = None) -> list[str]:
    """What the checks of each of four devices say of what `spoil` did to their slices."""
    plan = plan_of(nodes)

    def device(rank: int) -> str:
        update, rollout = slices_of(plan.update, rank), slices_of(plan.rollout, rank)
        wide: dict[str, Any] = {"sent": torch.float32, "generated": torch.float32}
        checks = ReshardChecks(plan, rank, group=dist.group.WORLD, **wide)
        spoil(rank, update, rollout)
        given = checks.sent_sums(update)
        try:
            checks.compare(given, checks.received_slices(rollout), version=7)
        except WeightsError as error:
            return str(error)
        return ""

    return on_ranks(4, device)


@pytest.mark.parametrize("nodes", [None, 2])
def test_what_arrived_as_it_was_given_passes(nodes: int | None) -> None:
    assert told(lambda rank, update, rollout: None, nodes) == [""] * 4


@pytest.mark.parametrize("nodes", [None, 2])
def test_one_wrong_element_on_one_device_is_found_by_name_on_all(nodes: int | None) -> None:
    name = "model.layers.2.self_attn.o_proj.weight"

    def spoil(rank: int, update: Slices, rollout: Slices) -> None:
        if rank == 3:
            rollout[name][1, 0] += 1e-6

    messages = told(spoil, nodes)

    assert len(set(messages)) == 1
    assert f"weights version 7 differ after the reshard (1 parameters): {name}" in messages[0]
    assert "rollout rank 3 does not hold what update rank" in messages[0]


def test_two_elements_that_changed_places_are_found() -> None:
    name = "model.embed_tokens.weight"

    def spoil(rank: int, update: Slices, rollout: Slices) -> None:
        if rank == 1:
            rollout[name][0, 0], rollout[name][0, 1] = (
                rollout[name][0, 1].clone(),
                rollout[name][0, 0].clone(),
            )

    assert f"{name} rows" in told(spoil)[2]


def test_replicas_that_trained_different_values_are_found() -> None:
    name = "model.norm.weight"

    def spoil(rank: int, update: Slices, rollout: Slices) -> None:
        if rank == 2:
            update[name][0] += 1
            rollout[name][0] += 1

    assert "update ranks 0 and 2 trained different values" in told(spoil)[0]


def test_missing_and_short_slices_are_named() -> None:
    plan = plan_of()
    wide: dict[str, Any] = {"sent": torch.float32, "generated": torch.float32}
    checks = ReshardChecks(plan, 1, group=None, **wide)
    held = slices_of(plan.rollout, 1)
    del held["model.norm.weight"]
    held["lm_head.weight"] = held["lm_head.weight"][:-1]

    with pytest.raises(WeightsError) as caught:
        checks.complete(checks.received_slices(held).elements, trains=False, version=4)

    message = str(caught.value)
    assert "rollout weights of rank 1 are incomplete at version 4" in message
    assert "model.norm.weight is missing" in message
    assert "lm_head.weight has 12 elements, not 14" in message


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_sum_is_that_of_its_parts_however_they_are_cut(dtype: torch.dtype) -> None:
    whole = torch.randn(700, 900, generator=torch.Generator().manual_seed(1)).to(dtype)
    box = Box(0, 700, 0, 900)
    cuts = [Box(0, 300, 0, 900), Box(300, 700, 0, 450), Box(300, 700, 450, 900)]

    parts = [slice_sum(box_view(whole, box, cut), cut) for cut in cuts]

    assert slice_sum(whole, box) == sum(parts)
    assert slice_sum(whole, box) != slice_sum(whole.roll(1, 1), box)
