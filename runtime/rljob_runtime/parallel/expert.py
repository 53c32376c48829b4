"""Tokens to the ranks that hold their experts and back, without a capacity: nothing is dropped or padded.

Called by a sparse layer between its router and its experts: `dispatch`, the experts on the rows of each,
`combine`. Every rank holds equally many experts, in order; it may get no row for some, or none at all.
"""

# T tokens of one rank, K experts of each token, H hidden, E experts of all ranks, e of one rank
# C copies of tokens that one rank's experts get

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.devices.collectives import size_of, sum_over_ranks
from rljob_runtime.devices.wire import start_exchange
from rljob_runtime.parallel.sequence import exchange_rows
from rljob_runtime.parallel.volume import exchange_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Route:
    """The way of a rank's token copies, for the way back.

    copies_e: rows of each of this rank's experts, which follow each other in what `dispatch` gives.
    routed_E: this rank's copies for each expert. sent, received: copies by rank. by_expert_TK: this
    rank's copies in the order in which they were sent; arrival_C: place on arrival of each row.
    """

    copies_e: list[int]
    routed_E: Tensor
    sent: list[int]
    received: list[int]
    by_expert_TK: Tensor
    arrival_C: Tensor
    group: ProcessGroup | None


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpertLoad:
    """Copies that each expert got from all ranks. imbalance: the largest over the mean, at best 1."""

    copies_E: list[int]

    @property
    def imbalance(self) -> float:
        """0 where nothing was routed."""
        return max(self.copies_E) * len(self.copies_E) / max(sum(self.copies_E), 1)

    @property
    def idle(self) -> int:
        """Experts that got nothing."""
        return self.copies_E.count(0)


def dispatch(
    x_TH: Tensor, expert_TK: Tensor, num_experts: int, group: ProcessGroup | None
) -> tuple[Tensor, Route]:
    """Copies of all ranks' tokens that this rank's experts compute, [T, H] → [C, H], and their route.

    expert_TK: ids below num_experts, each token's different. Rows are sorted by expert, then by the
    rank that they came from, then by token. Two exchanges, of E counts and of T·K rows; T may differ
    between ranks. Waits for the device between the two, as the sizes must be known.
    """
    ranks = size_of(group)
    assert num_experts % ranks == 0, f"{num_experts} experts do not split over {ranks} ranks"
    held = num_experts // ranks
    sorted_TK, by_expert_TK = expert_TK.flatten().sort(stable=True)
    bounds = torch.arange(num_experts + 1, device=expert_TK.device)
    routed_E = torch.searchsorted(sorted_TK, bounds).diff()
    arriving = start_exchange(routed_E.view(ranks, held), [1] * ranks, [1] * ranks, group).wait()
    sent = routed_E.view(ranks, held).sum(1).tolist()
    received = arriving.sum(1).tolist()
    # What arrives is sorted by rank, then by expert.
    expert_C = torch.arange(held, device=x_TH.device).repeat(ranks)
    expert_C = expert_C.repeat_interleave(arriving.flatten())
    arrival_C = torch.argsort(expert_C, stable=True)
    route = Route(
        copies_e=arriving.sum(0).tolist(),
        routed_E=routed_E,
        sent=sent,
        received=received,
        by_expert_TK=by_expert_TK,
        arrival_C=arrival_C,
        group=group,
    )
    copies = x_TH.index_select(0, by_expert_TK // expert_TK.shape[1])
    return exchange_rows(copies, sent, received, group).index_select(0, arrival_C), route


def combine(output_CH: Tensor, weight_TK: Tensor, route: Route) -> Tensor:
    """Each token's outputs added up by their router's weights, [C, H] → [T, H]; one exchange of rows.

    output_CH: in the order of `dispatch`. The weights get their gradient here.
    """
    back = output_CH.index_select(0, torch.argsort(route.arrival_C))
    back = exchange_rows(back, route.received, route.sent, route.group)
    output_TKH = back.index_select(0, torch.argsort(route.by_expert_TK))
    output_TKH = output_TKH.view(*weight_TK.shape, output_CH.shape[1])
    return torch.einsum("tkh,tk->th", output_TKH, weight_TK.to(output_TKH.dtype))


def expert_load(routed_E: Tensor, group: ProcessGroup | None) -> ExpertLoad:
    """What the experts got from all ranks. routed_E: of one layer's or several layers' routes, added up."""
    copies_E = routed_E.clone()
    sum_over_ranks(copies_E, group)
    return ExpertLoad(copies_E=copies_E.tolist())


def dispatch_bytes(
    route: Route, rank: int, hidden: int, *, item_bytes: int, with_gradients: bool = True
) -> int:
    """Bytes that a rank sends for `dispatch` and `combine`, and what returns of them as gradients.

    In dispatch it sends its tokens' copies and gets gradients of as many; in combine, the outputs.
    """
    row, ranks = hidden * item_bytes, len(route.sent)
    counts = exchange_bytes([len(route.routed_E) // ranks * 8] * ranks, rank)
    out = exchange_bytes([copies * row for copies in route.sent], rank)
    back = exchange_bytes([copies * row for copies in route.received], rank)
    return counts + (out + back) * (1 + with_gradients)
