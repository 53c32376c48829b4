"""FlashAttention of packed sequences, without their scores in memory. Called by the decoder."""

# T packed tokens, Q of them queries and K keys of all sequences, concatenated
# S queries and L keys of the longest of B sequences that are computed together
# A query heads, N key/value heads: A is a multiple of N, and A / N heads share a key
# D width of query and key, W width of value, which is smaller in multi-head latent attention

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.devices.kernels.tensor_device import on_npu

RIGHT_DOWN_CAUSAL = 3  # npu_fusion_attention's sparse_mode: causal from the last query and key
MASK_SIDE = 2048  # of the mask for this mode, independent of the lengths
MOST_SEQUENCES = 1024  # in one call of the operator
CALL_SCORES = 4000
"""Number of scores computed in the time of a call: up to this number, padding is cheaper than another
call."""


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Describes which packed tokens attend to each other. In a sequence, the last query attends to all keys,
    the query before it to all but the last key, and so on.

    lengths: queries and keys of each sequence; queries are concatenated. key_index_K: int64 indices of all
    sequences' keys in the packed tokens, so that sequences may share keys.
    """

    lengths: Sequence[tuple[int, int]]
    key_index_K: Tensor

    @classmethod
    def apart(cls, lengths: Sequence[tuple[int, int]]) -> Self:
        """Return sequences whose keys are concatenated, too."""
        return cls(lengths=lengths, key_index_K=torch.arange(sum(keys for _, keys in lengths)))

    @cached_property
    def rectangles(self) -> tuple["Rectangle", ...]:
        """Return all sequences with queries, similar lengths together; computed once for all layers."""
        starts = [
            list(accumulate((pair[i] for pair in self.lengths), initial=0))[:-1] for i in (0, 1)
        ]
        return tuple(
            Rectangle.of(
                [self.lengths[i] for i in members],
                [starts[0][i] for i in members],
                [starts[1][i] for i in members],
                self.key_index_K,
            )
            for members in _cluster_by_length(self.lengths)
        )

    @cached_property
    def row_of_Q(self) -> Tensor:
        """Return the row of each query in the concatenated rectangles."""
        num_queries = sum(queries for queries, _ in self.lengths)
        row_of_Q = torch.empty(num_queries, dtype=torch.int64)
        first_row = 0
        for rectangle in self.rectangles:
            rows, longest = rectangle.query_index_BS.shape
            rectangle_rows = torch.arange(first_row, first_row + rows * longest).view(rows, longest)
            # Padding repeats a sequence's last query and follows it: it is written first.
            row_of_Q[rectangle.query_index_BS.flip(1).cpu()] = rectangle_rows.flip(1)
            first_row += rows * longest
        return row_of_Q.to(self.key_index_K.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """Sequences that are computed in one call, padded with their own tokens.

    mask_BSL: added to scores; None where query s attends to the keys up to s. in_order: queries and keys are
    the first packed tokens, in order.
    """

    query_index_BS: Tensor
    key_index_BL: Tensor
    mask_BSL: Tensor | None
    in_order: bool

    @classmethod
    def of(
        cls,
        lengths: Sequence[tuple[int, int]],
        first_query_B: Sequence[int],
        first_key_B: Sequence[int],
        key_index_K: Tensor,
    ) -> Self:
        """Create a rectangle from sequences' lengths and the first indices of their queries and keys."""
        device = key_index_K.device
        queries_B, keys_B = torch.tensor(lengths).unbind(1)
        query_S, key_L = torch.arange(int(queries_B.max())), torch.arange(int(keys_B.max()))
        key_index_BL = _padded_index(first_key_B, key_L, keys_B)
        last_visible_BS = query_S + (keys_B - queries_B)[:, None]
        visible_BSL = key_L <= torch.minimum(last_visible_BS, keys_B[:, None] - 1)[..., None]
        is_causal_square = len(set(lengths)) == 1 and lengths[0][0] == lengths[0][1]
        mask_BSL = torch.zeros(visible_BSL.shape).masked_fill_(~visible_BSL, float("-inf"))
        indices = (
            _padded_index(first_query_B, query_S, queries_B),
            key_index_K[key_index_BL.to(device)],
        )
        count = torch.arange(indices[0].numel(), device=device)
        return cls(
            query_index_BS=indices[0].to(device),
            key_index_BL=indices[1],
            mask_BSL=None if is_causal_square else mask_BSL.to(device),
            in_order=all(count.equal(index.to(device).flatten()) for index in indices),
        )


