"""A policy as a device holds it: the full model, or this rank's shard of a model that several ranks share.

Created by `build`. The engine trains it; the weight sync and the checkpoints read full weights from it.
"""

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NamedTuple, Protocol

import torch
from torch import Tensor, nn

from rljob_api.model.adapters import is_adapter
from rljob_api.model.architecture import Shape, read_shape
from rljob_api.model.layout import Slice
from rljob_api.spec.lora import Lora
from rljob_plan.resharding.boxes import Box as Rectangle
from rljob_runtime.errors import ConfigError
from rljob_runtime.models.adapter_files import read_adapter
from rljob_runtime.models.config import UnsupportedArchitecture, read_config
from rljob_runtime.models.decoder import Decoder
from rljob_runtime.models.expert_names import split_experts, stack_indices
from rljob_runtime.models.loading import load_policy, load_scorer
from rljob_runtime.models.lora import add_adapters, draw_adapters, merged_weights, named_adapters
from rljob_runtime.models.policy_model import PolicyModel
from rljob_runtime.models.tower import as_matrix
from rljob_runtime.models.weights import load_weights_into
from rljob_runtime.parallel.decoder.parameters import (
    HOST,
    ValuesAt,
    as_they_are,
    box_of,
    fill_adapters,
    full_adapters,
    full_weights,
    load_slices,
    local_slices,
    on_meta,
    purposes,
    rows_of,
    slices_of,
    tower_of,
)
from rljob_runtime.parallel.decoder.policy import load_parallel
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose, gradient_purpose
from rljob_runtime.update.state_places import Box, WeightSpan
from rljob_runtime.update.update_ranks import UpdateRanks


class TrainedSlice(NamedTuple):
    """A live tensor that is trained: `box` of the full tensor of this name, as a matrix. kind: ranks that
    share one slice of a kind share all slices of that kind."""

    kind: str
    name: str
    tensor: Tensor
    box: Rectangle


class LocalPolicy(Protocol):
    """A policy on one device. purposes: the group that adds up the gradient of each parameter; None for a
    full model. lora: of its adapters, which are trained in place of its weights."""

    @property
    def lora(self) -> Lora | None:
        """The adapters' settings; None where all weights are trained."""
        ...

    @property
    def model(self) -> PolicyModel:
        """The part of the model that this device computes."""
        ...

    @property
    def purposes(self) -> Mapping[str, Purpose] | None:
        """The gradients' groups, by the parameter's name."""
        ...

    def full_weights(self, at: ValuesAt = as_they_are) -> Iterator[tuple[str, Tensor]]:
        """Yield all full weights by Hugging Face name, one at a time, merged with their adapters. All ranks
        that share the model iterate together, each to the end. at: returns the current values of a live
        tensor."""
        ...

    def full_adapters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the adapters likewise, by PEFT's names; none where all weights are trained."""
        ...

    def outlines(self) -> Mapping[str, Tensor]:
        """Return the same tensors in the same order, of which only shapes and types matter. Every rank has
        them."""
        ...

    def slices(self) -> dict[str, Tensor]:
        """Return this device's slices, the live tensors by Hugging Face name, without adapters. With ZeRO 3
        they are rows of slices. Those of a vision tower are matrices and vectors."""
        ...

    def spans(self) -> dict[str, list[WeightSpan]]:
        """Return the weights' slices that each trained parameter has, in order, by the parameter's name."""
        ...

    def trained_slices(self) -> Iterator[TrainedSlice]:
        """Yield this device's slices of the trained tensors, one after the other."""
        ...

    def load(self, folder: Path) -> None:
        """Copy this device's shard of a Hugging Face directory's weights, or of PEFT's directory of adapters
        where those are trained."""
        ...


