"""A decoder's tensors as the slices that one rank holds: cut, loaded, and put together again.

Called by `policy`, and by whoever saves what several ranks have trained.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from pathlib import Path

import torch
from torch import Tensor, nn

from rljob_api.model.adapters import adapter_tensors, is_adapter
from rljob_api.model.architecture import Shape
from rljob_api.model.layout import RankShard, Slice, slice_of, slices
from rljob_api.model.tensors import EMBEDDING, TensorSpec, tensors_of
from rljob_api.model.vision import TOWER
from rljob_api.spec.lora import Lora
from rljob_runtime.devices.wire import broadcast
from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.expert_names import StackIndex, stack_indices
from rljob_runtime.models.loading import new_head, without_new_head
from rljob_runtime.models.lora import adapted_matrices, merge_adapter
from rljob_runtime.models.tensor_files import Box
from rljob_runtime.models.weights import load_weights
from rljob_runtime.parallel.fully_sharded import first_row, held_rows, whole_weight
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose, RankGrid, gradient_purpose

HOST = torch.device("cpu")
ValuesAt = Callable[[Tensor], Tensor]
"""Gives a live tensor's values, wherever they are at the time."""


def as_they_are(tensor: Tensor) -> Tensor:
    """Values are where the tensor is."""
    return tensor


def on_meta(architecture: Architecture, dtype: torch.dtype) -> Decoder:
    """A whole decoder without memory: names, shapes and types."""
    with torch.device("meta"):
        return Decoder(architecture, dtype=dtype)


def held_slices(
    shape: Shape, grid: RankGrid, rank: int, lora: Lora | None = None
) -> dict[str, Slice]:
    """What a rank holds, by Hugging Face name, experts one by one; with `lora`, adapters too."""
    part = grid.part(shape, rank)
    held = {piece.tensor.name: piece for piece in slices(shape, part)}
    for tensor in adapter_tensors(lora, shape) if lora else ():
        if tensor.layer in part.layers:
            held[tensor.name] = slice_of(tensor, shape, part)
    return held


def keep_stages(decoder: Decoder, part: RankShard) -> None:
    """Leave out the layers and ends that other pipeline ranks hold; the places of the others stay."""
    backbone = decoder.model
    for layer in range(len(backbone.layers)):
        if layer not in part.layers:
            backbone.layers[layer] = nn.Identity()
    if not part.first and not (part.last and decoder.architecture.tied):
        backbone.register_module("embed_tokens", None)
    if not part.last:
        backbone.register_module("norm", None)
        if decoder.architecture.scores:
            decoder.register_module("score", None)
        elif not decoder.architecture.tied:
            decoder.register_module("lm_head", None)


def cut_parameters(
    decoder: Decoder, held: Mapping[str, Slice], *, device: torch.device = HOST
) -> None:
    """Give every tensor the shape of its slice, uninitialised; stacks keep held experts alone.

    decoder: of `on_meta`, with the stages that are held.
    """
    for name, whole in [*decoder.named_parameters(), *decoder.named_buffers()]:
        owner = decoder.get_submodule(name.rpartition(".")[0])
        own = torch.empty(_held_shape(name, whole, held), dtype=whole.dtype, device=device)
        if isinstance(whole, nn.Parameter):
            own = nn.Parameter(own, requires_grad=whole.requires_grad)
        setattr(owner, name.rpartition(".")[2], own)
    numbers = [piece.tensor.expert for piece in held.values() if piece.tensor.expert is not None]
    decoder.first_expert = min(numbers, default=0)


def load_slices(decoder: Decoder, path: Path, shape: Shape, held: Mapping[str, Slice]) -> None:
    """Read this rank's slices of a Hugging Face directory, or its rows of them. Raises as `load_weights`."""
    known = {tensor.name for tensor in tensors_of(shape)}
    rows = dict(rows_of(decoder, held))

    def box_of(name: str, size: torch.Size) -> Box | None:
        if name in known:
            return rows[name][1] if name in rows else None
        return tuple(slice(0, length) for length in size)

    own = ((name, held) for name, (held, _) in rows.items())
    if decoder.architecture.scores:
        into, left_out = dict(without_new_head(own, path)), new_head(path)
    else:
        into, left_out = dict(own), ()
    load_weights(into, path, box_of=box_of, left_out=left_out)


