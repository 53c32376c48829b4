"""Compute which slice of each tensor each rank of a layout holds, for any number of ranks.

Training and generation each have a layout of the model. Called by `memory`, by the code that loads a rank's
weights, and by the code that moves weights from one layout to the other.
"""

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import pairwise
from math import prod

from rljob_api.model.architecture import Shape
from rljob_api.model.tensors import (
    Cut,
    TensorSpec,
    layer_tensors,
    tensors_outside_layers,
    tower_tensors,
)


def share(number: int, rank: int, ranks: int) -> range:
    """Return the rank's share of `number` items, cut as evenly as possible; the first take one more."""
    each, more = divmod(number, ranks)
    first = rank * each + min(rank, more)
    return range(first, first + each + (rank < more))


@lru_cache(maxsize=1024)
def stages(layers: int, pipeline: int) -> tuple[range, ...]:
    """Return the layers of each pipeline stage. The first stages take one more if they do not divide
    evenly."""
    each, more = divmod(layers, pipeline)
    firsts = [stage * each + min(stage, more) for stage in range(pipeline + 1)]
    return tuple(range(a, b) for a, b in pairwise(firsts))


def layers_alike(shape: Shape, layers: Iterable[int]) -> dict[int, int]:
    """Count the layers of each kind, dense or with experts. Each kind is keyed by the model's first layer of
    it."""
    return dict(Counter(map(_firsts_alike(shape).__getitem__, layers)))


@lru_cache(maxsize=1024)
def stages_apart(shape: Shape, pipeline: int, virtual: int = 1) -> tuple[int, ...]:
    """Return one pipeline rank of each kind: the first of those that hold as many layers of each kind and the
    same ends of the model. Its figures hold for all ranks of the kind."""
    number = pipeline * virtual
    cuts, first_stages = stages(shape.layers, number), dict[tuple[object, ...], int]()
    for stage in range(pipeline):
        layers = [layer for chunk in range(stage, number, pipeline) for layer in cuts[chunk]]
        kinds = tuple(sorted(layers_alike(shape, layers).items()))
        first_stages.setdefault((kinds, stage == 0, stage == pipeline - 1), stage)
    return tuple(first_stages.values())


@lru_cache(maxsize=64)
def _firsts_alike(shape: Shape) -> tuple[int, ...]:
    """Return for each layer the first layer of its kind."""
    experts, firsts = shape.experts, dict[bool, int]()
    sparse = [bool(experts and experts.in_layer(layer)) for layer in range(shape.layers)]
    return tuple(firsts.setdefault(kind, layer) for layer, kind in enumerate(sparse))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A slice of a tensor: `range` along `axis`, and all of the other axes."""

    tensor: TensorSpec
    axis: int
    start: int
    stop: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Return the shape of the slice."""
        size = list(self.tensor.shape)
        size[self.axis] = self.stop - self.start
        return tuple(size)

    @property
    def is_full(self) -> bool:
        """Return whether the slice is the full tensor."""
        return (self.start, self.stop) == (0, self.tensor.shape[self.axis])


@dataclass(frozen=True, slots=True, kw_only=True)
class RankShard:
    """The shard of a model that one rank holds: its index and the number of ranks on each axis, from 0.

    layers: layers of its pipeline stages. expert: its index among the `experts` ranks that share each layer's
    experts; with `experts` 1, tensor parallelism cuts them like other matrices. vocabulary_step: vocabulary
    rows are shared as if their number were rounded up to a multiple of this. has_tower: it holds the vision
    tower, if that is trained.
    """

    layers: tuple[int, ...]
    first: bool = True
    last: bool = True
    tensor: int = 0
    tensors: int = 1
    expert: int = 0
    experts: int = 1
    vocabulary_step: int = 1
    has_tower: bool = True

    @classmethod
    def of_stages(
        cls,
        shape: Shape,
        held_stages: tuple[int, ...] = (0,),
        number: int = 1,
        *,
        tensor: tuple[int, int] = (0, 1),
        expert: tuple[int, int] = (0, 1),
    ) -> "RankShard":
        """Return the shard of a rank that holds `held_stages` of `number` stages: one stage, or those of its
        virtual pipeline.

        tensor, expert: (index, number of ranks).
        """
        cuts = stages(shape.layers, number)
        return cls(
            layers=tuple(layer for stage in held_stages for layer in cuts[stage]),
            first=0 in held_stages,
            last=number - 1 in held_stages,
            tensor=tensor[0],
            tensors=tensor[1],
            expert=expert[0],
            experts=expert[1],
        )


