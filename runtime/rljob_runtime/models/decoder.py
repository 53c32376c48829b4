"""A dense decoder (Llama, Mistral, Qwen2, Qwen3) for training on groups of samples.

Parameter names are Hugging Face's, so that `state_dict()` maps 1:1 to safetensors. A group's
prompt is computed once, not once a sample; rollout has its own form of the same model
(`engines/rollout_torch`). Knows one device and no ranks.
"""

# U packed tokens, H hidden, A query heads, N key/value heads, D head width
# G groups, B samples, P longest prompt, R longest response less its last token, Q, K queries, keys

from collections.abc import Iterator

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from rljob_runtime.kernels.rms_norm import rms_norm
from rljob_runtime.kernels.rope import rotate
from rljob_runtime.models.architecture import Architecture, inverse_frequencies
from rljob_runtime.models.base import TokenLogprobs
from rljob_runtime.models.packing import Packing, pack
from rljob_runtime.models.projection import project_logprobs
from rljob_runtime.sample import SampleBatch


class Decoder(nn.Module):
    """A `PolicyModel`. Weights are uninitialised until `initialize` or `load_state_dict`."""

    def __init__(self, architecture: Architecture, *, dtype: torch.dtype = torch.float32) -> None:
        super().__init__()
        self.architecture = architecture
        self.model = Backbone(architecture, dtype)
        if not architecture.tied:
            self.lm_head = Matrix(architecture.vocab_size, architecture.hidden_size, dtype)

    def logprobs(
        self, batch: SampleBatch, *, temperature: float, with_entropy: bool = False
    ) -> TokenLogprobs:
        """Log-probs of the batch's response tokens, float32 [T], under softmax(logits / temperature).

        Raises AssertionError for a prompt without tokens.
        """
        weight_VH = self._output_weight()
        packing = pack(batch, device=weight_VH.device, dtype=weight_VH.dtype)
        hidden_UH = self.model(packing)
        return project_logprobs(
            hidden_UH.index_select(0, packing.predicting_L),
            weight_VH,
            packing.target_T,
            packing.row_of_T,
            temperature=temperature,
            with_entropy=with_entropy,
        )

    def named_hf_parameters(self) -> Iterator[tuple[str, Tensor]]:
        """Parameters by Hugging Face name; a tied output matrix is the embedding's."""
        yield from self.named_parameters()

    def initialize(self, seed: int, *, std: float = 0.02) -> None:
        """Draw all matrices from N(0, std²) with this seed; norms are 1 and biases 0."""
        generator = torch.Generator().manual_seed(seed)
        with torch.no_grad():
            for name, parameter in self.named_parameters():
                if "norm" in name:
                    parameter.fill_(1.0)
                elif name.endswith("bias"):
                    parameter.zero_()
                else:
                    drawn = torch.empty(parameter.shape).normal_(0.0, std, generator=generator)
                    parameter.copy_(drawn)

    def _output_weight(self) -> Tensor:
        return self.model.embed_tokens.weight if self.architecture.tied else self.lm_head.weight


class Matrix(nn.Module):
    """A parameter `weight` [rows, columns] and an optional `bias` [rows], uninitialised."""

    bias: Tensor | None

    def __init__(
        self, rows: int, columns: int, dtype: torch.dtype, *, with_bias: bool = False
    ) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(rows, columns, dtype=dtype))
        self.bias = nn.Parameter(torch.empty(rows, dtype=dtype)) if with_bias else None

    def forward(self, x: Tensor) -> Tensor:
        """[..., columns] -> [..., rows]."""
        return F.linear(x, self.weight, self.bias)


class Norm(nn.Module):
    """Root-mean-square norm over the last dim."""

    def __init__(self, width: int, epsilon: float, dtype: torch.dtype) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width, dtype=dtype))
        self.epsilon = epsilon

    def forward(self, x: Tensor) -> Tensor:
        """Same shape and dtype as x."""
        return rms_norm(x, self.weight, self.epsilon)


class Backbone(nn.Module):
    """Embedding, layers and final norm."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        super().__init__()
        self.architecture = architecture
        hidden = architecture.hidden_size
        self.embed_tokens = Matrix(architecture.vocab_size, hidden, dtype)
        self.layers = nn.ModuleList(
            Layer(architecture, dtype) for _ in range(architecture.num_layers)
        )
        self.norm = Norm(hidden, architecture.norm_epsilon, dtype)

    def forward(self, packing: Packing) -> Tensor:
        """Hidden states of the packed tokens, [U, H]."""
        hidden_UH = F.embedding(packing.tokens_U, self.embed_tokens.weight)
        rotation = self._rotation(packing.positions_U, hidden_UH.dtype)
        for layer in self.layers:
            hidden_UH = layer(hidden_UH, packing, rotation)
        normed_UH: Tensor = self.norm(hidden_UH)
        return normed_UH

    def _rotation(self, positions_U: Tensor, dtype: torch.dtype) -> tuple[Tensor, Tensor]:
        frequencies = inverse_frequencies(self.architecture.head_dim, self.architecture.rope)
        angles = positions_U[:, None, None].float() * frequencies.to(positions_U.device)
        return angles.cos().to(dtype), angles.sin().to(dtype)


class Layer(nn.Module):
    """Attention and gated feed-forward, each behind a norm and a residual."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, epsilon = architecture.hidden_size, architecture.norm_epsilon
        self.self_attn = Attention(architecture, dtype)
        self.mlp = FeedForward(architecture, dtype)
        self.input_layernorm = Norm(hidden, epsilon, dtype)
        self.post_attention_layernorm = Norm(hidden, epsilon, dtype)

    def forward(
        self, hidden_UH: Tensor, packing: Packing, rotation: tuple[Tensor, Tensor]
    ) -> Tensor:
        """[U, H] -> [U, H]."""
        hidden_UH = hidden_UH + self.self_attn(self.input_layernorm(hidden_UH), packing, rotation)
        output_UH: Tensor = hidden_UH + self.mlp(self.post_attention_layernorm(hidden_UH))
        return output_UH


