"""The KV cache of a decoder while it generates, and attention to it.

`fused_heads` and `fused_latent` call this; the `torch` rollout engine lays it out. A sequence's tokens are in
its row; the prompt that sequences of a group share is in all of their rows, or once, as a prefix. With a
prefix, the queries of a group are multiplied with it in one product, and two softmaxes are merged by their
log-sum-exp.
"""

# B sequences, S rows, R tokens of a row, L those in the window, G prefixes, P tokens of a prefix
# M most sequences of a prefix, N cached heads of a token, W width of each, Q queries of a cached head
# E width of a value

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class LayerCache:
    """The cache of one layer. rows: [tensors, S, N, R, W]. prefixes: [tensors, G, N, P, W]."""

    rows: Tensor
    prefixes: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class KVCache:
    """The cache of all layers.

    rows: [layers, tensors, S, N, R, W]. prefixes: [layers, tensors, G, N, P, W]; G is 0 if rows hold full
    sequences.
    """

    rows: Tensor
    prefixes: Tensor

    def layers(self) -> Iterator[LayerCache]:
        """Yield each layer's cache, first to last."""
        for rows, prefixes in zip(self.rows, self.prefixes, strict=True):
            yield LayerCache(rows=rows, prefixes=prefixes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """Maps sequences to the first G prefixes.

    members: for each prefix, cached head and sequence number [G * N * M], the row of its queries among B * N;
    any row if a prefix has fewer sequences. columns: for each of the B * N, its index among G * N * M. mask:
    additive, [G * N, 1, P]. count: G. width: P.
    """

    count: int
    members: Tensor
    columns: Tensor
    mask: Tensor
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Positions of the next tokens of B sequences, and what they may attend to.

    positions_B: positions for the rotation. row_index_B: index in the row. window: L, more than every index.
    prefixes: None if rows hold full sequences.
    """

    positions_B: Tensor
    row_index_B: Tensor
    window: int
    prefixes: Prefixes | None = None


def make_prefixes(
    prefix_of_B: list[int],
    lengths_G: list[int],
    *,
    heads: int,
    dtype: torch.dtype,
    device: torch.device,
) -> Prefixes:
    """Create the prefixes of a batch.

    prefix_of_B: number of each sequence's prefix. lengths_G: tokens of each prefix. heads: N.
    """
    counts_G = [0] * len(lengths_G)
    numbers_B = []
    for prefix in prefix_of_B:
        numbers_B.append(counts_G[prefix])
        counts_G[prefix] += 1
    most, width = max(counts_G), max(lengths_G)
    heads_N = torch.arange(heads)
    rows_BN = torch.arange(len(prefix_of_B) * heads).view(-1, heads)
    columns_BN = (torch.tensor(prefix_of_B)[:, None] * heads + heads_N) * most
    columns_BN += torch.tensor(numbers_B)[:, None]
    members = torch.zeros(len(lengths_G) * heads * most, dtype=torch.int64)
    members[columns_BN] = rows_BN
    hidden_GP = torch.arange(width) >= torch.tensor(lengths_G)[:, None]
    mask_GP = torch.zeros(hidden_GP.shape, dtype=dtype).masked_fill_(hidden_GP, float("-inf"))
    return Prefixes(
        count=len(lengths_G),
        members=members.to(device),
        columns=columns_BN.flatten().to(device),
        mask=mask_GP.repeat_interleave(heads, 0)[:, None].to(device),
        width=width,
    )


def attend(
    queries: Tensor,
    rows: tuple[Tensor, Tensor],
    prefixes: tuple[Tensor, Tensor],
    *,
    mask: Tensor,
    reach: Reach,
    scale: float,
) -> Tensor:
    """Return values mixed by attention, [B * N, Q, E].

    queries: [B * N, Q, W]. rows: keys [S, N, R, W] and values [S, N, R, E], including the new tokens'.
    prefixes: keys [G, N, P, W] and values. mask: additive, [B * N, 1, L].
    """
    window = _window(rows, len(reach.row_index_B), reach.window)
    mixed, log_sums = _mix(queries, *window, mask=mask, scale=scale)
    shared = reach.prefixes
    if shared is None:
        return mixed
    common = _window(prefixes, shared.count, shared.width)
    gathered = queries.view(len(queries), -1).index_select(0, shared.members)
    common_mixed, common_log_sums = _mix(
        gathered.view(len(common[0]), -1, queries.shape[2]), *common, mask=shared.mask, scale=scale
    )
    common_mixed = common_mixed.view(len(gathered), -1).index_select(0, shared.columns)
    common_sums = common_log_sums().view(len(gathered), -1).index_select(0, shared.columns)
    share = torch.sigmoid(common_sums - log_sums())
    return torch.lerp(mixed, common_mixed.view_as(mixed), share[..., None].to(mixed.dtype))


def _window(tensors: tuple[Tensor, Tensor], count: int, width: int) -> tuple[Tensor, Tensor]:
    """Return keys and values, [first rows * N, first tokens, W], without a copy."""
    keys, values = (x[:count, :, :width].flatten(0, 1) for x in tensors)
    return keys, values


def _mix(
    queries: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor, scale: float
) -> tuple[Tensor, Callable[[], Tensor]]:
    """Return the attention of [X, Q, W], and a function that returns its softmax's log-sum-exp, [X, Q]
    float32."""
    scores = torch.baddbmm(mask, queries, keys.transpose(1, 2), alpha=scale)
    shares = scores.softmax(-1, dtype=torch.float32)

    def log_sums() -> Tensor:
        return scores.amax(-1).float() - shares.amax(-1).log()

    return torch.bmm(shares.to(values.dtype), values), log_sums
