"""Which box of which tensor each device holds, for training and for generation.

Called by `stacks` and `plan`. All is arithmetic of the degrees: tensor, pipeline (uneven and virtual), expert
and data parallelism, key heads that several ranks repeat, tied embeddings, rows that ZeRO 3 shares.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from functools import cached_property

from rljob_api.model.architecture import Shape
from rljob_api.model.layout import Part, share, slice_of, slices
from rljob_api.model.parts import rollout_part, update_part
from rljob_api.model.tensors import EMBEDDING, TensorSpec
from rljob_api.topology.devices import (
    Mesh,
    RolloutDegrees,
    UpdateDegrees,
    rollout_mesh,
    update_mesh,
)
from rljob_plan.resharding.boxes import Box, Piece, box_of

Holder = tuple[Part, int, list[int]]
"""A part, its place among those who share its rows, and the devices that hold it."""


@dataclass(frozen=True, slots=True)
class Stage:
    """Devices with the same layers, by what else tells apart what they hold."""

    layers: frozenset[int]
    first: bool
    last: bool
    sees: bool = True
    dense: list[Holder] = field(default_factory=list)
    experts: dict[int, list[Holder]] = field(default_factory=dict)
    """By place on the expert axis."""

    def has(self, tensor: TensorSpec, *, tied: bool) -> bool:
        """Whether its devices hold something of a tensor."""
        if tensor.layer is not None:
            return tensor.layer in self.layers
        if tensor.of_tower:
            return self.sees
        if tensor.name == EMBEDDING:
            return self.first or (tied and self.last)
        return self.last


@dataclass(frozen=True, kw_only=True)
class Layout:
    """The table of a layout, computed when it is asked.

    mesh: its ranks. parts: what each rank holds before ZeRO 3. sharers: ranks that share the rows of a
    slice, and those that share experts. shards: by rank, its place among either. first_device: the device
    of rank 0; the others follow.
    """

    shape: Shape
    mesh: Mesh
    parts: tuple[Part, ...]
    shards: tuple[tuple[int, int], ...]
    sharers: tuple[int, int] = (1, 1)
    first_device: int = 0

    @property
    def devices(self) -> range:
        """Of all ranks."""
        return range(self.first_device, self.first_device + len(self.parts))

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """Of the pipeline; one of a virtual pipeline holds several runs of layers."""
        found: dict[tuple[object, ...], Stage] = {}
        known: dict[tuple[object, ...], Holder] = {}
        for rank, (part, shard) in enumerate(zip(self.parts, self.shards, strict=True)):
            key = (part.layers, part.first, part.last)
            stage = found.setdefault(
                key, Stage(frozenset(part.layers), part.first, part.last, part.sees)
            )
            tensor = part.tensor if part.experts == 1 else None
            of_experts = stage.experts.setdefault(part.expert, [])
            for name, place, holders in (
                (("dense", *key, part.tensor), shard[0], stage.dense),
                (("experts", *key, part.expert, tensor), shard[1], of_experts),
            ):
                if (*name, place) not in known:
                    known[*name, place] = (part, place, [])
                    holders.append(known[*name, place])
                known[*name, place][2].append(self.first_device + rank)
        return tuple(found.values())

    @cached_property
    def expert_places(self) -> tuple[tuple[int, int], ...]:
        """Of each expert: the place on the expert axis that has it, and among those who share it (ZeRO 3)."""
        count = self.shape.experts.count if self.shape.experts else 0
        ranks, places = self.parts[0].experts, []
        for place in range(ranks):
            held = share(count, place, ranks)
            each = -(-len(held) // self.sharers[1]) or 1
            places += [(place, index // each) for index in range(len(held))]
        return tuple(places)

    def stages_of(self, tensor: TensorSpec) -> tuple[int, ...]:
        """Numbers of the stages that hold something of a tensor."""
        tied = self.shape.tied
        return tuple(
            number for number, stage in enumerate(self.stages) if stage.has(tensor, tied=tied)
        )

    def holders(self, tensor: TensorSpec) -> dict[Box, tuple[int, ...]]:
        """Each box of a tensor that a device holds, with all devices that hold it, ascending.

        Two boxes have no element in common.
        """
        known = self._known
        if tensor.name not in known:
            known[tensor.name] = self._holders(tensor)
        return known[tensor.name]

    @cached_property
    def _known(self) -> dict[str, dict[Box, tuple[int, ...]]]:
        """What `holders` has found, as it is asked for a tensor several times."""
        return {}

    def _holders(self, tensor: TensorSpec) -> dict[Box, tuple[int, ...]]:
        found: dict[Box, list[int]] = {}
        for number in self.stages_of(tensor):
            stage = self.stages[number]
            if tensor.expert is None:
                holders = stage.dense
            else:
                holders = stage.experts[self.expert_places[tensor.expert][0]]
            for part, shard, devices in holders:
                box = self._shared(tensor, box_of(slice_of(tensor, self.shape, part)), shard)
                if box.items:
                    found.setdefault(box, []).extend(devices)
        return {box: tuple(sorted(devices)) for box, devices in found.items()}

    def held(self, device: int) -> Iterator[Piece]:
        """What a device holds, in the model's order; nothing for a device without a rank."""
        if device not in self.devices:
            return
        rank = device - self.first_device
        for piece in slices(self.shape, self.parts[rank]):
            of_experts = piece.tensor.expert is not None
            box = self._shared(piece.tensor, box_of(piece), self.shards[rank][of_experts])
            if box.items:
                yield Piece(piece.tensor, box)

    def _shared(self, tensor: TensorSpec, box: Box, shard: int) -> Box:
        """What of a box is at a place of those who share it. Experts are shared by number."""
        if tensor.expert is not None:
            return box if self.expert_places[tensor.expert][1] == shard else Box(0, 0, 0, 0)
        if self.sharers[0] == 1:
            return box
        each = -(-(box.bottom - box.top) // self.sharers[0])
        top = min(box.top + shard * each, box.bottom)
        return Box(top, min(top + each, box.bottom), box.left, box.right)


def update_layout(shape: Shape, degrees: UpdateDegrees) -> Layout:
    """Between two optimizer steps, as the `torch` engine has it.

    ZeRO 1 and 2 leave weights whole. ZeRO 3 cuts rows, and experts by number, as FSDP2 does: in equal
    runs, of which the last ones may be shorter or empty.
    """
    mesh = update_mesh(degrees)
    parts = tuple(update_part(shape, degrees, rank) for rank in range(mesh.size))
    if degrees.zero < 3:
        return Layout(shape=shape, mesh=mesh, parts=parts, shards=((0, 0),) * mesh.size)
    places = [mesh.coordinates(rank) for rank in range(mesh.size)]
    replicas = [place["data"] * degrees.context + place["context"] for place in places]
    number = degrees.data * degrees.context
    return Layout(
        shape=shape,
        mesh=mesh,
        parts=parts,
        shards=tuple((replica, replica // degrees.expert) for replica in replicas),
        sharers=(number, number // degrees.expert),
    )


def rollout_layout(
    shape: Shape, degrees: RolloutDegrees, *, first_device: int = 0, vocabulary_step: int = 1
) -> Layout:
    """While generating. first_device: 0 where roles share devices. vocabulary_step: as a `Part`'s."""
    mesh = rollout_mesh(degrees)
    parts = (rollout_part(shape, degrees, rank) for rank in range(mesh.size))
    return Layout(
        shape=shape,
        mesh=mesh,
        parts=tuple(replace(part, vocabulary_step=vocabulary_step) for part in parts),
        shards=((0, 0),) * mesh.size,
        first_device=first_device,
    )
