"""A decoder's tensors as the slices that one rank holds: cut, loaded, and gathered again.

Called by `policy`, and by the code that saves a model trained on several ranks.
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
from rljob_runtime.parallel.fully_sharded import first_row, full_weight, local_rows
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose, RankGrid, gradient_purpose

HOST = torch.device("cpu")
ValuesAt = Callable[[Tensor], Tensor]
"""Returns a live tensor's current values, on the device or on the host."""


def as_they_are(tensor: Tensor) -> Tensor:
    """Return the tensor, whose values are in its own memory."""
    return tensor


def on_meta(architecture: Architecture, dtype: torch.dtype) -> Decoder:
    """Return a full decoder without memory: names, shapes and types."""
    with torch.device("meta"):
        return Decoder(architecture, dtype=dtype)


def local_slices(
    shape: Shape, grid: RankGrid, rank: int, lora: Lora | None = None
) -> dict[str, Slice]:
    """Return the slices that a rank holds by Hugging Face name, experts one by one; with `lora`, adapters
    too."""
    partition = grid.partition(shape, rank)
    local = {local_slice.tensor.name: local_slice for local_slice in slices(shape, partition)}
    for tensor in adapter_tensors(lora, shape) if lora else ():
        if tensor.layer in partition.layers:
            local[tensor.name] = slice_of(tensor, shape, partition)
    return local


def keep_stages(decoder: Decoder, partition: RankShard) -> None:
    """Remove the layers and ends that other pipeline ranks hold; the indices of the others stay."""
    backbone = decoder.model
    for layer in range(len(backbone.layers)):
        if layer not in partition.layers:
            backbone.layers[layer] = nn.Identity()
    if not partition.first and not (partition.last and decoder.architecture.tied):
        backbone.register_module("embed_tokens", None)
    if not partition.last:
        backbone.register_module("norm", None)
        if decoder.architecture.scores:
            decoder.register_module("score", None)
        elif not decoder.architecture.tied:
            decoder.register_module("lm_head", None)


def cut_parameters(
    decoder: Decoder, local: Mapping[str, Slice], *, device: torch.device = HOST
) -> None:
    """Replace every tensor by an uninitialised one of its slice's shape; stacks keep local experts alone.

    decoder: of `on_meta`, with this rank's stages.
    """
    for name, full in [*decoder.named_parameters(), *decoder.named_buffers()]:
        owner = decoder.get_submodule(name.rpartition(".")[0])
        shard = torch.empty(_local_shape(name, full, local), dtype=full.dtype, device=device)
        if isinstance(full, nn.Parameter):
            shard = nn.Parameter(shard, requires_grad=full.requires_grad)
        setattr(owner, name.rpartition(".")[2], shard)
    numbers = [
        local_slice.tensor.expert
        for local_slice in local.values()
        if local_slice.tensor.expert is not None
    ]
    decoder.first_expert = min(numbers, default=0)


def load_slices(decoder: Decoder, path: Path, shape: Shape, local: Mapping[str, Slice]) -> None:
    """Read this rank's slices of a Hugging Face directory, or its rows of them. Raises as `load_weights`."""
    known = {tensor.name for tensor in tensors_of(shape)}
    rows = dict(rows_of(decoder, local))

    def box_in_file(name: str, size: torch.Size) -> Box | None:
        if name in known:
            return rows[name][1] if name in rows else None
        return tuple(slice(0, length) for length in size)

    targets = ((name, local) for name, (local, _) in rows.items())
    if decoder.architecture.scores:
        selected, ignored = dict(without_new_head(targets, path)), new_head(path)
    else:
        selected, ignored = dict(targets), ()
    load_weights(selected, path, box_of=box_in_file, left_out=ignored)


def fill_adapters(
    decoder: Decoder, local: Mapping[str, Slice], full_adapter: Callable[[TensorSpec], Tensor]
) -> None:
    """Copy this rank's slices of full adapters into its adapters."""
    with torch.no_grad():
        for name, (adapter, box) in rows_of(decoder, local, adapters=True):
            adapter.copy_(full_adapter(local[name].tensor)[box])


def slices_of(decoder: Decoder, local: Mapping[str, Slice]) -> dict[str, Tensor]:
    """Return this rank's slices by Hugging Face name, or its rows of them: the live tensors, without
    adapters."""
    return {name: tensor.detach() for name, (tensor, _) in rows_of(decoder, local)}


