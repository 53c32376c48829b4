"""A policy as a device holds it: whole, or this rank's part of one that several ranks share.

Made by `build`; the engine trains it, the weight sync and the checkpoints take whole weights from it.
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
    held_slices,
    load_slices,
    on_meta,
    purposes,
    rows_of,
    slices_of,
    tower_of,
    whole_adapters,
    whole_weights,
)
from rljob_runtime.parallel.decoder.policy import load_parallel
from rljob_runtime.parallel.process_groups import ProcessGroups
from rljob_runtime.parallel.ranks import Purpose, gradient_purpose
from rljob_runtime.update.state_places import Box, WeightSpan
from rljob_runtime.update.update_ranks import UpdateRanks


class Trained(NamedTuple):
    """A live tensor of what is trained: `box` of the whole one of this name, as a matrix. kind: ranks that
    hold one slice of a kind hold the same ones of all of it."""

    kind: str
    name: str
    own: Tensor
    box: Rectangle


class HeldPolicy(Protocol):
    """A policy. purposes: who adds up the gradient of each parameter; None where it is whole. lora: of its
    adapters, which are trained in place of its weights."""

    @property
    def lora(self) -> Lora | None:
        """None where all weights are trained."""
        ...

    @property
    def model(self) -> PolicyModel:
        """What this device computes of it."""
        ...

    @property
    def purposes(self) -> Mapping[str, Purpose] | None:
        """By the parameter's name."""
        ...

    def whole_weights(self, at: ValuesAt = as_they_are) -> Iterator[tuple[str, Tensor]]:
        """All weights by Hugging Face name, whole, one at a time, merged with their adapters. All ranks that
        share it go through them together, each to the end. at: where the values of a live tensor are now."""
        ...

    def whole_adapters(self) -> Iterator[tuple[str, Tensor]]:
        """The adapters likewise, by PEFT's names; none where all weights are trained."""
        ...

    def outlines(self) -> Mapping[str, Tensor]:
        """The same tensors in the same order, of which shapes and types alone count. Every rank has them."""
        ...

    def slices(self) -> dict[str, Tensor]:
        """What this device holds, the live tensors by Hugging Face name: slices, with ZeRO 3 rows of
        them, without adapters. Those of a vision tower are matrices and vectors."""
        ...

    def spans(self) -> dict[str, list[WeightSpan]]:
        """Which weights' slices each trained parameter has, in order, by the parameter's name."""
        ...

    def trained(self) -> Iterator[Trained]:
        """What this device holds of what is trained, one after the other."""
        ...

    def load(self, folder: Path) -> None:
        """Copy this device's part of a Hugging Face directory's weights, or of PEFT's directory of adapters
        where those are trained."""
        ...


@dataclass(slots=True, kw_only=True)
class WholePolicy:
    """A `HeldPolicy` that no other device is needed for."""

    model: PolicyModel
    lora: Lora | None = None
    _views: dict[str, Tensor] = field(default_factory=dict)

    @property
    def purposes(self) -> None:
        """No rank shares it."""
        return None

    def whole_weights(self, at: ValuesAt = as_they_are) -> Iterator[tuple[str, Tensor]]:
        """The live tensors, or views of what lies on the host; those only after `slices`: an expert's weight
        is a part of a tensor that has no memory then."""
        live = self._views if at is not as_they_are and self._views else self.outlines()
        yield from merged_weights(self.model, live, at)

    def whole_adapters(self) -> Iterator[tuple[str, Tensor]]:
        """The live tensors."""
        if isinstance(self.model, Decoder):
            yield from named_adapters(self.model)

    def outlines(self) -> Mapping[str, Tensor]:
        """The live tensors, too."""
        return {name: weight.detach() for name, weight in self.model.named_hf_parameters()}

    def slices(self) -> dict[str, Tensor]:
        """All weights."""
        self._views = dict(self.outlines())
        return {name: as_matrix(view) for name, view in self._views.items()}

    def spans(self) -> dict[str, list[WeightSpan]]:
        """Whole ones; weights may be on the host, and parts of them have no memory then."""
        trained = ((name, own.to("meta")) for name, own in self.model.trained_parameters())
        shapes = {name: weight.shape for name, weight in split_experts(trained)}

        def box(name: str) -> Box:
            return tuple((0, size) for size in shapes[name])

        return _spans(self.model, box)

    def trained(self) -> Iterator[Trained]:
        """Weights or adapters, whole."""
        weights = self.outlines().items() if self.lora is None else self.whole_adapters()
        for name, own in weights:
            box = tuple(slice(0, size) for size in own.shape)
            yield Trained("", name, own.detach(), _rectangle(own, box))

    def load(self, folder: Path) -> None:
        """All of it."""
        if self.lora is None:
            load_weights_into(self.model, folder)
            return
        held = dict(self.whole_adapters())
        stored = read_adapter(folder, {name: adapter.shape for name, adapter in held.items()})
        with torch.no_grad():
            for name, adapter in held.items():
                adapter.copy_(stored[name])


