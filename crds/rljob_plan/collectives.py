"""Count the collectives that the ranks of a layout run: each takes a latency whatever its bytes.

Called by `performance`. Counts follow the runtime's `parallelize` and `parallel_rollout`, forward and
backward. Rings count each of their hops: keys and values both ways, and their gradients all around.
"""

from rljob_api.model.architecture import Shape
from rljob_api.model.layout import layers_alike, stages
from rljob_api.spec.engines import Recompute
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees

TENSOR_PAIRS = 2
"""Pairs of column-cut and row-cut matrices in a layer: attention, and its feed-forward."""
GATHERS_OF_PAIR = 5
"""Collectives of a pair: forward a gather and a reduce-scatter, backward two gathers and a reduce-scatter."""
GATHERS_AGAIN = 3
"""Collectives of a recomputed layer: all of the forward pass but the last sum."""
EXCHANGES = 4
"""Exchanges of context ranks with Ulysses: queries, keys, values, and the output; as many backward."""
EXPERT_EXCHANGES = 5
"""Exchanges of tokens with experts: there and back, forward and backward, and their counts."""
ROWS_OF_LAYER = 3
"""Collectives of a layer with sharded weights: gathered forward and backward, its gradient scattered."""


def step_collectives(
    shape: Shape, degrees: UpdateDegrees, *, passes: int, recompute: Recompute
) -> int:
    """Count the collectives of an optimizer step on the first pipeline rank. passes: micro-batches."""
    number, again = degrees.pipeline * degrees.virtual_pipeline, recompute == "full"
    cuts = stages(shape.layers, number)
    layers = [layer for chunk in range(0, number, degrees.pipeline) for layer in cuts[chunk]]
    per_pass = sum(
        count * _layer_collectives(shape, degrees, layer, again)
        for layer, count in layers_alike(shape, layers).items()
    )
    if degrees.tensor > 1:
        per_pass += GATHERS_OF_PAIR  # the vocabulary's, at one end
    if degrees.pipeline > 1:
        per_pass += 2 * degrees.virtual_pipeline
    replicas, gradient_sums = degrees.data * degrees.context, 0
    if replicas > 1:
        gradient_sums = {0: 1, 1: 2, 2: passes + 1}.get(degrees.zero, 0)
        per_pass += ROWS_OF_LAYER * len(layers) if degrees.zero == 3 else 0
    has_norm_sum = replicas * degrees.tensor * degrees.pipeline > 1
    return passes * per_pass + gradient_sums + has_norm_sum  # the gradient's norm


def _layer_collectives(shape: Shape, degrees: UpdateDegrees, layer: int, again: bool) -> int:
    sparse = bool(shape.experts and shape.experts.in_layer(layer))
    count = 0
    if degrees.tensor > 1:
        count += TENSOR_PAIRS * GATHERS_OF_PAIR + again * GATHERS_AGAIN
    if degrees.context > 1:
        if degrees.context_algorithm == "ring":
            count += (2 + again) * (degrees.context - 1) + degrees.context
        else:
            count += (2 + again) * EXCHANGES
    if sparse and degrees.expert > 1:
        count += EXPERT_EXCHANGES + again * (EXPERT_EXCHANGES // 2)
    return count


def token_collectives(shape: Shape, degrees: RolloutDegrees) -> int:
    """Count the collectives of one decoding step: sums of matrices and sampling of tokens, experts' tokens,
    stages."""
    count = 0
    if degrees.tensor > 1:
        count += TENSOR_PAIRS * shape.layers + 3  # the embedding, and two for the tokens
    if degrees.expert > degrees.tensor and shape.experts:
        sparse = sum(map(shape.experts.in_layer, range(shape.layers)))
        count += 2 * sparse + 1
    return count + (degrees.pipeline if degrees.pipeline > 1 else 0)
