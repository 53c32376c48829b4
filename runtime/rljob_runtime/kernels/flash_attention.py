"""Attention of rectangles, without its matrix of scores in memory. Called by the decoders.

`packed_attention` is the same for sequences laid end to end.
"""

# B rectangles of S queries and L keys
# A query heads, N key/value heads: A is a multiple of N, and A / N heads share a key
# D width of query and key, W width of value, which multi-head latent attention has smaller

from functools import cache

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.kernels.device import on_npu

RIGHT_DOWN_CAUSAL = 3  # npu_fusion_attention's sparse_mode: counted from the last query and key
MASK_SIDE = 2048  # of the one mask that it takes for this, whatever the lengths


def flash_attention(
    query_BSAD: Tensor,
    key_BLND: Tensor,
    value_BLNW: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale · query keyᵀ) value, [B, S, A, W] (FlashAttention, arXiv:2205.14135).

    causal: the last query sees all keys, the one before it all but the last, and so on; there are
    then at least as many keys as queries. scale: default 1/√D. On CPU 1.6 times as fast as the
    reference with 256 keys and three query heads to a key.
    """
    if on_npu(query_BSAD):
        return flash_attention_ascend(query_BSAD, key_BLND, value_BLNW, causal=causal, scale=scale)
    num_queries, num_keys = query_BSAD.shape[1], key_BLND.shape[1]
    masked = causal and num_queries != num_keys
    dtype = query_BSAD.dtype
    # On a processor without instructions for bfloat16 that takes 3.6 times as long as float32.
    widened = query_BSAD.is_cpu and dtype == torch.bfloat16
    inner = torch.float32 if widened else dtype
    mixed_BASW = F.scaled_dot_product_attention(
        query_BSAD.transpose(1, 2).to(inner),
        key_BLND.transpose(1, 2).to(inner),
        value_BLNW.transpose(1, 2).to(inner),
        attn_mask=_seen(num_queries, num_keys, query_BSAD.device) if masked else None,
        is_causal=causal and not masked,
        scale=scale,
        enable_gqa=query_BSAD.shape[2] > key_BLND.shape[2],
    )
    return mixed_BASW.transpose(1, 2).to(dtype)


def flash_attention_reference(
    query_BSAD: Tensor,
    key_BLND: Tensor,
    value_BLNW: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
) -> Tensor:
    """`flash_attention` in plain torch, with its matrix of scores."""
    repeats = query_BSAD.shape[2] // key_BLND.shape[2]
    key_BLAD, value_BLAW = (x.repeat_interleave(repeats, 2).float() for x in (key_BLND, value_BLNW))
    scores_BASL = torch.einsum("bsad,blad->basl", query_BSAD.float(), key_BLAD)
    scores_BASL = scores_BASL * (query_BSAD.shape[-1] ** -0.5 if scale is None else scale)
    if causal:
        seen_SL = _seen(query_BSAD.shape[1], key_BLND.shape[1], query_BSAD.device)
        scores_BASL = scores_BASL.masked_fill(~seen_SL, float("-inf"))
    mixed_BSAW = torch.einsum("basl,blaw->bsaw", scores_BASL.softmax(-1), value_BLAW)
    return mixed_BSAW.to(query_BSAD.dtype)


def flash_attention_ascend(
    query_BSAD: Tensor,
    key_BLND: Tensor,
    value_BLNW: Tensor,
    *,
    causal: bool = True,
    scale: float | None = None,
) -> Tensor:
    """`flash_attention` on an NPU."""
    return npu_attention(
        query_BSAD, key_BLND, value_BLNW, layout="BSND", causal=causal, scale=scale
    )


def npu_attention(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    *,
    layout: str,
    causal: bool,
    scale: float | None,
    **lengths: list[int],
) -> Tensor:
    """The fused operator, shared with `packed_attention`. lengths: what layout TND needs.

    Widths are made equal with zeros, which change no score: the operator's documentation asks for
    keys and values of one shape in one place, and allows narrower values in another.
    """
    width, value_width = query.shape[-1], value.shape[-1]
    if not query.numel():
        return query.new_empty(*query.shape[:-1], value_width)
    widest = max(width, value_width)
    query, key, value = (F.pad(x, (0, widest - x.shape[-1])) for x in (query, key, value))
    mixed: Tensor = torch.ops.npu.npu_fusion_attention(
        query,
        key,
        value,
        head_num=query.shape[-2],
        input_layout=layout,
        scale=width**-0.5 if scale is None else scale,
        atten_mask=_npu_causal_mask(query.device) if causal else None,
        sparse_mode=RIGHT_DOWN_CAUSAL if causal else 0,
        **lengths,
    )[0]
    return mixed[..., :value_width]


def _seen(num_queries: int, num_keys: int, device: torch.device) -> Tensor:
    """Which keys each query sees, bool [S, L]."""
    everything = torch.ones(num_queries, num_keys, dtype=torch.bool, device=device)
    return everything.tril(num_keys - num_queries)


@cache
def _npu_causal_mask(device: torch.device) -> Tensor:
    """True where nothing is seen. Made outside inference mode, since training uses it too."""
    with torch.inference_mode(False):
        return torch.ones(MASK_SIDE, MASK_SIDE, dtype=torch.bool, device=device).triu(1)
