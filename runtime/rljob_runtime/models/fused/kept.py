"""What a decoder keeps of tokens while it generates, and attention to it.

Called by `fused_heads` and `fused_latent`; laid out by the `torch` rollout engine. A sequence's tokens lie in
its row; the prompt that sequences of a group have in common lies in all of their rows, or once, as a prefix.
Then the queries of a group meet the prefix in one product, and two softmaxes are merged by their log-sum-exp.
"""

# B sequences, S rows, R tokens of a row, L those in the window, G prefixes, P tokens of a prefix
# M most sequences of a prefix, N kept heads of a token, W width of each, Q queries of a kept head
# E width of a value

from collections.abc import Callable, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class KeptLayer:
    """What one layer keeps. rows: [tensors, S, N, R, W]. prefixes: [tensors, G, N, P, W]."""

    rows: Tensor
    prefixes: Tensor


@dataclass(frozen=True, slots=True, kw_only=True)
class Kept:
    """What all layers keep. rows: [layers, tensors, S, N, R, W]. prefixes: [layers, tensors, G, N, P, W], G
    is 0 where rows hold whole sequences."""

    rows: Tensor
    prefixes: Tensor

    def layers(self) -> Iterator[KeptLayer]:
        """First to last."""
        for rows, prefixes in zip(self.rows, self.prefixes, strict=True):
            yield KeptLayer(rows=rows, prefixes=prefixes)


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefixes:
    """Which sequences have which of the first G prefixes.

    members: of each prefix, kept head and sequence number [G * N * M], the row of its queries among B * N;
    any row where a prefix has fewer sequences. places: of each of the B * N, where that is among G * N * M.
    mask: additive, [G * N, 1, P]. count: G. width: P.
    """

    count: int
    members: Tensor
    places: Tensor
    mask: Tensor
    width: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Reach:
    """Where the next tokens of B sequences stand and what they may see.

    positions_B: by which they turn. places_B: in the row. window: L, more than every place. prefixes: None
    where rows hold whole sequences.
    """

    positions_B: Tensor
    places_B: Tensor
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
    """prefix_of_B: number of each sequence's prefix. lengths_G: tokens of each. heads: N."""
    counts_G = [0] * len(lengths_G)
    numbers_B = []
    for prefix in prefix_of_B:
        numbers_B.append(counts_G[prefix])
        counts_G[prefix] += 1
    most, width = max(counts_G), max(lengths_G)
    heads_N = torch.arange(heads)
    rows_BN = torch.arange(len(prefix_of_B) * heads).view(-1, heads)
    places_BN = (torch.tensor(prefix_of_B)[:, None] * heads + heads_N) * most
    places_BN += torch.tensor(numbers_B)[:, None]
    members = torch.zeros(len(lengths_G) * heads * most, dtype=torch.int64)
    members[places_BN] = rows_BN
    hidden_GP = torch.arange(width) >= torch.tensor(lengths_G)[:, None]
    mask_GP = torch.zeros(hidden_GP.shape, dtype=dtype).masked_fill_(hidden_GP, float("-inf"))
    return Prefixes(
        count=len(lengths_G),
        members=members.to(device),
        places=places_BN.flatten().to(device),
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
    """Values mixed by attention, [B * N, Q, E].

    queries: [B * N, Q, W]. rows: keys [S, N, R, W] and values [S, N, R, E], the new tokens' among them.
    prefixes: keys [G, N, P, W] and values. mask: additive, [B * N, 1, L].
    """
    own = _window(rows, len(reach.places_B), reach.window)
    mixed, log_sums = _mix(queries, *own, mask=mask, scale=scale)
    shared = reach.prefixes
    if shared is None:
        return mixed
    common = _window(prefixes, shared.count, shared.width)
    gathered = queries.view(len(queries), -1).index_select(0, shared.members)
    common_mixed, common_log_sums = _mix(
        gathered.view(len(common[0]), -1, queries.shape[2]), *common, mask=shared.mask, scale=scale
    )
    common_mixed = common_mixed.view(len(gathered), -1).index_select(0, shared.places)
    common_sums = common_log_sums().view(len(gathered), -1).index_select(0, shared.places)
    share = torch.sigmoid(common_sums - log_sums())
    return torch.lerp(mixed, common_mixed.view_as(mixed), share[..., None].to(mixed.dtype))


def _window(kept: tuple[Tensor, Tensor], count: int, width: int) -> tuple[Tensor, Tensor]:
    """Keys and values, [first rows * N, first tokens, W], not copied."""
    keys, values = (x[:count, :, :width].flatten(0, 1) for x in kept)
    return keys, values


def _mix(
    queries: Tensor, keys: Tensor, values: Tensor, *, mask: Tensor, scale: float
) -> tuple[Tensor, Callable[[], Tensor]]:
    """Attention of [X, Q, W], and what gives the log of the sum under its softmax, [X, Q] float32."""
    scores = torch.baddbmm(mask, queries, keys.transpose(1, 2), alpha=scale)
    shares = scores.softmax(-1, dtype=torch.float32)

    def log_sums() -> Tensor:
        return scores.amax(-1).float() - shares.amax(-1).log()

    return torch.bmm(shares.to(values.dtype), values), log_sums
