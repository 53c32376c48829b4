"""The replacement of Megatron's attention in its layers: Megatron's matrices, and this project's rotation and
packed attention, each prompt computed once for all of its samples, on any context ranks.

Rows of a layer's queries, keys and values are contiguous in one matrix, so that each is a view of it under
its Hugging Face name. `layers` uses this.
"""

# U packed tokens of this context rank, S of one tensor rank, A query heads, N key/value heads of this rank
# D width of each, H hidden; of latents: C rank, R rotated width, E value width, W width without position

from abc import ABC, abstractmethod
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from rljob_runtime.devices.kernels.rotary_embedding import rotate
from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.blocks.packed_attention import Attend
from rljob_runtime.models.blocks.rotary import halves
from rljob_runtime.models.packing import Packing
from rljob_runtime.update.update_megatron.core import Core

QueryKeyValue = tuple[Tensor, Tensor, Tensor]


@dataclass(slots=True, kw_only=True)
class PassContext:
    """Attention's inputs other than hidden states, while its layer computes.

    rotation: cos and sin, [U, 1, D / 2] each.
    """

    core: Core
    architecture: Architecture
    attend: Attend
    packing: Packing | None = None
    rotation: tuple[Tensor, Tensor] | None = None


def with_attention(
    attention: type["CoreAttention"], core_class: type, context: PassContext
) -> type:
    """Return Megatron's class with other attention: Megatron builds its layers from classes."""
    return type(attention.__name__, (attention, core_class), {"context": context})


class CoreAttention(ABC):
    """Overrides the forward pass of one of Megatron's attention classes, whose matrices it uses."""

    context: PassContext
    linear_proj: Any

    def forward(
        self, hidden_states: Tensor, attention_mask: None = None, **others: object
    ) -> tuple[Tensor, Tensor | None]:
        """Map [S, 1, H] to [S, 1, H], without a bias."""
        context = self.context
        assert context.packing is not None and context.rotation is not None, (
            "a layer outside of a pass"
        )
        query, key, value = self.project(hidden_states[:, 0], context.rotation)
        scale = context.architecture.score_scale
        mixed_UX = context.attend(query, key, value, context.packing, scale=scale)
        output: tuple[Tensor, Tensor | None] = self.linear_proj(mixed_UX[:, None])
        return output

    @abstractmethod
    def project(self, x_SH: Tensor, rotation: tuple[Tensor, Tensor]) -> QueryKeyValue:
        """Return rotated queries and keys, and values, of all tokens and this rank's heads."""
        ...


class CoreHeads(CoreAttention):
    """Attention with separate keys and values for each head, or for several."""

    linear_qkv: Any
    q_layernorm: Any
    k_layernorm: Any
    num_attention_heads_per_partition: int
    num_query_groups_per_partition: int

    def project(self, x_SH: Tensor, rotation: tuple[Tensor, Tensor]) -> QueryKeyValue:
        """Map [S, H] to [U, A, D] and twice [U, N, D]."""
        heads, groups = self.num_attention_heads_per_partition, self.num_query_groups_per_partition
        mixed_UX = self.linear_qkv(x_SH[:, None])[0][:, 0]
        mixed_UXD = mixed_UX.view(len(mixed_UX), heads + 2 * groups, -1)
        query_UAD, key_UND, value_UND = torch.split(mixed_UXD, [heads, groups, groups], dim=1)
        query_UAD = rotate(self.q_layernorm(query_UAD), *rotation)
        return query_UAD, rotate(self.k_layernorm(key_UND), *rotation), value_UND


class CoreLatent(CoreAttention):
    """Multi-head latent attention: keys and values of all heads come from one narrow vector per token."""

    linear_q_proj: Any
    linear_q_down_proj: Any
    linear_q_up_proj: Any
    linear_kv_down_proj: Any
    linear_kv_up_proj: Any
    q_layernorm: Any
    kv_layernorm: Any

    def project(self, x_SH: Tensor, rotation: tuple[Tensor, Tensor]) -> QueryKeyValue:
        """Map [S, H] to twice [U, A, W + R] and [U, A, E]."""
        sizes = self.context.architecture.latent
        assert sizes is not None, "latent attention of a model that has none"
        compressed_SX = self.linear_kv_down_proj(x_SH)
        latent_SC, key_SR = torch.split(compressed_SX, [sizes.kv_rank, sizes.rope_dim], dim=-1)
        expanded_UX = self.linear_kv_up_proj(self.kv_layernorm(latent_SC)[:, None])[0][:, 0]
        expanded = expanded_UX.view(len(expanded_UX), -1, sizes.nope_dim + sizes.value_dim)
        key_UAW, value_UAE = torch.split(expanded, [sizes.nope_dim, sizes.value_dim], dim=-1)
        query_UX = self._query(x_SH)
        query_UAD = query_UX.view(len(query_UX), -1, sizes.nope_dim + sizes.rope_dim)
        query_UAW, turned_UAR = torch.split(query_UAD, [sizes.nope_dim, sizes.rope_dim], dim=-1)
        turned_key_U1R = self._turn(self._all_tokens(key_SR)[:, None], rotation)
        turned_key_UAR = turned_key_U1R.expand(-1, expanded.shape[1], -1)
        query_UAD = torch.cat([query_UAW, self._turn(turned_UAR, rotation)], dim=-1)
        return query_UAD, torch.cat([key_UAW, turned_key_UAR], dim=-1), value_UAE

    def _query(self, x_SH: Tensor) -> Tensor:
        latent = self.context.architecture.latent
        if latent is None or latent.query_rank is None:
            query: Tensor = self.linear_q_proj(x_SH[:, None])[0]
        else:
            narrow = self.q_layernorm(self.linear_q_down_proj(x_SH))
            query = self.linear_q_up_proj(narrow[:, None])[0]
        return query[:, 0]

    def _all_tokens(self, x_SR: Tensor) -> Tensor:
        """Gather the tokens of all tensor ranks."""
        return self.context.core.gather_from_sequence_parallel_region(x_SR)

    def _turn(self, x: Tensor, rotation: tuple[Tensor, Tensor]) -> Tensor:
        latent = self.context.architecture.latent
        return rotate(halves(x) if latent is not None and latent.interleaved else x, *rotation)


class WholeMatrix(nn.Module):
    """Multiplies x by a matrix that no rank shares."""

    def __init__(self, rows: int, columns: int, *, like: Tensor) -> None:
        super().__init__()
        self.weight = nn.Parameter(like.new_empty(rows, columns))

    def forward(self, x: Tensor) -> Tensor:
        """Map [..., columns] to [..., rows]."""
        return F.linear(x, self.weight)