def fill_adapters(
    decoder: Decoder, held: Mapping[str, Slice], whole: Callable[[TensorSpec], Tensor]
) -> None:
    """Give the adapters that a rank holds their part of whole ones."""
    with torch.no_grad():
        for name, (own, box) in rows_of(decoder, held, adapters=True):
            own.copy_(whole(held[name].tensor)[box])


def slices_of(decoder: Decoder, held: Mapping[str, Slice]) -> dict[str, Tensor]:
    """This rank's slices by Hugging Face name, or its rows of them: the live tensors, without adapters."""
    return {name: own.detach() for name, (own, _) in rows_of(decoder, held)}


def rows_of(
    decoder: Decoder, held: Mapping[str, Slice], *, adapters: bool = False
) -> Iterator[tuple[str, tuple[Tensor, Box]]]:
    """What this rank has of each tensor by Hugging Face name, and where in the whole tensor it lies; with
    ZeRO 3 rows of its slices, and only of those that it has any of. Of the model, or of its adapters."""
    for stored, tensor in chain(decoder.named_parameters(), decoder.named_buffers()):
        if is_adapter(stored) != adapters:
            continue
        own, first = held_rows(tensor), first_row(tensor)
        number = decoder.first_expert + first
        places = stack_indices(stored, own.shape, first=number)
        if places is not None:
            yield from ((name, (own[place], box_of(held[name]))) for name, place in places)
        elif stored.startswith(TOWER):
            if isinstance(tensor, nn.Parameter):
                yield stored, (own, tuple(slice(0, size) for size in own.shape))
        elif len(own):
            rows, *others = box_of(held[stored])
            at = rows.start + first
            yield stored, (own, (slice(at, at + len(own)), *others))


def purposes(decoder: Decoder, shape: Shape, lora: Lora | None = None) -> dict[str, Purpose]:
    """Who adds up the gradients of each of the decoder's trained parameters, by the parameter's name."""
    tensors = adapter_tensors(lora, shape) if lora else tensors_of(shape)
    of_tensor = {tensor.name: gradient_purpose(tensor, tied=shape.tied) for tensor in tensors}
    found: dict[str, Purpose] = {}
    for name, parameter in decoder.trained_parameters():
        if name.startswith(TOWER):
            found[name] = Purpose.TOWER_GRADIENTS
            continue
        places = stack_indices(name, parameter.shape)
        found[name] = of_tensor[places[0][0] if places else name]
    return found


def whole_weights(
    decoder: Decoder, shape: Shape, groups: ProcessGroups, *, at: ValuesAt = as_they_are
) -> Iterator[tuple[str, Tensor]]:
    """All of the model's weights by Hugging Face name, whole, one at a time, as one rank would give them:
    merged where they have adapters.

    All ranks go through it together; each slice is sent once to the ranks that share its tensor, and each
    tensor once to the other stages of the pipeline. at: where the values of a live tensor are now.
    """
    tensors = {tensor.name: tensor for tensor in tensors_of(shape)}
    dtype = next(decoder.parameters()).dtype
    meant = on_meta(decoder.architecture, dtype).named_hf_parameters()
    wanted = ((tensors[name], weight.dtype) for name, weight in meant)
    yield from _whole(_Held(decoder, at), shape, groups, wanted)
    for name, weight in tower_of(decoder).items():
        yield name, at(weight)


def tower_of(decoder: Decoder) -> dict[str, Tensor]:
    """Weights of a vision tower that is trained, which every rank has whole: the live tensors."""
    held = decoder.named_parameters()
    return {name: weight.detach() for name, weight in held if name.startswith(TOWER)}


def whole_adapters(
    decoder: Decoder, shape: Shape, groups: ProcessGroups, lora: Lora
) -> Iterator[tuple[str, Tensor]]:
    """The adapters likewise."""
    dtype = next(weight.dtype for _, weight in decoder.trained_parameters())
    wanted = ((tensor, dtype) for tensor in adapter_tensors(lora, shape))
    yield from _whole(_Held(decoder, as_they_are), shape, groups, wanted, lora)