def flash_attention(
    query_TAD: Tensor,
    key_TND: Tensor,
    value_TNW: Tensor,
    sequences: Sequences,
    *,
    scale: float | None = None,
) -> Tensor:
    """Return softmax(scale · query keyᵀ) value of each sequence, [Q, A, W] (FlashAttention,
    arXiv:2205.14135).

    scale: default 1/√D. Queries are the first Q tokens. On CPU 1.0 to 1.4 times as fast as one rectangle
    of all sequences, forward and backward.
    """
    if on_npu(query_TAD):
        return flash_attention_ascend(query_TAD, key_TND, value_TNW, sequences, scale=scale)
    dtype = query_TAD.dtype
    if not sequences.rectangles:
        return query_TAD.new_empty(0, query_TAD.shape[1], value_TNW.shape[2])
    # On a CPU without bfloat16 instructions, bfloat16 takes 3.6 times as long as float32.
    inner = torch.float32 if query_TAD.is_cpu and dtype == torch.bfloat16 else dtype
    outputs = [
        _rectangle(query_TAD, key_TND, value_TNW, rectangle, scale, inner)
        for rectangle in sequences.rectangles
    ]
    if len(outputs) == 1 and sequences.rectangles[0].in_order:
        return outputs[0].to(dtype)
    return torch.cat(outputs).index_select(0, sequences.row_of_Q).to(dtype)


def flash_attention_reference(
    query_TAD: Tensor,
    key_TND: Tensor,
    value_TNW: Tensor,
    sequences: Sequences,
    *,
    scale: float | None = None,
) -> Tensor:
    """Compute `flash_attention` in plain torch, with matrices of scores."""
    repeats = query_TAD.shape[1] // key_TND.shape[1]
    outputs = [query_TAD.new_empty(0, query_TAD.shape[1], value_TNW.shape[2])]
    for query_SAD, key_index_L in _per_sequence(query_TAD, sequences):
        key_LAD, value_LAW = (
            x.index_select(0, key_index_L).repeat_interleave(repeats, 1).float()
            for x in (key_TND, value_TNW)
        )
        scores_ASL = torch.einsum("sad,lad->asl", query_SAD.float(), key_LAD)
        scores_ASL = scores_ASL * (query_SAD.shape[-1] ** -0.5 if scale is None else scale)
        visible_SL = torch.ones_like(scores_ASL[0], dtype=torch.bool).tril(
            len(key_index_L) - len(query_SAD)
        )
        weights_ASL = scores_ASL.masked_fill(~visible_SL, float("-inf")).softmax(-1)
        outputs.append(torch.einsum("asl,law->saw", weights_ASL, value_LAW).to(query_TAD.dtype))
    return torch.cat(outputs)


def flash_attention_ascend(
    query_TAD: Tensor,
    key_TND: Tensor,
    value_TNW: Tensor,
    sequences: Sequences,
    *,
    scale: float | None = None,
) -> Tensor:
    """Compute `flash_attention` on an NPU, in one call for up to 1024 sequences.

    Widths are padded with zeros, which change no score: the operator's documentation requires keys and values
    of one shape in one section, and allows narrower values in another.
    """
    width, value_width = query_TAD.shape[2], value_TNW.shape[2]
    widest = max(width, value_width)
    query, key, value = (
        F.pad(x, (0, widest - x.shape[2])) for x in (query_TAD, key_TND, value_TNW)
    )
    outputs = [query_TAD.new_empty(0, query_TAD.shape[1], value_width)]
    first_query = first_key = 0
    for begin in range(0, len(sequences.lengths), MOST_SEQUENCES):
        queries, keys = zip(*sequences.lengths[begin : begin + MOST_SEQUENCES], strict=True)
        query_ends, key_ends = list(accumulate(queries)), list(accumulate(keys))
        key_index = sequences.key_index_K[first_key : first_key + key_ends[-1]]
        if query_ends[-1]:
            outputs.append(
                torch.ops.npu.npu_fusion_attention(
                    query[first_query : first_query + query_ends[-1]],
                    key.index_select(0, key_index),
                    value.index_select(0, key_index),
                    head_num=query.shape[1],
                    input_layout="TND",
                    scale=width**-0.5 if scale is None else scale,
                    atten_mask=npu_causal_mask(query.device),
                    sparse_mode=RIGHT_DOWN_CAUSAL,
                    actual_seq_qlen=query_ends,
                    actual_seq_kvlen=key_ends,
                )[0][..., :value_width]
            )
        first_query, first_key = first_query + query_ends[-1], first_key + key_ends[-1]
    return torch.cat(outputs)


