"""Any two layouts of four devices, drawn from those of the property tests, on ranks: bitwise, both ways."""

import random
from collections.abc import Iterator
from itertools import product

import pytest
import torch
from forked_ranks import on_ranks
from reshard_ranks import full_weights, slices_of
from reshards import SHAPES

from rljob_api.model.architecture import Shape
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees
from rljob_plan.resharding.layouts import LayoutTable, rollout_layout, update_layout
from rljob_plan.resharding.resharding_plan import ReshardPlan, make_reshard_plan
from rljob_plan.resharding.widths import Widths
from rljob_runtime.devices.cpu import CpuBackend
from rljob_runtime.models.expert_names import weight_dtype
from rljob_runtime.weights.reshard.executor import Resharder

DEVICES, PLANS = 4, 12
WIDTHS = Widths(update=4, rollout=2)


def update_layouts(shape: Shape) -> Iterator[LayoutTable]:
    """Of at most four devices, with virtual pipelines and ZeRO."""
    axes = product((1, 2, 3, 4), (1, 2), (1, 2, 4), (1, 2, 3), (1, 2), (1, 2, 4), (0, 1, 3))
    for data, context, tensor, pipeline, virtual, expert, zero in axes:
        fits = data * context * tensor * pipeline <= DEVICES
        if fits and (expert == 1 or (shape.experts and data * context % expert == 0)):
            yield update_layout(
                shape,
                UpdateDegrees(
                    data=data,
                    context=context,
                    tensor=tensor,
                    pipeline=pipeline,
                    virtual_pipeline=virtual,
                    expert=expert,
                    zero=zero,  # type: ignore[arg-type]
                ),
            )


def rollout_layouts(shape: Shape, devices: int) -> Iterator[RolloutDegrees]:
    for data, tensor, pipeline, expert in product((1, 2, 3, 4), (1, 2, 4), (1, 2, 3), (1, 2, 3, 4)):
        fits = data * tensor * pipeline <= devices
        if fits and (expert == 1 or (shape.experts and data * tensor % expert == 0)):
            yield RolloutDegrees(data=data, tensor=tensor, pipeline=pipeline, expert=expert)


def drawn(name: str) -> list[ReshardPlan]:
    """Colocated and separated, in one node and several, with buckets of every size."""
    shape, draw, found = SHAPES[name], random.Random(name), []
    updates = list(update_layouts(shape))
    for _ in range(PLANS):
        update = draw.choice(updates)
        left = DEVICES - len(update.shards)
        first = len(update.shards) if left and draw.random() < 0.5 else 0
        rollouts = list(rollout_layouts(shape, left if first else DEVICES))
        found.append(
            make_reshard_plan(
                update,
                rollout_layout(shape, draw.choice(rollouts), first_device=first),
                WIDTHS,
                node_devices=draw.choice([None, 1, 2]),
                bucket_bytes=draw.choice([None, 200, 10_000]),
            )
        )
    return found


def reshard(plan: ReshardPlan, rank: int, *, shares_memory: bool) -> None:
    whole = full_weights(plan.update.shape, torch.float32)
    backend = CpuBackend(name=f"emulated:{rank}")
    resharder = Resharder(
        plan, backend, sent=torch.bfloat16, timeout_seconds=30, shares_memory=shares_memory
    )

    found = dict(
        resharder.run(
            slices_of(whole, plan.update, rank),
            lambda piece: torch.full(
                piece.box.size[: len(piece.tensor.shape)],
                torch.nan,
                dtype=weight_dtype(piece.tensor.name, torch.bfloat16),
            ),
        )
    )

    expected = slices_of(whole, plan.rollout, rank)
    assert set(found) == set(expected)
    for name, tensor in expected.items():
        kept = tensor.to(weight_dtype(name, torch.bfloat16))
        assert torch.equal(found[name], kept), (plan.update.mesh, plan.rollout.mesh, name)


@pytest.mark.parametrize("name", SHAPES)
def test_every_rank_ends_bitwise_with_its_slices_between_any_layouts(name: str):
    plans = drawn(name)

    def all_plans(rank: int) -> int:
        for plan, shares_memory in product(plans, (True, False)):
            reshard(plan, rank, shares_memory=shares_memory)
        return len(plans)

    assert on_ranks(DEVICES, all_plans, seconds=300) == [PLANS] * DEVICES
