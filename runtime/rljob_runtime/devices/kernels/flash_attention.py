"""FlashAttention of sequences that lie packed, without their scores in memory. Called by the decoder."""

# T packed tokens, Q of them queries and K keys of all sequences, end to end
# S queries and L keys of the longest of B sequences that are computed together
# A query heads, N key/value heads: A is a multiple of N, and A / N heads share a key
# D width of query and key, W width of value, which multi-head latent attention has smaller

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import accumulate
from typing import Self

import torch
import torch.nn.functional as F
from torch import Tensor

from rljob_runtime.devices.kernels.tensor_device import on_npu

RIGHT_DOWN_CAUSAL = 3  # npu_fusion_attention's sparse_mode: counted from the last query and key
MASK_SIDE = 2048  # of the one mask that it takes for this, whatever the lengths
MOST_SEQUENCES = 1024  # of one call of it
CALL_SCORES = 4000
"""Scores that the portable form computes in the time of a call: it pads rather than to call again."""


@dataclass(frozen=True, kw_only=True)
class Sequences:
    """Which packed tokens see each other: of a sequence, the last query sees all keys, the one before it
    all but the last, and so on.

    lengths: queries and keys of each sequence; queries lie end to end. places_K: where the keys of all
    sequences lie among the packed tokens, so that sequences may share keys; int64.
    """

    lengths: Sequence[tuple[int, int]]
    places_K: Tensor

    @classmethod
    def apart(cls, lengths: Sequence[tuple[int, int]]) -> Self:
        """Sequences whose keys lie end to end too."""
        return cls(lengths=lengths, places_K=torch.arange(sum(keys for _, keys in lengths)))

    @cached_property
    def rectangles(self) -> tuple["Rectangle", ...]:
        """All sequences with queries, those of like lengths together; made once for all layers."""
        starts = [
            list(accumulate((pair[i] for pair in self.lengths), initial=0))[:-1] for i in (0, 1)
        ]
        return tuple(
            Rectangle.of(
                [self.lengths[i] for i in members],
                [starts[0][i] for i in members],
                [starts[1][i] for i in members],
                self.places_K,
            )
            for members in _alike(self.lengths)
        )

    @cached_property
    def row_of_Q(self) -> Tensor:
        """Where each query lies in the rectangles, one behind the other."""
        num_queries = sum(queries for queries, _ in self.lengths)
        row_of_Q = torch.empty(num_queries, dtype=torch.int64)
        first = 0
        for rectangle in self.rectangles:
            rows, longest = rectangle.query_places_BS.shape
            places = torch.arange(first, first + rows * longest).view(rows, longest)
            # Padding repeats a sequence's last query, and comes behind it: written first.
            row_of_Q[rectangle.query_places_BS.flip(1).cpu()] = places.flip(1)
            first += rows * longest
        return row_of_Q.to(self.places_K.device)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rectangle:
    """Sequences that are computed in one call, padded with tokens of their own.

    mask_BSL: added to scores; None where query s sees the keys up to s. in_order: queries and keys are the
    first packed tokens, in order.
    """

    query_places_BS: Tensor
    key_places_BL: Tensor
    mask_BSL: Tensor | None
    in_order: bool

    @classmethod
    def of(
        cls,
        lengths: Sequence[tuple[int, int]],
        first_query_B: Sequence[int],
        first_key_B: Sequence[int],
        places_K: Tensor,
    ) -> Self:
        """Sequences by their lengths and where their queries and keys begin."""
        device = places_K.device
        queries_B, keys_B = torch.tensor(lengths).unbind(1)
        query_S, key_L = torch.arange(int(queries_B.max())), torch.arange(int(keys_B.max()))
        key_places_BL = _clamped(first_key_B, key_L, keys_B)
        last_seen_BS = query_S + (keys_B - queries_B)[:, None]
        seen_BSL = key_L <= torch.minimum(last_seen_BS, keys_B[:, None] - 1)[..., None]
        square = len(set(lengths)) == 1 and lengths[0][0] == lengths[0][1]
        mask_BSL = torch.zeros(seen_BSL.shape).masked_fill_(~seen_BSL, float("-inf"))
        places = _clamped(first_query_B, query_S, queries_B), places_K[key_places_BL.to(device)]
        count = torch.arange(places[0].numel(), device=device)
        return cls(
            query_places_BS=places[0].to(device),
            key_places_BL=places[1],
            mask_BSL=None if square else mask_BSL.to(device),
            in_order=all(count.equal(each.to(device).flatten()) for each in places),
        )


