"""Compute the coordinates and the process groups of each update rank.

Called by `process_groups`, which creates the process groups, and by the code that shards a model. Without
torch: 384 ranks take milliseconds.
"""

from dataclasses import dataclass
from enum import StrEnum

from rljob_api.model.architecture import Shape
from rljob_api.model.layout import RankShard
from rljob_api.model.parts import update_rank_shard
from rljob_api.model.tensors import EMBEDDING, Cut, TensorSpec
from rljob_api.topology.devices import Mesh, UpdateDegrees, update_mesh
from rljob_runtime.errors import ConfigError


class Purpose(StrEnum):
    """The purpose of a process group. The groups of gradients add up what was computed on other tokens."""

    TENSOR = "tensor"
    """These ranks share each matrix."""
    PIPELINE = "pipeline"
    """These ranks have the stages of one model, first to last."""
    CONTEXT = "context"
    """These ranks share each sequence."""
    DATA = "data"
    """These ranks hold the same shard of the model and of each sequence, for other samples."""
    EXPERT = "expert"
    """These ranks share a layer's experts, inside data × context."""
    EXPERT_DATA = "expert data"
    """These ranks hold the same experts for other tokens, at the same coordinate of the tensor axis."""
    CUT_GRADIENTS = "gradients of cut matrices"
    """data × context: parameters that the tensor axis shards."""
    KEY_HEAD_GRADIENTS = "gradients of key heads"
    """data × context × the tensor ranks that have the same key head, where heads are fewer than ranks."""
    TIED_GRADIENTS = "gradients of a tied embedding"
    """data × context of the first and of the last pipeline stage, which both hold the embedding."""
    WHOLE_GRADIENTS = "gradients of whole parameters"
    """data × context × tensor: norms and biases that each tensor rank repeats, for its own tokens."""
    EXPERT_GRADIENTS = "gradients of experts"
    """All ranks with the same slice of an expert: expert data × tensor. Where expert is 1 and the tensor axis
    shards experts as it shards matrices, data × context."""
    TOWER_GRADIENTS = "gradients of a vision tower"
    """All ranks: each has the full tower, and its gradients from the rank's local tokens and layers."""
    MODEL = "model"
    """tensor × pipeline: all shards of one model, for the norm of its gradient."""
    REPLICA = "replica"
    """pipeline × context × tensor: all ranks that train on the same samples."""


def gradient_purpose(tensor: TensorSpec, *, tied: bool = False) -> Purpose:
    """Return the group that adds up a tensor's gradients. tied: whether the model's embedding is also its
    head."""
    if tied and tensor.name == EMBEDDING:
        return Purpose.TIED_GRADIENTS
    if tensor.expert is not None:
        return Purpose.EXPERT_GRADIENTS
    if tensor.cut is Cut.WHOLE:
        return Purpose.WHOLE_GRADIENTS
    return Purpose.KEY_HEAD_GRADIENTS if tensor.cut is Cut.KEY_HEADS else Purpose.CUT_GRADIENTS


@dataclass(frozen=True, slots=True, kw_only=True)
class RankCoordinates:
    """The coordinates of a rank. replica: index among the copies of the expert slices that it holds."""

    pipeline: int
    data: int
    context: int
    tensor: int
    expert: int
    replica: int


