"""Which degrees of the update layout a model cannot have. Called by `policy` before it makes anything."""

from rljob_api.check.rules import divisors, use_one_of
from rljob_api.model.architecture import Shape
from rljob_api.topology.devices import UpdateDegrees
from rljob_runtime.errors import ConfigError
from rljob_runtime.parallel.decoder.tokens import is_ring

PATH = "spec.update.parallelism"


def check_degrees(shape: Shape, degrees: UpdateDegrees) -> None:
    """Raise ConfigError for a degree that does not fit the model, or another degree."""
    tensor, context, expert = degrees.tensor, degrees.context, degrees.expert
    stages = degrees.pipeline * degrees.virtual_pipeline
    if stages > shape.layers:
        raise ConfigError(
            f"pipeline={degrees.pipeline} × virtualPipeline={degrees.virtual_pipeline} is {stages} "
            f"stages, more than num_hidden_layers={shape.layers} ({PATH}); use at most {shape.layers}"
        )
    if degrees.zero == 3:
        _check_shared_weights(shape.kv_heads, degrees)
    sharing_heads = 1 if is_ring(degrees) else context
    if shape.heads % (tensor * sharing_heads):
        _refuse_heads(shape.heads, degrees)
    _check_key_heads(shape.kv_heads, tensor, sharing_heads)
    count = shape.experts.count if shape.experts else 1
    if count % expert:
        raise ConfigError(
            f"expert={expert} does not divide the {count} experts of a layer ({PATH}.expert); use a "
            "divisor, or 1 for a model without experts"
        )


def _refuse_heads(heads: int, degrees: UpdateDegrees) -> None:
    tensor, context = degrees.tensor, degrees.context
    legal = use_one_of(divisors(heads), tensor)
    if heads % tensor or context == 1:
        raise ConfigError(
            f"tensor={tensor} does not divide num_attention_heads={heads} ({PATH}.tensor); {legal}"
        )
    raise ConfigError(
        f"tensor={tensor} × context={context} does not divide num_attention_heads={heads} ({PATH}), "
        "which Ulysses shares out; use degrees whose product divides it, or contextAlgorithm: ring"
    )


def _check_key_heads(kv_heads: int, tensor: int, context: int) -> None:
    """Key heads are split or repeated, over tensor ranks and then over context ranks."""
    held = max(1, kv_heads // tensor)
    if max(kv_heads, tensor) % min(kv_heads, tensor) or max(held, context) % min(held, context):
        raise ConfigError(
            f"num_key_value_heads={kv_heads} can be neither split nor repeated over tensor={tensor} × "
            f"context={context} ({PATH}); use degrees of which each divides it or is a multiple of it"
        )


def _check_shared_weights(kv_heads: int, degrees: UpdateDegrees) -> None:
    """ZeRO 3 shares out what data × context ranks repeat, of whole layers, all at once."""
    for name, degree in (("pipeline", degrees.pipeline), ("expert", degrees.expert)):
        if degree > 1:
            raise ConfigError(
                f"zero=3 does not go with {name}={degree} ({PATH}.zero); use at most 2, or {name}: 1"
            )
    if degrees.tensor > kv_heads:
        raise ConfigError(
            f"zero=3 does not go with tensor={degrees.tensor}, more than num_key_value_heads={kv_heads} "
            f"({PATH}.zero); use at most 2, or tensor: {kv_heads} or less"
        )
