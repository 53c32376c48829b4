"""Tensors that move alike, so that a plan is made once for all of them.

Called by `plan`. Layers of the same stages and kind are alike, and of a sparse layer the experts that the
same devices hold in both layouts: DeepSeek-R1's 45,000 tensors on 384 devices are 117 stacks.
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
from rljob_plan.resharding.layouts import Layout

Stages = tuple[tuple[int, ...], tuple[int, ...]]
"""Those of the update and of the rollout layout that hold something of a tensor."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stack:
    """Tensors that move alike, by members: of experts, one of each block moves at a time.

    tensors: of the first member: one, or an expert's of each block. stages: that hold them. layers: each
    has a member, or as many as `experts` has entries: a member's experts, by block.
    """

    tensors: tuple[TensorSpec, ...]
    stages: Stages
    layers: tuple[int, ...] = ()
    experts: tuple[tuple[int, ...], ...] = ()

    @property
    def members(self) -> int:
        """Number of members."""
        return max(1, len(self.layers)) * max(1, len(self.experts))

    def member(self, number: int) -> tuple[TensorSpec, ...]:
        """The tensors of a member; the members of a layer follow each other."""
        if not self.layers:
            return self.tensors
        layer, place = divmod(number, max(1, len(self.experts)))
        numbers = self.experts[place] if self.experts else (None,)
        return tuple(
            _alike(tensor, self.layers[layer], expert)
            for tensor, expert in zip(self.tensors, numbers, strict=True)
        )


def find_stacks(update: Layout, rollout: Layout) -> list[Stack]:
    """All tensors of the model, each in one stack."""
    shape = update.shape

    def stages(tensor: TensorSpec) -> Stages:
        return update.stages_of(tensor), rollout.stages_of(tensor)

    found = [
        Stack(tensors=(tensor,), stages=stages(tensor))
        for tensor in (*tensors_outside_layers(shape), *tower_tensors(shape))
    ]
    alike: dict[tuple[Stages, bool], list[int]] = {}
    for layer in range(shape.layers):
        sparse = shape.experts is not None and shape.experts.in_layer(layer)
        held = stages(TensorSpec(name="", shape=(), layer=layer))
        alike.setdefault((held, sparse), []).append(layer)
    for (held, sparse), layers in alike.items():
        found += [
            Stack(tensors=(tensor,), stages=held, layers=tuple(layers))
            for tensor in layer_tensors(shape, layers[0], experts=range(0))
        ]
        if sparse:
            found += _of_experts(update, rollout, held, tuple(layers))
    return found


def _of_experts(
    update: Layout, rollout: Layout, held: Stages, layers: tuple[int, ...]
) -> Iterator[Stack]:
    """Stacks of each of an expert's matrices."""
    for members in _members(_blocks(update, rollout)):
        by_expert = [
            layer_tensors(update.shape, layers[0], experts=range(expert, expert + 1))
            for expert in members[0]
        ]
        matrices = [[t for t in tensors if t.expert is not None] for tensors in by_expert]
        for tensors in zip(*matrices, strict=True):
            yield Stack(tensors=tensors, stages=held, layers=layers, experts=tuple(members))


def _blocks(update: Layout, rollout: Layout) -> list[range]:
    """Runs of experts that the same devices hold in both layouts."""
    places = list(zip(update.expert_places, rollout.expert_places, strict=True))
    runs = [list(run) for _, run in groupby(range(len(places)), key=places.__getitem__)]
    return [range(run[0], run[-1] + 1) for run in runs]


def _members(blocks: Iterable[range]) -> list[list[tuple[int, ...]]]:
    """Experts by turns, so that in each turn every device has its share: one of each block, or, of a
    shorter block, one in some turns. Turns of the same blocks together."""
    blocks = list(blocks)
    turns = max(len(block) for block in blocks)
    taken: list[dict[int, int]] = [{} for _ in range(turns)]
    for number, block in enumerate(blocks):
        for place, expert in enumerate(block):
            taken[(2 * place + 1) * turns // (2 * len(block))][number] = expert
    alike: dict[tuple[int, ...], list[tuple[int, ...]]] = {}
    for turn in taken:
        alike.setdefault(tuple(turn), []).append(tuple(turn.values()))
    return list(alike.values())


def _alike(tensor: TensorSpec, layer: int, expert: int | None) -> TensorSpec:
    """The tensor of the same name in another layer, of another expert."""
    name = tensor.name.split(".")
    name[2] = str(layer)
    if expert is not None:
        name[5] = str(expert)
    return replace(tensor, name=".".join(name), layer=layer, expert=expert)
