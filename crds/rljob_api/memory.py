"""Bytes that one device and its host hold in every phase of a step, by arithmetic.

Called by `plan`. Figures are for the fullest device of each role. Lower bounds: activations are the
inputs of the layers (everything else recomputed), and temporary buffers are not counted.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from math import prod

from rljob_api.architecture import Parameters, Shape
from rljob_api.base import parse_quantity
from rljob_api.engines import Dtype, UpdateParallelism
from rljob_api.layout import Part, Slice, slices, stages
from rljob_api.rljob import RLJobSpec
from rljob_api.tensors import Cut

ITEM_BYTES: dict[Dtype, int] = {"float32": 4, "bfloat16": 2}
GRADIENT_BYTES = 4
MOMENTS_BYTES = 8
MASTER_BYTES = 4
SCALE_BYTES = 4
ROUTER = ".mlp.gate.weight"


@dataclass(frozen=True, slots=True, kw_only=True)
class Phase:
    """What a device holds in one phase. parts: name → bytes on the device."""

    name: str
    role: str
    parts: dict[str, int]
    host: int = 0

    @property
    def device(self) -> int:
        """Bytes on the device."""
        return sum(self.parts.values())


@dataclass(frozen=True, slots=True, kw_only=True)
class KvCache:
    """Cache of one rollout device. sequence: bytes of the longest sequence; wanted: sequences that
    the job wants at a time; room: those that fit beside the weights, at most `wanted`."""

    sequence: int
    wanted: int
    room: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Phases of a step. limit: bytes of a device, None without limit."""

    limit: int | None
    update_weights: int
    rollout_weights: int
    kv_cache: KvCache
    phases: tuple[Phase, ...]


def plan_memory(spec: RLJobSpec, shape: Shape) -> Memory:
    """Memory of each phase. spec: resolved."""
    trained = _update_parts(spec, shape)
    generated = _rollout_weights(spec, shape)
    limit = parse_quantity(spec.accelerator.memory) if spec.accelerator.memory else None
    colocated = spec.placement.mode == "colocated"
    swapped = colocated and spec.resharding.strategy == "allgather-swap"
    always = {"optimizer": trained["optimizer"]}
    if spec.algorithm.params.kl_coefficient > 0:
        always["reference"] = trained["weights"]
    training = {"update weights": trained["weights"], **always}
    serving = {"rollout weights": generated}
    beside = {} if not colocated else (always if swapped else training)
    kept = serving if colocated and not swapped else {}
    cache = _kv_cache(spec, shape, taken=generated + sum(beside.values()), limit=limit)
    working = {"gradients": trained["gradients"], "activations": _activations(spec, shape)}
    host = trained["weights"] if swapped else 0
    phases = [
        Phase(
            name="generate",
            role="rollout",
            parts={**serving, "KV cache": cache.sequence * cache.room, **beside},
            host=host,
        ),
        Phase(name="update", role="update", parts={**training, **working, **kept}),
        Phase(name="reshard", role="update", parts={**training, **(serving if colocated else {})}),
    ]
    return Memory(
        limit=limit,
        update_weights=trained["weights"],
        rollout_weights=generated,
        kv_cache=cache,
        phases=tuple(phases),
    )


def update_shard(spec: RLJobSpec, shape: Shape) -> Parameters:
    """Parameters of the fullest update rank, before ZeRO. spec: resolved."""
    degrees = spec.update.parallelism
    return _shard(shape, degrees.tensor, degrees.pipeline, degrees.expert)


def rollout_shard(spec: RLJobSpec, shape: Shape) -> Parameters:
    """Parameters of the fullest rollout rank. spec: resolved."""
    degrees = spec.rollout.parallelism
    return _shard(shape, degrees.tensor, degrees.pipeline, degrees.expert)


def _shard(shape: Shape, tensor: int, pipeline: int, expert: int) -> Parameters:
    """The fullest stage of the first ranks, which have the most where a cut is uneven."""
    fullest = Parameters()
    for pieces in _stage_slices(shape, tensor, pipeline, expert):
        held = Parameters()
        for piece in pieces:
            size = prod(piece.shape)
            if piece.tensor.expert is not None:
                held += Parameters(experts=size)
            elif piece.tensor.cut is Cut.WHOLE:
                held += Parameters(whole=size)
            else:
                held += Parameters(tensor=size)
        fullest = max(fullest, held, key=lambda parameters: parameters.total)
    return fullest


def _stage_slices(shape: Shape, tensor: int, pipeline: int, expert: int) -> Iterator[list[Slice]]:
    """What the first ranks of each stage hold."""
    for stage in range(pipeline):
        part = Part.of_stages(shape, (stage,), pipeline, tensor=(0, tensor), expert=(0, expert))
        yield list(slices(shape, part))


def _rollout_weights(spec: RLJobSpec, shape: Shape) -> int:
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
    size, tensor = prod(piece.shape), piece.tensor
    if tensor.layer is None or len(piece.shape) == 1 or tensor.name.endswith(ROUTER):
        return size * ITEM_BYTES[dtype]
    return size + SCALE_BYTES * piece.shape[0]


def _update_parts(spec: RLJobSpec, shape: Shape) -> dict[str, int]:
    """Weights, gradients and optimizer of one update rank; ZeRO shares them among its replicas."""
    degrees, dtype = spec.update.parallelism, spec.update.dtype
    shard = update_shard(spec, shape)
    state = MOMENTS_BYTES + (MASTER_BYTES if dtype == "bfloat16" else 0)

    def held(item_bytes: int, from_zero: int) -> int:
        if degrees.zero < from_zero:
            return shard.total * item_bytes
        dense, experts = _copies(degrees)
        shared = -(-(shard.tensor + shard.whole) // dense) + -(-shard.experts // experts)
        return shared * item_bytes

    return {
        "optimizer": held(state, 1),
        "gradients": held(GRADIENT_BYTES, 2),
        "weights": held(ITEM_BYTES[dtype], 3),
    }


def _copies(degrees: UpdateParallelism) -> tuple[int, int]:
    """Ranks that hold the same slice of a matrix, and of an expert."""
    assert degrees.data is not None, "resolve() fills update.parallelism.data"
    dense = degrees.data * degrees.context
    return dense, dense * degrees.tensor // degrees.expert if degrees.expert > 1 else dense


def _activations(spec: RLJobSpec, shape: Shape) -> int:
    """Inputs of all layers of a stage; a 1F1B pipeline keeps as many micro-batches as stages."""
    batch, degrees = spec.batch, spec.update.parallelism
    prompts = batch.micro_batch_size or 1
    length = batch.max_prompt_length + batch.samples_per_prompt * batch.max_response_length
    layers = len(stages(shape.layers, degrees.pipeline)[0]) * degrees.pipeline
    items = prompts * length * shape.hidden * layers
    return items * ITEM_BYTES[spec.update.dtype] // (degrees.tensor * degrees.context)


def _kv_cache(spec: RLJobSpec, shape: Shape, *, taken: int, limit: int | None) -> KvCache:
    batch, degrees = spec.batch, spec.rollout.parallelism
    layers = len(stages(shape.layers, degrees.pipeline)[0])
    token = layers * shape.kv_items(degrees.tensor) * ITEM_BYTES[spec.rollout.dtype]
    sequence = token * (batch.max_prompt_length + batch.max_response_length)
    samples = batch.global_batch_size * batch.samples_per_prompt // (degrees.data or 1)
    wanted = min(spec.rollout.max_sequences, samples)
    room = wanted if limit is None else max(0, min(wanted, (limit - taken) // sequence))
    return KvCache(sequence=sequence, wanted=wanted, room=room)
