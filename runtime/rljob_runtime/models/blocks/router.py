"""Which experts a token goes to, and with which weights.

Called by the mixture of experts in training and in the rollout. Computed in float32 (or wider),
where two nearly equal experts are told apart alike by both.
"""

# U tokens, H hidden, E experts, K experts of a token, G groups of experts

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rljob_runtime.models.architecture import Experts


@dataclass(frozen=True, slots=True, kw_only=True)
class Routes:
    """experts_UK: int64. weights_UK: of their outputs. probabilities_UE: of all experts, adding up
    to 1 a token; what a load-balancing loss is taken of."""

    experts_UK: Tensor
    weights_UK: Tensor
    probabilities_UE: Tensor


class Router(nn.Module):
    """`weight` [E, H], and a buffer `e_score_correction_bias` [E] in float32 where there is one."""

    e_score_correction_bias: Tensor | None

    def __init__(self, experts: Experts, hidden: int, dtype: torch.dtype) -> None:
        super().__init__()
        self.experts = experts
        self.weight = nn.Parameter(torch.empty(experts.count, hidden, dtype=dtype))
        bias = torch.zeros(experts.count) if experts.correction_bias else None
        self.register_buffer("e_score_correction_bias", bias)

    def forward(self, x_UH: Tensor, replayed_UK: Tensor | None = None) -> Routes:
        """The routes of these tokens. replayed_UK: as `route` has it."""
        bias_E = self.e_score_correction_bias
        return route(x_UH, self.weight, bias_E, self.experts, replayed_UK)


def route(
    x_UH: Tensor,
    weight_EH: Tensor,
    bias_E: Tensor | None,
    experts: Experts,
    replayed_UK: Tensor | None = None,
) -> Routes:
    """The routes of these tokens. bias_E: enters the choice, not the weights. replayed_UK: experts chosen
    elsewhere, which are taken; their weights are of this router's scores, with gradient (rollout routing
    replay, arXiv:2510.11370)."""
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
def _choose(scores_UE: Tensor, bias_E: Tensor | None, experts: Experts) -> Tensor:
    """Experts of the best scores, the best first, [U, K]."""
    chosen_by_UE = scores_UE if bias_E is None else scores_UE + bias_E
    if experts.groups > 1:
        chosen_by_UE = _only_best_groups(chosen_by_UE, experts)
    return chosen_by_UE.topk(experts.chosen, dim=-1).indices


def _only_best_groups(scores_UE: Tensor, experts: Experts) -> Tensor:
    """-inf for the experts outside the groups that a token may choose from."""
    scores_UGX = scores_UE.view(len(scores_UE), experts.groups, -1)
    counted = 2 if experts.group_score == "two best" else 1
    group_UG = scores_UGX.topk(min(counted, scores_UGX.shape[2]), dim=-1).values.sum(-1)
    best = group_UG.topk(experts.chosen_groups, dim=-1).indices
    hidden_UG = torch.ones_like(group_UG, dtype=torch.bool).scatter_(1, best, False)
    return scores_UGX.masked_fill(hidden_UG[..., None], float("-inf")).flatten(1)
