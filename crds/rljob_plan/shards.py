"""Compute the bytes that one rank holds of one model: its shard in the update's layout, and in the rollout's.

Called by `memory` and `performance`. Figures are of the fullest rank.
"""

from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from math import prod

from rljob_api.model.adapters import adapter_tensors
from rljob_api.model.architecture import Parameters, Shape
from rljob_api.model.layout import (
    ItemKind,
    RankShard,
    Slice,
    count_items,
    item_counts,
    slice_of,
    slices,
    stages_apart,
)
from rljob_api.model.tensors import Cut
from rljob_api.spec.engines import Dtype, Optimizer, Recompute
from rljob_api.spec.lora import Lora
from rljob_api.topology.devices import UpdateDegrees
from rljob_api.topology.resolved import ResolvedSpec
from rljob_api.topology.second_copies import unique_states
from rljob_plan.activations import Activations, PackedSizes, plan_activations
from rljob_plan.engines import PlannedEngine, planned_engine
from rljob_plan.pictures import picture_tokens
from rljob_plan.resharding.widths import ITEM_BYTES, SCALE_BYTES, in_8_bits, int8_bytes

GRADIENT_BYTES = 4
MOMENT_BYTES = 4
FLOAT8_BLOCK = 256
MASTER_BYTES = 4


def update_shard(spec: ResolvedSpec, shape: Shape) -> Parameters:
    """Return the parameters of the fullest update rank, before ZeRO."""
    degrees = spec.update.parallelism
    return _shard(shape, degrees.tensor, degrees.pipeline, degrees.expert)


def rollout_shard(spec: ResolvedSpec, shape: Shape) -> Parameters:
    """Return the parameters of the fullest rollout rank."""
    degrees = spec.rollout.parallelism
    return _shard(shape, degrees.tensor, degrees.pipeline, degrees.expert)


def trained_shard(spec: ResolvedSpec, shape: Shape) -> Parameters:
    """Return the parameters of the fullest update rank that the optimizer changes, before ZeRO."""
    degrees, lora = spec.update.parallelism, spec.update.lora
    if lora is None:
        return update_shard(spec, shape)
    return _fullest_stage(shape, degrees.tensor, degrees.pipeline, degrees.expert, lora)


def trained_items(shape: Shape, shard: RankShard, lora: Lora | None) -> dict[ItemKind, int]:
    """Count the items of a rank that the optimizer changes; with `lora` only those of the adapters."""
    if lora is None:
        return item_counts(shape, shard)
    return count_items(adapter_slices(lora, shape, shard))


@lru_cache(maxsize=4096)
def _shard(shape: Shape, tensor: int, pipeline: int, expert: int) -> Parameters:
    return _fullest_stage(shape, tensor, pipeline, expert, None)


def _fullest_stage(
    shape: Shape, tensor: int, pipeline: int, expert: int, lora: Lora | None
) -> Parameters:
    """Return the fullest stage of the first ranks, which have the most if a cut is uneven. lora: count only
    adapters."""
    most = Parameters()
    for stage in stages_apart(shape, pipeline):
        shard = RankShard.of_stages(
            shape, (stage,), pipeline, tensor=(0, tensor), expert=(0, expert)
        )
        local = Parameters()
        for kind, items in trained_items(shape, shard, lora).items():
            if kind.of_expert:
                local += Parameters(experts=items)
            elif kind.cut is Cut.WHOLE:
                local += Parameters(replicated=items)
            else:
                local += Parameters(tensor=items)
        most = max(most, local, key=lambda parameters: parameters.total)
    return most


def _stage_slices(shape: Shape, tensor: int, pipeline: int, expert: int) -> Iterator[list[Slice]]:
    """Yield the slices that the first ranks of each kind of stage hold."""
    for stage in stages_apart(shape, pipeline):
        shard = RankShard.of_stages(
            shape, (stage,), pipeline, tensor=(0, tensor), expert=(0, expert)
        )
        yield list(slices(shape, shard))


def adapter_slices(lora: Lora, shape: Shape, shard: RankShard) -> Iterator[Slice]:
    """Yield the slices of the adapters that a rank holds."""
    for tensor in adapter_tensors(lora, shape):
        if tensor.layer in shard.layers:
            yield slice_of(tensor, shape, shard)


def rollout_weights(spec: ResolvedSpec, shape: Shape) -> int:
    """Return the bytes of rollout weights on the fullest rank."""
    if spec.rollout.quantization == "none":
        return rollout_shard(spec, shape).total * ITEM_BYTES[spec.rollout.dtype]
    degrees = spec.rollout.parallelism
    slices_by_stage = _stage_slices(shape, degrees.tensor, degrees.pipeline, degrees.expert)
    return max(
        sum(_int8_bytes(tensor_slice, spec.rollout.dtype) for tensor_slice in stage_slices)
        for stage_slices in slices_by_stage
    )


