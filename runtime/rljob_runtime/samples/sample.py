"""Samples as tensors: the ragged input of the engines, without padding.

Device workers build a `SampleBatch` from the dock's columns; engines and algorithms read it.
"""

# B samples, T response tokens of all samples together

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import torch
from torch import Tensor

from rljob_runtime.samples.pictures import Picture


@dataclass(frozen=True, slots=True, kw_only=True)
class SampleBatch:
    """Samples with the prompts that they share.

    prompts: one int64 tensor a group. group_of_B: each sample's index into `prompts`.
    responses: one int64 tensor a sample, the tokens that the policy drew, with the end token if one was
    generated; may be empty. All counts, weights and losses are over these tokens.
    fields: per-token columns, one float tensor a sample as long as its response.
    scalars: one value a sample, shape [B].
    full_responses: each response with the tokens that tools inserted, which a model reads but does not learn;
    drawn: which of them the policy drew, bool. Both are empty if it drew all.
    routes: the experts to which the rollout sent each token, except for a sample's last one, as
    `models.routes` packs them; empty if the model computes its own routes.
    pictures: those of each prompt, in order; text_pictures: those that tools inserted into each text. Both
    are empty if there are none.
    """

    prompts: list[Tensor]
    group_of_B: Tensor
    responses: list[Tensor]
    fields: dict[str, list[Tensor]] = field(default_factory=dict)
    scalars: dict[str, Tensor] = field(default_factory=dict)
    full_responses: list[Tensor] = field(default_factory=list)
    drawn: list[Tensor] = field(default_factory=list)
    routes: list[Tensor] = field(default_factory=list)
    pictures: list[list[Picture]] = field(default_factory=list)
    text_pictures: list[list[Picture]] = field(default_factory=list)

    @property
    def texts(self) -> list[Tensor]:
        """The tokens that a model reads after each sample's prompt."""
        return self.full_responses or self.responses

    @property
    def all_pictures(self) -> list[Picture]:
        """The pictures of the prompts, followed by those of the texts."""
        return [*chain(*self.pictures), *chain(*self.text_pictures)]

    @property
    def num_samples(self) -> int:
        """Number of samples in the batch."""
        return len(self.responses)

    @property
    def num_tokens(self) -> int:
        """Number of response tokens of all samples, without those of tools."""
        return sum(self.lengths)

    @property
    def lengths(self) -> list[int]:
        """Number of tokens of each response."""
        return [len(response) for response in self.responses]

    def drawn_of_texts(self) -> Tensor:
        """Return which tokens of `texts`, sample after sample, the policy drew, bool."""
        if self.drawn:
            return torch.cat(self.drawn)
        return torch.ones(self.num_tokens, dtype=torch.bool)

    def packed(self, name: str) -> Tensor:
        """Return a per-token column as one tensor [T], sample after sample."""
        return torch.cat(self.fields[name]) if self.responses else torch.zeros(0)

    def split_by_sample(self, values_T: Tensor) -> list[Tensor]:
        """Split a value of each response token into one tensor a sample, as in `fields`."""
        return list(torch.split(values_T, self.lengths))

    def spread(self, name: str) -> Tensor:
        """Return a scalar column repeated for each of its sample's response tokens, [T]."""
        return self.scalars[name][self.sample_of_T()] if self.responses else torch.zeros(0)

    def advantages_T(self) -> Tensor:
        """Return each response token's advantage, [T]: the field `advantages`, or its sample's
        `advantage`."""
        return (
            self.packed("advantages") if "advantages" in self.fields else self.spread("advantage")
        )

    def sample_of_T(self) -> Tensor:
        """Return the index of each response token's sample, int64 [T]."""
        lengths_B = torch.tensor(self.lengths, dtype=torch.int64)
        return torch.repeat_interleave(torch.arange(self.num_samples), lengths_B)

    def by_group(self) -> list["SampleBatch"]:
        """Return one batch a group, in the order of `prompts`."""
        members: list[list[int]] = [[] for _ in self.prompts]
        for sample, group in enumerate(self.group_of_B.tolist()):
            members[group].append(sample)
        return [self.select(samples) for samples in members]

    @classmethod
    def join(cls, batches: Sequence["SampleBatch"]) -> "SampleBatch":
        """Return the samples of all batches in order; the batches share no group and have the same
        columns."""
        first_group = [
            sum(len(batch.prompts) for batch in batches[:i]) for i in range(len(batches))
        ]
        return cls(
            prompts=[prompt for batch in batches for prompt in batch.prompts],
            group_of_B=torch.cat(
                [
                    batch.group_of_B + start
                    for batch, start in zip(batches, first_group, strict=True)
                ]
            ),
            responses=[response for batch in batches for response in batch.responses],
            fields={
                name: [row for batch in batches for row in batch.fields[name]]
                for name in batches[0].fields
            },
            scalars={
                name: torch.cat([batch.scalars[name] for batch in batches])
                for name in batches[0].scalars
            },
            full_responses=[text for batch in batches for text in batch.full_responses],
            drawn=[row for batch in batches for row in batch.drawn],
            routes=[row for batch in batches for row in batch.routes],
            pictures=_join_pictures([(batch.pictures, len(batch.prompts)) for batch in batches]),
            text_pictures=_join_pictures(
                [(batch.text_pictures, batch.num_samples) for batch in batches]
            ),
        )

    def select(self, samples: Sequence[int]) -> "SampleBatch":
        """Return the batch of these samples, in this order, with only the prompts that they use."""
        chosen = self.keep(samples)
        groups, group_of_B = torch.unique(chosen.group_of_B, return_inverse=True)
        used = groups.tolist()
        pictures = [self.pictures[group] for group in used] if self.pictures else []
        prompts = [self.prompts[group] for group in used]
        return replace(chosen, prompts=prompts, group_of_B=group_of_B, pictures=pictures)

    def keep(self, samples: Sequence[int]) -> "SampleBatch":
        """Return the batch of these samples, in this order, with all prompts, even those without samples."""
        index_B = torch.tensor(samples, dtype=torch.int64)
        return SampleBatch(
            prompts=self.prompts,
            group_of_B=self.group_of_B[index_B],
            responses=[self.responses[i] for i in samples],
            fields={name: [rows[i] for i in samples] for name, rows in self.fields.items()},
            scalars={name: values_B[index_B] for name, values_B in self.scalars.items()},
            full_responses=[self.full_responses[i] for i in samples] if self.full_responses else [],
            drawn=[self.drawn[i] for i in samples] if self.drawn else [],
            routes=[self.routes[i] for i in samples] if self.routes else [],
            pictures=self.pictures,
            text_pictures=[self.text_pictures[i] for i in samples] if self.text_pictures else [],
        )


def _join_pictures(rows_and_counts: list[tuple[list[list[Picture]], int]]) -> list[list[Picture]]:
    """Return the pictures of the rows of all batches, each given with its number of rows; empty if no batch
    has any."""
    if not any(pictures for pictures, _ in rows_and_counts):
        return []
    return [
        row for pictures, count in rows_and_counts for row in pictures or [[] for _ in range(count)]
    ]
