"""Any Hugging Face causal language model as a policy: the fallback for architectures that are not our own.

Each sample is one row, padded on the right; slower than `decoder`, which shares prompts and pads nothing.
`loading` creates it.
"""

# B samples, S positions of the longest sample, T response tokens of all samples

from collections.abc import Iterator
from functools import partial
from pathlib import Path

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.modeling_layers import GradientCheckpointingLayer

from rljob_runtime.errors import ConfigError, WeightsError
from rljob_runtime.models.padded import logprobs_of_logits, pad_batch
from rljob_runtime.models.policy_model import TokenLogprobs
from rljob_runtime.models.recompute import checkpointed
from rljob_runtime.samples.sample import SampleBatch


class TransformersModel(nn.Module):
    """A policy around a `PreTrainedModel`, in evaluation mode, since dropout would blur the ratio.

    text_ids: see `Decoder`; None: all ids have text.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        super().__init__()
        self.model = model.eval()
        self.text_ids: int | None = None

    @classmethod
    def from_path(cls, path: Path, *, dtype: torch.dtype) -> "TransformersModel":
        """Load a Hugging Face directory.

        Raises WeightsError naming tensors that do not fit, ConfigError for what the library cannot load.
        """
        try:
            model, info = AutoModelForCausalLM.from_pretrained(
                path, dtype=dtype, local_files_only=True, output_loading_info=True
            )
        except Exception as error:  # the type depends on what is invalid
            raise ConfigError(
                f"{path} cannot be loaded by transformers ({type(error).__name__}: {error}); copy the model "
                "again, or name another one"
            ) from error
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
        """Return log-probs of the batch's response tokens under softmax(logits / temperature)."""
        if batch.num_tokens == 0:
            return TokenLogprobs(logprobs_T=torch.zeros(0), entropy_T=torch.zeros(0))
        tokens_BS, mask_BS, predicts_BS = pad_batch(batch)
        output = self.model(input_ids=tokens_BS, attention_mask=mask_BS, use_cache=False)
        return logprobs_of_logits(
            output.logits[predicts_BS],
            batch,
            temperature=temperature,
            with_entropy=with_entropy,
            text_ids=self.text_ids,
        )

    def named_hf_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all weights under the transformers library's names; tied ones once."""
        stored = self.model.state_dict().keys()
        yield from self.model.named_parameters()
        yield from ((name, buffer) for name, buffer in self.model.named_buffers() if name in stored)

    def trained_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Yield all parameters by name."""
        yield from self.model.named_parameters()

    def recompute_layers(self) -> None:
        """Recompute the layers that the library marks; the library's own method would enable dropout."""
        layers = [m for m in self.model.modules() if isinstance(m, GradientCheckpointingLayer)]
        if not layers:
            raise ConfigError(
                f"spec.update.recompute is full, but transformers marks no layers of "
                f"{type(self.model).__name__} that can be computed again; use none"
            )
        for layer in layers:
            layer.forward = partial(checkpointed, layer.forward)
