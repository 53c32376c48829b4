"""Compute operations of a model and seconds of generation. Called by `performance`.

A decoding step takes as long as reading the weights or as the products with them, whichever is longer (the
roofline, doi:10.1145/1498765.1498785), then reads the cache and runs collectives with the other ranks.
"""

from dataclasses import replace
from functools import lru_cache

from rljob_api.model.architecture import Shape
from rljob_api.model.layout import stages
from rljob_api.topology.resolved import ResolvedBatch, ResolvedSpec
from rljob_plan.collectives import token_collectives
from rljob_plan.machines import MachineRates, RateShares
from rljob_plan.resharding.widths import ITEM_BYTES
from rljob_plan.shards import rollout_shard


def decode_seconds(
    spec: ResolvedSpec,
    shape: Shape,
    machine: MachineRates,
    shares: RateShares,
    *,
    room: int | None = None,
) -> float:
    """Return the seconds of all decoding steps of the longest response, repeated for the sequences that do
    not fit at a time. The cache counts as half of the responses on average. room: sequences that a replica
    has memory for."""
    batch, degrees = spec.batch, spec.rollout.parallelism
    sequences = batch.global_batch_size * batch.samples_per_prompt // degrees.data
    at_a_time = min(sequences, spec.rollout.max_sequences, room or sequences)
    item, reads = ITEM_BYTES[spec.rollout.dtype], machine.memory_bytes * shares.reads
    context = batch.max_prompt_length + batch.max_response_length / 2
    layers = len(stages(shape.layers, degrees.pipeline)[0])
    decoder = replace(shape, trains_tower=False)  # a tower is read once a prompt
    weights = rollout_shard(spec, decoder).total * item / reads
    cache = at_a_time * context * layers * shape.kv_items(degrees.tensor) * item / reads
    products = at_a_time * 2.0 * active_parameters(shape) / (degrees.tensor * degrees.pipeline)
    stage = max(weights, products / (machine.flops * shares.products)) + cache
    compute_seconds = degrees.pipeline * stage + shares.layer_seconds * shape.layers
    turns = -(-sequences // at_a_time)
    return (
        turns
        * batch.max_response_length
        * (compute_seconds + combine_seconds(spec, shape, at_a_time, machine, shares))
    )


def combine_seconds(
    spec: ResolvedSpec, shape: Shape, sequences: int, machine: MachineRates, shares: RateShares
) -> float:
    """Return the seconds that ranks of a model need to combine their results in a decoding step: two sums of
    [sequences, H] per layer over tensor ranks, tokens to experts of other models and back, and hidden states
    to the next stage."""
    degrees, item = spec.rollout.parallelism, ITEM_BYTES[spec.rollout.dtype]
    hidden, tensor = sequences * shape.hidden * item, degrees.tensor
    sent = 2 * shape.layers * 2 * hidden * (tensor - 1) / tensor
    if degrees.expert > tensor and shape.experts:
        sparse = sum(map(shape.experts.in_layer, range(shape.layers)))
        models = degrees.expert // tensor
        chosen = min(models - 1, shape.experts.chosen)  # of the other models, that a token goes to
        sent += sparse * 2 * hidden * chosen
    sent += hidden * (degrees.pipeline - 1)
    collectives = token_collectives(shape, degrees)
    ranks = max(degrees.expert, tensor * degrees.pipeline)
    link = machine.link(ranks, per_node=spec.accelerator.devices_per_node)
    return sent / (link * shares.links) + collectives * machine.latency_seconds


def forward_flops(shape: Shape, length: int) -> float:
    """Return the operations of one token in a causal sequence of this length, on average over its tokens."""
    return 2.0 * active_parameters(shape) + attention_flops(shape) * length / 2


def sample_flops(shape: Shape, batch: ResolvedBatch) -> float:
    """Return the operations of a forward pass over a prompt, once, and all of its samples at the longest
    lengths. The last token of each sample predicts nothing."""
    prompt, inner = batch.max_prompt_length, batch.max_response_length - 1
    tokens = prompt + batch.samples_per_prompt * inner
    attended = prompt**2 / 2 + batch.samples_per_prompt * inner * (prompt + inner / 2)
    return 2.0 * active_parameters(shape) * tokens + attention_flops(shape) * attended


@lru_cache(maxsize=64)
def active_parameters(shape: Shape) -> int:
    """Count the parameters that a token is multiplied with: without the embedding and the experts it does not
    choose."""
    parameters, experts = shape.total().total, shape.experts
    if not shape.tied:
        parameters -= shape.embedding().total
    if experts is None:
        return parameters
    sparse = sum(experts.in_layer(layer) for layer in range(shape.layers))
    idle = 3 * shape.hidden * experts.intermediate * (experts.count - experts.chosen)
    return parameters - sparse * idle


def attention_flops(shape: Shape) -> float:
    """Return the operations of a token and one that it attends to: scores, and the sum of values."""
    width, value = shape.head_dim, shape.head_dim
    if shape.latent:
        width, value = shape.latent.nope_dim + shape.latent.rope_dim, shape.latent.value_dim
    return 2.0 * shape.layers * shape.heads * (width + value)