@dataclass(slots=True, kw_only=True)
class FullPolicy:
    """A `LocalPolicy` that needs no other device."""

    model: PolicyModel
    lora: Lora | None = None
    _views: dict[str, Tensor] = field(default_factory=dict)

    @property
    def purposes(self) -> None:
        """None, since no rank shares it."""
        return None

    def full_weights(self, at: ValuesAt = as_they_are) -> Iterator[tuple[str, Tensor]]:
        """Yield the live tensors, or views of values on the host. Those require `slices` first: an expert's
        weight is a slice of a tensor that has no memory then."""
        live = self._views if at is not as_they_are and self._views else self.outlines()
        yield from merged_weights(self.model, live, at)

    def full_adapters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield the live tensors of the adapters."""
        if isinstance(self.model, Decoder):
            yield from named_adapters(self.model)

    def outlines(self) -> Mapping[str, Tensor]:
        """Return the live tensors, like `slices`."""
        return {name: weight.detach() for name, weight in self.model.named_hf_parameters()}

    def slices(self) -> dict[str, Tensor]:
        """Return all weights as matrices."""
        self._views = dict(self.outlines())
        return {name: as_matrix(view) for name, view in self._views.items()}

    def spans(self) -> dict[str, list[WeightSpan]]:
        """Return full spans. Weights may be on the host, and slices of them have no memory then."""
        parameters = ((name, tensor.to("meta")) for name, tensor in self.model.trained_parameters())
        shapes = {name: weight.shape for name, weight in split_experts(parameters)}

        def box(name: str) -> Box:
            return tuple((0, size) for size in shapes[name])

        return _spans(self.model, box)

    def trained_slices(self) -> Iterator[TrainedSlice]:
        """Yield the full weights or adapters."""
        weights = self.outlines().items() if self.lora is None else self.full_adapters()
        for name, tensor in weights:
            box = tuple(slice(0, size) for size in tensor.shape)
            yield TrainedSlice("", name, tensor.detach(), _rectangle(tensor, box))

    def load(self, folder: Path) -> None:
        """Load all weights, or all adapters."""
        if self.lora is None:
            load_weights_into(self.model, folder)
            return
        adapters = dict(self.full_adapters())
        stored = read_adapter(folder, {name: adapter.shape for name, adapter in adapters.items()})
        with torch.no_grad():
            for name, adapter in adapters.items():
                adapter.copy_(stored[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class ShardedPolicy:
    """A `LocalPolicy` that the ranks of `groups` share."""

    model: Decoder
    shape: Shape
    groups: ProcessGroups
    lora: Lora | None = None

    @property
    def purposes(self) -> Mapping[str, Purpose]:
        """The gradients' groups of the model's layout."""
        return purposes(self.model, self.shape, self.lora)

    def full_weights(self, at: ValuesAt = as_they_are) -> Iterator[tuple[str, Tensor]]:
        """Yield gathered weights, which belong to the caller."""
        return full_weights(self.model, self.shape, self.groups, at=at)

    def full_adapters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield adapters gathered from the ranks."""
        if self.lora is not None:
            yield from full_adapters(self.model, self.shape, self.groups, self.lora)

    def outlines(self) -> Mapping[str, Tensor]:
        """Return tensors without memory."""
        dtype = next(self.model.parameters()).dtype
        decoder = dict(on_meta(self.model.architecture, dtype).named_hf_parameters())
        return decoder | {name: weight.to("meta") for name, weight in tower_of(self.model).items()}

    def slices(self) -> dict[str, Tensor]:
        """Return this rank's slices."""
        return {
            n: as_matrix(weight) for n, weight in slices_of(self.model, self._local_slices).items()
        }

    def spans(self) -> dict[str, list[WeightSpan]]:
        """Return this rank's spans, with ZeRO 3 those that it has rows of."""
        local, tower = self._local_slices, tower_of(self.model)

        def box(name: str) -> Box:
            if name in tower:
                return tuple((0, size) for size in tower[name].shape)
            return tuple((index.start, index.stop) for index in box_of(local[name]))

        return _spans(self.model, box, first=self.model.first_expert)

    def trained_slices(self) -> Iterator[TrainedSlice]:
        """Yield this rank's slices, with ZeRO 3 rows of them."""
        local = self._local_slices
        for name, (rows, box) in rows_of(self.model, local, adapters=self.lora is not None):
            kind = Purpose.TOWER_GRADIENTS  # every rank has the full tower
            if name in local:
                kind = gradient_purpose(local[name].tensor, tied=self.shape.tied)
            yield TrainedSlice(kind, name, rows.detach(), _rectangle(rows, box))

    def load(self, folder: Path) -> None:
        """Load this rank's slices."""
        if self.lora is None:
            load_slices(self.model, folder, self.shape, self._local_slices)
        else:
            tensors = (local_slice.tensor for local_slice in self._local_slices.values())
            adapters = {t.name: t.shape for t in tensors if is_adapter(t.name)}
            stored = read_adapter(folder, adapters)
            fill_adapters(self.model, self._local_slices, lambda tensor: stored[tensor.name])

    @property
    def _local_slices(self) -> dict[str, Slice]:
        return local_slices(self.shape, self.groups.grid, self.groups.rank, self.lora)


