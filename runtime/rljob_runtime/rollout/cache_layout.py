"""Lay out the KV cache for one call of the `torch` rollout engine: rows of sequences, and shared prompts.

Called by `rollout_torch`. The cache has a fixed capacity in tokens. A call reserves for every sequence in
flight its longest response, so that none is preempted, and the remaining samples wait. This is arithmetic
over shapes alone: all ranks of a model compute the same layout.
"""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.models.architecture import Architecture
from rljob_runtime.models.fused.kept import KVCache
from rljob_runtime.rollout.rollout_engine import PromptGroup, Sampling

SHARE_FROM_BYTES = 4 * 2**20
"""Prompts are stored once a group if this saves a layer from reading so many bytes of keys and values a step.
Below it, the two-part attention takes longer than it saves."""
SHARE_FOR_ROWS = 1.25
"""Sharing prompts is worth the two-part attention if it allows this many times as many sequences in
flight."""
OPEN_GROUPS = 2
"""Ratio of prompts to the groups that would fill the rows, which leaves room for the last samples of ending
groups."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CacheLayout:
    """Rows of row_tokens, and prompts of prefix_tokens that groups share; no prompts where each row holds its
    own."""

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
        """The capacity in tokens."""
        return self.rows * self.row_tokens + self.prefixes * self.prefix_tokens

    def views(self, cache: Tensor, architecture: Architecture) -> KVCache:
        """Return the flat cache as rows and prompts."""
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
    """Return the layout for these groups, at least one. tokens: of the cache, at least one longest sequence.

    layer_token_bytes: bytes that a layer caches of a token.
    """
    samples = sum(len(group.uids) for group in groups)
    rows = min(max_sequences, samples)
    separate = _each_row_its_prompt(groups, sampling, rows=rows, tokens=tokens)
    if sampling.has_turns:  # a sample returns with a separate prefix
        return separate
    shared = _prompts_shared(groups, sampling, rows=rows, tokens=tokens)
    if shared is None or samples == len(groups):
        return separate
    spared_rows = separate.rows - separate.rows * len(groups) // samples
    spared_bytes = spared_rows * shared.prefix_tokens * layer_token_bytes
    more_rows = shared.rows >= SHARE_FOR_ROWS * separate.rows
    # With a single row no sample runs from whose row the next could copy the prompt.
    single_row = separate.rows == 1
    return shared if more_rows or single_row or spared_bytes >= SHARE_FROM_BYTES else separate


def new_cache(
    architecture: Architecture, *, tokens: int, dtype: torch.dtype, device: str
) -> Tensor:
    """Return a flat cache of zeros for this many tokens: masked garbage must stay finite."""
    return torch.zeros(tokens * token_items(architecture), dtype=dtype, device=device)


def token_items(architecture: Architecture) -> int:
    """Return the numbers that all layers cache of a token."""
    return architecture.num_layers * layer_items(architecture)


def layer_items(architecture: Architecture) -> int:
    """Return the numbers that a layer caches of a token."""
    tensors, heads, width = architecture.cache_shape
    return tensors * heads * width


def _each_row_its_prompt(
    groups: Sequence[PromptGroup], sampling: Sampling, *, rows: int, tokens: int
) -> CacheLayout:
    """Return a layout whose rows hold their prompts. The last token of a response is never cached."""
    row_tokens = max(len(group.prefix) + group.limit(sampling) - 1 for group in groups)
    return CacheLayout(rows=min(rows, tokens // row_tokens), row_tokens=row_tokens)


def _prompts_shared(
    groups: Sequence[PromptGroup], sampling: Sampling, *, rows: int, tokens: int
) -> CacheLayout | None:
    """Return a layout with shared prompts; None where not even one row and one prompt fit.

    It has as many rows as leave room for the prompts of OPEN_GROUPS times their groups, or for all prompts.
    """
    prefix = max(len(group.prefix) for group in groups)
    response_tokens = max(1, *(group.limit(sampling) - 1 for group in groups))
    if prefix + response_tokens > tokens:
        return None
    samples = sum(len(group.uids) for group in groups)
    open_prompts = OPEN_GROUPS * len(groups)
    beside_open = tokens * samples // (response_tokens * samples + prefix * open_prompts)
    beside_all = (tokens - prefix * len(groups)) // response_tokens
    rows = max(1, min(rows, max(beside_open, beside_all), (tokens - prefix) // response_tokens))
    prefixes = min(len(groups), rows, (tokens - rows * response_tokens) // prefix)
    return CacheLayout(
        rows=rows, row_tokens=response_tokens, prefixes=prefixes, prefix_tokens=prefix
    )