class FeedForward(nn.Module):
    """SwiGLU."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        super().__init__()
        hidden, inner = architecture.hidden_size, architecture.intermediate_size
        bias = architecture.mlp_bias
        self.gate_proj = Matrix(inner, hidden, dtype, with_bias=bias)
        self.up_proj = Matrix(inner, hidden, dtype, with_bias=bias)
        self.down_proj = Matrix(hidden, inner, dtype, with_bias=bias)

    def forward(self, x: Tensor) -> Tensor:
        """[..., H] -> [..., H]."""
        output: Tensor = self.down_proj(F.silu(self.gate_proj(x)) * self.up_proj(x))
        return output


class Attention(nn.Module):
    """Causal attention of prompts, and of responses over their prompt and themselves."""

    def __init__(self, architecture: Architecture, dtype: torch.dtype) -> None:
        super().__init__()
        a, hidden, bias = architecture, architecture.hidden_size, architecture.qkv_bias
        self.num_kv_heads, self.repeats, self.head_dim = a.num_kv_heads, a.repeats, a.head_dim
        self.q_proj = Matrix(a.num_heads * a.head_dim, hidden, dtype, with_bias=bias)
        self.k_proj = Matrix(a.num_kv_heads * a.head_dim, hidden, dtype, with_bias=bias)
        self.v_proj = Matrix(a.num_kv_heads * a.head_dim, hidden, dtype, with_bias=bias)
        self.o_proj = Matrix(
            hidden, a.num_heads * a.head_dim, dtype, with_bias=architecture.output_bias
        )
        self.q_norm = Norm(a.head_dim, a.norm_epsilon, dtype) if a.qk_norm else nn.Identity()
        self.k_norm = Norm(a.head_dim, a.norm_epsilon, dtype) if a.qk_norm else nn.Identity()

    def forward(self, x_UH: Tensor, packing: Packing, rotation: tuple[Tensor, Tensor]) -> Tensor:
        """[U, H] -> [U, H]."""
        query_UAD = rotate(self.q_norm(self._heads(self.q_proj(x_UH))), *rotation)
        key_UND = rotate(self.k_norm(self._heads(self.k_proj(x_UH))), *rotation)
        value_UND = self._heads(self.v_proj(x_UH))
        num_tokens = len(x_UH)
        sizes = [packing.num_prompt_tokens, num_tokens - packing.num_prompt_tokens]
        prompt, response = zip(
            *(
                torch.split(x.reshape(num_tokens, -1), sizes)
                for x in (query_UAD, key_UND, value_UND)
            ),
            strict=True,
        )
        query, key, value = (_pad(x, packing.prompt_GP) for x in prompt)
        mixed = self._attend(query, key, value, packing.prompt_mask)
        outputs = [mixed.flatten(0, 1).index_select(0, packing.from_prompt)]
        if sizes[1]:
            key = torch.cat(
                [key.index_select(0, packing.group_of_B), _pad(response[1], packing.response_BR)], 1
            )
            value = torch.cat(
                [value.index_select(0, packing.group_of_B), _pad(response[2], packing.response_BR)],
                1,
            )
            query = _pad(response[0], packing.response_BR)
            mixed = self._attend(query, key, value, packing.response_mask)
            outputs.append(mixed.flatten(0, 1).index_select(0, packing.from_response))
        output_UH: Tensor = self.o_proj(torch.cat(outputs))
        return output_UH

    def _heads(self, x_UX: Tensor) -> Tensor:
        return x_UX.view(len(x_UX), -1, self.head_dim)

    def _attend(self, query: Tensor, key: Tensor, value: Tensor, mask: Tensor) -> Tensor:
        """[rows, Q, A*D] over [rows, K, N*D] -> [rows, Q, A*D]; mask broadcasts to [rows, A, Q, K].

        The query heads that share a key head are further query rows of it.
        """
        rows, num_queries, _ = query.shape
        num_keys, shape = key.shape[1], (self.num_kv_heads, self.repeats, self.head_dim)
        query = query.view(rows, num_queries, *shape).permute(0, 2, 3, 1, 4)
        query = query.reshape(rows, shape[0], -1, self.head_dim)
        key = key.view(rows, num_keys, shape[0], self.head_dim).transpose(1, 2)
        value = value.view(rows, num_keys, shape[0], self.head_dim).transpose(1, 2)
        mask = mask.expand(rows, 1, num_queries, num_keys).repeat(1, 1, self.repeats, 1)
        mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask)
        mixed = mixed.view(rows, *shape[:2], num_queries, self.head_dim).permute(0, 3, 1, 2, 4)
        return mixed.reshape(rows, num_queries, -1)


def _pad(x_tokens: Tensor, index: Tensor) -> Tensor:
    """[tokens, X] -> [rows, width, X] by a padded index."""
    return x_tokens.index_select(0, index.view(-1)).view(*index.shape, x_tokens.shape[1])
