"""Compute which box of which tensor each device holds, for training and for generation.

Called by `stacks` and `resharding_plan`. Everything is arithmetic of the degrees: tensor, pipeline (uneven
and virtual), expert and data parallelism, key heads that several ranks repeat, tied embeddings, and rows that
ZeRO 3 shares.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from rljob_api.model.architecture import Shape
from rljob_api.model.layout import RankShard, share, slice_of, slices
from rljob_api.model.parts import rollout_rank_shard, update_rank_shard
from rljob_api.model.tensors import EMBEDDING, TensorSpec
from rljob_api.topology.devices import (
    Mesh,
    RolloutDegrees,
    UpdateDegrees,
    rollout_mesh,
    update_mesh,
)
from rljob_plan.resharding.boxes import Box, TensorBox, box_of

Holder = tuple[RankShard, int, list[int]]
"""A shard, its index among the ranks that share its rows, and the devices that hold it."""


@dataclass(frozen=True, slots=True)
class PipelineStage:
    """Devices with the same layers, grouped by what they hold of them."""

    layers: frozenset[int]
    first: bool
    last: bool
    has_tower: bool = True
    dense: list[Holder] = field(default_factory=list)
    experts: dict[int, list[Holder]] = field(default_factory=dict)
    """Holders of experts, by index on the expert axis."""

    def has(self, tensor: TensorSpec, *, tied: bool) -> bool:
        """Return whether its devices hold a slice of the tensor."""
        if tensor.layer is not None:
            return tensor.layer in self.layers
        if tensor.of_tower:
            return self.has_tower
        if tensor.name == EMBEDDING:
            return self.first or (tied and self.last)
        return self.last


@dataclass(frozen=True, kw_only=True)
class LayoutTable:
    """The table of a layout, computed lazily.

    mesh: its ranks. shards: what each rank holds before ZeRO 3. sharers: ranks that share the rows of a
    slice, and those that share experts. share_indices: by rank, its index among both kinds of sharers.
    first_device: the device of rank 0; the others follow.
    """

    shape: Shape
    mesh: Mesh
    shards: tuple[RankShard, ...]
    share_indices: tuple[tuple[int, int], ...]
    sharers: tuple[int, int] = (1, 1)
    first_device: int = 0

    @property
    def devices(self) -> range:
        """Return the devices of all ranks."""
        return range(self.first_device, self.first_device + len(self.shards))

    @cached_property
    def stages(self) -> tuple[PipelineStage, ...]:
        """Return the pipeline stages. A stage of a virtual pipeline holds several runs of layers."""
        by_key: dict[tuple[object, ...], PipelineStage] = {}
        holders_by_key: dict[tuple[object, ...], Holder] = {}
        for rank, (shard, share_index) in enumerate(
            zip(self.shards, self.share_indices, strict=True)
        ):
            key = (shard.layers, shard.first, shard.last)
            stage = by_key.setdefault(
                key,
                PipelineStage(frozenset(shard.layers), shard.first, shard.last, shard.has_tower),
            )
            tensor = shard.tensor if shard.experts == 1 else None
            expert_holders = stage.experts.setdefault(shard.expert, [])
            for name, index, holders in (
                (("dense", *key, shard.tensor), share_index[0], stage.dense),
                (("experts", *key, shard.expert, tensor), share_index[1], expert_holders),
            ):
                if (*name, index) not in holders_by_key:
                    holders_by_key[*name, index] = (shard, index, [])
                    holders.append(holders_by_key[*name, index])
                holders_by_key[*name, index][2].append(self.first_device + rank)
        return tuple(by_key.values())

    @cached_property
    def expert_places(self) -> tuple[tuple[int, int], ...]:
        """Return for each expert the index on the expert axis that holds it, and the index among its sharers
        (ZeRO 3)."""
        count = self.shape.experts.count if self.shape.experts else 0
        ranks, holders = self.shards[0].experts, []
        for rank in range(ranks):
            local_experts = share(count, rank, ranks)
            each = -(-len(local_experts) // self.sharers[1]) or 1
            holders += [(rank, position // each) for position in range(len(local_experts))]
        return tuple(holders)

    def stages_of(self, tensor: TensorSpec) -> tuple[int, ...]:
        """Return the numbers of the stages that hold a slice of the tensor."""
        tied = self.shape.tied
        return tuple(
            number for number, stage in enumerate(self.stages) if stage.has(tensor, tied=tied)
        )

    def holders(self, tensor: TensorSpec) -> dict[Box, tuple[int, ...]]:
        """Return each box of a tensor that a device holds, with all devices that hold it, ascending.

        Two boxes have no element in common.
        """
        cached = self._cached_holders
        if tensor.name not in cached:
            cached[tensor.name] = self._holders(tensor)
        return cached[tensor.name]

    @cached_property
    def _cached_holders(self) -> dict[str, dict[Box, tuple[int, ...]]]:
        """Return the cache of `holders`, which is called for a tensor several times."""
        return {}

    def _holders(self, tensor: TensorSpec) -> dict[Box, tuple[int, ...]]:
        by_box: dict[Box, list[int]] = {}
        for number in self.stages_of(tensor):
            stage = self.stages[number]
            if tensor.expert is None:
                holders = stage.dense
            else:
                holders = stage.experts[self.expert_places[tensor.expert][0]]
            for shard, share_index, devices in holders:
                box = self._shared(tensor, box_of(slice_of(tensor, self.shape, shard)), share_index)
                if box.items:
                    by_box.setdefault(box, []).extend(devices)
        return {box: tuple(sorted(devices)) for box, devices in by_box.items()}

    def local_boxes(self, device: int) -> Iterator[TensorBox]:
        """Yield the boxes that a device holds, in the model's order; none for a device without a rank."""
        if device not in self.devices:
            return
        rank = device - self.first_device
        for tensor_slice in slices(self.shape, self.shards[rank]):
            is_expert = tensor_slice.tensor.expert is not None
            box = self._shared(
                tensor_slice.tensor, box_of(tensor_slice), self.share_indices[rank][is_expert]
            )
            if box.items:
                yield TensorBox(tensor_slice.tensor, box)

    def _shared(self, tensor: TensorSpec, box: Box, share_index: int) -> Box:
        """Return the share of a box that a rank among its sharers holds. Experts are shared by number."""
        if tensor.expert is not None:
            return box if self.expert_places[tensor.expert][1] == share_index else Box(0, 0, 0, 0)
        if self.sharers[0] == 1:
            return box
        each = -(-(box.bottom - box.top) // self.sharers[0])
        top = min(box.top + share_index * each, box.bottom)
        return Box(top, min(top + each, box.bottom), box.left, box.right)


def update_layout(shape: Shape, degrees: UpdateDegrees) -> LayoutTable:
    """Return the layout between two optimizer steps, as the `torch` engine has it.

    ZeRO 1 and 2 do not cut weights. ZeRO 3 cuts rows, and experts by number, as FSDP2 does: into equal runs,
    of which the last ones may be shorter or empty.
    """
    mesh = update_mesh(degrees)
    shards = tuple(update_rank_shard(shape, degrees, rank) for rank in range(mesh.size))
    if degrees.zero < 3:
        return LayoutTable(
            shape=shape, mesh=mesh, shards=shards, share_indices=((0, 0),) * mesh.size
        )
    coordinates = [mesh.coordinates(rank) for rank in range(mesh.size)]
    replicas = [index["data"] * degrees.context + index["context"] for index in coordinates]
    number = degrees.data * degrees.context
    return LayoutTable(
        shape=shape,
        mesh=mesh,
        shards=shards,
        share_indices=tuple((replica, replica // degrees.expert) for replica in replicas),
        sharers=(number, number // degrees.expert),
    )


def rollout_layout(
    shape: Shape, degrees: RolloutDegrees, *, first_device: int = 0, vocabulary_step: int = 1
) -> LayoutTable:
    """Return the layout during generation. first_device: 0 if roles share devices. vocabulary_step: as for
    `RankShard`."""
    mesh = rollout_mesh(degrees)
    shards = (rollout_rank_shard(shape, degrees, rank) for rank in range(mesh.size))
    return LayoutTable(
        shape=shape,
        mesh=mesh,
        shards=tuple(replace(shard, vocabulary_step=vocabulary_step) for shard in shards),
        share_indices=((0, 0),) * mesh.size,
        first_device=first_device,
    )
