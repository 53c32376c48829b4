"""A Megatron GPTModel of a dense decoder, and log-probs of samples from it.

Called by `engine`. Each sample is a row, padded on the right; attention is causal, without a mask.
"""

# B samples, S positions of the longest sample, T response tokens of all samples, V vocabulary

from dataclasses import dataclass

import torch
from torch import nn
from torch.nn import functional as F

from rljob_runtime.errors import ConfigError
from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.padded import logprobs_of_logits, padded
from rljob_runtime.models.policy_model import TokenLogprobs
from rljob_runtime.samples.sample import SampleBatch
from rljob_runtime.update.update_mindspeed.megatron import Megatron, ShardedModel


def check_architecture(architecture: Architecture) -> None:
    """Raise ConfigError for what is not translated: experts, latent attention, scaled positions."""
    lacking = {
        "experts": architecture.experts is not None,
        "latent attention": architecture.latent is not None,
        f"rope_type {architecture.rope.kind}": architecture.rope.kind != "default",
        "biases of o_proj": architecture.output_bias,
        "biases of the feed-forward": architecture.mlp_bias,
    }
    if found := [what for what, has in lacking.items() if has]:
        raise ConfigError(
            f"spec.update.engine mindspeed trains dense decoders with plain positions; "
            f"{architecture.name} has {', '.join(found)} (config.json); use update.engine: torch"
        )


def config_of(megatron: Megatron, architecture: Architecture) -> object:
    """Megatron's TransformerConfig. Gradients are sums, which `finalize_model_grads` divides."""
    return megatron.TransformerConfig(
        num_layers=architecture.num_layers,
        hidden_size=architecture.hidden_size,
        num_attention_heads=architecture.num_heads,
        num_query_groups=architecture.num_kv_heads,
        kv_channels=architecture.head_dim,
        ffn_hidden_size=architecture.intermediate_size,
        layernorm_epsilon=architecture.norm_epsilon,
        normalization="RMSNorm",
        qk_layernorm=architecture.qk_norm,
        add_bias_linear=False,
        add_qkv_bias=architecture.qkv_bias,
        gated_linear_unit=True,
        activation_func=F.silu,
        hidden_dropout=0.0,
        attention_dropout=0.0,
        params_dtype=torch.float32,
        calculate_per_token_loss=True,
    )


def make_model(
    megatron: Megatron, config: object, architecture: Architecture, *, max_length: int
) -> nn.Module:
    """The whole model on this rank's device, its weights not set yet."""
    model = megatron.GPTModel(
        config=config,
        transformer_layer_spec=megatron.get_gpt_layer_local_spec(qk_layernorm=architecture.qk_norm),
        vocab_size=architecture.vocab_size,
        max_sequence_length=max_length,
        parallel_output=False,
        share_embeddings_and_output_weights=architecture.tied,
        position_embedding_type="rope",
        rotary_base=int(architecture.rope.theta),
    )
    return model.to(next(model.parameters()).device)  # norms are made on the host


@dataclass(frozen=True, slots=True, kw_only=True)
class Forward:
    """Log-probs of samples. device: the model's; results are on the samples'."""

    model: ShardedModel
    device: torch.device
    temperature: float

    def __call__(self, batch: SampleBatch, *, with_entropy: bool) -> TokenLogprobs:
        """With gradient where autograd records one."""
        if batch.num_tokens == 0:
            return TokenLogprobs(logprobs_T=torch.zeros(0), entropy_T=torch.zeros(0))
        tokens_BS, _, predicts_BS = padded(batch)
        positions_BS = torch.arange(tokens_BS.shape[1]).expand_as(tokens_BS)
        logits_BSV = self.model(
            input_ids=tokens_BS.to(self.device),
            position_ids=positions_BS.to(self.device),
            attention_mask=None,
        )
        found = logprobs_of_logits(
            logits_BSV[predicts_BS.to(self.device)],
            batch,
            temperature=self.temperature,
            with_entropy=with_entropy,
        )
        home = batch.responses[0].device
        return TokenLogprobs(
            logprobs_T=found.logprobs_T.to(home),
            entropy_T=found.entropy_T.to(home) if found.entropy_T is not None else None,
        )
