"""Which slice of each tensor each rank of a layout holds; by arithmetic, for any number of ranks.

A layout is what training and generation each have of a model. Called by `memory`, where a rank's weights are
loaded, and where weights go from one layout to the other.
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
    """The rank's part of `number` things cut as evenly as they go; the first ranks take one more."""
    each, more = divmod(number, ranks)
    first = rank * each + min(rank, more)
    return range(first, first + each + (rank < more))


@lru_cache(maxsize=1024)
def stages(layers: int, pipeline: int) -> tuple[range, ...]:
    """Layers of each pipeline stage; the first stages take one more where they do not divide."""
    each, more = divmod(layers, pipeline)
    firsts = [stage * each + min(stage, more) for stage in range(pipeline + 1)]
    return tuple(range(a, b) for a, b in pairwise(firsts))


def layers_alike(shape: Shape, layers: Iterable[int]) -> dict[int, int]:
    """How many of the layers are as the model's first of their kind, by that one: dense, or with experts."""
    return dict(Counter(map(_firsts_alike(shape).__getitem__, layers)))


@lru_cache(maxsize=1024)
def stages_apart(shape: Shape, pipeline: int, virtual: int = 1) -> tuple[int, ...]:
    """The first of all pipeline ranks that hold as many layers of each kind and the same ends of the model:
    what is said of these is said of all."""
    number = pipeline * virtual
    cuts, found = stages(shape.layers, number), dict[tuple[object, ...], int]()
    for stage in range(pipeline):
        layers = [layer for chunk in range(stage, number, pipeline) for layer in cuts[chunk]]
        kinds = tuple(sorted(layers_alike(shape, layers).items()))
        found.setdefault((kinds, stage == 0, stage == pipeline - 1), stage)
    return tuple(found.values())


@lru_cache(maxsize=64)
def _firsts_alike(shape: Shape) -> tuple[int, ...]:
    """Of each layer, the first of its kind."""
    experts, firsts = shape.experts, dict[bool, int]()
    sparse = [bool(experts and experts.in_layer(layer)) for layer in range(shape.layers)]
    return tuple(firsts.setdefault(kind, layer) for layer, kind in enumerate(sparse))


@dataclass(frozen=True, slots=True, kw_only=True)
class Slice:
    """A part of a tensor: `range` along `axis`, and all of the other axes."""

    tensor: TensorSpec
    axis: int
    start: int
    stop: int

    @property
    def shape(self) -> tuple[int, ...]:
        """Of the part."""
        size = list(self.tensor.shape)
        size[self.axis] = self.stop - self.start
        return tuple(size)

    @property
    def whole(self) -> bool:
        """Whether it is all of the tensor."""
        return (self.start, self.stop) == (0, self.tensor.shape[self.axis])


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """What one rank has of a model: place of how many on each axis, from 0.

    layers: of its pipeline stages. expert: its place among `experts` ranks that share each layer's
    experts; where `experts` is 1, tensor parallelism cuts them as it cuts other matrices. vocabulary_step:
    rows by token id are shared as if their number were its next multiple. sees: it has the vision tower,
    where that is trained.
    """

    layers: tuple[int, ...]
    first: bool = True
    last: bool = True
    tensor: int = 0
    tensors: int = 1
    expert: int = 0
    experts: int = 1
    vocabulary_step: int = 1
    sees: bool = True

    @classmethod
    def of_stages(
        cls,
        shape: Shape,
        held: tuple[int, ...] = (0,),
        number: int = 1,
        *,
        tensor: tuple[int, int] = (0, 1),
        expert: tuple[int, int] = (0, 1),
    ) -> "Part":
        """The part of a rank that holds stages `held` of `number`: one, or those of its virtual pipeline.

        tensor, expert: (place, of).
        """
        cuts = stages(shape.layers, number)
        return cls(
            layers=tuple(layer for stage in held for layer in cuts[stage]),
            first=0 in held,
            last=number - 1 in held,
            tensor=tensor[0],
            tensors=tensor[1],
            expert=expert[0],
            experts=expert[1],
        )


def slices(shape: Shape, part: Part) -> Iterator[Slice]:
    """What the rank holds, in the model's order.

    A tied embedding is held by the first stage and by the last.
    """
    embedding, *last = tensors_outside_layers(shape)
    if part.first or (part.last and shape.tied):
        yield slice_of(embedding, shape, part)
    count = shape.experts.count if shape.experts else 0
    held = share(count, part.expert, part.experts)
    for layer in part.layers:
        for tensor in layer_tensors(shape, layer, experts=held):
            yield slice_of(tensor, shape, part)
    if part.last:
        yield from (slice_of(tensor, shape, part) for tensor in last)
    if part.sees:
        yield from (slice_of(tensor, shape, part) for tensor in tower_tensors(shape))


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """Of which tensors a rank holds items. of_layer, of_expert: whether they belong to one."""

    cut: Cut
    of_layer: bool
    of_expert: bool


def held_items(shape: Shape, part: Part) -> dict[Held, int]:
    """Items of a rank, by what they are of; layers of a kind are counted once and multiplied."""
    found: Counter[Held] = Counter(_items(shape, replace(part, layers=())))
    for layer, number in layers_alike(shape, part.layers).items():
        own = replace(part, layers=(layer,), first=False, last=False, sees=False)
        for held, items in _items(shape, own).items():
            found[held] += number * items
    return dict(found)


@lru_cache(maxsize=4096)
def _items(shape: Shape, part: Part) -> dict[Held, int]:
    return items_of(slices(shape, part))


def items_of(pieces: Iterable[Slice]) -> dict[Held, int]:
    """Items of these slices, by what they are of."""
    found: Counter[Held] = Counter()
    for piece in pieces:
        tensor = piece.tensor
        held = Held(
            cut=tensor.cut,
            of_layer=tensor.layer is not None,
            of_expert=tensor.expert is not None,
        )
        found[held] += prod(piece.shape)
    return dict(found)


def slice_of(tensor: TensorSpec, shape: Shape, part: Part) -> Slice:
    """The rank's slice of a tensor of its stages; an expert's that is one of its own, where experts are
    shared by number."""
    if tensor.expert is not None and part.experts > 1:
        return _all_of(tensor)
    rank, ranks = part.tensor, part.tensors
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
            rows, step = tensor.shape[0], part.vocabulary_step
            own = share(-(-rows // step) * step, rank, ranks)
            return Slice(
                tensor=tensor, axis=0, start=min(own.start, rows), stop=min(own.stop, rows)
            )
        case Cut.ROWS:
            return _units(tensor, 0, tensor.shape[0], rank, ranks)
        case Cut.COLUMNS:
            return _units(tensor, 1, tensor.shape[1], rank, ranks)


def _units(tensor: TensorSpec, axis: int, number: int, rank: int, ranks: int) -> Slice:
    """The rank's share of `number` equal units along an axis."""
    each = tensor.shape[axis] // number
    units = share(number, rank, ranks)
    return Slice(tensor=tensor, axis=axis, start=units.start * each, stop=units.stop * each)


def _all_of(tensor: TensorSpec) -> Slice:
    return Slice(tensor=tensor, axis=0, start=0, stop=tensor.shape[0])