def rows_of(
    decoder: Decoder, local: Mapping[str, Slice], *, adapters: bool = False
) -> Iterator[tuple[str, tuple[Tensor, Box]]]:
    """Yield this rank's rows of each tensor by Hugging Face name, and their box in the full tensor.

    With ZeRO 3 these are rows of its slices, and only of those that it has any rows of. adapters: of the
    adapters, in place of the model's own weights.
    """
    for stored, tensor in chain(decoder.named_parameters(), decoder.named_buffers()):
        if is_adapter(stored) != adapters:
            continue
        rows, first = local_rows(tensor), first_row(tensor)
        first_expert = decoder.first_expert + first
        indices = stack_indices(stored, rows.shape, first=first_expert)
        if indices is not None:
            yield from ((name, (rows[index], box_of(local[name]))) for name, index in indices)
        elif stored.startswith(TOWER):
            if isinstance(tensor, nn.Parameter):
                yield stored, (rows, tuple(slice(0, size) for size in rows.shape))
        elif len(rows):
            row_range, *others = box_of(local[stored])
            start = row_range.start + first
            yield stored, (rows, (slice(start, start + len(rows)), *others))


def purposes(decoder: Decoder, shape: Shape, lora: Lora | None = None) -> dict[str, Purpose]:
    """Return the group that adds up the gradient of each trained parameter, by the parameter's name."""
    tensors = adapter_tensors(lora, shape) if lora else tensors_of(shape)
    of_tensor = {tensor.name: gradient_purpose(tensor, tied=shape.tied) for tensor in tensors}
    by_parameter: dict[str, Purpose] = {}
    for name, parameter in decoder.trained_parameters():
        if name.startswith(TOWER):
            by_parameter[name] = Purpose.TOWER_GRADIENTS
            continue
        indices = stack_indices(name, parameter.shape)
        by_parameter[name] = of_tensor[indices[0][0] if indices else name]
    return by_parameter


def full_weights(
    decoder: Decoder, shape: Shape, groups: ProcessGroups, *, at: ValuesAt = as_they_are
) -> Iterator[tuple[str, Tensor]]:
    """Yield the model's full weights by Hugging Face name, one at a time, as a single rank would: merged with
    their adapters.

    All ranks iterate together. Each slice is sent once to the ranks that share its tensor, and each tensor
    once to the other stages of the pipeline. at: returns the current values of a live tensor.
    """
    tensors = {tensor.name: tensor for tensor in tensors_of(shape)}
    dtype = next(decoder.parameters()).dtype
    expected = on_meta(decoder.architecture, dtype).named_hf_parameters()
    tensors_and_types = ((tensors[name], weight.dtype) for name, weight in expected)
    yield from _gathered(_LocalTensors(decoder, at), shape, groups, tensors_and_types)
    for name, weight in tower_of(decoder).items():
        yield name, at(weight)


def tower_of(decoder: Decoder) -> dict[str, Tensor]:
    """Return the weights of a trained vision tower, which is replicated on every rank: the live tensors."""
    parameters = decoder.named_parameters()
    return {name: weight.detach() for name, weight in parameters if name.startswith(TOWER)}


def full_adapters(
    decoder: Decoder, shape: Shape, groups: ProcessGroups, lora: Lora
) -> Iterator[tuple[str, Tensor]]:
    """Yield the full adapters likewise, by PEFT's names."""
    dtype = next(weight.dtype for _, weight in decoder.trained_parameters())
    tensors_and_types = ((tensor, dtype) for tensor in adapter_tensors(lora, shape))
    yield from _gathered(
        _LocalTensors(decoder, as_they_are), shape, groups, tensors_and_types, lora
    )


