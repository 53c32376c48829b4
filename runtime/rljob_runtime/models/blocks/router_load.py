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
        self._before_2E: Tensor | None = None

    @classmethod
    def of_sums(cls, experts: Experts, tokens_ME: Tensor, probabilities_E: Tensor) -> "RouterLoad":
        """What has been counted elsewhere, over all ranks and, for probabilities, all layers."""
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
        """The layers before these were counted on another rank. sums_2E: its `sums_2E`."""
        self._before_2E = sums_2E

    def sums_2E(self) -> Tensor:
        """Tokens and probabilities of each expert on this rank, of all layers so far together, in the
        probabilities' type and with their gradient."""
        found = [] if self._before_2E is None else [self._before_2E]
        if self._tokens_E:
            probabilities_E = torch.stack(self._probabilities_E).sum(0)
            tokens_E = torch.stack(self._tokens_E).sum(0).to(probabilities_E.dtype)
            found.append(torch.stack([tokens_E, probabilities_E]))
        return torch.stack(found).sum(0) if found else torch.zeros(2, self._experts.count)

    def sums_over_ranks_2E(self) -> Tensor:
        """The same of all ranks that share the tokens; each then has all of it."""
        return self._over_ranks(self.sums_2E())

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
        if not self._tokens_E and self._before_2E is None:
            return torch.zeros(())
        sums_2E = self.sums_over_ranks_2E()
        routes_E, sums_E = sums_2E[0].detach(), sums_2E[1]
        num_tokens = round(float(routes_E.double().sum()) / self._experts.chosen)  # of all layers
        probabilities_E, shares_E = sums_E / num_tokens, routes_E / num_tokens
        return self._experts.count * (shares_E * probabilities_E).sum()
