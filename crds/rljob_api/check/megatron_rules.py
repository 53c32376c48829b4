"""Settings that the update engines `megatron` and `mindspeed` do not support.

Called by `run_rules`, and by the runtime's engine for callers that create engines without it.
"""

from collections.abc import Iterator

from rljob_api.check.rules import divisors, use_one_of
from rljob_api.model.architecture import Shape
from rljob_api.spec.engines import Update, UpdateParallelism
from rljob_api.spec.problems import Problem

ENGINES = ("megatron", "mindspeed")
PATH = "spec.update.parallelism"


def megatron_settings(update: Update) -> Iterator[tuple[str, object, object]]:
    """Yield (path, value, the only supported value)."""
    if update.engine not in ENGINES:
        return
    yield "spec.update.optimizer.momentsDtype", update.optimizer.moments_dtype, "float32"
    yield "spec.update.offload", update.offload, "none"
    zero = update.parallelism.zero
    yield f"{PATH}.zero", zero, min(zero, 1)


def megatron_degrees(engine: str, degrees: UpdateParallelism, shape: Shape) -> Iterator[Problem]:
    """Yield degrees that Megatron's layers of this model do not support."""
    if engine not in ENGINES:
        return
    tensor, experts = degrees.tensor, shape.experts
    sharing = (degrees.data or degrees.expert) * degrees.context
    if tensor > 1 and 1 < degrees.expert < sharing:
        yield Problem(
            f"{PATH}.expert",
            f"is {degrees.expert} and tensor {tensor}; engine {engine} shares the experts of tensor ranks "
            f"among all data and context ranks, or cuts them as other matrices; use {sharing} or 1",
        )
    for size_name, number in (
        ("num_key_value_heads", shape.kv_heads),
        ("intermediate_size", shape.intermediate),
        ("moe_intermediate_size", experts.intermediate if experts else 0),
        ("the width of shared experts", experts.shared_intermediate if experts else 0),
    ):
        if number % tensor:
            yield Problem(
                f"{PATH}.tensor",
                f"is {tensor}, which does not divide {size_name}={number} (config.json); engine {engine} "
                f"needs that, engine torch does not; {use_one_of(divisors(number), tensor)}",
            )
