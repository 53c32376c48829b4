"""Which rollout ranks come together, by arithmetic."""

from collections import Counter

import pytest

from rljob_api.model.architecture import ExpertSizes, Shape
from rljob_api.model.layout import slices
from rljob_api.model.tensors import tensors_of
from rljob_api.topology.devices import RolloutDegrees, rollout_mesh
from rljob_runtime.errors import ConfigError
from rljob_runtime.rollout.rollout_grid import RolloutGrid, RolloutPurpose

SPARSE = Shape(
    family="qwen3_moe", vocab=71, hidden=32, layers=3, intermediate=48, heads=4, kv_heads=2, head_dim=16,
    experts=ExpertSizes(count=8, intermediate=20),
)  # fmt: skip
LAYOUTS = {
    "dense": {"data": 2, "tensor": 2, "pipeline": 2},
    "experts inside tensor": {"data": 1, "tensor": 4, "pipeline": 2, "expert": 2},
    "experts over data": {"data": 4, "tensor": 2, "pipeline": 2, "expert": 4},
}


def grid(**degrees: int) -> RolloutGrid:
    return RolloutGrid(RolloutDegrees.model_validate(degrees))


def test_groups_of_a_layout_are_those_written_down_by_hand() -> None:
    found = {
        purpose: grid(**LAYOUTS["experts over data"]).group(purpose, 13)
        for purpose in RolloutPurpose
    }

    # rank 13 is model 3, stage 0, tensor 1; models 2 and 3 share experts
    assert found == {
        RolloutPurpose.TENSOR: [12, 13],
        RolloutPurpose.PIPELINE: [13, 15],
        RolloutPurpose.EXPERT: [8, 9, 12, 13],
        RolloutPurpose.SHARERS: [9, 13],
        RolloutPurpose.REPLICA: [12, 13, 14, 15],
        RolloutPurpose.MODEL: [8, 9, 10, 11, 12, 13, 14, 15],
    }


@pytest.mark.parametrize("name", LAYOUTS)
def test_tensor_and_pipeline_groups_are_the_contracts_mesh(name: str) -> None:
    made = grid(**LAYOUTS[name])
    mesh = rollout_mesh(made.degrees)

    for rank in range(made.size):
        assert made.group(RolloutPurpose.TENSOR, rank) == mesh.group("tensor", rank)
        assert made.group(RolloutPurpose.PIPELINE, rank) == mesh.group("pipeline", rank)
        assert made.stage(rank) == mesh.coordinates(rank)["pipeline"]


@pytest.mark.parametrize("expert", [1, 2, 4, 8])
def test_the_ranks_of_a_model_have_every_expert_among_them_equally_often(expert: int) -> None:
    made, shape = grid(data=4, tensor=2, pipeline=2, expert=expert), SPARSE

    held = Counter(
        (piece.tensor.name, piece.start)
        for rank in made.group(RolloutPurpose.MODEL, 5)
        for piece in slices(shape, made.partition(shape, rank))
        if piece.tensor.expert is not None
    )

    assert {name for name, _ in held} == {t.name for t in tensors_of(shape) if t.expert is not None}
    assert set(held.values()) == {1}


@pytest.mark.parametrize(
    ("degrees", "remedy"),
    [
        ({"data": 2, "tensor": 4, "expert": 3}, "use one of 1, 2, 4, 8"),
        ({"data": 3, "tensor": 2, "expert": 4}, "use one of 1, 2, 6"),
    ],
)
def test_an_expert_degree_beside_the_others_is_refused(
    degrees: dict[str, int], remedy: str
) -> None:
    with pytest.raises(ConfigError, match=remedy):
        grid(**degrees)
