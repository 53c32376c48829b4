"""Differences between update engines in a plan, in one table. Called by `activations`, `shards`,
`performance`.

The numbers of tensors between a layer's forward and its backward pass are counted from what each engine's
layers compute; `benchmarks/plan/engines.py` measures them.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEngine:
    """Properties of an update engine. gated: tensors as wide as the inner features that a feed-forward
    retains. routes: numbers per expert and token. keeps_gradients: from step to step. copies_gradients: all
    at a time, if ZeRO sums them over gloo. slower: factor on the seconds of a pass with `torch`."""

    gated: int = 4
    routes: int = 1
    keeps_gradients: bool = False
    copies_gradients: bool = False
    slower: float = 1.0


TORCH = PlannedEngine()
"""Its four gated tensors are the gate, its activation, up, and their product."""
MEGATRON = PlannedEngine(
    gated=5,  # gate and up, which are two; the gate's activation; up plus its offset, 0; their product
    routes=7,
    keeps_gradients=True,
    copies_gradients=True,
    slower=1.2,  # processor seconds of emulated devices; not measured on others
)
ENGINES = {"torch": TORCH, "megatron": MEGATRON, "mindspeed": replace(MEGATRON, slower=1.0)}
"""Planned engines, by `update.engine`."""


def planned_engine(name: str) -> PlannedEngine:
    """Return the properties of an engine. Engines of packages, which are unknown here, count as `torch`."""
    return ENGINES.get(name, TORCH)
