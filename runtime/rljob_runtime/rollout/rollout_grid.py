"""Compute the coordinates and the groups of each rollout rank. Called by `rollout_groups` and `parts`.

Experts are shared inside data × tensor: among tensor ranks, which have the same tokens. Where the expert
degree is larger than the tensor degree, models with different tokens share them, too.
"""

from dataclasses import dataclass
from enum import StrEnum

from rljob_api.model.architecture import Shape
from rljob_api.model.layout import RankShard
from rljob_api.model.parts import rollout_rank_shard
from rljob_api.topology.devices import Mesh, RolloutDegrees, expert_degrees
from rljob_runtime.errors import ConfigError


class RolloutPurpose(StrEnum):
    """The purpose of a group of rollout ranks."""

    TENSOR = "tensor"
    """These ranks share each matrix and have the same tokens."""
    PIPELINE = "pipeline"
    """These ranks have the stages of one model, first to last."""
    EXPERT = "expert"
    """These ranks share a layer's experts."""
    SHARERS = "sharers"
    """These ranks share experts and have different tokens: one rank of each such model."""
    REPLICA = "replica"
    """These ranks have the same prompts."""
    MODEL = "model"
    """These ranks hold a full model together."""


AXES: dict[RolloutPurpose, tuple[str, ...]] = {
    RolloutPurpose.TENSOR: ("copy", "inside"),
    RolloutPurpose.PIPELINE: ("pipeline",),
    RolloutPurpose.EXPERT: ("sharer", "inside"),
    RolloutPurpose.SHARERS: ("sharer",),
    RolloutPurpose.REPLICA: ("pipeline", "copy", "inside"),
    RolloutPurpose.MODEL: ("sharer", "pipeline", "copy", "inside"),
}


@dataclass(frozen=True, slots=True)
class RolloutGrid:
    """The rollout ranks, data × pipeline × tensor, the last one fastest.

    Raises ConfigError where the expert degree does not fit the others.
    """

    degrees: RolloutDegrees

    def __post_init__(self) -> None:
        data, tensor, expert = self.degrees.data, self.degrees.tensor, self.degrees.expert
        allowed = expert_degrees(data=data, tensor=tensor)
        if expert not in allowed:
            raise ConfigError(
                f"expert={expert} (spec.rollout.parallelism) shares experts among parts of models on "
                f"data={data} × tensor={tensor} ranks; use one of {', '.join(map(str, allowed))}"
            )

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.mesh.size

    @property
    def mesh(self) -> Mesh:
        """The mesh of all ranks. data is split into sets, and the models of a set, which share experts;
        tensor into copies of all experts, and the ranks inside a copy."""
        degrees = self.degrees
        sharers = max(1, degrees.expert // degrees.tensor)
        inside = min(degrees.expert, degrees.tensor)
        return Mesh(
            axes=(
                ("set", degrees.data // sharers),
                ("sharer", sharers),
                ("pipeline", degrees.pipeline),
                ("copy", degrees.tensor // inside),
                ("inside", inside),
            )
        )

    def group(self, purpose: RolloutPurpose, rank: int) -> list[int]:
        """Return the ranks of this rank's group, itself included, ascending."""
        return self.mesh.group(AXES[purpose], rank)

    def stage(self, rank: int) -> int:
        """Return the index of a rank among the stages of its model."""
        return self.mesh.coordinates(rank)["pipeline"]

    def partition(self, shape: Shape, rank: int) -> RankShard:
        """Return the layers and slices of a model that the rank holds."""
        return rollout_rank_shard(shape, self.degrees, rank)
