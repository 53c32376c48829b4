"""Which degrees of the rollout layout a model cannot have. Called by `rank_share` before it makes
anything."""

from rljob_api.model.architecture import Shape
from rljob_api.spec.engines import RolloutParallelism
from rljob_runtime.errors import ConfigError

PATH = "spec.rollout.parallelism"


def check_degrees(shape: Shape, degrees: RolloutParallelism) -> None:
    """Raise ConfigError for a degree that does not fit the model."""
    tensor, expert = degrees.tensor, degrees.expert
    if shape.heads % tensor:
        raise ConfigError(
            f"tensor={tensor} does not divide num_attention_heads={shape.heads} ({PATH}.tensor); use a "
            "divisor"
        )
    if max(shape.kv_heads, tensor) % min(shape.kv_heads, tensor):
        raise ConfigError(
            f"num_key_value_heads={shape.kv_heads} can be neither split nor repeated over "
            f"tensor={tensor} ({PATH}.tensor); use a divisor or a multiple of it"
        )
    narrowest = _narrowest(shape, expert)
    if narrowest < tensor:
        raise ConfigError(
            f"tensor={tensor} leaves ranks without any of a feed-forward's {narrowest} features "
            f"({PATH}.tensor); use at most {narrowest}"
        )
    if degrees.pipeline > shape.layers:
        raise ConfigError(
            f"pipeline={degrees.pipeline} is more than num_hidden_layers={shape.layers} "
            f"({PATH}.pipeline); use at most {shape.layers}"
        )
    count = shape.experts.count if shape.experts else 1
    if count % expert:
        raise ConfigError(
            f"expert={expert} does not divide the {count} experts of a layer ({PATH}.expert); use a "
            "divisor, or 1 for a model without experts"
        )


def _narrowest(shape: Shape, expert: int) -> int:
    """Inner features of the narrowest feed-forward that tensor ranks share."""
    widths = [shape.intermediate]
    if shape.experts is not None:
        widths += [shape.experts.shared_intermediate or shape.intermediate]
        widths += [shape.experts.intermediate] if expert == 1 else []
    return min(widths)