@dataclass(frozen=True, slots=True)
class RankGrid:
    """The update ranks on two meshes with the same numbers: one of the sequences, one of the experts.

    kv_heads: of the model; None where each tensor rank has its own key head. tower: whether they train a
    vision tower. Raises ConfigError when expert does not divide data × context.
    """

    degrees: UpdateDegrees
    kv_heads: int | None = None
    tower: bool = False

    def __post_init__(self) -> None:
        degrees = self.degrees
        sharing = degrees.data * degrees.context
        if sharing % degrees.expert:
            raise ConfigError(
                f"expert={degrees.expert} does not divide data × context, {degrees.data} × "
                f"{degrees.context} (spec.update.parallelism); use a divisor of {sharing}"
            )

    @property
    def size(self) -> int:
        """The number of ranks."""
        return self.tokens.size

    @property
    def tokens(self) -> Mesh:
        """The mesh that decides which tokens and which shard of the model a rank computes."""
        return update_mesh(self.degrees)

    @property
    def key_heads(self) -> Mesh:
        """The mesh `tokens`, with the tensor axis split into key heads and the ranks that share one."""
        tensor = self.degrees.tensor
        copies = max(1, tensor // self.kv_heads) if self.kv_heads else 1
        *others, _ = self.tokens.axes
        return Mesh(axes=(*others, ("head", tensor // copies), ("copy", copies)))

    @property
    def experts(self) -> Mesh:
        """The mesh of data × context as expert replicas; neighbours on its expert axis share a layer's
        experts."""
        (pipeline, data, context, tensor) = self.tokens.axes
        expert = self.degrees.expert
        replicas = data[1] * context[1] // expert
        return Mesh(axes=(pipeline, ("replica", replicas), ("expert", expert), tensor))

    def coordinates(self, rank: int) -> RankCoordinates:
        """Return the coordinates of a rank. rank: 0 ≤ rank < size."""
        return RankCoordinates(**(self.experts.coordinates(rank) | self.tokens.coordinates(rank)))

    def group(self, purpose: Purpose, rank: int) -> list[int]:
        """Return the ranks of this rank's group, itself included, ascending."""
        mesh, axes = self._axes(purpose)
        members = mesh.group(axes, rank)
        if purpose is Purpose.TIED_GRADIENTS:
            stages = self.group(Purpose.PIPELINE, rank)
            if rank in (stages[0], stages[-1]):
                members = sorted({*mesh.group(axes, stages[0]), *mesh.group(axes, stages[-1])})
        return members

    def groups(self, purpose: Purpose) -> list[list[int]]:
        """Return all groups of a purpose, by their first rank; every rank is in one."""
        mesh, axes = self._axes(purpose)
        if purpose is Purpose.TIED_GRADIENTS:
            distinct = {tuple(self.group(purpose, rank)) for rank in range(self.size)}
            return [list(ranks) for ranks in sorted(distinct)]
        return mesh.groups(axes)

    def chunks(self, rank: int) -> list[int]:
        """Return the stages of the virtual pipeline that the rank holds, in the model's order."""
        stages, stage = self.degrees.pipeline, self.coordinates(rank).pipeline
        return [chunk * stages + stage for chunk in range(self.degrees.virtual_pipeline)]

    def partition(self, shape: Shape, rank: int) -> RankShard:
        """Return the layers and slices of a model that the rank holds."""
        return update_rank_shard(shape, self.degrees, rank)

    def _axes(self, purpose: Purpose) -> tuple[Mesh, tuple[str, ...]]:
        match purpose:
            case Purpose.EXPERT:
                return self.experts, ("expert",)
            case Purpose.EXPERT_DATA:
                return self.experts, ("replica",)
            case Purpose.EXPERT_GRADIENTS if self.degrees.expert > 1:
                return self.experts, ("replica", "tensor")
            case Purpose.CUT_GRADIENTS | Purpose.EXPERT_GRADIENTS | Purpose.TIED_GRADIENTS:
                return self.tokens, ("data", "context")
            case Purpose.KEY_HEAD_GRADIENTS:
                return self.key_heads, ("data", "context", "copy")
            case Purpose.WHOLE_GRADIENTS:
                return self.tokens, ("data", "context", "tensor")
            case Purpose.TOWER_GRADIENTS:
                every = ("pipeline", "data", "context", "tensor")
                return self.tokens, every if self.tower else ()
            case Purpose.MODEL:
                return self.tokens, ("pipeline", "tensor")
            case Purpose.REPLICA:
                return self.tokens, ("pipeline", "context", "tensor")
            case _:
                return self.tokens, (purpose.value,)