def _whole(
    own: "_Held",
    shape: Shape,
    groups: ProcessGroups,
    wanted: Iterable[tuple[TensorSpec, torch.dtype]],
    lora: Lora | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """These tensors put together, in their order."""
    stages = groups.grid.group(Purpose.PIPELINE, groups.rank)
    parts = [groups.grid.part(shape, stage) for stage in stages]
    grid = groups.grid
    by_rank = {
        rank: held_slices(shape, grid, rank, lora)
        for purpose in (Purpose.TENSOR, Purpose.EXPERT)
        for rank in grid.group(purpose, groups.rank)
    }
    for tensor, dtype in wanted:
        name, by_number = tensor.name, tensor.expert is not None and grid.degrees.expert > 1
        purpose = Purpose.EXPERT if by_number else Purpose.TENSOR
        members = grid.group(purpose, groups.rank)
        whole = torch.empty(tensor.shape, dtype=dtype)
        stage = _first_holder(tensor, parts)
        if stages[stage] == groups.rank:
            for source, piece in _distinct(name, members, by_rank):
                mine = members[source] == groups.rank
                part = own.weight(name) if mine else whole.new_empty(piece.shape)
                whole[box_of(piece)] = broadcast(part, source, groups[purpose])
        yield name, broadcast(whole, stage, groups[Purpose.PIPELINE])


def box_of(piece: Slice) -> Box:
    """The slice as one index a dim."""
    box = [slice(0, size) for size in piece.tensor.shape]
    box[piece.axis] = slice(piece.start, piece.stop)
    return tuple(box)


class _Held:
    """This rank's slices by Hugging Face name; where ZeRO 3 shares their rows, put together one at a time by
    all ranks that hold the same slices."""

    def __init__(self, decoder: Decoder, at: ValuesAt) -> None:
        self._at = at
        self._tensors = dict(chain(decoder.named_parameters(), decoder.named_buffers()))
        self._adapted = adapted_matrices(decoder)
        self._last: tuple[str, Tensor] | None = None
        self._places: dict[str, tuple[str, StackIndex | None]] = {}
        for name, tensor in self._tensors.items():
            self._places[name] = name, None
            for part, place in stack_indices(name, tensor.shape, first=decoder.first_expert) or ():
                self._places[part] = name, place

    def weight(self, name: str) -> Tensor:
        """One of them, without gradient, merged where it has an adapter."""
        tensor, place = self._places[name]
        if self._last is None or self._last[0] != tensor:
            self._last = tensor, self._merged(tensor)
        return self._last[1] if place is None else self._last[1][place]

    def _merged(self, name: str) -> Tensor:
        weight = whole_weight(self._tensors[name].detach(), at=self._at)
        if (matrix := self._adapted.get(name)) is None:
            return weight
        stem = name.removesuffix("weight")
        lora_a, lora_b = (
            whole_weight(self._tensors[f"{stem}{part}.weight"].detach())
            for part in ("lora_A", "lora_B")
        )
        return merge_adapter(weight, lora_a, lora_b, matrix.lora_scale)


def _held_shape(name: str, whole: Tensor, held: Mapping[str, Slice]) -> tuple[int, ...]:
    places = stack_indices(name, whole.shape)
    if places is None:
        return held[name].shape
    pieces = [held[part] for part, _ in places if part in held]
    count = len({piece.tensor.expert for piece in pieces})
    rows = sum(piece.shape[0] for piece in pieces) // count
    return count, rows, pieces[0].shape[1]


def _first_holder(tensor: TensorSpec, parts: list[RankShard]) -> int:
    """The first pipeline rank that has a part of the tensor, with its tensor and expert ranks."""
    if tensor.layer is not None:
        return next(stage for stage, part in enumerate(parts) if tensor.layer in part.layers)
    return 0 if tensor.name == EMBEDDING else len(parts) - 1


def _distinct(
    name: str, members: list[int], by_rank: Mapping[int, Mapping[str, Slice]]
) -> Iterator[tuple[int, Slice]]:
    """Each slice of a tensor once, with the place in the group of the first rank that holds it."""
    seen: set[tuple[int, int]] = set()
    for place, rank in enumerate(members):
        piece = by_rank[rank].get(name)
        if piece is not None and (piece.start, piece.stop) not in seen:
            seen.add((piece.start, piece.stop))
            yield place, piece