def _gathered(
    local: "_LocalTensors",
    shape: Shape,
    groups: ProcessGroups,
    tensors_and_types: Iterable[tuple[TensorSpec, torch.dtype]],
    lora: Lora | None = None,
) -> Iterator[tuple[str, Tensor]]:
    """Yield these tensors, gathered from their slices, in their order."""
    stages = groups.grid.group(Purpose.PIPELINE, groups.rank)
    partitions = [groups.grid.partition(shape, stage) for stage in stages]
    grid = groups.grid
    by_rank = {
        rank: local_slices(shape, grid, rank, lora)
        for purpose in (Purpose.TENSOR, Purpose.EXPERT)
        for rank in grid.group(purpose, groups.rank)
    }
    for tensor, dtype in tensors_and_types:
        name, by_expert = tensor.name, tensor.expert is not None and grid.degrees.expert > 1
        purpose = Purpose.EXPERT if by_expert else Purpose.TENSOR
        members = grid.group(purpose, groups.rank)
        full = torch.empty(tensor.shape, dtype=dtype)
        stage = _first_holder(tensor, partitions)
        if stages[stage] == groups.rank:
            for source, source_slice in _distinct(name, members, by_rank):
                is_local = members[source] == groups.rank
                shard = local.weight(name) if is_local else full.new_empty(source_slice.shape)
                full[box_of(source_slice)] = broadcast(shard, source, groups[purpose])
        yield name, broadcast(full, stage, groups[Purpose.PIPELINE])


def box_of(tensor_slice: Slice) -> Box:
    """Return the slice as one index a dim."""
    box = [slice(0, size) for size in tensor_slice.tensor.shape]
    box[tensor_slice.axis] = slice(tensor_slice.start, tensor_slice.stop)
    return tuple(box)


class _LocalTensors:
    """This rank's slices by Hugging Face name. With ZeRO 3, all ranks that hold the same slices gather their
    rows, one tensor at a time."""

    def __init__(self, decoder: Decoder, at: ValuesAt) -> None:
        self._at = at
        self._tensors = dict(chain(decoder.named_parameters(), decoder.named_buffers()))
        self._adapted = adapted_matrices(decoder)
        self._last: tuple[str, Tensor] | None = None
        self._indices: dict[str, tuple[str, StackIndex | None]] = {}
        for name, tensor in self._tensors.items():
            self._indices[name] = name, None
            for weight_name, index in (
                stack_indices(name, tensor.shape, first=decoder.first_expert) or ()
            ):
                self._indices[weight_name] = name, index

    def weight(self, name: str) -> Tensor:
        """Return one slice, without gradient, merged where it has an adapter."""
        tensor, index = self._indices[name]
        if self._last is None or self._last[0] != tensor:
            self._last = tensor, self._merged(tensor)
        return self._last[1] if index is None else self._last[1][index]

    def _merged(self, name: str) -> Tensor:
        weight = full_weight(self._tensors[name].detach(), at=self._at)
        if (matrix := self._adapted.get(name)) is None:
            return weight
        stem = name.removesuffix("weight")
        lora_a, lora_b = (
            full_weight(self._tensors[f"{stem}{adapter}.weight"].detach())
            for adapter in ("lora_A", "lora_B")
        )
        return merge_adapter(weight, lora_a, lora_b, matrix.lora_scale)


def _local_shape(name: str, full: Tensor, local: Mapping[str, Slice]) -> tuple[int, ...]:
    indices = stack_indices(name, full.shape)
    if indices is None:
        return local[name].shape
    local_slices = [local[weight_name] for weight_name, _ in indices if weight_name in local]
    count = len({expert_slice.tensor.expert for expert_slice in local_slices})
    rows = sum(expert_slice.shape[0] for expert_slice in local_slices) // count
    return count, rows, local_slices[0].shape[1]


def _first_holder(tensor: TensorSpec, partitions: list[RankShard]) -> int:
    """Return the first pipeline rank that holds a slice of the tensor, with its tensor and expert ranks."""
    if tensor.layer is not None:
        return next(
            stage for stage, partition in enumerate(partitions) if tensor.layer in partition.layers
        )
    return 0 if tensor.name == EMBEDDING else len(partitions) - 1


def _distinct(
    name: str, members: list[int], by_rank: Mapping[int, Mapping[str, Slice]]
) -> Iterator[tuple[int, Slice]]:
    """Yield each slice of a tensor once, with the group rank of the first member that holds it."""
    yielded: set[tuple[int, int]] = set()
    for group_rank, rank in enumerate(members):
        member_slice = by_rank[rank].get(name)
        if member_slice is not None and (member_slice.start, member_slice.stop) not in yielded:
            yielded.add((member_slice.start, member_slice.stop))
            yield group_rank, member_slice
