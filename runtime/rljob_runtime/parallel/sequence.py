"""Collectives on the rows of a tensor, with gradients: the backward pass of each is its counterpart.

Called by the tensor, expert and context parallel primitives.
"""

# n rows of one rank, R rows that arrive; all further dims are unchanged

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.devices.wire import start_exchange, start_gather, start_scatter_sum, start_sum


def gather_rows(shard: Tensor, group: ProcessGroup | None) -> Tensor:
    """All-gather the ranks' rows, one rank after the other, [n, ...] → [ranks·n, ...].

    Backward sums the ranks' gradients and keeps this rank's rows, since each rank may have used all rows for
    another purpose. Each direction sends the bytes of an all-gather of the shard.
    """
    rows: Tensor = _GatherRows.apply(shard, group)  # type: ignore[no-untyped-call]
    return rows


def scatter_sum_rows(partial: Tensor, group: ProcessGroup | None) -> Tensor:
    """Return this rank's rows of the sum of all ranks' tensors (a reduce-scatter), [ranks·n, ...] → [n, ...].

    Backward all-gathers the gradients. Each direction sends the bytes of an all-gather of the shard.
    """
    rows: Tensor = _ScatterSumRows.apply(partial, group)  # type: ignore[no-untyped-call]
    return rows


def exchange_rows(
    rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup | None
) -> Tensor:
    """Send rows to each rank (an all-to-all), [n, ...] → [R, ...]; see `wire.start_exchange`. Backward
    returns them."""
    arrived: Tensor = _ExchangeRows.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]
    return arrived


def sum_partials(partial: Tensor, group: ProcessGroup | None) -> Tensor:
    """Return the sum of all ranks' tensors on every rank (an all-reduce), [...] → [...]; it sends one sum's
    bytes.

    All ranks compute the same values from it, so backward passes that one gradient to each rank's summand.
    """
    total: Tensor = _SumParts.apply(partial, group)  # type: ignore[no-untyped-call]
    return total


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, shard: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return start_gather(shard, group).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return start_scatter_sum(gradients[0], ctx.group).wait(), None


class _ScatterSumRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return start_scatter_sum(partial, group).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return start_gather(gradients[0], ctx.group).wait(), None


class _SumParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, partial: Tensor, group: ProcessGroup | None) -> Tensor:
        return start_sum(partial.clone(), group).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return gradients[0], None


class _ExchangeRows(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup | None
    ) -> Tensor:
        ctx.sent, ctx.received, ctx.group = sent, received, group
        return start_exchange(rows, sent, received, group).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None, None, None]:
        back = start_exchange(gradients[0], ctx.received, ctx.sent, ctx.group).wait()
        return back, None, None, None
