"""Bytes that one rank holds of one model: its shard in the update's layout, and in the rollout's.

Called by `memory` and `performance`. Figures are of the fullest rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from rljob_api.model.adapters import adapter_tensors
from rljob_api.model.architecture import Parameters, Shape
from rljob_api.model.layout import (
    Held,
    Part,
    Slice,
    held_items,
    items_of,
    slice_of,
    slices,
    stages_apart,
)
from rljob_api.model.tensors import Cut
from rljob_api.spec.engines import Dtype, Optimizer, Recompute
from rljob_api.spec.lora import Lora
from rljob_api.topology.devices import UpdateDegrees
from rljob_api.topology.resolved import ResolvedSpec
from rljob_api.topology.second_copies import held_alone
from rljob_plan.activations import Activations, Packed, plan_activations
from rljob_plan.engines import PlannedEngine, planned_engine
from rljob_plan.pictures import picture_tokens
from rljob_plan.resharding.widths import ITEM_BYTES, SCALE_BYTES, in_8_bits, int8_bytes

GRADIENT_BYTES = 4
MOMENT_BYTES = 4
FLOAT8_BLOCK = 256
MASTER_BYTES = 4


def update_shard(spec: ResolvedSpec, shape: Shape) -> Parameters:
    """Parameters of the fullest update rank, before ZeRO."""
    degrees = spec.update.parallelism
    return _shard(shape, degrees.tensor, degrees.pipeline, degrees.expert)


def rollout_shard(spec: ResolvedSpec, shape: Shape) -> Parameters:
    """Parameters of the fullest rollout rank."""
    degrees = spec.rollout.parallelism
    return _shard(shape, degrees.tensor, degrees.pipeline, degrees.expert)


def trained_shard(spec: ResolvedSpec, shape: Shape) -> Parameters:
    """Those of the fullest update rank that the optimizer changes, before ZeRO."""
    degrees, lora = spec.update.parallelism, spec.update.lora
    if lora is None:
        return update_shard(spec, shape)
    return _fullest(shape, degrees.tensor, degrees.pipeline, degrees.expert, lora)


def trained_items(shape: Shape, part: Part, lora: Lora | None) -> dict[Held, int]:
    """Items of a rank that the optimizer changes: the adapters', with `lora`, alone."""
    if lora is None:
        return held_items(shape, part)
    return items_of(adapter_slices(lora, shape, part))


@lru_cache(maxsize=4096)
def _shard(shape: Shape, tensor: int, pipeline: int, expert: int) -> Parameters:
    return _fullest(shape, tensor, pipeline, expert, None)


def _fullest(
    shape: Shape, tensor: int, pipeline: int, expert: int, lora: Lora | None
) -> Parameters:
    """The fullest stage of the first ranks, which have the most where a cut is uneven. lora: of adapters
    alone."""
    most = Parameters()
    for stage in stages_apart(shape, pipeline):
        part = Part.of_stages(shape, (stage,), pipeline, tensor=(0, tensor), expert=(0, expert))
        held = Parameters()
        for of, items in trained_items(shape, part, lora).items():
            if of.of_expert:
                held += Parameters(experts=items)
            elif of.cut is Cut.WHOLE:
                held += Parameters(whole=items)
            else:
                held += Parameters(tensor=items)
        most = max(most, held, key=lambda parameters: parameters.total)
    return most


def _stage_slices(shape: Shape, tensor: int, pipeline: int, expert: int) -> Iterator[list[Slice]]:
    """What the first ranks of each stage hold, of stages alike the first."""
    for stage in stages_apart(shape, pipeline):
        part = Part.of_stages(shape, (stage,), pipeline, tensor=(0, tensor), expert=(0, expert))
        yield list(slices(shape, part))


def adapter_slices(lora: Lora, shape: Shape, part: Part) -> Iterator[Slice]:
    """What a rank holds of the adapters."""
    for tensor in adapter_tensors(lora, shape):
        if tensor.layer in part.layers:
            yield slice_of(tensor, shape, part)


def rollout_weights(spec: ResolvedSpec, shape: Shape) -> int:
    """Bytes of the fullest rollout rank."""
    if spec.rollout.quantization == "none":
        return rollout_shard(spec, shape).total * ITEM_BYTES[spec.rollout.dtype]
    degrees = spec.rollout.parallelism
    held_by_stage = _stage_slices(shape, degrees.tensor, degrees.pipeline, degrees.expert)
    return max(
        sum(_int8_bytes(piece, spec.rollout.dtype) for piece in held) for held in held_by_stage
    )


