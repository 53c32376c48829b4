"""How evenly routers spread tokens over experts, and the loss that balances them.

The mixture of experts fills it layer by layer in one forward pass; it is returned with the log-probs.
"""

# U tokens, E experts, M layers with experts

from collections.abc import Callable

import torch
from torch import Tensor

from rljob_runtime.models.architecture import MoeArchitecture
from rljob_runtime.models.blocks.router import Routes


class RouterLoad:
    """The routes of the layers computed so far. coefficient: weight of the balance loss in training.

    num_tokens: count only the first num_tokens routes of a layer; None for all. over_ranks: sums a tensor,
    with gradient, over all ranks that share the tokens.
    """

    def __init__(
        self,
        experts: MoeArchitecture,
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
        self._before_2E: Tensor | None = None

    @classmethod
    def of_sums(
        cls, experts: MoeArchitecture, tokens_ME: Tensor, probabilities_E: Tensor
    ) -> "RouterLoad":
        """Create a load from sums over all ranks and, for probabilities, over all layers."""
        load = cls(experts)
        load._tokens_E, load._probabilities_E = list(tokens_ME), [probabilities_E]
        return load

    def add(self, routes: Routes) -> None:
        """Count one layer's routes."""
        experts_UK = routes.experts_UK[: self._counted]
        counts_E = torch.bincount(experts_UK.flatten(), minlength=self._experts.count)
        self._tokens_E.append(counts_E)
        self._probabilities_E.append(routes.probabilities_UE[: self._counted].sum(0))

    def go_on_from(self, sums_2E: Tensor) -> None:
        """Continue after layers that were counted on another rank. sums_2E: that rank's `sums_2E`."""
        self._before_2E = sums_2E

    def sums_2E(self) -> Tensor:
        """Return tokens and probabilities of each expert on this rank, summed over all layers so far.

        They have the probabilities' dtype and gradient.
        """
        sums = [] if self._before_2E is None else [self._before_2E]
        if self._tokens_E:
            probabilities_E = torch.stack(self._probabilities_E).sum(0)
            tokens_E = torch.stack(self._tokens_E).sum(0).to(probabilities_E.dtype)
            sums.append(torch.stack([tokens_E, probabilities_E]))
        return torch.stack(sums).sum(0) if sums else torch.zeros(2, self._experts.count)

    def sums_over_ranks_2E(self) -> Tensor:
        """Return `sums_2E` summed over all ranks that share the tokens; each rank gets the full sum."""
        return self._over_ranks(self.sums_2E())

    def tokens_ME(self) -> Tensor:
        """Return the number of tokens that each expert of each layer got, int64; zeros for a pass without
        tokens."""
        if self._tokens_E:
            return self._over_ranks(torch.stack(self._tokens_E))
        return torch.zeros(len(self._experts.layers), self._experts.count, dtype=torch.int64)

    def balance_loss(self) -> Tensor:
        """Return E times the sum over experts of (share of tokens) x (mean probability), over all layers.

        It is K if all experts of a token get equally many tokens, and more the less even they are. Switch
        Transformer, arXiv:2101.03961, eq. 4 to 6, over all layers in one sum, as transformers computes it for
        Qwen3-MoE. Its gradient flows through the probabilities alone.
        """
        if not self._tokens_E and self._before_2E is None:
            return torch.zeros(())
        sums_2E = self.sums_over_ranks_2E()
        routes_E, sums_E = sums_2E[0].detach(), sums_2E[1]
        num_tokens = round(float(routes_E.double().sum()) / self._experts.chosen)  # of all layers
        probabilities_E, shares_E = sums_E / num_tokens, routes_E / num_tokens
        return self._experts.count * (shares_E * probabilities_E).sum()
