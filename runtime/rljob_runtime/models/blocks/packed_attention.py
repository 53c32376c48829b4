"""Attention over packed samples: of prompts, and of responses over their prompt and themselves.

Called by the attention blocks once they have queries, keys and values. The only place that pads.
"""

# U packed tokens, A query heads, N key/value heads, D width of queries and keys, E of values
# G groups, B samples, P longest prompt, R longest response less its last token, Q, K queries, keys

from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.models.packing import Packing


class Attend(Protocol):
    """Attention over packed samples; the form of one device is `attend`."""

    def __call__(
        self,
        query_UAD: Tensor,
        key_UND: Tensor,
        value_UNE: Tensor,
        packing: Packing,
        *,
        scale: float,
    ) -> Tensor:
        """Values mixed, [U, A*E]."""
        ...


def attend(
    query_UAD: Tensor, key_UND: Tensor, value_UNE: Tensor, packing: Packing, *, scale: float
) -> Tensor:
    """Values mixed by softmax(scale query key), [U, A*E]; every A / N query heads share a key head."""
    num_tokens, num_kv_heads = key_UND.shape[:2]
    sizes = [packing.num_prompt_tokens, num_tokens - packing.num_prompt_tokens]
    prompt, response = zip(
        *(torch.split(x.reshape(num_tokens, -1), sizes) for x in (query_UAD, key_UND, value_UNE)),
        strict=True,
    )
    query, key, value = (_pad(x, packing.prompt_GP) for x in prompt)
    mixed = _mix(query, key, value, packing.prompt_mask, num_kv_heads, scale)
    outputs = [mixed.flatten(0, 1).index_select(0, packing.from_prompt)]
    if sizes[1]:
        key = torch.cat(
            [key.index_select(0, packing.group_of_B), _pad(response[1], packing.response_BR)], 1
        )
        value = torch.cat(
            [value.index_select(0, packing.group_of_B), _pad(response[2], packing.response_BR)], 1
        )
        query = _pad(response[0], packing.response_BR)
        mixed = _mix(query, key, value, packing.response_mask, num_kv_heads, scale)
        outputs.append(mixed.flatten(0, 1).index_select(0, packing.from_response))
    return torch.cat(outputs)


def _mix(
    query: Tensor, key: Tensor, value: Tensor, mask: Tensor, num_kv_heads: int, scale: float
) -> Tensor:
    """[rows, Q, A*D] over [rows, K, N*D] -> [rows, Q, A*E]; mask broadcasts to [rows, A, Q, K].

    The query heads that share a key head are further query rows of it.
    """
    rows, num_queries, _ = query.shape
    num_keys, head_dim = key.shape[1], key.shape[2] // num_kv_heads
    repeats = query.shape[2] // key.shape[2]
    query = query.view(rows, num_queries, num_kv_heads, repeats, head_dim).permute(0, 2, 3, 1, 4)
    query = query.reshape(rows, num_kv_heads, -1, head_dim)
    key = key.view(rows, num_keys, num_kv_heads, head_dim).transpose(1, 2)
    value = value.view(rows, num_keys, num_kv_heads, -1).transpose(1, 2)
    mask = mask.expand(rows, 1, num_queries, num_keys).repeat(1, 1, repeats, 1)
    mixed = F.scaled_dot_product_attention(query, key, value, attn_mask=mask, scale=scale)
    mixed = mixed.view(rows, num_kv_heads, repeats, num_queries, -1).permute(0, 3, 1, 2, 4)
    return mixed.reshape(rows, num_queries, -1)


def _pad(x_tokens: Tensor, index: Tensor) -> Tensor:
    """[tokens, X] -> [rows, width, X] by a padded index."""
    return x_tokens.index_select(0, index.view(-1)).view(*index.shape, x_tokens.shape[1])