def _int8_bytes(piece: Slice, dtype: Dtype) -> int:
    """Matrices of layers are in 8 bits, but for routers."""
    if in_8_bits(piece.tensor):
        return int8_bytes(piece.shape)
    return prod(piece.shape) * ITEM_BYTES[dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateShard:
    """Bytes of one update rank's part of a model. alone: of trained weights and the optimizer, what no other
    rank has. rests: its optimizer, on the host but for its step.
    adapters: which are trained in place of the weights; 0 without. stepped: parameters that its optimizer
    steps. keeps_gradients: after a step."""

    weights: int
    adapters: int
    gradients: int
    optimizer: int
    alone: int
    stepped: int
    rests: bool
    keeps_gradients: bool

    @classmethod
    def of(cls, spec: ResolvedSpec, shape: Shape) -> "UpdateShard":
        """Of the fullest rank; ZeRO shares parts among replicas."""
        degrees, dtype = spec.update.parallelism, spec.update.dtype
        shard, trained = update_shard(spec, shape), trained_shard(spec, shape)
        rows = degrees.zero == 3  # these are main weights, and gathered in the update's type
        weights = MASTER_BYTES if rows else ITEM_BYTES[dtype]
        main = MASTER_BYTES if weights < MASTER_BYTES else 0

        def held(from_zero: int, of: Parameters = trained) -> int:
            if degrees.zero < from_zero:
                return of.total
            dense, experts = _copies(degrees)
            return -(-(of.tensor + of.whole) // dense) + -(-of.experts // experts)

        optimizer = _moments_bytes(held(1), spec.update.optimizer) + held(1) * main
        copied = {"weights": held(3) * weights, "state": optimizer}
        return cls(
            weights=held(3, shard) * weights,
            adapters=held(3) * weights if spec.update.lora else 0,
            gradients=held(2) * GRADIENT_BYTES,
            optimizer=optimizer,
            alone=sum(copied[kind] for kind in held_alone(degrees)),
            stepped=held(1),
            rests=spec.update.offload == "optimizer",
            keeps_gradients=planned_engine(spec.update.engine).keeps_gradients,
        )

    @property
    def lasting(self) -> dict[str, int]:
        """What stays on the device after a step, beside the weights."""
        parts = {"adapters": self.adapters, "optimizer": 0 if self.rests else self.optimizer}
        parts["gradients"] = self.gradients if self.keeps_gradients else 0
        return {name: size for name, size in parts.items() if size}


def _moments_bytes(items: int, optimizer: Optimizer) -> int:
    if optimizer.moments_dtype == "float32":
        return 2 * items * MOMENT_BYTES
    return 2 * (items + SCALE_BYTES * -(-items // FLOAT8_BLOCK))


def _copies(degrees: UpdateDegrees) -> tuple[int, int]:
    """Ranks that hold the same slice of a matrix, and of an expert."""
    dense = degrees.data * degrees.context
    return dense, dense * degrees.tensor // degrees.expert if degrees.expert > 1 else dense


def update_activations(spec: ResolvedSpec, shape: Shape) -> Activations:
    """Of the fullest update rank, at the longest lengths; or what the sum of gradients takes, where that is
    more."""
    batch, degrees = spec.batch, spec.update.parallelism
    engine, emulated = planned_engine(spec.update.engine), spec.accelerator.type == "emulated"
    found = _activations(
        shape,
        degrees,
        Packed.longest(batch),
        ITEM_BYTES[spec.update.dtype],
        spec.update.recompute,
        batch.passes(degrees.data),
        emulated,
        engine,
        picture_tokens(spec, shape) if shape.trains_tower else 0,
    )
    if engine.copies_gradients and emulated and degrees.zero and degrees.data * degrees.context > 1:
        copied = UpdateShard.of(spec, shape).gradients
        found = replace(found, temporary=max(found.temporary, copied - found.kept))
    return found


@lru_cache(maxsize=4096)
def _activations(
    shape: Shape,
    degrees: UpdateDegrees,
    packed: Packed,
    item_bytes: int,
    recompute: Recompute,
    passes: int,
    portable: bool,
    engine: PlannedEngine,
    pictured: int,
) -> Activations:
    return plan_activations(
        shape,
        degrees,
        packed,
        item_bytes=item_bytes,
        recompute=recompute,
        passes=passes,
        portable=portable,
        engine=engine,
        pictured=pictured,
    )
