"""How evenly routers spread tokens over experts, and the loss that makes them.

Filled by the mixture of experts layer by layer in one forward pass; returned beside the log-probs.
"""

# U tokens, E experts, M layers with experts

from collections.abc import Callable

import torch
from torch import Tensor

from rljob_runtime.models.architecture import Experts
from rljob_runtime.models.blocks.router import Routes


class RouterLoad:
    """The layers' routes so far. coefficient: weight of the balance loss in training.

    num_tokens: of a layer's routes so many count, the first; None for all. over_ranks: adds a tensor up
    over all ranks that share the tokens, with gradient.
    """

    def __init__(
        self,
        experts: Experts,
        *,
        num_tokens: int | None = None,
        over_ranks: Callable[[Tensor], Tensor] = lambda values: values,
    ) -> None:
        self.coefficient = experts.balance_coefficient
        self._experts = experts
        self._counted = num_tokens
        self._over_ranks = over_ranks
        self._tokens_E: list[Tensor] = []
        self._probabilities_E: list[Tensor] = []

    def add(self, routes: Routes) -> None:
        """Count one layer's routes."""
        experts_UK = routes.experts_UK[: self._counted]
        counts_E = torch.bincount(experts_UK.flatten(), minlength=self._experts.count)
        self._tokens_E.append(counts_E)
        self._probabilities_E.append(routes.probabilities_UE[: self._counted].sum(0))

    def tokens_ME(self) -> Tensor:
        """Tokens that each expert of each layer got, int64; zeros for a pass without tokens."""
        if self._tokens_E:
            return self._over_ranks(torch.stack(self._tokens_E))
        return torch.zeros(len(self._experts.layers), self._experts.count, dtype=torch.int64)

    def balance_loss(self) -> Tensor:
        """E times the sum over experts of (share of tokens) x (mean probability), all layers together.

        K where all experts of a token get as much; more the less even they do. Switch Transformer,
        arXiv:2101.03961, eq. 4 to 6, over all layers at once as transformers computes it for
        Qwen3-MoE. Its gradient goes through the probabilities alone.
        """
        if not self._tokens_E:
            return torch.zeros(())
        routes_E = self._over_ranks(torch.stack(self._tokens_E)).sum(0)
        num_tokens = int(routes_E.sum()) // self._experts.chosen  # of all layers together
        sums_E = self._over_ranks(torch.stack(self._probabilities_E).sum(0))
        probabilities_E, shares_E = sums_E / num_tokens, routes_E / num_tokens
        return self._experts.count * (shares_E * probabilities_E).sum()
