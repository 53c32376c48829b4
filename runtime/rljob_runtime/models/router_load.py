"""How evenly routers spread tokens over experts, and the loss that makes them.

Filled by the mixture of experts layer by layer in one forward pass; returned beside the log-probs.
"""

# U tokens, E experts, M layers with experts

import torch
from torch import Tensor

from rljob_runtime.models.architecture import Experts
from rljob_runtime.models.blocks.router import Routes


class RouterLoad:
    """The layers' routes so far. coefficient: weight of the balance loss in training."""

    def __init__(self, experts: Experts) -> None:
        self.coefficient = experts.balance_coefficient
        self._experts = experts
        self._tokens_E: list[Tensor] = []
        self._probabilities_E: list[Tensor] = []
        self._num_tokens = 0

    def add(self, routes: Routes) -> None:
        """Count one layer's routes."""
        counts_E = torch.bincount(routes.experts_UK.flatten(), minlength=self._experts.count)
        self._tokens_E.append(counts_E)
        self._probabilities_E.append(routes.probabilities_UE.sum(0))
        self._num_tokens += len(routes.experts_UK)

    def tokens_ME(self) -> Tensor:
        """Tokens that each expert of each layer got, int64; zeros for a pass without tokens."""
        if self._tokens_E:
            return torch.stack(self._tokens_E)
        return torch.zeros(len(self._experts.layers), self._experts.count, dtype=torch.int64)

    def balance_loss(self) -> Tensor:
        """E times the sum over experts of (share of tokens) x (mean probability), all layers together.

        K where all experts of a token get as much; more the less even they do. Switch Transformer,
        arXiv:2101.03961, eq. 4 to 6, over all layers at once as transformers computes it for
        Qwen3-MoE. Its gradient goes through the probabilities alone.
        """
        if not self._tokens_E:
            return torch.zeros(())
        probabilities_E = torch.stack(self._probabilities_E).sum(0) / self._num_tokens
        shares_E = torch.stack(self._tokens_E).sum(0) / self._num_tokens
        return self._experts.count * (shares_E * probabilities_E).sum()
