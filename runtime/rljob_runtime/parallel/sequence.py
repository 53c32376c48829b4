"""Collectives on the rows of a tensor, with gradients: what one does forward, its partner does backward.

Called by the tensor, expert and context parallel primitives.
"""

# n rows of one rank, R rows that arrive; all further dims stay as they are

from typing import Any

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.devices.wire import start_exchange, start_gather, start_scatter_sum, start_sum


def gather_rows(part: Tensor, group: ProcessGroup | None) -> Tensor:
    """All ranks' rows one after the other, [n, ...] → [ranks·n, ...].

    Backward sums the ranks' gradients and keeps this rank's rows: each rank may have used all of them
    for something else. Each direction is a gather of the part's bytes.
    """
    rows: Tensor = _GatherRows.apply(part, group)  # type: ignore[no-untyped-call]
    return rows


def scatter_sum_rows(whole: Tensor, group: ProcessGroup | None) -> Tensor:
    """This rank's rows of the sum of all ranks' tensors, [ranks·n, ...] → [n, ...].

    Backward gathers the gradients. Each direction is a gather of the part's bytes.
    """
    rows: Tensor = _ScatterSumRows.apply(whole, group)  # type: ignore[no-untyped-call]
    return rows


def exchange_rows(
    rows: Tensor, sent: list[int], received: list[int], group: ProcessGroup | None
) -> Tensor:
    """Rows to each rank, [n, ...] → [R, ...]; see `wire.start_exchange`. Backward sends them back."""
    arrived: Tensor = _ExchangeRows.apply(rows, sent, received, group)  # type: ignore[no-untyped-call]
    return arrived


def sum_parts(part: Tensor, group: ProcessGroup | None) -> Tensor:
    """The sum of all ranks' tensors, on every rank, [...] → [...]; its bytes in one sum.

    The ranks compute the same from it, so that backward each keeps that one gradient for its own part.
    """
    whole: Tensor = _SumParts.apply(part, group)  # type: ignore[no-untyped-call]
    return whole


class _GatherRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return start_gather(part, group).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return start_scatter_sum(gradients[0], ctx.group).wait(), None


class _ScatterSumRows(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, whole: Tensor, group: ProcessGroup | None) -> Tensor:
        ctx.group = group
        return start_scatter_sum(whole, group).wait()

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> tuple[Tensor, None]:
        return start_gather(gradients[0], ctx.group).wait(), None


class _SumParts(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, part: Tensor, group: ProcessGroup | None) -> Tensor:
        return start_sum(part.clone(), group).wait()

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