def _int8_bytes(tensor_slice: Slice, dtype: Dtype) -> int:
    """Return the bytes of a slice. Matrices of layers are in 8 bits, except routers."""
    if in_8_bits(tensor_slice.tensor):
        return int8_bytes(tensor_slice.shape)
    return prod(tensor_slice.shape) * ITEM_BYTES[dtype]


@dataclass(frozen=True, slots=True, kw_only=True)
class UpdateShard:
    """Bytes of one update rank's shard of a model. unique: trained weights and optimizer state that no other
    rank holds. offloaded: its optimizer is on the host except for its step. adapters: trained instead of the
    weights; 0 without. stepped: parameters that its optimizer steps. keeps_gradients: after a step."""

    weights: int
    adapters: int
    gradients: int
    optimizer: int
    unique: int
    stepped: int
    offloaded: bool
    keeps_gradients: bool

    @classmethod
    def of(cls, spec: ResolvedSpec, shape: Shape) -> "UpdateShard":
        """Return the bytes of the fullest rank. ZeRO shares states out among replicas."""
        degrees, dtype = spec.update.parallelism, spec.update.dtype
        shard, trained = update_shard(spec, shape), trained_shard(spec, shape)
        rows = degrees.zero == 3  # these are main weights, and gathered in the update's type
        weights = MASTER_BYTES if rows else ITEM_BYTES[dtype]
        main = MASTER_BYTES if weights < MASTER_BYTES else 0

        def local_items(from_zero: int, parameters: Parameters = trained) -> int:
            """Return the items that remain on a rank if ZeRO shares them out from this stage on."""
            if degrees.zero < from_zero:
                return parameters.total
            dense, experts = _copies(degrees)
            return -(-(parameters.tensor + parameters.replicated) // dense) + -(
                -parameters.experts // experts
            )

        optimizer = _moments_bytes(local_items(1), spec.update.optimizer) + local_items(1) * main
        copied = {"weights": local_items(3) * weights, "state": optimizer}
        return cls(
            weights=local_items(3, shard) * weights,
            adapters=local_items(3) * weights if spec.update.lora else 0,
            gradients=local_items(2) * GRADIENT_BYTES,
            optimizer=optimizer,
            unique=sum(copied[kind] for kind in unique_states(degrees)),
            stepped=local_items(1),
            offloaded=spec.update.offload == "optimizer",
            keeps_gradients=planned_engine(spec.update.engine).keeps_gradients,
        )

    @property
    def lasting(self) -> dict[str, int]:
        """Return what stays on the device after a step, besides the weights."""
        parts = {"adapters": self.adapters, "optimizer": 0 if self.offloaded else self.optimizer}
        parts["gradients"] = self.gradients if self.keeps_gradients else 0
        return {name: size for name, size in parts.items() if size}


def _moments_bytes(items: int, optimizer: Optimizer) -> int:
    if optimizer.moments_dtype == "float32":
        return 2 * items * MOMENT_BYTES
    return 2 * (items + SCALE_BYTES * -(-items // FLOAT8_BLOCK))


def _copies(degrees: UpdateDegrees) -> tuple[int, int]:
    """Return how many ranks hold the same slice of a matrix, and of an expert."""
    dense = degrees.data * degrees.context
    return dense, dense * degrees.tensor // degrees.expert if degrees.expert > 1 else dense


def update_activations(spec: ResolvedSpec, shape: Shape) -> Activations:
    """Return the activations of the fullest update rank, at the longest lengths. If the sum of gradients
    needs more, it counts instead."""
    batch, degrees = spec.batch, spec.update.parallelism
    engine, emulated = planned_engine(spec.update.engine), spec.accelerator.type == "emulated"
    activations = _activations(
        shape,
        degrees,
        PackedSizes.longest(batch),
        ITEM_BYTES[spec.update.dtype],
        spec.update.recompute,
        batch.passes(degrees.data),
        emulated,
        engine,
        picture_tokens(spec, shape) if shape.trains_tower else 0,
    )
    if engine.copies_gradients and emulated and degrees.zero and degrees.data * degrees.context > 1:
        copied = UpdateShard.of(spec, shape).gradients
        activations = replace(
            activations, temporary=max(activations.temporary, copied - activations.retained)
        )
    return activations


@lru_cache(maxsize=4096)
def _activations(
    shape: Shape,
    degrees: UpdateDegrees,
    packed: PackedSizes,
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