def load_local_policy(
    path: Path,
    ranks: UpdateRanks,
    *,
    dtype: torch.dtype,
    scores: bool = False,
    lora: Lora | None = None,
    seed: int = 0,
    device: torch.device = HOST,
) -> LocalPolicy:
    """Load a directory's model as a rank of the update layout holds it. scores: as in `loading.load_scorer`.
    lora: with new adapters, drawn with this seed.

    Raises ConfigError for degrees that the model cannot have, and as `load_policy`.
    """
    if ranks.groups is None:
        load = load_scorer if scores else load_policy
        full_model = load(path, dtype=dtype)
        if lora is not None:
            _adapt(full_model, lora, seed, path)
        if isinstance(full_model, nn.Module):
            full_model.to(device)
        return FullPolicy(model=full_model, lora=lora)
    try:
        model = load_parallel(
            path,
            ranks.groups,
            dtype=dtype,
            scores=scores,
            lora=lora,
            seed=seed,
            device=device,
        )
    except UnsupportedArchitecture as reason:
        raise ConfigError(
            f"{path} is computed by transformers, since {reason}, and cannot be shared by devices "
            "(spec.update.parallelism); leave out all degrees but data, and zero"
        ) from reason
    shape = shape_of(path)
    assert shape is not None, f"the contract lacks {model.architecture.name}"
    shape = shape.scorer() if scores else shape
    return ShardedPolicy(model=model, shape=shape, groups=ranks.groups, lora=lora)


def _spans(
    model: PolicyModel, box: Callable[[str], Box], *, first: int = 0
) -> dict[str, list[WeightSpan]]:
    """Return the spans of each trained parameter; a stack has those of its experts, numbered from `first`."""
    spans = {}
    for name, parameter in model.trained_parameters():
        indices = stack_indices(name, parameter.shape, first=first)
        weight_names = [name] if indices is None else [weight_name for weight_name, _ in indices]
        spans[name] = [WeightSpan(weight_name, box(weight_name)) for weight_name in weight_names]
    return spans


def _rectangle(tensor: Tensor, box: tuple[slice, ...]) -> Rectangle:
    """Return a tensor's box, as a matrix. box: its slices in the full tensor."""
    rows, *others = box
    if len(others) == 1:
        return Rectangle(rows.start, rows.stop, others[0].start, others[0].stop)
    # a vector, or a convolution over patches
    return Rectangle(rows.start, rows.stop, 0, tensor[0].numel())


def _adapt(model: PolicyModel, lora: Lora, seed: int, path: Path) -> None:
    if not isinstance(model, Decoder):
        raise ConfigError(
            f"{path} is computed by transformers, which spec.update.lora has no adapters for; leave it out, "
            "or use a model of a family of docs/models.md"
        )
    add_adapters(model, lora)
    draw_adapters(model, seed)


def shape_of(path: Path) -> Shape | None:
    """Return the API's shape of a directory's model; None for an unsupported one."""
    return read_shape(read_config(path), name=f"{path}/config.json")
