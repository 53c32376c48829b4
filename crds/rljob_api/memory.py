"""Bytes that one device and its host hold in every phase of a step, by arithmetic.

Called by `plan`. Figures are for the fullest device of each role, with all lengths the longest: the tensors
of this project's engines, without what allocators and collectives keep beside them.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from math import prod

from rljob_api.activations import Activations, Packed, plan_activations
from rljob_api.architecture import Parameters, Shape
from rljob_api.base import parse_quantity
from rljob_api.engines import Dtype, Optimizer, UpdateParallelism
from rljob_api.layout import Part, Slice, slices, stages
from rljob_api.resharding.figures import fullest
from rljob_api.resharding.of_job import plan_of_job
from rljob_api.resharding.widths import ITEM_BYTES, SCALE_BYTES, in_8_bits, int8_bytes
from rljob_api.reward_services import RewardModel
from rljob_api.rljob import RLJobSpec
from rljob_api.teacher import Teacher
from rljob_api.tensors import Cut

GRADIENT_BYTES = 4
MOMENT_BYTES = 4
FLOAT8_BLOCK = 256
MASTER_BYTES = 4


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
    """Cache of one rollout device. token: bytes of one; longest: tokens of the longest sequence. wanted:
    sequences that the job wants at a time; tokens: that have room, at most for `wanted`."""

    token: int
    longest: int
    wanted: int
    tokens: int

    @property
    def sequence(self) -> int:
        """Bytes of the longest sequence."""
        return self.token * self.longest

    @property
    def room(self) -> int:
        """Longest sequences that have room; where a group's prompt lies once, there are more."""
        return self.tokens // self.longest

    @property
    def bytes(self) -> int:
        """Of the whole cache."""
        return self.token * self.tokens


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """Phases of a step. limit: bytes of a device, None without limit. resting: name → bytes of a device
    that lie on its host whenever they are not on it."""

    limit: int | None
    update_weights: int
    rollout_weights: int
    kv_cache: KvCache
    phases: tuple[Phase, ...]
    resting: dict[str, int]


def plan_memory(spec: RLJobSpec, shape: Shape, others: Mapping[str, Shape] | None = None) -> Memory:
    """Memory of each phase. spec: resolved. others: shapes of the models beside the policy, by name; one that
    is missing counts with the policy's shape."""
    of = others or {}
    trained = _update_parts(spec, shape)
    generated = _rollout_weights(spec, shape)
    limit = parse_quantity(spec.accelerator.memory) if spec.accelerator.memory else None
    colocated = spec.placement.mode == "colocated"
    swapped = colocated and spec.resharding.strategy == "allgather-swap"
    offloaded = spec.update.offload == "optimizer"
    state = {"optimizer": trained["optimizer"]}
    always = {} if offloaded else dict(state)
    has_reference = "reference" in spec.algorithm.params.states
    if has_reference and not swapped:
        always["reference"] = trained["weights"]
    valued = of.get("critic", shape).scorer()
    taught = _update_parts(spec.of_critic(), valued) if spec.has_critic else None
    for name, (model, own) in frozen_models(spec, shape, of).items():
        always[name] = _frozen_weights(spec, model, own)
    if taught is not None:
        rests = spec.of_critic().update.offload == "optimizer"
        always["critic"] = taught["weights"] + (0 if rests else taught["optimizer"])
    training = {"update weights": trained["weights"], **always}
    serving = {"rollout weights": generated}
    beside = {} if not colocated else (always if swapped else training)
    kept = serving if colocated and not swapped else {}
    cache = _kv_cache(spec, shape, taken=generated + sum(beside.values()), limit=limit)
    passing = update_activations(spec, shape)
    working = {
        "gradients": trained["gradients"],
        "activations": passing.kept,
        "temporary": passing.temporary,
    }
    if taught is not None:  # the critic's step waits for the policy's
        working["critic gradients"] = taught["gradients"]
    kept_on_host: dict[str, int] = {}
    if swapped:  # host memory is kept for them, wherever they are
        kept_on_host["update weights"] = trained["weights"]
        if has_reference:
            kept_on_host["reference"] = trained["weights"]
    if offloaded:
        kept_on_host["optimizer"] = trained["optimizer"]
    if taught is not None and spec.of_critic().update.offload == "optimizer":
        kept_on_host["critic's optimizer"] = taught["optimizer"]
    resting = sum(kept_on_host.values())
    phases = [
        Phase(
            name="generate",
            role="rollout",
            parts={**serving, "KV cache": cache.bytes, **beside},
            host=resting if colocated else 0,
        ),
        Phase(name="update", role="update", parts={**training, **working, **kept}, host=resting),
        Phase(
            name="reshard",
            role="update",
            parts={**_resharding(spec, shape, swapped), **always},
            host=resting,
        ),
    ]
    if taught is not None:
        passing = update_activations(spec.of_critic(), valued)
        teaching = {
            "gradients": taught["gradients"],
            "activations": passing.kept,
            "temporary": passing.temporary,
        }
        phases.append(
            Phase(
                name="critic", role="update", parts={**training, **teaching, **kept}, host=resting
            )
        )
    if swapped and has_reference:
        inferring = {"reference": trained["weights"], "temporary": passing.temporary}
        parts = {**training, **inferring}
        phases.append(Phase(name="reference", role="update", parts=parts, host=resting))
    if offloaded:
        stepping = {**training, **state, "gradients": trained["gradients"], **kept}
        moved = resting - trained["optimizer"]
        phases.append(Phase(name="step", role="update", parts=stepping, host=moved))
    return Memory(
        limit=limit,
        update_weights=trained["weights"],
        rollout_weights=generated,
        kv_cache=cache,
        phases=tuple(phases),
        resting=kept_on_host,
    )


