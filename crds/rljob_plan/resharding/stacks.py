"""Group tensors that move alike, so that one plan serves all of them.

Called by `resharding_plan`. Layers of the same stages and kind are alike. In a sparse layer, experts that the
same devices hold in both layouts are alike. DeepSeek-R1's 45,000 tensors on 384 devices form 117 stacks.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from itertools import groupby

from rljob_api.model.tensors import (
    TensorSpec,
    layer_tensors,
    tensors_outside_layers,
    tower_tensors,
)
from rljob_plan.resharding.layouts import LayoutTable

Stages = tuple[tuple[int, ...], tuple[int, ...]]
"""Stages of the update layout and of the rollout layout that hold a slice of a tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Tensors that move alike, by members. Of experts, one of each block moves at a time.

    tensors: those of the first member: one, or an expert's of each block. stages: those that hold them.
    layers: each has a member, or as many as `experts` has entries. experts: a member's experts, by block.
    """

    tensors: tuple[TensorSpec, ...]
    stages: Stages
    layers: tuple[int, ...] = ()
    experts: tuple[tuple[int, ...], ...] = ()

    @property
    def members(self) -> int:
        """Return the number of members."""
        return max(1, len(self.layers)) * max(1, len(self.experts))

    def member(self, number: int) -> tuple[TensorSpec, ...]:
        """Return the tensors of a member. The members of a layer follow each other."""
        if not self.layers:
            return self.tensors
        layer, index = divmod(number, max(1, len(self.experts)))
        numbers = self.experts[index] if self.experts else (None,)
        return tuple(
            _alike(tensor, self.layers[layer], expert)
            for tensor, expert in zip(self.tensors, numbers, strict=True)
        )


def find_stacks(update: LayoutTable, rollout: LayoutTable) -> list[Stack]:
    """Return all tensors of the model, each in one stack."""
    shape = update.shape

    def stages(tensor: TensorSpec) -> Stages:
        """Return the stages of both layouts that hold a slice of the tensor."""
        return update.stages_of(tensor), rollout.stages_of(tensor)

    stacks = [
        Stack(tensors=(tensor,), stages=stages(tensor))
        for tensor in (*tensors_outside_layers(shape), *tower_tensors(shape))
    ]
    layers_by_kind: dict[tuple[Stages, bool], list[int]] = {}
    for layer in range(shape.layers):
        sparse = shape.experts is not None and shape.experts.in_layer(layer)
        holding_stages = stages(TensorSpec(name="", shape=(), layer=layer))
        layers_by_kind.setdefault((holding_stages, sparse), []).append(layer)
    for (holding_stages, sparse), layers in layers_by_kind.items():
        stacks += [
            Stack(tensors=(tensor,), stages=holding_stages, layers=tuple(layers))
            for tensor in layer_tensors(shape, layers[0], experts=range(0))
        ]
        if sparse:
            stacks += _of_experts(update, rollout, holding_stages, tuple(layers))
    return stacks


def _of_experts(
    update: LayoutTable, rollout: LayoutTable, holding_stages: Stages, layers: tuple[int, ...]
) -> Iterator[Stack]:
    """Yield the stacks of each of an expert's matrices."""
    for members in _members(_blocks(update, rollout)):
        by_expert = [
            layer_tensors(update.shape, layers[0], experts=range(expert, expert + 1))
            for expert in members[0]
        ]
        matrices = [[t for t in tensors if t.expert is not None] for tensors in by_expert]
        for tensors in zip(*matrices, strict=True):
            yield Stack(
                tensors=tensors, stages=holding_stages, layers=layers, experts=tuple(members)
            )


def _blocks(update: LayoutTable, rollout: LayoutTable) -> list[range]:
    """Return runs of experts that the same devices hold in both layouts."""
    places = list(zip(update.expert_places, rollout.expert_places, strict=True))
    runs = [list(run) for _, run in groupby(range(len(places)), key=places.__getitem__)]
    return [range(run[0], run[-1] + 1) for run in runs]


def _members(blocks: Iterable[range]) -> list[list[tuple[int, ...]]]:
    """Return experts by turns, so that every device has its share in each turn. A turn takes one of each
    block; a shorter block skips some turns. Turns of the same blocks are grouped."""
    blocks = list(blocks)
    turns = max(len(block) for block in blocks)
    experts_by_turn: list[dict[int, int]] = [{} for _ in range(turns)]
    for number, block in enumerate(blocks):
        for index, expert in enumerate(block):
            experts_by_turn[(2 * index + 1) * turns // (2 * len(block))][number] = expert
    alike: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for turn in experts_by_turn:
        alike.setdefault(tuple(turn), []).append(tuple(turn.values()))
    return list(alike.values())


def _alike(tensor: TensorSpec, layer: int, expert: int | None) -> TensorSpec:
    """Return the tensor of the same name in another layer, or of another expert."""
    name = tensor.name.split(".")
    name[2] = str(layer)
    if expert is not None:
        name[5] = str(expert)
    return replace(tensor, name=".".join(name), layer=layer, expert=expert)