def flash_attention(
    query_TAD: Tensor,
    key_TND: Tensor,
    value_TNW: Tensor,
    sequences: Sequences,
    *,
    scale: float | None = None,
) -> Tensor:
    """softmax(scale · query keyᵀ) value of each sequence, [Q, A, W] (FlashAttention, arXiv:2205.14135).

    scale: default 1/√D. Queries are the first Q tokens. On CPU 1.0 to 1.4 times as fast as one rectangle
    of all sequences, forward and backward.
    """
    if on_npu(query_TAD):
        return flash_attention_ascend(query_TAD, key_TND, value_TNW, sequences, scale=scale)
    dtype = query_TAD.dtype
    if not sequences.rectangles:
        return query_TAD.new_empty(0, query_TAD.shape[1], value_TNW.shape[2])
    # On a processor without instructions for bfloat16 that takes 3.6 times as long as float32.
    inner = torch.float32 if query_TAD.is_cpu and dtype == torch.bfloat16 else dtype
    mixed = [
        _rectangle(query_TAD, key_TND, value_TNW, rectangle, scale, inner)
        for rectangle in sequences.rectangles
    ]
    if len(mixed) == 1 and sequences.rectangles[0].in_order:
        return mixed[0].to(dtype)
    return torch.cat(mixed).index_select(0, sequences.row_of_Q).to(dtype)


def flash_attention_reference(
    query_TAD: Tensor,
    key_TND: Tensor,
    value_TNW: Tensor,
    sequences: Sequences,
    *,
    scale: float | None = None,
) -> Tensor:
    """`flash_attention` in plain torch, with matrices of scores."""
    repeats = query_TAD.shape[1] // key_TND.shape[1]
    mixed = [query_TAD.new_empty(0, query_TAD.shape[1], value_TNW.shape[2])]
    for query_SAD, places_L in _each(query_TAD, sequences):
        key_LAD, value_LAW = (
            x.index_select(0, places_L).repeat_interleave(repeats, 1).float()
            for x in (key_TND, value_TNW)
        )
        scores_ASL = torch.einsum("sad,lad->asl", query_SAD.float(), key_LAD)
        scores_ASL = scores_ASL * (query_SAD.shape[-1] ** -0.5 if scale is None else scale)
        seen_SL = torch.ones_like(scores_ASL[0], dtype=torch.bool).tril(
            len(places_L) - len(query_SAD)
        )
        weights_ASL = scores_ASL.masked_fill(~seen_SL, float("-inf")).softmax(-1)
        mixed.append(torch.einsum("asl,law->saw", weights_ASL, value_LAW).to(query_TAD.dtype))
    return torch.cat(mixed)


