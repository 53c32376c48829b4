"""Compute what one update rank alone holds of the trained models, and which rank keeps a second copy of it.

Called by the rules, the planner, and the runtime's devices. Pure.
"""

from collections import Counter
from typing import Literal

from rljob_api.topology.devices import UpdateDegrees
from rljob_api.topology.resolved import ResolvedSpec

Kind = Literal["weights", "state"]
"""What of a model is copied: its trained weights, or its optimizer's state."""


def unique_states(degrees: UpdateDegrees) -> tuple[Kind, ...]:
    """Return what no other rank of this layout also holds. Replicas hold the same weights up to ZeRO 2 and
    the same state without ZeRO, unless they share experts out among all of them."""
    if degrees.zero == 3 or degrees.data * degrees.context == degrees.expert:
        return "weights", "state"
    return ("state",) if degrees.zero else ()


def second_copy_names(spec: ResolvedSpec) -> list[str]:
    """List what second copies hold of all trained models: `policy/weights`, `critic/state`. Empty without
    `update.redundancy`."""
    if spec.update.redundancy == "none":
        return []
    layouts = {"policy": spec.update.parallelism}
    if spec.has_critic:
        layouts["critic"] = spec.of_critic().update.parallelism
    return [
        f"{model}/{kind}" for model, degrees in layouts.items() for kind in unique_states(degrees)
    ]


def copies_per_host(spec: ResolvedSpec) -> int:
    """Return how many times the fullest host stores what one device alone holds. It keeps two copies, so that
    one is complete while the other is filled. With peers it also keeps two copies to send."""
    match spec.update.redundancy:
        case "none":
            return 0
        case "host":
            return 2
    holders = second_holders(spec.roles.update, spec.accelerator.devices_per_node)
    return 2 + 2 * max(Counter(holders).values())


def second_holders(ranks: int, per_node: int) -> list[int]:
    """Return for each update rank the rank whose host keeps its copy. With several nodes it has the same
    index on the next node; with one node it is the next rank. The first follows the last.

    per_node: devices of a node.
    """
    nodes = [range(first, min(first + per_node, ranks)) for first in range(0, ranks, per_node)]
    if len(nodes) == 1:
        return [(rank + 1) % ranks for rank in range(ranks)]
    following = [*nodes[1:], nodes[0]]
    return [
        after[index % len(after)]
        for node, after in zip(nodes, following, strict=True)
        for index in range(len(node))
    ]
