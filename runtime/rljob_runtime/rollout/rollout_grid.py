"""Where each rollout rank is and whom it works with, by arithmetic. Called by `rollout_groups` and `parts`.

Experts are shared inside data × tensor: among tensor ranks, which have the same tokens, or, where the
expert degree is larger than the tensor degree, also among models, which have tokens of their own.
"""

from dataclasses import dataclass
from enum import StrEnum

from rljob_api.model.architecture import Shape
from rljob_api.model.layout import RankShard
from rljob_api.model.parts import rollout_rank_shard
from rljob_api.topology.devices import Mesh, RolloutDegrees, expert_degrees
from rljob_runtime.errors import ConfigError


class Purpose(StrEnum):
    """What rollout ranks come together for."""

    TENSOR = "tensor"
    """Share each matrix; have the same tokens."""
    PIPELINE = "pipeline"
    """Have the stages of one model, first to last."""
    EXPERT = "expert"
    """Share a layer's experts."""
    SHARERS = "sharers"
    """Share experts and have tokens of their own: one rank of each such model."""
    REPLICA = "replica"
    """Have the same prompts."""
    MODEL = "model"
    """Hold all of a model together."""


AXES: dict[Purpose, tuple[str, ...]] = {
    Purpose.TENSOR: ("copy", "inside"),
    Purpose.PIPELINE: ("pipeline",),
    Purpose.EXPERT: ("sharer", "inside"),
    Purpose.SHARERS: ("sharer",),
    Purpose.REPLICA: ("pipeline", "copy", "inside"),
    Purpose.MODEL: ("sharer", "pipeline", "copy", "inside"),
}


@dataclass(frozen=True, slots=True)
class RolloutGrid:
    """The rollout ranks, data × pipeline × tensor, the last one fastest.

    Raises ConfigError where the expert degree does not fit the others.
    """

    degrees: RolloutDegrees

    def __post_init__(self) -> None:
        data, tensor, expert = self.degrees.data, self.degrees.tensor, self.degrees.expert
        legal = expert_degrees(data=data, tensor=tensor)
        if expert not in legal:
            raise ConfigError(
                f"expert={expert} (spec.rollout.parallelism) shares experts among parts of models on "
                f"data={data} × tensor={tensor} ranks; use one of {', '.join(map(str, legal))}"
            )

    @property
    def size(self) -> int:
        """Number of ranks."""
        return self.mesh.size

    @property
    def mesh(self) -> Mesh:
        """data is cut into sets and the models of a set, which share experts; tensor into copies of all
        experts and those inside a copy."""
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

    def group(self, purpose: Purpose, rank: int) -> list[int]:
        """The ranks that come together with `rank`, itself among them, ascending."""
        return self.mesh.group(AXES[purpose], rank)

    def stage(self, rank: int) -> int:
        """Place of a rank among the stages of its model."""
        return self.mesh.coordinates(rank)["pipeline"]

    def part(self, shape: Shape, rank: int) -> RankShard:
        """What the rank holds of a model."""
        return rollout_rank_shard(shape, self.degrees, rank)
