"""Seconds that a step of a job should take on given devices, part by part and by arithmetic.

Called by `benchmarks/performance.py`, which calibrates it on reported runs. All samples have the longest
lengths, each with its prompt; stages follow each other. Rates are a machine's, times the shares of them that
are reached. What no rate explains is `Shares.fixed_seconds`.
"""

from dataclasses import dataclass

from rljob_api.architecture import Shape
from rljob_api.resharding.widths import ITEM_BYTES
from rljob_api.rljob import RLJobSpec
from rljob_api.shards import rollout_shard, update_shard
from rljob_api.topology import num_warehouses
from rljob_api.traffic import Work
from rljob_api.update_traffic import stage_traffic
from rljob_api.volumes import GB, SampleFlow


@dataclass(frozen=True, slots=True, kw_only=True)
class Machine:
    """What a device and its links do in a second. dispatch_bytes: of the link of a warehouse."""

    flops: float
    memory_bytes: float
    link_bytes: float
    swap_bytes: float
    dispatch_bytes: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Shares:
    """What is reached of a machine's rates: products of flops, reads of memory, links of links.

    layer_seconds: of one decoding step and layer beside reading memory. fixed_seconds: of each step of
    the training.
    """

    products: float
    reads: float
    links: float
    layer_seconds: float = 0.0
    fixed_seconds: float = 0.0


def step_parts(
    spec: RLJobSpec, shape: Shape, machine: Machine, shares: Shares, *, recompute: float = 0.0
) -> dict[str, float]:
    """Seconds of each part of a step; their sum is its time. spec: resolved.

    recompute: share of layers whose forward pass is run again in the backward pass.
    """
    batch, degrees = spec.batch, spec.update.parallelism
    length = batch.max_prompt_length + batch.max_response_length
    samples = batch.global_batch_size * batch.samples_per_prompt
    assert degrees.data is not None, "resolve() fills it"
    ranks = degrees.data * degrees.tensor * degrees.pipeline * degrees.context
    forward = samples * length * forward_flops(shape, length) / (machine.flops * shares.products)
    forward /= ranks
    update, passes = forward * (3 + recompute), samples // degrees.data
    sent = sent_bytes(spec, shape) / (machine.link_bytes * shares.links)
    weights = update_shard(spec, shape).total * ITEM_BYTES[spec.update.dtype]
    swapped = spec.resharding.strategy == "allgather-swap"
    has_reference = "reference" in spec.algorithm.params.states
    return {
        "prompts": forward * batch.max_prompt_length / length,
        "decoding": decode_seconds(spec, shape, machine, shares),
        "reference": forward + sent / 3 if has_reference else 0.0,
        "update": update,
        "communication": sent,
        "bubbles": update * (degrees.pipeline - 1) / (degrees.virtual_pipeline * passes),
        "swaps": 2 * weights / machine.swap_bytes if swapped else 0.0,
        "dispatch": _dispatch_bytes(spec) / machine.dispatch_bytes,
        "fixed": shares.fixed_seconds,
    }


def decode_seconds(spec: RLJobSpec, shape: Shape, machine: Machine, shares: Shares) -> float:
    """Steps of the longest response, again for the sequences that do not fit at a time. A step reads
    a device's weights and, on average, half of the responses' cache."""
    batch, degrees = spec.batch, spec.rollout.parallelism
    assert degrees.data is not None, "resolve() fills it"
    sequences = batch.global_batch_size * batch.samples_per_prompt // degrees.data
    at_a_time = min(sequences, spec.rollout.max_sequences)
    items = rollout_shard(spec, shape).total
    context = batch.max_prompt_length + batch.max_response_length / 2
    items += int(at_a_time * context * shape.layers * shape.kv_items(degrees.tensor))
    read = items * ITEM_BYTES[spec.rollout.dtype] / (machine.memory_bytes * shares.reads)
    steps = -(-sequences // at_a_time) * batch.max_response_length
    return steps * (read + shares.layer_seconds * shape.layers)


def forward_flops(shape: Shape, length: int) -> float:
    """Of one token in a causal sequence of this length, on average over its tokens."""
    width, value = shape.head_dim, shape.head_dim
    if shape.latent:
        width, value = shape.latent.nope_dim + shape.latent.rope_dim, shape.latent.value_dim
    attention = shape.layers * shape.heads * (width + value) * length  # half of the square
    return 2.0 * active_parameters(shape) + attention


def active_parameters(shape: Shape) -> int:
    """Those that a token is multiplied with: without the embedding and experts that it does not choose."""
    held, experts = shape.total().total, shape.experts
    if not shape.tied:
        held -= shape.embedding().total
    if experts is None:
        return held
    sparse = sum(experts.in_layer(layer) for layer in range(shape.layers))
    idle = 3 * shape.hidden * experts.intermediate * (experts.count - experts.chosen)
    return held - sparse * idle


def sent_bytes(spec: RLJobSpec, shape: Shape) -> int:
    """That an update rank of the busiest stage sends, one sample with its prompt at a time."""
    batch, degrees = spec.batch, spec.update.parallelism
    assert degrees.data is not None, "resolve() fills it"
    work = Work(
        tokens=batch.max_prompt_length + batch.max_response_length,
        positions=batch.max_response_length,
        targets=batch.max_response_length,
        passes=batch.global_batch_size * batch.samples_per_prompt // degrees.data,
    )
    stages = range(degrees.pipeline)
    dtype = spec.update.dtype
    return max(stage_traffic(shape, degrees, work, stage, dtype=dtype).total for stage in stages)


def _dispatch_bytes(spec: RLJobSpec) -> float:
    """Eq. 4 for the paper's columns: n = 5, M = 3, 5 controllers."""
    batch = spec.batch
    flow = SampleFlow(
        global_batch_size=batch.global_batch_size,
        samples_per_prompt=batch.samples_per_prompt,
        max_prompt_length=batch.max_prompt_length,
        max_response_length=batch.max_response_length,
        response_items=5,
        scalars=3,
    )
    return GB * flow.per_warehouse_gb(warehouses=num_warehouses(spec), controllers=5)
