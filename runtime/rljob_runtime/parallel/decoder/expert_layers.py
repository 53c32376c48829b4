"""The experts of a layer that ranks share: each rank has some full experts, or some inner features of all.

`policy` sets it on the blocks; the form for one device is `models.blocks.experts.run_experts`. Padding is
routed like other tokens, and no statistic counts it.
"""

# S tokens of one rank, U of all tensor ranks, H hidden, E experts, K experts of a token
# e experts of one rank, C copies of tokens that they get

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.models.blocks.experts import RunExperts, run_experts, run_sorted
from rljob_runtime.models.blocks.router import Routes
from rljob_runtime.parallel.expert import combine, dispatch
from rljob_runtime.parallel.sequence import gather_rows, scatter_sum_rows


def experts_by_number(num_experts: int, group: ProcessGroup | None) -> RunExperts:
    """Return expert parallelism: each rank of `group` has some experts, and receives the tokens routed to
    them."""

    def run(x_SH: Tensor, routes: Routes, gate_up: Tensor, down: Tensor) -> Tensor:
        x_CH, route = dispatch(x_SH, routes.experts_UK, num_experts, group)
        ends_e = torch.tensor(route.copies_e, device=x_SH.device).cumsum(0)
        output_CH = run_sorted(x_CH, ends_e, gate_up, down)
        return combine(output_CH, routes.weights_UK, route)

    return run


def experts_by_features(group: ProcessGroup | None) -> RunExperts:
    """Return tensor parallelism: each rank of `group` has some inner features of all experts."""

    def run(x_SH: Tensor, routes: Routes, gate_up: Tensor, down: Tensor) -> Tensor:
        gathered = Routes(
            experts_UK=gather_rows(routes.experts_UK, group),
            weights_UK=gather_rows(routes.weights_UK, group),
            probabilities_UE=routes.probabilities_UE,
        )
        output_UH = run_experts(gather_rows(x_SH, group), gathered, gate_up, down)
        return scatter_sum_rows(output_UH, group)

    return run