@cache
def npu_causal_mask(device: torch.device) -> Tensor:
    """Return the mask, True where a key is hidden. Created outside inference mode, since training uses it
    too."""
    with torch.inference_mode(False):
        return torch.ones(MASK_SIDE, MASK_SIDE, dtype=torch.bool, device=device).triu(1)


def _rectangle(
    query_TAD: Tensor,
    key_TND: Tensor,
    value_TNW: Tensor,
    rectangle: Rectangle,
    scale: float | None,
    dtype: torch.dtype,
) -> Tensor:
    """Compute the attention of a rectangle, [B * S, A, W]."""
    mask_BSL, key_index_BL = rectangle.mask_BSL, rectangle.key_index_BL
    in_order = rectangle.in_order
    width, value_width = query_TAD.shape[2], value_TNW.shape[2]
    value_BNLW = _select(value_TNW, key_index_BL, in_order, dtype)
    mixed_BASW = F.scaled_dot_product_attention(
        _select(query_TAD, rectangle.query_index_BS, in_order, dtype),
        _select(key_TND, key_index_BL, in_order, dtype),
        # With another width it would materialize all scores.
        F.pad(value_BNLW, (0, width - value_width)) if value_width < width else value_BNLW,
        attn_mask=None if mask_BSL is None else mask_BSL[:, None].to(dtype),
        is_causal=mask_BSL is None,
        scale=scale,
        enable_gqa=query_TAD.shape[1] > key_TND.shape[1],
    )
    return mixed_BASW[..., :value_width].transpose(1, 2).flatten(0, 1)


def _select(x_TNX: Tensor, index_BL: Tensor, in_order: bool, dtype: torch.dtype) -> Tensor:
    """Select tokens, [T, N, X] → [B, N, L, X]; a view where the index has all tokens in order."""
    selected = x_TNX.flatten(1)
    if not (in_order and len(selected) == index_BL.numel()):
        selected = selected.index_select(0, index_BL.view(-1))
    return selected.view(*index_BL.shape, *x_TNX.shape[1:]).transpose(1, 2).to(dtype)


def _cluster_by_length(lengths: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Group sequences with queries so that a group's padding costs less than another call, greedily by
    length."""
    clusters: list[list[int]] = []
    max_queries = max_keys = 0
    for i in sorted(
        (i for i, (queries, _) in enumerate(lengths) if queries), key=lengths.__getitem__
    ):
        queries, keys = lengths[i]
        padded = max(max_queries, queries), max(max_keys, keys)
        members = len(clusters[-1]) if clusters else 0
        padding = padded[0] * padded[1] * (members + 1) - max_queries * max_keys * members
        if clusters and padding - queries * keys <= CALL_SCORES:
            clusters[-1].append(i)
            max_queries, max_keys = padded
        else:
            clusters.append([i])
            max_queries, max_keys = queries, keys
    return clusters


def _padded_index(first_B: Sequence[int], place_L: Tensor, lengths_B: Tensor) -> Tensor:
    """Return [B, L] consecutive indices from each first one; padding repeats the last."""
    return torch.tensor(first_B)[:, None] + torch.minimum(place_L, lengths_B[:, None] - 1)


def _per_sequence(query_TAD: Tensor, sequences: Sequences) -> Iterator[tuple[Tensor, Tensor]]:
    """Yield the queries and key indices of each sequence that has queries."""
    num_queries, num_keys = ([pair[i] for pair in sequences.lengths] for i in (0, 1))
    queries = torch.split(query_TAD[: sum(num_queries)], num_queries)
    key_indices = torch.split(sequences.key_index_K, num_keys)
    yield from (pair for pair in zip(queries, key_indices, strict=True) if len(pair[0]))
