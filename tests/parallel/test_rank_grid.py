"""Ranks' places and groups for every purpose, by arithmetic."""

from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rljob_api.model.architecture import ExpertSizes, Shape
from rljob_api.model.layout import Slice, slices
from rljob_api.model.tensors import tensors_of
from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.errors import ConfigError
from rljob_runtime.parallel.ranks import Purpose, RankGrid, gradient_purpose


@st.composite
def grids(draw: st.DrawFn) -> RankGrid:
    data, context, tensor, pipeline = (draw(st.integers(1, 4)) for _ in range(4))
    sharing = data * context
    divisors = [d for d in range(1, sharing + 1) if sharing % d == 0]
    return RankGrid(
        UpdateDegrees(
            data=data,
            context=context,
            tensor=tensor,
            pipeline=pipeline,
            expert=draw(st.sampled_from(divisors)),
            virtual_pipeline=draw(st.integers(1, 3)),
        )
    )


PAPER = RankGrid(UpdateDegrees(tensor=4, pipeline=6, data=16, expert=16))
LONG = RankGrid(UpdateDegrees(tensor=4, pipeline=6, data=2, context=8, expert=8))


@given(grid=grids())
def test_every_rank_is_in_one_group_of_each_purpose(grid):
    for purpose in Purpose:
        groups = grid.groups(purpose)

        assert sorted(rank for group in groups for rank in group) == list(range(grid.size))
        assert all(group == sorted(group) for group in groups)
        assert all(grid.group(purpose, rank) == group for group in groups for rank in group)


@given(grid=grids())
def test_sizes_of_groups_are_products_of_degrees(grid):
    d = grid.degrees
    sharing = d.data * d.context
    copies = sharing // d.expert * d.tensor if d.expert > 1 else sharing
    sizes = {
        Purpose.TENSOR: d.tensor,
        Purpose.PIPELINE: d.pipeline,
        Purpose.CONTEXT: d.context,
        Purpose.DATA: d.data,
        Purpose.EXPERT: d.expert,
        Purpose.EXPERT_DATA: sharing // d.expert,
        Purpose.CUT_GRADIENTS: sharing,
        Purpose.KEY_HEAD_GRADIENTS: sharing,
        Purpose.TIED_GRADIENTS: sharing * min(d.pipeline, 2),
        Purpose.WHOLE_GRADIENTS: sharing * d.tensor,
        Purpose.EXPERT_GRADIENTS: copies,
        Purpose.MODEL: d.tensor * d.pipeline,
        Purpose.REPLICA: d.tensor * d.context * d.pipeline,
        Purpose.TOWER_GRADIENTS: 1,
    }

    assert {purpose: len(grid.group(purpose, 0)) for purpose in Purpose} == sizes
    with_tower = replace(grid, tower=True).group(Purpose.TOWER_GRADIENTS, 0)
    assert with_tower == list(range(grid.size))
    assert grid.size == d.data * d.context * d.tensor * d.pipeline


@given(grid=grids())
def test_members_of_a_group_differ_in_what_they_share_and_in_nothing_else(grid):
    places = [grid.coordinates(rank) for rank in range(grid.size)]

    def same(purpose: Purpose, *names: str) -> None:
        for group in grid.groups(purpose):
            assert all(
                len({getattr(places[rank], name) for rank in group}) == 1 for name in names
            ), (purpose, group)

    same(Purpose.TENSOR, "pipeline", "data", "context", "expert", "replica")
    same(Purpose.PIPELINE, "data", "context", "tensor", "expert", "replica")
    same(Purpose.CONTEXT, "pipeline", "data", "tensor")
    same(Purpose.DATA, "pipeline", "context", "tensor")
    same(Purpose.EXPERT, "pipeline", "tensor", "replica")
    same(Purpose.EXPERT_DATA, "pipeline", "tensor", "expert")
    same(Purpose.CUT_GRADIENTS, "pipeline", "tensor")
    same(Purpose.KEY_HEAD_GRADIENTS, "pipeline", "tensor")
    same(Purpose.TIED_GRADIENTS, "tensor")
    same(Purpose.WHOLE_GRADIENTS, "pipeline")
    same(Purpose.EXPERT_GRADIENTS, "pipeline", "expert")
    same(Purpose.MODEL, "data", "context", "expert", "replica")
    same(Purpose.REPLICA, "data")


