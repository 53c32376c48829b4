"""A rollout rank's partition of a model: its sizes, and its slices of files and of full tensors.

Called by `rank_share`. `rljob_api.model.layout` computes the slices.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

import torch
from torch import Tensor

from rljob_api.model.architecture import Shape
from rljob_api.model.layout import RankShard, Slice, share, slices
from rljob_api.model.tensors import tensors_of
from rljob_runtime.devices.wire import broadcast
from rljob_runtime.models.architecture import Architecture, MoeArchitecture
from rljob_runtime.models.expert_names import weight_dtype
from rljob_runtime.models.fused.fused_weights import Weights, floats
from rljob_runtime.models.fused.part import ModelShard
from rljob_runtime.models.tensor_files import Box
from rljob_runtime.models.weights import load_weights
from rljob_runtime.parallel.decoder.parameters import box_of
from rljob_runtime.rollout.rollout_grid import RolloutPurpose
from rljob_runtime.rollout.rollout_groups import RolloutGroups


def model_part(architecture: Architecture, partition: RankShard) -> ModelShard:
    """Return the layers and sizes that a rank with this partition computes. partition: of one stage, with
    consecutive layers."""
    experts = architecture.experts
    return ModelShard(
        sizes=_sizes(architecture, partition),
        layers=range(partition.layers[0], partition.layers[-1] + 1),
        experts=share(experts.count, partition.expert, partition.experts) if experts else range(0),
        first=partition.first,
        last=partition.last,
    )


class ShardWeights:
    """The weights of a rank's shard by Hugging Face name. views: of its decoder, which this object fills and
    reads. shapes: of the full model's weights."""

    def __init__(self, views: Mapping[str, Weights], shape: Shape, groups: RolloutGroups) -> None:
        self._views, self._groups = views, groups
        self.shapes = {tensor.name: torch.Size(tensor.shape) for tensor in tensors_of(shape)}
        self._slices_by_rank = {
            rank: {
                rank_slice.tensor.name: rank_slice
                for rank_slice in slices(shape, groups.grid.partition(shape, rank))
            }
            for rank in groups.grid.group(RolloutPurpose.MODEL, groups.rank)
        }
        self._boxes = {
            name: box_of(rank_slice)
            for name, rank_slice in self._slices_by_rank[groups.rank].items()
        }

    def load(self, path: Path) -> None:
        """Read this rank's slices of a directory. Raises as `load_weights`."""

        def box_in_file(name: str, size: torch.Size) -> Box | None:
            if name in self.shapes:
                return self._boxes.get(name)
            return tuple(slice(0, length) for length in size)  # rejected by name

        load_weights(self._views, path, box_of=box_in_file)

    def copy(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Copy this rank's slices of full tensors, each as it arrives. All ranks of the model get them in the
        same order."""
        for name, tensor in weights:
            if name in self._views:
                self._views[name].copy_(tensor[self._boxes[name]])

    def full_weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all of the model's weights, one at a time, on every rank that holds a slice of it.

        These ranks iterate together; each slice is broadcast once to all of them.
        """
        group = self._groups[RolloutPurpose.MODEL]
        local_weights = dict(floats(self._views))
        like = next(iter(local_weights.values()))
        for name, size in self.shapes.items():
            full_tensor = like.new_empty(size, dtype=weight_dtype(name, like.dtype))
            for group_rank, rank_slice in self._holders(name):
                is_local = rank_slice is self._slices_by_rank[self._groups.rank].get(name)
                shard = local_weights[name] if is_local else full_tensor.new_empty(rank_slice.shape)
                full_tensor[box_of(rank_slice)] = broadcast(shard, group_rank, group)
            yield name, full_tensor

    def _holders(self, name: str) -> Iterator[tuple[int, Slice]]:
        """Yield each slice of a tensor once, with the group rank of the first rank that holds it."""
        yielded: set[tuple[int, int]] = set()
        for group_rank, tensor_slices in enumerate(self._slices_by_rank.values()):
            rank_slice = tensor_slices.get(name)
            if rank_slice is not None and (rank_slice.start, rank_slice.stop) not in yielded:
                yielded.add((rank_slice.start, rank_slice.stop))
                yield group_rank, rank_slice


def _sizes(architecture: Architecture, partition: RankShard) -> Architecture:
    a, ranks = architecture, partition.tensors
    heads = a.num_heads // ranks
    return replace(
        a,
        vocab_size=_cut(a.vocab_size, partition),
        intermediate_size=_cut(a.intermediate_size, partition),
        num_layers=len(partition.layers),
        num_heads=heads,
        num_kv_heads=heads if a.latent else max(1, a.num_kv_heads // ranks),
        experts=_expert_sizes(a.experts, partition) if a.experts else None,
    )


def _expert_sizes(experts: MoeArchitecture, partition: RankShard) -> MoeArchitecture:
    """Return the experts' sizes: ranks share full experts by number, or else each one's features like
    matrices."""
    inner = experts.intermediate_size
    return replace(
        experts,
        intermediate_size=inner if partition.experts > 1 else _cut(inner, partition),
        shared_intermediate=_cut(experts.shared_intermediate, partition),
    )


def _cut(number: int, partition: RankShard) -> int:
    return len(share(number, partition.tensor, partition.tensors))