def frozen_models(
    spec: RLJobSpec, shape: Shape, others: Mapping[str, Shape]
) -> dict[str, tuple[RewardModel | Teacher, Shape]]:
    """Models that only score, beside the reference, with their shapes."""
    models: dict[str, RewardModel | Teacher | None] = {
        "reward-model": spec.reward_model,
        "teacher": spec.teacher,
    }
    return {
        name: (model, others.get(name, shape.scorer() if name == "reward-model" else shape))
        for name, model in models.items()
        if model is not None
    }


def _frozen_weights(spec: RLJobSpec, model: RewardModel | Teacher, shape: Shape) -> int:
    """Bytes of the fullest update rank."""
    own = {"parallelism": model.parallelism, "dtype": model.dtype}
    update = spec.update.model_copy(update=own)
    return _update_parts(spec.model_copy(update={"update": update}), shape)["weights"]


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
    most = Parameters()
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
        most = max(most, held, key=lambda parameters: parameters.total)
    return most


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
    if in_8_bits(piece.tensor):
        return int8_bytes(piece.shape)
    return prod(piece.shape) * ITEM_BYTES[dtype]


def _update_parts(spec: RLJobSpec, shape: Shape) -> dict[str, int]:
    """Weights, gradients and optimizer of one update rank; ZeRO shares them among its replicas."""
    degrees, dtype = spec.update.parallelism, spec.update.dtype
    shard = update_shard(spec, shape)
    rows = degrees.zero == 3  # these are main weights, and gathered in the update's type
    weights = MASTER_BYTES if rows else ITEM_BYTES[dtype]
    main = MASTER_BYTES if weights < MASTER_BYTES else 0

    def held(from_zero: int) -> int:
        if degrees.zero < from_zero:
            return shard.total
        dense, experts = _copies(degrees)
        return -(-(shard.tensor + shard.whole) // dense) + -(-shard.experts // experts)

    return {
        "optimizer": _moments_bytes(held(1), spec.update.optimizer) + held(1) * main,
        "gradients": held(2) * GRADIENT_BYTES,
        "weights": held(3) * weights,
    }


def _moments_bytes(items: int, optimizer: Optimizer) -> int:
    if optimizer.moments_dtype == "float32":
        return 2 * items * MOMENT_BYTES
    return 2 * (items + SCALE_BYTES * -(-items // FLOAT8_BLOCK))


def _copies(degrees: UpdateParallelism) -> tuple[int, int]:
    """Ranks that hold the same slice of a matrix, and of an expert."""
    assert degrees.data is not None, "resolve() fills update.parallelism.data"
    dense = degrees.data * degrees.context
    return dense, dense * degrees.tensor // degrees.expert if degrees.expert > 1 else dense


def _resharding(spec: RLJobSpec, shape: Shape, swapped: bool) -> dict[str, int]:
    """Weights of both layouts, and what is on its way between them, when that is most."""
    peak = fullest(plan_of_job(spec, shape), swaps=swapped)
    return {
        "update weights": peak.update,
        "rollout weights": peak.rollout,
        "buffers": peak.buffers,
    }


def update_activations(spec: RLJobSpec, shape: Shape) -> Activations:
    """Of the fullest update rank, at the longest lengths. spec: resolved."""
    batch, degrees = spec.batch, spec.update.parallelism
    assert degrees.data, "resolve() fills it"
    return plan_activations(
        shape,
        degrees,
        Packed.longest(batch),
        item_bytes=ITEM_BYTES[spec.update.dtype],
        recompute=spec.update.recompute,
        passes=batch.passes(degrees.data),
        masks=spec.accelerator.type == "emulated",
    )


def _kv_cache(spec: RLJobSpec, shape: Shape, *, taken: int, limit: int | None) -> KvCache:
    batch, degrees = spec.batch, spec.rollout.parallelism
    layers = len(stages(shape.layers, degrees.pipeline)[0])
    token = layers * shape.kv_items(degrees.tensor) * ITEM_BYTES[spec.rollout.dtype]
    longest = batch.max_prompt_length + batch.max_response_length
    samples = batch.global_batch_size * batch.samples_per_prompt // (degrees.data or 1)
    wanted = min(spec.rollout.max_sequences, samples)
    tokens = wanted * longest
    if spec.rollout.kv_cache_memory is not None:
        tokens = min(tokens, parse_quantity(spec.rollout.kv_cache_memory) // token)
    elif limit is not None:
        tokens = max(0, min(wanted, (limit - taken) // (token * longest))) * longest
    return KvCache(token=token, longest=longest, wanted=wanted, tokens=tokens)
