"""Where update engines differ in a plan, in one table. Called by `activations`, `shards`, `performance`.

Numbers of tensors between a layer's forward and its backward pass are counted by what each engine's layers
compute; `benchmarks/plan/engines.py` measures them.
"""

from dataclasses import dataclass, replace


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedEngine:
    """Of an update engine. gated: tensors that a feed-forward keeps, as wide as its inner features; routes:
    numbers of each expert for each token. keeps_gradients: from step to step.
    copies_gradients: where ZeRO sums them over gloo, all of them at a time. slower: seconds of a pass, in
    those of `torch`.
    """

    gated: int = 4
    routes: int = 1
    keeps_gradients: bool = False
    copies_gradients: bool = False
    slower: float = 1.0


TORCH = PlannedEngine()
"""Gate, its activation, up, and their product."""
MEGATRON = PlannedEngine(
    gated=5,  # gate and up, which are two; the gate's activation; up plus its offset, 0; their product
    routes=7,
    keeps_gradients=True,
    copies_gradients=True,
    slower=1.2,  # processor seconds of emulated devices; on others nobody has measured it
)
ENGINES = {"torch": TORCH, "megatron": MEGATRON, "mindspeed": replace(MEGATRON, slower=1.0)}
"""By `update.engine`."""


def planned_engine(name: str) -> PlannedEngine:
    """Those of packages, which nothing is known of, count as `torch`."""
    return ENGINES.get(name, TORCH)