def slices(shape: Shape, shard: RankShard) -> Iterator[Slice]:
    """Yield the slices that the rank holds, in the model's order.

    The first stage and the last stage both hold a tied embedding.
    """
    embedding, *last = tensors_outside_layers(shape)
    if shard.first or (shard.last and shape.tied):
        yield slice_of(embedding, shape, shard)
    count = shape.experts.count if shape.experts else 0
    local_experts = share(count, shard.expert, shard.experts)
    for layer in shard.layers:
        for tensor in layer_tensors(shape, layer, experts=local_experts):
            yield slice_of(tensor, shape, shard)
    if shard.last:
        yield from (slice_of(tensor, shape, shard) for tensor in last)
    if shard.has_tower:
        yield from (slice_of(tensor, shape, shard) for tensor in tower_tensors(shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class ItemKind:
    """The kind of tensors that a rank holds items of. of_layer, of_expert: whether they belong to one."""

    cut: Cut
    of_layer: bool
    of_expert: bool


def item_counts(shape: Shape, shard: RankShard) -> dict[ItemKind, int]:
    """Count the items of a rank by their kind. Layers of a kind are counted once and multiplied."""
    counts: Counter[ItemKind] = Counter(_items(shape, replace(shard, layers=())))
    for layer, number in layers_alike(shape, shard.layers).items():
        layer_shard = replace(shard, layers=(layer,), first=False, last=False, has_tower=False)
        for kind, items in _items(shape, layer_shard).items():
            counts[kind] += number * items
    return dict(counts)


@lru_cache(maxsize=4096)
def _items(shape: Shape, shard: RankShard) -> dict[ItemKind, int]:
    return count_items(slices(shape, shard))


def count_items(tensor_slices: Iterable[Slice]) -> dict[ItemKind, int]:
    """Count the items of these slices by their kind."""
    counts: Counter[ItemKind] = Counter()
    for tensor_slice in tensor_slices:
        tensor = tensor_slice.tensor
        kind = ItemKind(
            cut=tensor.cut,
            of_layer=tensor.layer is not None,
            of_expert=tensor.expert is not None,
        )
        counts[kind] += prod(tensor_slice.shape)
    return dict(counts)


def slice_of(tensor: TensorSpec, shape: Shape, shard: RankShard) -> Slice:
    """Return the rank's slice of a tensor of its stages. If experts are shared by number, a matrix of a local
    expert is not cut."""
    if tensor.expert is not None and shard.experts > 1:
        return _all_of(tensor)
    rank, ranks = shard.tensor, shard.tensors
    match tensor.cut:
        case Cut.WHOLE:
            return _all_of(tensor)
        case Cut.QUERY_HEADS | Cut.HEAD_COLUMNS:
            axis = 1 if tensor.cut is Cut.HEAD_COLUMNS else 0
            return _units(tensor, axis, shape.heads, rank, ranks)
        case Cut.KEY_HEADS:
            copies = max(1, ranks // shape.kv_heads)  # ranks that have the same head
            return _units(tensor, 0, shape.kv_heads, rank // copies, ranks // copies)
        case Cut.VOCABULARY:
            rows, step = tensor.shape[0], shard.vocabulary_step
            local_rows = share(-(-rows // step) * step, rank, ranks)
            return Slice(
                tensor=tensor,
                axis=0,
                start=min(local_rows.start, rows),
                stop=min(local_rows.stop, rows),
            )
        case Cut.ROWS:
            return _units(tensor, 0, tensor.shape[0], rank, ranks)
        case Cut.COLUMNS:
            return _units(tensor, 1, tensor.shape[1], rank, ranks)


def _units(tensor: TensorSpec, axis: int, number: int, rank: int, ranks: int) -> Slice:
    """Return the rank's share of `number` equal units along an axis."""
    each = tensor.shape[axis] // number
    units = share(number, rank, ranks)
    return Slice(tensor=tensor, axis=axis, start=units.start * each, stop=units.stop * each)


def _all_of(tensor: TensorSpec) -> Slice:
    return Slice(tensor=tensor, axis=0, start=0, stop=tensor.shape[0])
