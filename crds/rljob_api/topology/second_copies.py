"""What one update rank alone holds of what is trained, and which rank keeps a second copy of it.

Called by the rules, the planner, and the runtime's devices. Pure.
"""

from collections import Counter
from typing import Literal

from rljob_api.topology.devices import UpdateDegrees
from rljob_api.topology.resolved import ResolvedSpec

Kind = Literal["weights", "state"]
"""Of a model: its weights that are trained, or its optimizer's state."""


def held_alone(degrees: UpdateDegrees) -> tuple[Kind, ...]:
    """What no other rank of this layout holds as well: replicas hold the same weights up to ZeRO 2 and the
    same state without ZeRO, where they do not share experts out among all of them."""
    if degrees.zero == 3 or degrees.data * degrees.context == degrees.expert:
        return "weights", "state"
    return ("state",) if degrees.zero else ()


def copied_parts(spec: ResolvedSpec) -> list[str]:
    """What second copies have of all models that are trained: `policy/weights`, `critic/state`; none without
    `update.redundancy`."""
    if spec.update.redundancy == "none":
        return []
    layouts = {"policy": spec.update.parallelism}
    if spec.has_critic:
        layouts["critic"] = spec.of_critic().update.parallelism
    return [f"{model}/{kind}" for model, of in layouts.items() for kind in held_alone(of)]


def copies_kept(spec: ResolvedSpec) -> int:
    """How often the host of a device keeps what one device alone holds, on the fullest: two copies, of which
    one is filled while the other is whole; a peer two of its own, too, to send them from."""
    match spec.update.redundancy:
        case "none":
            return 0
        case "host":
            return 2
    holders = second_holders(spec.roles.update, spec.accelerator.devices_per_node)
    return 2 + 2 * max(Counter(holders).values())


def second_holders(ranks: int, per_node: int) -> list[int]:
    """By update rank, the rank whose host keeps its copy: at the same place of the next node, where update
    ranks have several; the next rank of one node. The first follows the last.

    per_node: devices of a node.
    """
    nodes = [range(first, min(first + per_node, ranks)) for first in range(0, ranks, per_node)]
    if len(nodes) == 1:
        return [(rank + 1) % ranks for rank in range(ranks)]
    following = [*nodes[1:], nodes[0]]
    return [
        after[place % len(after)]
        for node, after in zip(nodes, following, strict=True)
        for place in range(len(node))
    ]
