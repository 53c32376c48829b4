"""How one call of the `torch` rollout engine shares out its KV cache: rows of sequences, and prompts.

Called by `rollout_torch`. The cache has room for a number of tokens and never takes more: a call gives every
sequence in flight room for its longest response, so that none ever has to leave before its end, and the
samples beyond wait. Arithmetic over shapes alone: all ranks of a model come to the same layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.fused.kept import KVCache
from rljob_runtime.rollout.rollout_engine import PromptGroup, Sampling

SHARE_FROM_BYTES = 4 * 2**20
"""Keys and values that a layer must be spared reading in a step before prompts are held apart; below, the
two-part attention takes longer than it saves."""
SHARE_FOR_ROWS = 1.25
"""So many times as many sequences in flight are worth the two-part attention in any case."""
OPEN_GROUPS = 2
"""Groups in flight to those that would fill the rows: for the last samples of groups that are ending."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """Rows of row_tokens, and prompts of prefix_tokens that groups share; no prompts where each row holds
    its own."""

    rows: int
    row_tokens: int
    prefixes: int = 0
    prefix_tokens: int = 0

    @property
    def in_rows(self) -> bool:
        """Whether each row holds its prompt."""
        return not self.prefixes

    @property
    def tokens(self) -> int:
        """That have room."""
        return self.rows * self.row_tokens + self.prefixes * self.prefix_tokens

    def views(self, cache: Tensor, architecture: Architecture) -> KVCache:
        """The cache, flat, as rows and prompts."""
        tensors, heads, width = architecture.cache_shape
        shapes = [
            (architecture.num_layers, tensors, number, heads, tokens, width)
            for number, tokens in (
                (self.rows, self.row_tokens),
                (self.prefixes, self.prefix_tokens),
            )
        ]
        split = self.rows * self.row_tokens * token_items(architecture)
        end = self.tokens * token_items(architecture)
        return KVCache(
            rows=cache[:split].view(shapes[0]), prefixes=cache[split:end].view(shapes[1])
        )


def choose_layout(
    groups: Sequence[PromptGroup],
    sampling: Sampling,
    *,
    tokens: int,
    max_sequences: int,
    layer_token_bytes: int,
) -> CacheLayout:
    """The layout for these groups, at least one. tokens: of the cache, at least one longest sequence.

    layer_token_bytes: that a layer keeps of a token.
    """
    samples = sum(len(group.uids) for group in groups)
    rows = min(max_sequences, samples)
    apart = _each_row_its_prompt(groups, sampling, rows=rows, tokens=tokens)
    if sampling.has_turns:  # a sample comes back with a prefix of its own
        return apart
    shared = _prompts_shared(groups, sampling, rows=rows, tokens=tokens)
    if shared is None or samples == len(groups):
        return apart
    spared_rows = apart.rows - apart.rows * len(groups) // samples
    spared_bytes = spared_rows * shared.prefix_tokens * layer_token_bytes
    more_rows = shared.rows >= SHARE_FOR_ROWS * apart.rows
    alone = (
        apart.rows == 1
    )  # so that no sample is there from whose row the next could take the prompt
    return shared if more_rows or alone or spared_bytes >= SHARE_FROM_BYTES else apart


def new_cache(
    architecture: Architecture, *, tokens: int, dtype: torch.dtype, device: str
) -> Tensor:
    """An empty, flat cache for so many tokens. Zeros, for masked garbage must stay finite."""
    return torch.zeros(tokens * token_items(architecture), dtype=dtype, device=device)


def token_items(architecture: Architecture) -> int:
    """Numbers that all layers keep of a token."""
    return architecture.num_layers * layer_items(architecture)


def layer_items(architecture: Architecture) -> int:
    """Numbers that a layer keeps of a token."""
    tensors, heads, width = architecture.cache_shape
    return tensors * heads * width


def _each_row_its_prompt(
    groups: Sequence[PromptGroup], sampling: Sampling, *, rows: int, tokens: int
) -> CacheLayout:
    """The last token of a response is never kept."""
    row_tokens = max(len(group.prefix) + group.limit(sampling) - 1 for group in groups)
    return CacheLayout(rows=min(rows, tokens // row_tokens), row_tokens=row_tokens)


def _prompts_shared(
    groups: Sequence[PromptGroup], sampling: Sampling, *, rows: int, tokens: int
) -> CacheLayout | None:
    """As many rows as leave room for the prompts of OPEN_GROUPS times their groups, or for all prompts; None
    where not even one row and one prompt have room."""
    prefix = max(len(group.prefix) for group in groups)
    own = max(1, *(group.limit(sampling) - 1 for group in groups))
    if prefix + own > tokens:
        return None
    samples = sum(len(group.uids) for group in groups)
    open_prompts = OPEN_GROUPS * len(groups)
    beside_open = tokens * samples // (own * samples + prefix * open_prompts)
    beside_all = (tokens - prefix * len(groups)) // own
    rows = max(1, min(rows, max(beside_open, beside_all), (tokens - prefix) // own))
    prefixes = min(len(groups), rows, (tokens - rows * own) // prefix)
    return CacheLayout(rows=rows, row_tokens=own, prefixes=prefixes, prefix_tokens=prefix)
