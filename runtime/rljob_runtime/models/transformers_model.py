"""Any Hugging Face causal language model as a policy: the fallback for architectures not our own.

Each sample is one row, padded on the right; slower than `decoder`, which shares prompts and pads
nothing. Called by `loading`.
"""

# B samples, S positions of the longest sample, T response tokens of all samples, V vocabulary

from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor, nn
from torch.nn import functional as F
from transformers import AutoModelForCausalLM, PreTrainedModel

from rljob_runtime.errors import WeightsError
from rljob_runtime.models.base import TokenLogprobs
from rljob_runtime.sample import SampleBatch


class TransformersModel(nn.Module):
    """A policy around a `PreTrainedModel`, in evaluation mode: dropout would blur the ratio."""

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model.eval()

    @classmethod
    def from_path(cls, path: Path, *, dtype: torch.dtype) -> "TransformersModel":
        """Load a Hugging Face directory. Raises WeightsError naming tensors that do not fit."""
        model, info = AutoModelForCausalLM.from_pretrained(
            path, dtype=dtype, local_files_only=True, output_loading_info=True
        )
        problems = {
            kind: sorted(str(name) for name in info.get(f"{kind}_keys", ()))
            for kind in ("missing", "unexpected", "mismatched")
        }
        if any(problems.values()):
            listed = "; ".join(f"{kind}: {', '.join(n)}" for kind, n in problems.items() if n)
            raise WeightsError(
                f"{path}: tensors do not fit {type(model).__name__} ({listed}); "
                "use a complete Hugging Face directory of this architecture"
            )
        return cls(model)

    def logprobs(
        self, batch: SampleBatch, *, temperature: float, with_entropy: bool = False
    ) -> TokenLogprobs:
        """Log-probs of the batch's response tokens under softmax(logits / temperature)."""
        if batch.num_tokens == 0:
            return TokenLogprobs(logprobs_T=torch.zeros(0), entropy_T=torch.zeros(0))
        tokens_BS, mask_BS, predicts_BS = _padded(batch)
        output = self.model(input_ids=tokens_BS, attention_mask=mask_BS, use_cache=False)
        logits_TV = output.logits[predicts_BS]
        logits_TV = logits_TV.to(torch.promote_types(logits_TV.dtype, torch.float32))
        logprobs_TV = F.log_softmax(logits_TV / temperature, dim=-1)
        targets_T = torch.cat(batch.responses)
        entropy_T = None
        if with_entropy:
            detached_TV = logprobs_TV.detach()
            entropy_T = -(detached_TV.exp() * detached_TV).sum(-1)
        return TokenLogprobs(
            logprobs_T=logprobs_TV.gather(1, targets_T[:, None]).squeeze(1), entropy_T=entropy_T
        )

    def named_hf_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """All weights as the transformers library names them; tied ones once."""
        stored = self.model.state_dict().keys()
        yield from self.model.named_parameters()
        yield from ((name, held) for name, held in self.model.named_buffers() if name in stored)

    def trained_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """The parameters."""
        yield from self.model.named_parameters()


def _padded(batch: SampleBatch) -> tuple[Tensor, Tensor, Tensor]:
    """Tokens [B, S], attention mask [B, S], and which positions predict a response token [B, S].

    Positions to the right of a sample are masked and never looked at by it.
    """
    prompts = [batch.prompts[group] for group in batch.group_of_B.tolist()]
    rows = [torch.cat(pair) for pair in zip(prompts, batch.responses, strict=True)]
    starts_B = torch.tensor([len(prompt) for prompt in prompts])[:, None]
    ends_B = torch.tensor([len(row) for row in rows])[:, None]
    tokens_BS = nn.utils.rnn.pad_sequence(rows, batch_first=True)
    place_S = torch.arange(tokens_BS.shape[1])
    predicts_BS = (place_S >= starts_B - 1) & (place_S < ends_B - 1)
    return tokens_BS, (place_S < ends_B).long(), predicts_BS
