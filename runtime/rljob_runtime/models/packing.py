"""Where each token of a batch lies when every prompt is computed once for all of its samples.

The decoder packs the batch's unique tokens into one sequence for its linear layers, and pads them
into rectangles for attention alone. This module makes the indices; it knows no weights.
"""

# G groups, B samples, P longest prompt, R longest response less its last token, K = P + R keys
# U packed tokens: all prompts (the first N), then all responses less their last token
# T response tokens, L positions whose logits are needed

from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from rljob_runtime.sample import SampleBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """What is packed, by lengths alone, on the host. lengths: of each prompt, then of each response less
    its last token. prompt_of: which prompt each response goes on from."""

    lengths: tuple[int, ...]
    prompt_of: tuple[int, ...]

    @classmethod
    def of(cls, batch: SampleBatch) -> "Segments":
        """Those of a batch."""
        inner = (max(len(response) - 1, 0) for response in batch.responses)
        prompts = (len(prompt) for prompt in batch.prompts)
        return cls(lengths=(*prompts, *inner), prompt_of=tuple(batch.group_of_B.tolist()))

    @property
    def num_tokens(self) -> int:
        """Of all packed tokens."""
        return sum(self.lengths)


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Indices of one batch, int64, and additive masks of 0 and -inf, made where they are first used.

    dtype: of the masks. segments: the lengths that all else follows from.
    tokens_U, positions_U: the packed tokens. longest: of their positions, plus 1.
    num_prompt_tokens: how many of them are prompts'.
    prompt_GP, response_BR: packed place of each padded place, counted within prompts or responses
    (padding repeats a real token). from_prompt, from_response: padded place of each packed token.
    group_of_B: each sample's prompt.
    predicting_L: packed tokens whose logits are needed: each prompt's last, all of the responses'.
    target_T: response tokens in the batch's order. row_of_T: index into L of what predicts each.
    """

    dtype: torch.dtype
    segments: Segments
    tokens_U: Tensor
    positions_U: Tensor
    longest: int
    num_prompt_tokens: int
    prompt_GP: Tensor
    from_prompt: Tensor
    response_BR: Tensor
    from_response: Tensor
    group_of_B: Tensor
    predicting_L: Tensor
    target_T: Tensor
    row_of_T: Tensor

    @property
    def num_tokens(self) -> int:
        """Of all packed tokens."""
        return self.segments.num_tokens

    @cached_property
    def prompt_mask(self) -> Tensor:
        """[P, P]."""
        return _causal(self.prompt_GP.shape[1]).to(self.tokens_U.device, self.dtype)

    @cached_property
    def response_mask(self) -> Tensor:
        """[B, 1, R, K]."""
        prompts = [self.segments.lengths[prompt] for prompt in self.segments.prompt_of]
        sizes = self.prompt_GP.shape[1], self.response_BR.shape[1]
        mask = _response_mask(torch.tensor(prompts, dtype=torch.int64), *sizes)
        return mask.to(self.tokens_U.device, self.dtype)


def pack(batch: SampleBatch, *, device: torch.device, dtype: torch.dtype) -> Packing:
    """Indices of the batch on `device`; masks have `dtype`. Every prompt needs a token."""
    prompt_G = _lengths(batch.prompts)
    response_B = _lengths(batch.responses)
    inner_B = (response_B - 1).clamp(min=0)
    assert bool((prompt_G > 0).all()), "a prompt without tokens predicts nothing"
    num_prompt_tokens = int(prompt_G.sum())
    place_N, group_N = _ragged_positions(prompt_G)
    place_M, sample_M = _ragged_positions(inner_B)
    P, R = int(prompt_G.max()), int(inner_B.max()) if len(inner_B) else 0
    ends_G = prompt_G.cumsum(0)
    num_groups = len(prompt_G)
    prompt_B = prompt_G[batch.group_of_B]
    index = {
        "tokens_U": torch.cat([*batch.prompts, *(r[:-1] for r in batch.responses)]),
        "positions_U": torch.cat([place_N, place_M + prompt_B[sample_M]]),
        "prompt_GP": _padded(prompt_G, P),
        "from_prompt": group_N * P + place_N,
        "response_BR": _padded(inner_B, R),
        "from_response": sample_M * R + place_M,
        "group_of_B": batch.group_of_B,
        "predicting_L": torch.cat(
            [ends_G - 1, num_prompt_tokens + torch.arange(len(sample_M))],
        ),
        "target_T": torch.cat(batch.responses) if batch.responses else torch.zeros(0).long(),
        "row_of_T": _predicting_rows(response_B, inner_B, batch.group_of_B, num_groups),
    }
    return Packing(
        dtype=dtype,
        segments=Segments.of(batch),
        longest=max([P, *(prompt_B + inner_B).tolist()]),
        num_prompt_tokens=num_prompt_tokens,
        **{name: value.to(device) for name, value in index.items()},
    )


def _lengths(rows: list[Tensor]) -> Tensor:
    return torch.tensor([len(row) for row in rows], dtype=torch.int64)


def _ragged_positions(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Position within its row, and row, of each token of ragged rows laid end to end."""
    row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    starts = lengths.cumsum(0) - lengths
    return torch.arange(len(row)) - starts[row], row


def _padded(lengths: Tensor, width: int) -> Tensor:
    """Packed index of each place of the padded rectangle; padding repeats a real token."""
    starts = lengths.cumsum(0) - lengths
    last = (lengths - 1).clamp(min=0)
    index = starts[:, None] + torch.minimum(torch.arange(width)[None], last[:, None])
    return index.clamp(max=max(int(lengths.sum()) - 1, 0))


def _predicting_rows(
    response_B: Tensor, inner_B: Tensor, group_of_B: Tensor, num_groups: int
) -> Tensor:
    """A response's first token is predicted by its prompt's row, the others by the token before."""
    place_T, sample_T = _ragged_positions(response_B)
    starts_B = inner_B.cumsum(0) - inner_B
    inner_T = num_groups + starts_B[sample_T] + place_T - 1
    return torch.where(place_T == 0, group_of_B[sample_T], inner_T)


def _causal(length: int) -> Tensor:
    return torch.full((length, length), float("-inf")).triu(1)


def _response_mask(prompt_B: Tensor, P: int, R: int) -> Tensor:
    """[B, 1, R, K]: a response sees its whole prompt and itself up to the token."""
    hidden_BP = torch.arange(P)[None] >= prompt_B[:, None]
    prompt_BP = torch.zeros(hidden_BP.shape).masked_fill(hidden_BP, float("-inf"))
    rows = len(prompt_B)
    return torch.cat(
        [prompt_BP[:, None, None].expand(rows, 1, R, P), _causal(R).expand(rows, 1, R, R)], dim=-1
    )