def flash_attention_ascend(
    query_TAD: Tensor,
    key_TND: Tensor,
    value_TNW: Tensor,
    sequences: Sequences,
    *,
    scale: float | None = None,
) -> Tensor:
    """`flash_attention` on an NPU, one call for up to 1024 sequences.

    Widths are made equal with zeros, which change no score: the operator's documentation asks for
    keys and values of one shape in one place, and allows narrower values in another.
    """
    width, value_width = query_TAD.shape[2], value_TNW.shape[2]
    widest = max(width, value_width)
    query, key, value = (
        F.pad(x, (0, widest - x.shape[2])) for x in (query_TAD, key_TND, value_TNW)
    )
    mixed = [query_TAD.new_empty(0, query_TAD.shape[1], value_width)]
    first_query = first_key = 0
    for begin in range(0, len(sequences.lengths), MOST_SEQUENCES):
        queries, keys = zip(*sequences.lengths[begin : begin + MOST_SEQUENCES], strict=True)
        query_ends, key_ends = list(accumulate(queries)), list(accumulate(keys))
        places = sequences.places_K[first_key : first_key + key_ends[-1]]
        if query_ends[-1]:
            mixed.append(
                torch.ops.npu.npu_fusion_attention(
                    query[first_query : first_query + query_ends[-1]],
                    key.index_select(0, places),
                    value.index_select(0, places),
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
    return torch.cat(mixed)


@cache
def npu_causal_mask(device: torch.device) -> Tensor:
    """True where nothing is seen. Made outside inference mode, since training uses it too."""
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
    """[B * S, A, W]."""
    mask_BSL, key_places_BL = rectangle.mask_BSL, rectangle.key_places_BL
    in_order = rectangle.in_order
    width, value_width = query_TAD.shape[2], value_TNW.shape[2]
    value_BNLW = _take(value_TNW, key_places_BL, in_order, dtype)
    mixed_BASW = F.scaled_dot_product_attention(
        _take(query_TAD, rectangle.query_places_BS, in_order, dtype),
        _take(key_TND, key_places_BL, in_order, dtype),
        # Of another width it would keep all scores.
        F.pad(value_BNLW, (0, width - value_width)) if value_width < width else value_BNLW,
        attn_mask=None if mask_BSL is None else mask_BSL[:, None].to(dtype),
        is_causal=mask_BSL is None,
        scale=scale,
        enable_gqa=query_TAD.shape[1] > key_TND.shape[1],
    )
    return mixed_BASW[..., :value_width].transpose(1, 2).flatten(0, 1)


def _take(x_TNX: Tensor, places_BL: Tensor, in_order: bool, dtype: torch.dtype) -> Tensor:
    """[T, N, X] → [B, N, L, X]; a view where the places are all of them, in order."""
    taken = x_TNX.flatten(1)
    if not (in_order and len(taken) == places_BL.numel()):
        taken = taken.index_select(0, places_BL.view(-1))
    return taken.view(*places_BL.shape, *x_TNX.shape[1:]).transpose(1, 2).to(dtype)


def _alike(lengths: Sequence[tuple[int, int]]) -> list[list[int]]:
    """Sequences with queries, in parts whose padding costs less than another call, a member at a time."""
    parts: list[list[int]] = []
    most_queries = most_keys = 0
    for i in sorted(
        (i for i, (queries, _) in enumerate(lengths) if queries), key=lengths.__getitem__
    ):
        queries, keys = lengths[i]
        wider = max(most_queries, queries), max(most_keys, keys)
        members = len(parts[-1]) if parts else 0
        padding = wider[0] * wider[1] * (members + 1) - most_queries * most_keys * members
        if parts and padding - queries * keys <= CALL_SCORES:
            parts[-1].append(i)
            most_queries, most_keys = wider
        else:
            parts.append([i])
            most_queries, most_keys = queries, keys
    return parts


def _clamped(first_B: Sequence[int], place_L: Tensor, lengths_B: Tensor) -> Tensor:
    """[B, L]: consecutive places from each first one on; padding repeats the last."""
    return torch.tensor(first_B)[:, None] + torch.minimum(place_L, lengths_B[:, None] - 1)


def _each(query_TAD: Tensor, sequences: Sequences) -> Iterator[tuple[Tensor, Tensor]]:
    """Queries, and places of the keys, of each sequence that has queries."""
    num_queries, num_keys = ([pair[i] for pair in sequences.lengths] for i in (0, 1))
    queries = torch.split(query_TAD[: sum(num_queries)], num_queries)
    places = torch.split(sequences.places_K, num_keys)
    yield from (pair for pair in zip(queries, places, strict=True) if len(pair[0]))
