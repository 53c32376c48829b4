"""Counts the bytes that a rank's collectives send, from the operators that torch dispatches."""

import math
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


class SentBytes(TorchDispatchMode):  # type: ignore[no-untyped-call]
    """`with SentBytes() as sent: ...; sent.total`: by the bytes of a ring, backward passes included.

    by_ranks: the same by the ranks of the group, of the default group."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.total = 0.0
        self.calls: list[str] = []
        self.by_ranks: dict[tuple[int, ...], float] = {}

    def __torch_dispatch__(
        self, operator: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        if operator.namespace == "c10d":
            name = operator._schema.name.removeprefix("c10d::")
            self.calls.append(name)
            group = _group_of(args)
            sent = _sent(name, args, group)
            ranks = tuple(dist.get_process_group_ranks(group))
            self.total += sent
            self.by_ranks[ranks] = self.by_ranks.get(ranks, 0.0) + sent
        return operator(*args, **(kwargs or {}))


def _group_of(args: tuple[Any, ...]) -> dist.ProcessGroup:
    group = next(arg for arg in args if type(arg).__name__ == "ScriptObject")
    return dist.ProcessGroup.unbox(group)


def _sent(name: str, args: tuple[Any, ...], group: dist.ProcessGroup) -> float:
    tensors: list[Tensor] = args[0] if isinstance(args[0], list) else [args[0]]
    num_bytes = sum(tensor.nbytes for tensor in tensors)
    ranks = group.size()
    match name:
        case "allreduce_":
            return num_bytes * 2 * (ranks - 1) / ranks
        case "broadcast_":  # round the ring, all but the last rank on it
            return num_bytes * (ranks - 1) / ranks
        case "_allgather_base_":
            return num_bytes / ranks * (ranks - 1)
        case "_reduce_scatter_base_":
            return num_bytes * (ranks - 1)
        case "alltoall_base_":
            rows, splits = args[1], args[4]
            other = sum(splits) - splits[group.rank()]
            return float(other * math.prod(rows.shape[1:]) * rows.element_size())
        case "send":
            return num_bytes
        case "recv_" | "barrier":
            return 0
    raise AssertionError(f"bytes of {name} are not known")


with (
    SentBytes()
):  # the first use imports torch's compiler for 2 s: before tests fork, not in each rank
    torch.zeros(1)
