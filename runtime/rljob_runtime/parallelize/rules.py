"""Which degrees of the update layout a model cannot have. Called by `policy` before it makes anything."""

from rljob_api.architecture import Shape
from rljob_api.engines import UpdateParallelism
from rljob_runtime.errors import ConfigError

PATH = "spec.update.parallelism"


def check_degrees(shape: Shape, degrees: UpdateParallelism) -> None:
    """Raise ConfigError for a degree that does not fit the model, or that is not there yet."""
    tensor, context, expert = degrees.tensor, degrees.context, degrees.expert
    if degrees.pipeline > 1:
        raise ConfigError(
            f"pipeline={degrees.pipeline} is not computed by the decoder yet ({PATH}.pipeline); use 1, "
            "and raise tensor or context"
        )
    if degrees.zero == 3:
        raise ConfigError(f"zero=3 is not computed by the decoder yet ({PATH}.zero); use at most 2")
    if context > 1 and degrees.context_algorithm != "ulysses":
        raise ConfigError(
            f"contextAlgorithm={degrees.context_algorithm} does not know shared prompts yet "
            f"({PATH}.contextAlgorithm); use ulysses, or context: 1"
        )
    if shape.heads % (tensor * context):
        raise ConfigError(
            f"tensor={tensor} × context={context} does not divide num_attention_heads={shape.heads} "
            f"({PATH}); use degrees whose product divides it"
        )
    _check_key_heads(shape.kv_heads, tensor, context)
    count = shape.experts.count if shape.experts else 1
    if count % expert:
        raise ConfigError(
            f"expert={expert} does not divide the {count} experts of a layer ({PATH}.expert); use a "
            "divisor, or 1 for a model without experts"
        )


def _check_key_heads(kv_heads: int, tensor: int, context: int) -> None:
    """Key heads are split or repeated, over tensor ranks and then over context ranks."""
    held = max(1, kv_heads // tensor)
    if max(kv_heads, tensor) % min(kv_heads, tensor) or max(held, context) % min(held, context):
        raise ConfigError(
            f"num_key_value_heads={kv_heads} can be neither split nor repeated over tensor={tensor} × "
            f"context={context} ({PATH}); use degrees of which each divides it or is a multiple of it"
        )
