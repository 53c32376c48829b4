"""Where each token of a batch lies when every prompt is computed once for all of its samples.

The decoder packs the batch's unique tokens into one sequence, for its linear layers and for attention;
a prompt with one sample alone is one sequence with it. This module makes the indices; it knows no weights.
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
from rljob_runtime.models.architecture import Experts, Vision
from rljob_runtime.models.routes import unpack_routes
from rljob_runtime.models.vision.pictured import Pictured
from rljob_runtime.models.vision.rope_index import place_batch
from rljob_runtime.samples.sample import SampleBatch


@dataclass(frozen=True, slots=True, kw_only=True)
class Segments:
    """What is packed, by lengths alone, on the host. lengths: of each prompt, then of each response less
    its last token, which is 0 where it counts with its prompt. prompt_of: which prompt each response goes
    on from."""

    lengths: tuple[int, ...]
    prompt_of: tuple[int, ...]

    @classmethod
    def of(cls, batch: SampleBatch) -> "Segments":
        """Those of a batch."""
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
        """Of all packed tokens."""
        return sum(self.lengths)


@dataclass(frozen=True, kw_only=True)
class Packing:
    """Indices of one batch, int64.

    segments: the lengths that all else follows from.
    tokens_U, positions_U: the packed tokens. longest: of their positions, plus 1.
    predicting_L: packed tokens whose logits are needed: each prompt's last, all of the responses'.
    target_T: response tokens in the batch's order, tools' left out. row_of_T: index into L of what predicts
    each.
    With pictures, positions_U is [U, 3], of three axes; pictured_P: which packed tokens stand for pictures,
    in the order of the batch's `all_pictures`; pictured: what a vision tower gave them.
    routes_UMK: the experts that they go to, where the batch has routes; of the tokens that layers have.
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
        """Of all packed tokens."""
        return self.segments.num_tokens

    @cached_property
    def sequences(self) -> Sequences:
        """Who sees whom: a prompt itself, a response its whole prompt and itself."""
        lengths, prompt_of = self.segments.lengths, self.segments.prompt_of
        starts = list(accumulate(lengths, initial=0))
        places = [range(start, end) for start, end in pairwise(starts)]
        prompts, responses = (
            places[: -len(prompt_of) or None],
            places[len(lengths) - len(prompt_of) :],
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
    experts: Experts | None = None,
) -> Packing:
    """Indices of the batch on `device`. Every prompt needs a token. vision: of a model that is shown the
    batch's pictures; experts: of one that replays its routes. Raises ConfigError where tokens do not stand
    for pictures."""
    prompt_G, response_B = _lengths(batch.prompts), _lengths(batch.texts)
    assert bool((prompt_G > 0).all()), "a prompt without tokens predicts nothing"
    inner_B, prompt_B = (response_B - 1).clamp(min=0), prompt_G[batch.group_of_B]
    segments = Segments.of(batch)
    lengths_S = torch.tensor(segments.lengths, dtype=torch.int64)
    starts_S = lengths_S.cumsum(0) - lengths_S
    place_U, segment_U = _ragged_positions(lengths_S)
    place_M, sample_M = _ragged_positions(inner_B)
    with_prompt_B = lengths_S[len(prompt_G) :] < inner_B
    behind_B = starts_S[batch.group_of_B] + prompt_B
    first_B = torch.where(with_prompt_B, behind_B, starts_S[len(prompt_G) :])
    place_of_M = first_B[sample_M] + place_M
    first_G = starts_S[: len(prompt_G)]
    place_N, group_N = _ragged_positions(prompt_G)
    place_of_N = first_G[group_N] + place_N
    tokens_U = torch.empty(segments.num_tokens, dtype=torch.int64)
    tokens_U[torch.cat([place_of_N, place_of_M])] = torch.cat(
        [*batch.prompts, *(text[:-1] for text in batch.texts)]
    )
    index = {
        "tokens_U": tokens_U,
        "positions_U": place_U + torch.cat([torch.zeros_like(prompt_G), prompt_B])[segment_U],
        "predicting_L": torch.cat([first_G + prompt_G - 1, place_of_M]),
        "target_T": torch.cat(batch.responses) if batch.responses else torch.zeros(0).long(),
        "row_of_T": _predicting_rows(response_B, inner_B, batch.group_of_B, len(prompt_G))[
            batch.drawn_of_texts()
        ],
    }
    if batch.all_pictures:
        assert vision is not None, "a model without a vision tower is shown pictures"
        index |= _pictures(batch, vision, place_of_N, place_of_M)
    if batch.routes:
        assert experts is not None, "a model without experts is given routes"
        index["routes_UMK"] = _routes(batch, experts, torch.cat([place_of_N, place_of_M]))
    on_device: Mapping[str, Any] = {name: value.to(device) for name, value in index.items()}
    return Packing(
        segments=segments,
        longest=max([*prompt_G.tolist(), *(prompt_B + inner_B).tolist()]),
        **on_device,
    )


