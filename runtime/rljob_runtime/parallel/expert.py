"""Expert parallel dispatch of tokens to the ranks that hold their experts, and back; nothing is dropped or
padded.

Called by a sparse layer between its router and its experts: `dispatch`, then the experts on the rows of each,
then `combine`. Every rank holds equally many experts, in order; some experts, or all, may get no row.
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
    """The route of a rank's token copies, which `combine` reverses.

    copies_e: rows of each of this rank's experts, in the order of `dispatch`'s output. routed_E: this rank's
    copies for each expert. sent, received: copies by rank. by_expert_TK: this rank's copies in the order in
    which they were sent; arrival_C: index on arrival of each row.
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
    """Copies that each expert received from all ranks. imbalance: the largest over the mean, at best 1."""

    copies_E: list[int]

    @property
    def imbalance(self) -> float:
        """The largest load over the mean; 0 where nothing was routed."""
        return max(self.copies_E) * len(self.copies_E) / max(sum(self.copies_E), 1)

    @property
    def idle(self) -> int:
        """The number of experts that received no token."""
        return self.copies_E.count(0)


def dispatch(
    x_TH: Tensor, expert_TK: Tensor, num_experts: int, group: ProcessGroup | None
) -> tuple[Tensor, Route]:
    """Return copies of all ranks' tokens for this rank's experts, [T, H] → [C, H], and their route.

    expert_TK: ids below num_experts, each token's different. Rows are sorted by expert, then by source rank,
    then by token. It costs two all-to-alls, of E counts and of T·K rows; T may differ between ranks. It
    synchronises with the device between the two, as the sizes must be known.
    """
    ranks = size_of(group)
    assert num_experts % ranks == 0, f"{num_experts} experts do not split over {ranks} ranks"
    local_experts = num_experts // ranks
    sorted_TK, by_expert_TK = expert_TK.flatten().sort(stable=True)
    bounds = torch.arange(num_experts + 1, device=expert_TK.device)
    routed_E = torch.searchsorted(sorted_TK, bounds).diff()
    arriving = start_exchange(
        routed_E.view(ranks, local_experts), [1] * ranks, [1] * ranks, group
    ).wait()
    sent = routed_E.view(ranks, local_experts).sum(1).tolist()
    received = arriving.sum(1).tolist()
    # Received rows are sorted by rank, then by expert.
    expert_C = torch.arange(local_experts, device=x_TH.device).repeat(ranks)
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
    """Add up each token's outputs by their router's weights, [C, H] → [T, H]; one all-to-all of rows.

    output_CH: in the order of `dispatch`. The weights get their gradient here.
    """
    returned = output_CH.index_select(0, torch.argsort(route.arrival_C))
    returned = exchange_rows(returned, route.received, route.sent, route.group)
    output_TKH = returned.index_select(0, torch.argsort(route.by_expert_TK))
    output_TKH = output_TKH.view(*weight_TK.shape, output_CH.shape[1])
    return torch.einsum("tkh,tk->th", output_TKH, weight_TK.to(output_TKH.dtype))


def expert_load(routed_E: Tensor, group: ProcessGroup | None) -> ExpertLoad:
    """Return the load of each expert over all ranks. routed_E: added up over the routes of one or several
    layers."""
    copies_E = routed_E.clone()
    sum_over_ranks(copies_E, group)
    return ExpertLoad(copies_E=copies_E.tolist())


def dispatch_bytes(
    route: Route, rank: int, hidden: int, *, item_bytes: int, with_gradients: bool = True
) -> int:
    """Return the bytes that a rank sends for `dispatch` and `combine`, and for their gradients.

    Dispatch sends the copies of local tokens and returns as many gradients; combine sends the outputs.
    """
    row, ranks = hidden * item_bytes, len(route.sent)
    counts = exchange_bytes([len(route.routed_E) // ranks * 8] * ranks, rank)
    out = exchange_bytes([copies * row for copies in route.sent], rank)
    back = exchange_bytes([copies * row for copies in route.received], rank)
    return counts + (out + back) * (1 + with_gradients)
