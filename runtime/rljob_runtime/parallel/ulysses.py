"""DeepSpeed-Ulysses (arXiv:2309.14509): ranks share tokens outside attention and heads inside it.

Called by the attention layers of a parallel model. The caller computes the attention itself, over all tokens
and this rank's heads, so that any mask works.
"""

# U tokens of this rank, S of all ranks, A query heads, N key/value heads, D head width, E of values
# a, n heads of one rank, X all features that it has of a token

from collections.abc import Callable

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_runtime.parallel.sequence import exchange_rows

Attend = Callable[[Tensor, Tensor, Tensor], Tensor]
"""Attention of one rank: queries [S, a, D], keys [S, n, D] and values [S, n, E] → [S, a, E]."""


def ulysses_attention(
    query_UAD: Tensor,
    key_UND: Tensor,
    value_UNE: Tensor,
    attend: Attend,
    tokens: list[int],
    group: ProcessGroup | None,
) -> Tensor:
    """Return attention over all ranks' tokens, [U, A, D] → [U, A, E].

    tokens: the number of each rank's tokens; the packed tokens are those of rank 0, then of rank 1, and so
    on. The ranks divide A. Key heads are repeated where they are fewer than the ranks. It costs two
    all-to-alls, and two more for the gradients.
    """
    if group is None:
        return attend(query_UAD, key_UND, value_UNE)
    ranks, heads = group.size(), query_UAD.shape[1]
    assert heads % ranks == 0, f"{heads} heads do not split over {ranks} ranks; use ring attention"
    inputs = [query_UAD, *(_repeated(heads_UX, ranks) for heads_UX in (key_UND, value_UNE))]
    widths = [x.shape[1] // ranks * x.shape[2] for x in inputs]
    by_rank = [x.reshape(len(x), ranks, width) for x, width in zip(inputs, widths, strict=True)]
    gathered_SX = _to_heads(torch.cat(by_rank, dim=2), tokens, group)
    local_heads = torch.split(gathered_SX, widths, dim=1)
    heads_SaX = [
        torch.unflatten(columns, 1, (-1, x.shape[2]))
        for columns, x in zip(local_heads, inputs, strict=True)
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
    """Return the bytes that a rank sends: the other ranks' heads of its tokens, then the output of its heads
    for the others' tokens. The gradients cost as much again, in the opposite direction."""
    ranks = len(tokens)
    local, others = tokens[rank], sum(tokens) - tokens[rank]
    inputs = heads // ranks + 2 * max(1, kv_heads // ranks)  # heads that go to one rank
    forward = inputs * local * (ranks - 1) + heads // ranks * others
    backward = inputs * others + heads // ranks * local * (ranks - 1)
    return (forward + with_gradients * backward) * head_dim * item_bytes


def _repeated(x_UND: Tensor, ranks: int) -> Tensor:
    """Repeat key heads so that each rank has at least one: the one that its query heads share."""
    heads = x_UND.shape[1]
    if heads % ranks == 0:
        return x_UND
    assert ranks % heads == 0, (
        f"{heads} key heads can be neither split nor repeated over {ranks} ranks"
    )
    return x_UND.repeat_interleave(ranks // heads, dim=1)


def _to_heads(x: Tensor, tokens: list[int], group: ProcessGroup) -> Tensor:
    """Exchange local tokens with heads by rank [U, ranks, X] for all tokens of the local heads [S, X]."""
    rows = x.transpose(0, 1).flatten(0, 1)
    return exchange_rows(rows, [len(x)] * len(tokens), tokens, group)


def _to_tokens(x: Tensor, tokens: list[int], group: ProcessGroup) -> Tensor:
    """Exchange all tokens of the local heads [S, a, E] for local tokens with all heads [U, A, E]."""
    ranks, local = len(tokens), tokens[group.rank()]
    rows = exchange_rows(x, tokens, [local] * ranks, group)
    return rows.view(ranks, local, *x.shape[1:]).transpose(0, 1).flatten(1, 2)
