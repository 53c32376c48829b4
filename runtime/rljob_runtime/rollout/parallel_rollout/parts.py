"""A rollout rank's part of a model: its sizes, and its slices of files and of whole tensors.

Called by `rank_share`. Which slices these are is `rljob_api.model.layout`.
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
from rljob_runtime.rollout.rollout_grid import Purpose
from rljob_runtime.rollout.rollout_groups import RolloutGroups


def model_part(architecture: Architecture, part: RankShard) -> ModelShard:
    """What a rank with this part computes. part: of one stage, whose layers follow each other."""
    experts = architecture.experts
    return ModelShard(
        sizes=_sizes(architecture, part),
        layers=range(part.layers[0], part.layers[-1] + 1),
        experts=share(experts.count, part.expert, part.experts) if experts else range(0),
        first=part.first,
        last=part.last,
    )


class PartWeights:
    """The weights of a rank's part by Hugging Face name. views: of its decoder, filled and read here.
    shapes: of the whole model's."""

    def __init__(self, views: Mapping[str, Weights], shape: Shape, groups: RolloutGroups) -> None:
        self._views, self._groups = views, groups
        self.shapes = {tensor.name: torch.Size(tensor.shape) for tensor in tensors_of(shape)}
        self._held = {
            rank: {
                piece.tensor.name: piece for piece in slices(shape, groups.grid.part(shape, rank))
            }
            for rank in groups.grid.group(Purpose.MODEL, groups.rank)
        }
        self._boxes = {name: box_of(piece) for name, piece in self._held[groups.rank].items()}

    def load(self, path: Path) -> None:
        """Read this rank's slices of a directory. Raises as `load_weights`."""

        def box_of(name: str, size: torch.Size) -> Box | None:
            if name in self.shapes:
                return self._boxes.get(name)
            return tuple(slice(0, length) for length in size)  # refused by name

        load_weights(self._views, path, box_of=box_of)

    def copy(self, weights: Iterable[tuple[str, Tensor]]) -> None:
        """Take this rank's slices of whole tensors, each as it comes. All ranks of the model get them in the
        same order."""
        for name, tensor in weights:
            if name in self._views:
                self._views[name].copy_(tensor[self._boxes[name]])

    def whole(self) -> Iterator[tuple[str, Tensor]]:
        """All of the model's weights, one at a time, on every rank that holds a part of it.

        These go through it together; each slice is sent once to all of them.
        """
        group = self._groups[Purpose.MODEL]
        own = dict(floats(self._views))
        like = next(iter(own.values()))
        for name, size in self.shapes.items():
            whole = like.new_empty(size, dtype=weight_dtype(name, like.dtype))
            for place, piece in self._holders(name):
                mine = piece is self._held[self._groups.rank].get(name)
                part = own[name] if mine else whole.new_empty(piece.shape)
                whole[box_of(piece)] = broadcast(part, place, group)
            yield name, whole

    def _holders(self, name: str) -> Iterator[tuple[int, Slice]]:
        """Each slice of a tensor once, with the place in the model's group of the first that holds it."""
        seen: set[tuple[int, int]] = set()
        for place, held in enumerate(self._held.values()):
            piece = held.get(name)
            if piece is not None and (piece.start, piece.stop) not in seen:
                seen.add((piece.start, piece.stop))
                yield place, piece


def _sizes(architecture: Architecture, part: RankShard) -> Architecture:
    a, ranks = architecture, part.tensors
    heads = a.num_heads // ranks
    return replace(
        a,
        vocab_size=_cut(a.vocab_size, part),
        intermediate_size=_cut(a.intermediate_size, part),
        num_layers=len(part.layers),
        num_heads=heads,
        num_kv_heads=heads if a.latent else max(1, a.num_kv_heads // ranks),
        experts=_expert_sizes(a.experts, part) if a.experts else None,
    )


def _expert_sizes(experts: MoeArchitecture, part: RankShard) -> MoeArchitecture:
    """Whole experts are shared by number, or else each one's features as those of matrices."""
    inner = experts.intermediate_size
    return replace(
        experts,
        intermediate_size=inner if part.experts > 1 else _cut(inner, part),
        shared_intermediate=_cut(experts.shared_intermediate, part),
    )


def _cut(number: int, part: RankShard) -> int:
    return len(share(number, part.tensor, part.tensors))
