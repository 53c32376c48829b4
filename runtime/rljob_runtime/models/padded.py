"""Samples as rows of one rectangle, for models without packed sequences.

The transformers fallback calls this. Padding is on the right: under a causal mask no sample attends to it.
"""

# B samples, S positions of the longest sample, T response tokens of all samples, V vocabulary

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rljob_runtime.models.policy_model import TokenLogprobs
from rljob_runtime.samples.sample import SampleBatch


def pad_batch(batch: SampleBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Return tokens [B, S], attention mask [B, S], and which positions predict a token that was drawn
    [B, S]."""
    prompts = [batch.prompts[group] for group in batch.group_of_B.tolist()]
    rows = [torch.cat(pair) for pair in zip(prompts, batch.texts, strict=True)]
    starts_B = torch.tensor([len(prompt) for prompt in prompts])[:, None]
    ends_B = torch.tensor([len(row) for row in rows])[:, None]
    tokens_BS = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    position_S = torch.arange(tokens_BS.shape[1])
    predicts_BS = (position_S >= starts_B - 1) & (position_S < ends_B - 1)
    predicts_BS[predicts_BS.clone()] = batch.drawn_of_texts()
    return tokens_BS, (position_S < ends_B).long(), predicts_BS


def logprobs_of_logits(
    logits_TV: Tensor,
    batch: SampleBatch,
    *,
    temperature: float,
    with_entropy: bool,
    text_ids: int | None = None,
) -> TokenLogprobs:
    """Return log-probs of the batch's response tokens under softmax(logits / temperature), at least float32.

    logits_TV: of the positions that predict them, in the batch's order. text_ids: see `Decoder`.
    """
    logits_TV = logits_TV[:, :text_ids].to(torch.promote_types(logits_TV.dtype, torch.float32))
    logprobs_TV = F.log_softmax(logits_TV / temperature, dim=-1)
    targets_T = torch.cat(batch.responses).to(logits_TV.device)
    entropy_T = None
    if with_entropy:
        detached_TV = logprobs_TV.detach()
        entropy_T = -(detached_TV.exp() * detached_TV).sum(-1)
    return TokenLogprobs(
        logprobs_T=logprobs_TV.gather(1, targets_T[:, None]).squeeze(1), entropy_T=entropy_T
    )
