"""How often the ranks of a layout meet, by arithmetic: each meeting takes a time whatever its bytes.

Called by `performance`. Counts follow the runtime's `parallelize` and `parallel_rollout`, forward and
backward; rings count each of their hops: of keys and values both ways, and of their gradients all around.
"""

from rljob_api.model.architecture import Shape
from rljob_api.model.layout import layers_alike, stages
from rljob_api.spec.engines import Recompute
from rljob_api.topology.devices import RolloutDegrees, UpdateDegrees

TENSOR_PAIRS = 2
"""Column-cut matrices with a row-cut one, of a layer: attention, and its feed-forward."""
GATHERS_OF_PAIR = 5
"""Forward a gather and a scattered sum, backward two gathers and a scattered sum."""
GATHERS_AGAIN = 3
"""Of a layer that is computed again: all of the forward pass but the last sum."""
EXCHANGES = 4
"""Of context ranks by Ulysses: queries, keys, values, and the output; backward as often."""
EXPERT_EXCHANGES = 5
"""Tokens to experts and back, both ways, and their counts."""
ROWS_OF_LAYER = 3
"""Of a layer whose weights are shared out: gathered forward and backward, its gradient scattered."""


def meetings_of_step(
    shape: Shape, degrees: UpdateDegrees, *, passes: int, recompute: Recompute
) -> int:
    """Of an optimizer step on the first pipeline rank. passes:
    micro-batches."""
    number, again = degrees.pipeline * degrees.virtual_pipeline, recompute == "full"
    cuts = stages(shape.layers, number)
    layers = [layer for chunk in range(0, number, degrees.pipeline) for layer in cuts[chunk]]
    of_pass = sum(
        count * _of_layer(shape, degrees, layer, again)
        for layer, count in layers_alike(shape, layers).items()
    )
    if degrees.tensor > 1:
        of_pass += GATHERS_OF_PAIR  # the vocabulary's, at one end
    if degrees.pipeline > 1:
        of_pass += 2 * degrees.virtual_pipeline
    replicas, met = degrees.data * degrees.context, 0
    if replicas > 1:
        met = {0: 1, 1: 2, 2: passes + 1}.get(degrees.zero, 0)
        of_pass += ROWS_OF_LAYER * len(layers) if degrees.zero == 3 else 0
    together = replicas * degrees.tensor * degrees.pipeline > 1
    return passes * of_pass + met + together  # the gradient's norm


def _of_layer(shape: Shape, degrees: UpdateDegrees, layer: int, again: bool) -> int:
    sparse = bool(shape.experts and shape.experts.in_layer(layer))
    met = 0
    if degrees.tensor > 1:
        met += TENSOR_PAIRS * GATHERS_OF_PAIR + again * GATHERS_AGAIN
    if degrees.context > 1:
        if degrees.context_algorithm == "ring":
            met += (2 + again) * (degrees.context - 1) + degrees.context
        else:
            met += (2 + again) * EXCHANGES
    if sparse and degrees.expert > 1:
        met += EXPERT_EXCHANGES + again * (EXPERT_EXCHANGES // 2)
    return met


def meetings_of_token(shape: Shape, degrees: RolloutDegrees) -> int:
    """Of one decoding step of a model: sums of matrices and draws of tokens, experts' tokens, stages."""
    met = 0
    if degrees.tensor > 1:
        met += TENSOR_PAIRS * shape.layers + 3  # the embedding, and two for the tokens
    if degrees.expert > degrees.tensor and shape.experts:
        sparse = sum(map(shape.experts.in_layer, range(shape.layers)))
        met += 2 * sparse + 1
    return met + (degrees.pipeline if degrees.pipeline > 1 else 0)
