"""Log-probs of tokens from hidden states without ever holding all logits.

Called by the decoder. Logits are made a few rows at a time and made again for the gradient, so
that memory does not grow with tokens x vocabulary.
"""

# L positions, T response tokens (several may share a position), H hidden, V vocabulary

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from rljob_runtime.models.base import TokenLogprobs

LOGITS_AT_ONCE = 1 << 25  # float32 values: 128 MiB, and as much again for their gradient


def project_logprobs(
    hidden_LH: Tensor,
    weight_VH: Tensor,
    target_T: Tensor,
    row_of_T: Tensor,
    *,
    temperature: float,
    with_entropy: bool,
    logits_at_once: int = LOGITS_AT_ONCE,
) -> TokenLogprobs:
    """log softmax(hidden weight^T / temperature) of each target, float32 [T].

    row_of_T: index into L of what predicts each target. Entropy in nats, without gradient.
    """
    num_rows, vocabulary = len(hidden_LH), len(weight_VH)
    rows_at_once = max(1, logits_at_once // vocabulary)
    arguments = (temperature, with_entropy)
    if num_rows <= rows_at_once:
        logprobs_T, entropy_T = _project(hidden_LH, weight_VH, target_T, row_of_T, *arguments)
        return TokenLogprobs(logprobs_T=logprobs_T, entropy_T=entropy_T)
    order_T = torch.argsort(row_of_T, stable=True)
    sorted_row_T, sorted_target_T = row_of_T[order_T], target_T[order_T]
    starts = list(range(0, num_rows, rows_at_once))
    bounds = torch.searchsorted(
        sorted_row_T, torch.tensor([*starts, num_rows], device=row_of_T.device)
    ).tolist()
    pieces: list[Tensor] = []
    entropies: list[Tensor] = []
    for start, low, high in zip(starts, bounds, bounds[1:], strict=False):
        logprobs, entropy = checkpoint(
            _project,
            hidden_LH[start : start + rows_at_once],
            weight_VH,
            sorted_target_T[low:high],
            sorted_row_T[low:high] - start,
            *arguments,
            use_reentrant=False,
            preserve_rng_state=False,
        )
        pieces.append(logprobs)
        if entropy is not None:
            entropies.append(entropy)
    place_T = torch.argsort(order_T)
    return TokenLogprobs(
        logprobs_T=torch.cat(pieces)[place_T],
        entropy_T=torch.cat(entropies)[place_T] if with_entropy else None,
    )


def _project(
    hidden_LH: Tensor,
    weight_VH: Tensor,
    target_T: Tensor,
    row_of_T: Tensor,
    temperature: float,
    with_entropy: bool,
) -> tuple[Tensor, Tensor | None]:
    logits_LV = torch.nn.functional.linear(hidden_LH, weight_VH).float()
    if temperature != 1.0:
        logits_LV = logits_LV / temperature
    norm_L = logits_LV.logsumexp(-1)
    logprobs_T = logits_LV[row_of_T, target_T] - norm_L[row_of_T]
    if not with_entropy:
        return logprobs_T, None
    with torch.no_grad():
        # H = log Z - E[logit]
        probabilities_LV = (logits_LV - norm_L[:, None]).exp()
        entropy_L = norm_L - torch.linalg.vecdot(probabilities_LV, logits_LV)
    return logprobs_T, entropy_L[row_of_T]