@dataclass(frozen=True, slots=True, kw_only=True)
class PolicyPart:
    """A `HeldPolicy` that the ranks of `groups` share."""

    model: Decoder
    shape: Shape
    groups: ProcessGroups
    lora: Lora | None = None

    @property
    def purposes(self) -> Mapping[str, Purpose]:
        """As the model's layout has them."""
        return purposes(self.model, self.shape, self.lora)

    def whole_weights(self, at: ValuesAt = as_they_are) -> Iterator[tuple[str, Tensor]]:
        """Each is put together, and belongs to the caller."""
        return whole_weights(self.model, self.shape, self.groups, at=at)

    def whole_adapters(self) -> Iterator[tuple[str, Tensor]]:
        """Put together, too."""
        if self.lora is not None:
            yield from whole_adapters(self.model, self.shape, self.groups, self.lora)

    def outlines(self) -> Mapping[str, Tensor]:
        """Without memory."""
        dtype = next(self.model.parameters()).dtype
        decoder = dict(on_meta(self.model.architecture, dtype).named_hf_parameters())
        return decoder | {name: own.to("meta") for name, own in tower_of(self.model).items()}

    def slices(self) -> dict[str, Tensor]:
        """This rank's."""
        return {n: as_matrix(own) for n, own in slices_of(self.model, self._held).items()}

    def spans(self) -> dict[str, list[WeightSpan]]:
        """This rank's, with ZeRO 3 those that it has rows of."""
        held, tower = self._held, tower_of(self.model)

        def box(name: str) -> Box:
            if name in tower:
                return tuple((0, size) for size in tower[name].shape)
            return tuple((at.start, at.stop) for at in box_of(held[name]))

        return _spans(self.model, box, first=self.model.first_expert)

    def trained(self) -> Iterator[Trained]:
        """This rank's slices, with ZeRO 3 rows of them."""
        held = self._held
        for name, (own, box) in rows_of(self.model, held, adapters=self.lora is not None):
            kind = Purpose.TOWER_GRADIENTS  # every rank has the whole tower
            if name in held:
                kind = gradient_purpose(held[name].tensor, tied=self.shape.tied)
            yield Trained(kind, name, own.detach(), _rectangle(own, box))

    def load(self, folder: Path) -> None:
        """This rank's slices."""
        if self.lora is None:
            load_slices(self.model, folder, self.shape, self._held)
        else:
            tensors = (piece.tensor for piece in self._held.values())
            adapters = {t.name: t.shape for t in tensors if is_adapter(t.name)}
            stored = read_adapter(folder, adapters)
            fill_adapters(self.model, self._held, lambda tensor: stored[tensor.name])

    @property
    def _held(self) -> dict[str, Slice]:
        return held_slices(self.shape, self.groups.grid, self.groups.rank, self.lora)


def load_held(
    path: Path,
    ranks: UpdateRanks,
    *,
    dtype: torch.dtype,
    scores: bool = False,
    lora: Lora | None = None,
    seed: int = 0,
    device: torch.device = HOST,
) -> HeldPolicy:
    """A directory's model as a rank of the update layout holds it. scores: as `loading.load_scorer` has it.
    lora: with new adapters, drawn with this seed.

    Raises ConfigError for degrees that the model cannot have, and as `load_policy`.
    """
    if ranks.groups is None:
        load = load_scorer if scores else load_policy
        whole = load(path, dtype=dtype)
        if lora is not None:
            _adapt(whole, lora, seed, path)
        if isinstance(whole, nn.Module):
            whole.to(device)
        return WholePolicy(model=whole, lora=lora)
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
    return PolicyPart(model=model, shape=shape, groups=ranks.groups, lora=lora)


def _spans(
    model: PolicyModel, box: Callable[[str], Box], *, first: int = 0
) -> dict[str, list[WeightSpan]]:
    """Of each trained parameter; a stack has those of its experts, which are numbered from `first`."""
    found = {}
    for name, parameter in model.trained_parameters():
        places = stack_indices(name, parameter.shape, first=first)
        parts = [name] if places is None else [part for part, _ in places]
        found[name] = [WeightSpan(part, box(part)) for part in parts]
    return found


def _rectangle(own: Tensor, box: tuple[slice, ...]) -> Rectangle:
    """Of a tensor as a matrix. box: its place in the whole one."""
    rows, *others = box
    if len(others) == 1:
        return Rectangle(rows.start, rows.stop, others[0].start, others[0].stop)
    return Rectangle(
        rows.start, rows.stop, 0, own[0].numel()
    )  # a vector, or a convolution over patches


def _adapt(model: PolicyModel, lora: Lora, seed: int, path: Path) -> None:
    if not isinstance(model, Decoder):
        raise ConfigError(
            f"{path} is computed by transformers, which spec.update.lora has no adapters for; leave it out, "
            "or use a model of a family of docs/models.md"
        )
    add_adapters(model, lora)
    draw_adapters(model, seed)


def shape_of(path: Path) -> Shape | None:
    """The contract's view of a directory's model; None for one that it does not know."""
    return read_shape(read_config(path), name=f"{path}/config.json")
