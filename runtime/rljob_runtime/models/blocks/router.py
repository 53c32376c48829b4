"""Choose which experts a token goes to, and with which weights.

The mixture of experts calls this in training and rollout. It computes in float32 (or wider), so that both
choose alike between two nearly equal experts.
"""

# U tokens, H hidden, E experts, K experts of a token, G groups of experts

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rljob_runtime.models.architecture import MoeArchitecture


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """Experts and weights of each token.

    experts_UK: int64. weights_UK: weights of the experts' outputs. probabilities_UE: of all experts, adding
    up to 1 per token; a load-balancing loss is computed from them.
    """

    experts_UK: Tensor
    weights_UK: Tensor
    probabilities_UE: Tensor


class Router(nn.Module):
    """Chooses experts by `weight` [E, H] and, in some families, by `e_score_correction_bias` [E], a float32
    buffer."""

    e_score_correction_bias: Tensor | None

    def __init__(self, experts: MoeArchitecture, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.experts = experts
        self.weight = nn.Parameter(torch.empty(experts.count, hidden, dtype=dtype))
        bias = torch.zeros(experts.count) if experts.correction_bias else None
        self.register_buffer("e_score_correction_bias", bias)

    def forward(self, x_UH: Tensor, replayed_UK: Tensor | None = None) -> Routes:
        """Return the routes of these tokens. replayed_UK: see `route`."""
        bias_E = self.e_score_correction_bias
        return route(x_UH, self.weight, bias_E, self.experts, replayed_UK)


def route(
    x_UH: Tensor,
    weight_EH: Tensor,
    bias_E: Tensor | None,
    experts: MoeArchitecture,
    replayed_UK: Tensor | None = None,
) -> Routes:
    """Return the routes of these tokens.

    bias_E: affects the choice, not the weights. replayed_UK: experts chosen elsewhere, used instead of a
    choice; their weights are this router's scores, with gradient (rollout routing replay, arXiv:2510.11370).
    """
    wide = torch.promote_types(x_UH.dtype, torch.float32)
    logits_UE = F.linear(x_UH.to(wide), weight_EH.to(wide))
    if experts.scores == "sigmoid":
        scores_UE = logits_UE.sigmoid()
        probabilities_UE = scores_UE / scores_UE.sum(-1, keepdim=True)
    else:
        scores_UE = probabilities_UE = logits_UE.softmax(-1)
    experts_UK = _choose(scores_UE, bias_E, experts) if replayed_UK is None else replayed_UK.long()
    weights_UK = scores_UE.gather(1, experts_UK)
    if experts.normalized:
        weights_UK = weights_UK / weights_UK.sum(-1, keepdim=True)
    if experts.scale != 1.0:
        weights_UK = weights_UK * experts.scale
    return Routes(experts_UK=experts_UK, weights_UK=weights_UK, probabilities_UE=probabilities_UE)


@torch.no_grad()
def _choose(scores_UE: Tensor, bias_E: Tensor | None, experts: MoeArchitecture) -> Tensor:
    """Return the experts with the best scores, best first, [U, K]."""
    chosen_by_UE = scores_UE if bias_E is None else scores_UE + bias_E
    if experts.groups > 1:
        chosen_by_UE = _only_best_groups(chosen_by_UE, experts)
    return chosen_by_UE.topk(experts.chosen, dim=-1).indices


def _only_best_groups(scores_UE: Tensor, experts: MoeArchitecture) -> Tensor:
    """Set the scores of experts outside a token's best groups to -inf."""
    scores_UGX = scores_UE.view(len(scores_UE), experts.groups, -1)
    counted = 2 if experts.group_score == "two best" else 1
    group_UG = scores_UGX.topk(min(counted, scores_UGX.shape[2]), dim=-1).values.sum(-1)
    best = group_UG.topk(experts.chosen_groups, dim=-1).indices
    hidden_UG = torch.ones_like(group_UG, dtype=torch.bool).scatter_(1, best, False)
    return scores_UGX.masked_fill(hidden_UG[..., None], float("-inf")).flatten(1)
