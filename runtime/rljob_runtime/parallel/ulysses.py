"""DeepSpeed-Ulysses (arXiv:2309.14509): ranks share tokens outside attention and heads inside.

Called by the attention layers of a parallel model. The attention itself is the caller's, over all tokens
and this rank's heads, so that any mask works.
"""

# U tokens of this rank, S of all ranks, A query heads, N key/value heads, D head width, E of values
# a, n heads of one rank, X all of what it has of a token

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.parallel.sequence import exchange_rows

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Queries [S, a, D], keys [S, n, D] and values [S, n, E] → [S, a, E]."""


def ulysses_attention(
    query_UAD: Tensor,
    key_UND: Tensor,
    value_UNE: Tensor,
    attend: Attend,
    tokens: list[int],
    group: ProcessGroup | None,
) -> Tensor:
    """Attention over all ranks' tokens, [U, A, D] → [U, A, E].

    tokens: of each rank; all tokens are the ranks' one after the other. The ranks divide A. Key heads
    that are fewer than the ranks are repeated. Two exchanges, and two for the gradients.
    """
    if group is None:
        return attend(query_UAD, key_UND, value_UNE)
    ranks, heads = group.size(), query_UAD.shape[1]
    assert heads % ranks == 0, f"{heads} heads do not split over {ranks} ranks; use ring attention"
    parts = [query_UAD, *(_repeated(x, ranks) for x in (key_UND, value_UNE))]
    widths = [part.shape[1] // ranks * part.shape[2] for part in parts]
    by_rank = [
        part.reshape(len(part), ranks, width) for part, width in zip(parts, widths, strict=True)
    ]
    whole_SX = _to_heads(torch.cat(by_rank, dim=2), tokens, group)
    own = torch.split(whole_SX, widths, dim=1)
    heads_SaX = [
        torch.unflatten(x, 1, (-1, part.shape[2])) for x, part in zip(own, parts, strict=True)
    ]
    return _to_tokens(attend(*heads_SaX), tokens, group)


def ulysses_bytes(
    tokens: list[int],
    rank: int,
    *,
    heads: int,
    kv_heads: int,
    head_dim: int,
    item_bytes: int,
    with_gradients: bool = True,
) -> int:
    """Bytes that a rank sends: of its tokens the other ranks' heads, of the others' tokens its own heads'
    output; as much again for the gradients, with directions swapped."""
    ranks = len(tokens)
    own, others = tokens[rank], sum(tokens) - tokens[rank]
    inputs = heads // ranks + 2 * max(1, kv_heads // ranks)  # heads that go to one rank
    there = inputs * own * (ranks - 1) + heads // ranks * others
    back = inputs * others + heads // ranks * own * (ranks - 1)
    return (there + with_gradients * back) * head_dim * item_bytes


def _repeated(x_UND: Tensor, ranks: int) -> Tensor:
    """At least one key head a rank: the one that its query heads share."""
    heads = x_UND.shape[1]
    if heads % ranks == 0:
        return x_UND
    assert ranks % heads == 0, (
        f"{heads} key heads can be neither split nor repeated over {ranks} ranks"
    )
    return x_UND.repeat_interleave(ranks // heads, dim=1)


def _to_heads(x: Tensor, tokens: list[int], group: ProcessGroup) -> Tensor:
    """Own tokens, heads by rank [U, ranks, X] → all tokens, own heads [S, X]."""
    rows = x.transpose(0, 1).flatten(0, 1)
    return exchange_rows(rows, [len(x)] * len(tokens), tokens, group)


def _to_tokens(x: Tensor, tokens: list[int], group: ProcessGroup) -> Tensor:
    """All tokens, own heads [S, a, E] → own tokens, all heads [U, A, E]."""
    ranks, own = len(tokens), tokens[group.rank()]
    rows = exchange_rows(x, tokens, [own] * ranks, group)
    return rows.view(ranks, own, *x.shape[1:]).transpose(0, 1).flatten(1, 2)