@given(grid=grids())
def test_an_experts_group_lies_inside_data_and_context(grid):
    for group in grid.groups(Purpose.EXPERT):
        assert set(group) <= set(grid.group(Purpose.CUT_GRADIENTS, group[0]))


@given(grid=grids())
def test_the_virtual_stages_of_a_pipeline_are_held_once(grid):
    for group in grid.groups(Purpose.PIPELINE):
        held = [stage for rank in group for stage in grid.chunks(rank)]

        assert sorted(held) == list(range(len(group) * grid.degrees.virtual_pipeline))


def test_the_papers_layout_of_384_ranks():
    assert PAPER.size == LONG.size == 384
    assert PAPER.group(Purpose.TENSOR, 5) == [4, 5, 6, 7]
    assert PAPER.group(Purpose.PIPELINE, 5) == [5, 69, 133, 197, 261, 325]
    assert PAPER.group(Purpose.EXPERT, 5) == list(range(1, 64, 4))
    assert PAPER.group(Purpose.EXPERT_DATA, 5) == [5]
    assert PAPER.group(Purpose.EXPERT_GRADIENTS, 5) == [4, 5, 6, 7]
    ends = PAPER.group(Purpose.CUT_GRADIENTS, 5) + PAPER.group(Purpose.CUT_GRADIENTS, 325)
    assert PAPER.group(Purpose.TIED_GRADIENTS, 5) == ends
    assert PAPER.group(Purpose.TIED_GRADIENTS, 325) == ends
    assert 69 in PAPER.group(Purpose.TIED_GRADIENTS, 69) and 5 < 69 < 325
    assert LONG.group(Purpose.CONTEXT, 5) == list(range(1, 32, 4))
    assert LONG.group(Purpose.EXPERT, 5) == list(range(1, 32, 4))
    assert LONG.group(Purpose.EXPERT_DATA, 5) == [5, 37]


@pytest.mark.parametrize("purpose", Purpose)
def test_each_of_384_ranks_is_in_a_group_of_its_own_list(purpose):
    groups = LONG.groups(purpose)

    assert {rank for group in groups for rank in group} == set(range(384))
    assert all(group == LONG.group(purpose, group[0]) for group in groups)


def test_experts_that_do_not_divide_data_and_context_are_refused():
    with pytest.raises(ConfigError, match=r"expert=3 .* 2 × 2 .* divisor of 4"):
        RankGrid(UpdateDegrees(data=2, context=2, expert=3))


SHAPE = Shape(
    family="qwen3_moe",
    vocab=10,
    hidden=8,
    layers=7,
    intermediate=12,
    heads=8,
    kv_heads=2,
    head_dim=4,
    experts=ExpertSizes(count=8, intermediate=4),
)


def test_all_who_hold_a_slice_add_up_its_gradients_and_nobody_else():
    degrees: dict[str, Any] = {
        "data": 2,
        "context": 2,
        "tensor": 4,
        "pipeline": 3,
        "virtual_pipeline": 2,
    }
    for expert in (1, 2, 4):
        grid = RankGrid(UpdateDegrees(**degrees, expert=expert), kv_heads=SHAPE.kv_heads)
        holders: dict[Slice, list[int]] = {}
        for rank in range(grid.size):
            for piece in slices(SHAPE, grid.partition(SHAPE, rank)):
                holders.setdefault(piece, []).append(rank)

        assert {piece.tensor for piece in holders} == set(tensors_of(SHAPE))
        for piece, ranks in holders.items():
            assert grid.group(gradient_purpose(piece.tensor), ranks[0]) == ranks, piece
