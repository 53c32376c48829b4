"""Positions of a batch's tokens when every prompt is computed once for all of its samples.

The decoder packs the batch's unique tokens into one sequence, for its linear layers and for attention; a
prompt with a single sample is one sequence with it. This module computes the indices and has no weights.
"""

# B samples, M tokens of responses less the last one of each
# U packed tokens: all prompts, each with the response of its only sample, then all other responses; responses
# less their last token
# T response tokens that the policy drew, L positions whose logits are needed
# M layers with experts, K experts of a token

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from itertools import accumulate, chain, pairwise
from typing import Any

import torch
from torch import Tensor

from rljob_runtime.devices.kernels.flash_attention import Sequences
from rljob_runtime.models.architecture import MoeArchitecture, Vision
from rljob_runtime.models.routes import unpack_routes
from rljob_runtime.models.vision.pictured import Pictured
from rljob_runtime.models.vision.rope_index import batch_positions
from rljob_runtime.samples.sample import SampleBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """Lengths of what is packed, on the host.

    lengths: of each prompt, then of each response without its last token, or 0 if it is counted with its
    prompt. prompt_of: which prompt each response continues.
    """

    lengths: tuple[int, ...]
    prompt_of: tuple[int, ...]

    @classmethod
    def of(cls, batch: SampleBatch) -> "Segments":
        """Return the segments of a batch."""
        prompt_of = batch.group_of_B.tolist()
        samples = Counter(prompt_of)
        lengths = [len(prompt) for prompt in batch.prompts]
        for group, response in zip(prompt_of, batch.texts, strict=True):
            inner = max(len(response) - 1, 0)
            lengths.append(0 if samples[group] == 1 else inner)
            lengths[group] += inner - lengths[-1]
        return cls(lengths=tuple(lengths), prompt_of=tuple(prompt_of))

    @property
    def num_tokens(self) -> int:
        """Return the number of all packed tokens."""
        return sum(self.lengths)


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Indices of one batch, int64.

    segments: the lengths that all else follows from.
    tokens_U, positions_U: the packed tokens. longest: the largest position, plus 1.
    predicting_L: packed tokens whose logits are needed: each prompt's last, all of the responses'.
    target_T: response tokens in the batch's order, without tools' tokens. row_of_T: index into L of the token
    that predicts each.
    With pictures, positions_U is [U, 3], of three axes; pictured_P: which packed tokens are placeholders for
    pictures, in the order of the batch's `all_pictures`; pictured: the vision tower's output for them.
    routes_UMK: the tokens' experts, if the batch has routes; of the tokens that layers compute.
    """

    segments: Segments
    tokens_U: Tensor
    positions_U: Tensor
    longest: int
    predicting_L: Tensor
    target_T: Tensor
    row_of_T: Tensor
    pictured_P: Tensor | None = None
    pictured: Pictured | None = None
    routes_UMK: Tensor | None = None

    @property
    def num_tokens(self) -> int:
        """Return the number of all packed tokens."""
        return self.segments.num_tokens

    @cached_property
    def sequences(self) -> Sequences:
        """Return which tokens attend to which: a prompt to itself, a response to its full prompt and
        itself."""
        lengths, prompt_of = self.segments.lengths, self.segments.prompt_of
        starts = list(accumulate(lengths, initial=0))
        ranges = [range(start, end) for start, end in pairwise(starts)]
        prompts, responses = (
            ranges[: -len(prompt_of) or None],
            ranges[len(lengths) - len(prompt_of) :],
        )
        continued = [
            (prompts[g], response)
            for response, g in zip(responses, prompt_of, strict=True)
            if len(response)
        ]
        keys = [*prompts, *chain.from_iterable(continued)]
        return Sequences(
            lengths=[
                *((len(prompt), len(prompt)) for prompt in prompts),
                *((len(response), len(prompt) + len(response)) for prompt, response in continued),
            ],
            key_index_K=torch.cat([torch.arange(key.start, key.stop) for key in keys]).to(
                self.tokens_U.device
            ),
        )


def pack(
    batch: SampleBatch,
    *,
    device: torch.device,
    vision: Vision | None = None,
    experts: MoeArchitecture | None = None,
) -> Packing:
    """Compute the indices of the batch on `device`. Every prompt needs a token.

    vision: of a model that gets the batch's pictures; experts: of one that replays its routes. Raises
    ConfigError if the tokens do not match the pictures.
    """
    prompt_G, response_B = _lengths(batch.prompts), _lengths(batch.texts)
    assert bool((prompt_G > 0).all()), "a prompt without tokens predicts nothing"
    inner_B, prompt_B = (response_B - 1).clamp(min=0), prompt_G[batch.group_of_B]
    segments = Segments.of(batch)
    lengths_S = torch.tensor(segments.lengths, dtype=torch.int64)
    starts_S = lengths_S.cumsum(0) - lengths_S
    position_U, segment_U = _ragged_positions(lengths_S)
    position_M, sample_M = _ragged_positions(inner_B)
    with_prompt_B = lengths_S[len(prompt_G) :] < inner_B
    behind_B = starts_S[batch.group_of_B] + prompt_B
    first_B = torch.where(with_prompt_B, behind_B, starts_S[len(prompt_G) :])
    packed_index_M = first_B[sample_M] + position_M
    first_G = starts_S[: len(prompt_G)]
    position_N, group_N = _ragged_positions(prompt_G)
    packed_index_N = first_G[group_N] + position_N
    tokens_U = torch.empty(segments.num_tokens, dtype=torch.int64)
    tokens_U[torch.cat([packed_index_N, packed_index_M])] = torch.cat(
        [*batch.prompts, *(text[:-1] for text in batch.texts)]
    )
    index = {
        "tokens_U": tokens_U,
        "positions_U": position_U + torch.cat([torch.zeros_like(prompt_G), prompt_B])[segment_U],
        "predicting_L": torch.cat([first_G + prompt_G - 1, packed_index_M]),
        "target_T": torch.cat(batch.responses) if batch.responses else torch.zeros(0).long(),
        "row_of_T": _predicting_rows(response_B, inner_B, batch.group_of_B, len(prompt_G))[
            batch.drawn_of_texts()
        ],
    }
    if batch.all_pictures:
        assert vision is not None, "a model without a vision tower is shown pictures"
        index |= _pictures(batch, vision, packed_index_N, packed_index_M)
    if batch.routes:
        assert experts is not None, "a model without experts is given routes"
        index["routes_UMK"] = _routes(batch, experts, torch.cat([packed_index_N, packed_index_M]))
    on_device: Mapping[str, Any] = {name: value.to(device) for name, value in index.items()}
    return Packing(
        segments=segments,
        longest=max([*prompt_G.tolist(), *(prompt_B + inner_B).tolist()]),
        **on_device,
    )


def _pictures(
    batch: SampleBatch, vision: Vision, packed_index_N: Tensor, packed_index_M: Tensor
) -> dict[str, Tensor]:
    """Return the indices that pictures change in a packing.

    packed_index_N, packed_index_M: of the prompts' tokens, and of the texts' without each one's last.
    """
    prompts, texts = batch_positions(batch, vision)
    positions = [positioned.positions_N3 for positioned in prompts] + [
        positioned.positions_N3[:-1] for positioned in texts
    ]
    packed_indices = torch.cat([packed_index_N, packed_index_M])
    positions_U3 = torch.empty(len(packed_indices), 3, dtype=torch.int64)
    positions_U3[packed_indices] = torch.cat(positions)
    all_positions, starts = [*prompts, *texts], accumulate(map(len, positions[:-1]), initial=0)
    pictured = [
        positioned.pictured_P + start
        for positioned, start in zip(all_positions, starts, strict=True)
    ]
    assert all(
        len(positioned.pictured_P) == 0
        or positioned.pictured_P[-1] + 1 < len(positioned.positions_N3)
        for positioned in texts
    ), "a text ends in a picture, whose last token no model reads"
    return {"positions_U": positions_U3, "pictured_P": packed_indices[torch.cat(pictured)]}


def _routes(batch: SampleBatch, experts: MoeArchitecture, packed_indices: Tensor) -> Tensor:
    """Return the routes of the packed tokens, [U, M, K]; a prompt's routes are those of its first sample.

    packed_indices: of the prompts' tokens, and of the texts' without each one's last.
    """
    group_of_B = batch.group_of_B.tolist()
    routes = [unpack_routes(row, experts) for row in batch.routes]
    prompts = [
        routes[group_of_B.index(group)][: len(prompt)] for group, prompt in enumerate(batch.prompts)
    ]
    behind = [
        row[len(batch.prompts[group]) :] for row, group in zip(routes, group_of_B, strict=True)
    ]
    routes_of_tokens = torch.cat([*prompts, *behind])
    assert len(routes_of_tokens) == len(packed_indices), (
        f"{len(routes_of_tokens)} routes of {len(packed_indices)} tokens"
    )
    routes_UMK = torch.empty_like(routes_of_tokens)
    routes_UMK[packed_indices] = routes_of_tokens
    return routes_UMK


def _lengths(rows: list[Tensor]) -> Tensor:
    return torch.tensor([len(row) for row in rows], dtype=torch.int64)


def _ragged_positions(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Return the position within its row, and the row, of each token of ragged rows laid end to end."""
    row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    starts = lengths.cumsum(0) - lengths
    return torch.arange(len(row)) - starts[row], row


def _predicting_rows(
    response_B: Tensor, inner_B: Tensor, group_of_B: Tensor, num_groups: int
) -> Tensor:
    """Return which row predicts each token: its prompt's row for a response's first, the previous token for
    others."""
    position_T, sample_T = _ragged_positions(response_B)
    starts_B = inner_B.cumsum(0) - inner_B
    inner_T = num_groups + starts_B[sample_T] + position_T - 1
    return torch.where(position_T == 0, group_of_B[sample_T], inner_T)