def _pictures(
    batch: SampleBatch, vision: Vision, place_of_N: Tensor, place_of_M: Tensor
) -> dict[str, Tensor]:
    """What pictures change in a packing. place_of_N, place_of_M: packed, of the prompts' tokens and of the
    texts' but for each one's last."""
    prompts, texts = place_batch(batch, vision)
    positions = [of.positions_N3 for of in prompts] + [of.positions_N3[:-1] for of in texts]
    places = torch.cat([place_of_N, place_of_M])
    positions_U3 = torch.empty(len(places), 3, dtype=torch.int64)
    positions_U3[places] = torch.cat(positions)
    placed, starts = [*prompts, *texts], accumulate(map(len, positions[:-1]), initial=0)
    pictured = [of.pictured_P + start for of, start in zip(placed, starts, strict=True)]
    assert all(
        len(of.pictured_P) == 0 or of.pictured_P[-1] + 1 < len(of.positions_N3) for of in texts
    ), "a text ends in a picture, whose last token no model reads"
    return {"positions_U": positions_U3, "pictured_P": places[torch.cat(pictured)]}


def _routes(batch: SampleBatch, experts: Experts, places: Tensor) -> Tensor:
    """[U, M, K]. places: packed, of the prompts' tokens and of the texts' but for each one's last. A prompt's
    routes are those of its first sample."""
    group_of_B = batch.group_of_B.tolist()
    routes = [unpack_routes(row, experts) for row in batch.routes]
    prompts = [
        routes[group_of_B.index(group)][: len(prompt)] for group, prompt in enumerate(batch.prompts)
    ]
    behind = [
        row[len(batch.prompts[group]) :] for row, group in zip(routes, group_of_B, strict=True)
    ]
    known = torch.cat([*prompts, *behind])
    assert len(known) == len(places), f"{len(known)} routes of {len(places)} tokens"
    routes_UMK = torch.empty_like(known)
    routes_UMK[places] = known
    return routes_UMK


def _lengths(rows: list[Tensor]) -> Tensor:
    return torch.tensor([len(row) for row in rows], dtype=torch.int64)


def _ragged_positions(lengths: Tensor) -> tuple[Tensor, Tensor]:
    """Position within its row, and row, of each token of ragged rows laid end to end."""
    row = torch.repeat_interleave(torch.arange(len(lengths)), lengths)
    starts = lengths.cumsum(0) - lengths
    return torch.arange(len(row)) - starts[row], row


def _predicting_rows(
    response_B: Tensor, inner_B: Tensor, group_of_B: Tensor, num_groups: int
) -> Tensor:
    """A response's first token is predicted by its prompt's row, the others by the token before."""
    place_T, sample_T = _ragged_positions(response_B)
    starts_B = inner_B.cumsum(0) - inner_B
    inner_T = num_groups + starts_B[sample_T] + place_T - 1
    return torch.where(place_T == 0, group_of_B[sample_T], inner_T)
