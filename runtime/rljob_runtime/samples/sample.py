"""Samples as tensors: what the engines compute on, ragged and without padding.

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
    responses: one int64 tensor a sample, the tokens that the policy drew, with the end token where one was
    generated; may be empty. Everything that is counted, weighted and learned is of these.
    fields: per-token columns, one float tensor a sample as long as its response.
    scalars: one value a sample, shape [B].
    whole: each response with the tokens that tools put between, which a model reads and nobody learns;
    drawn: which of them the policy drew, bool. Both are empty where it drew all.
    routes: the experts that the rollout sent each token to, but for a sample's last one, as `models.routes`
    packs them; empty where the model routes by itself.
    pictures: those of each prompt, in order; text_pictures: those that tools put into each text. Both are
    empty where there are none.
    """

    prompts: list[Tensor]
    group_of_B: Tensor
    responses: list[Tensor]
    fields: dict[str, list[Tensor]] = field(default_factory=dict)
    scalars: dict[str, Tensor] = field(default_factory=dict)
    whole: list[Tensor] = field(default_factory=list)
    drawn: list[Tensor] = field(default_factory=list)
    routes: list[Tensor] = field(default_factory=list)
    pictures: list[list[Picture]] = field(default_factory=list)
    text_pictures: list[list[Picture]] = field(default_factory=list)

    @property
    def texts(self) -> list[Tensor]:
        """What a model reads behind each sample's prompt."""
        return self.whole or self.responses

    @property
    def all_pictures(self) -> list[Picture]:
        """The prompts', then the texts'."""
        return [*chain(*self.pictures), *chain(*self.text_pictures)]

    @property
    def num_samples(self) -> int:
        """Number of samples."""
        return len(self.responses)

    @property
    def num_tokens(self) -> int:
        """Response tokens of all samples, tools' not counted."""
        return sum(self.lengths)

    @property
    def lengths(self) -> list[int]:
        """Tokens of each response."""
        return [len(response) for response in self.responses]

    def drawn_of_texts(self) -> Tensor:
        """Which tokens of `texts`, sample after sample, the policy drew, bool."""
        if self.drawn:
            return torch.cat(self.drawn)
        return torch.ones(self.num_tokens, dtype=torch.bool)

    def packed(self, name: str) -> Tensor:
        """A per-token column in one tensor [T], sample after sample."""
        return torch.cat(self.fields[name]) if self.responses else torch.zeros(0)

    def apart(self, values_T: Tensor) -> list[Tensor]:
        """A value of each response token as a field has them: one tensor a sample."""
        return list(torch.split(values_T, self.lengths))

    def spread(self, name: str) -> Tensor:
        """A scalar column repeated for each of its sample's response tokens, [T]."""
        return self.scalars[name][self.sample_of_T()] if self.responses else torch.zeros(0)

    def advantages_T(self) -> Tensor:
        """Each response token's advantage, [T]: of the field `advantages`, or its sample's `advantage`."""
        return (
            self.packed("advantages") if "advantages" in self.fields else self.spread("advantage")
        )

    def sample_of_T(self) -> Tensor:
        """Each response token's sample, int64 [T]."""
        lengths_B = torch.tensor(self.lengths, dtype=torch.int64)
        return torch.repeat_interleave(torch.arange(self.num_samples), lengths_B)

    def by_group(self) -> list["SampleBatch"]:
        """One batch a group, in the order of `prompts`."""
        members: list[list[int]] = [[] for _ in self.prompts]
        for sample, group in enumerate(self.group_of_B.tolist()):
            members[group].append(sample)
        return [self.select(samples) for samples in members]

    @classmethod
    def join(cls, parts: Sequence["SampleBatch"]) -> "SampleBatch":
        """The samples of all parts in order; parts share no group and have the same columns."""
        first = [sum(len(part.prompts) for part in parts[:i]) for i in range(len(parts))]
        return cls(
            prompts=[prompt for part in parts for prompt in part.prompts],
            group_of_B=torch.cat(
                [part.group_of_B + start for part, start in zip(parts, first, strict=True)]
            ),
            responses=[response for part in parts for response in part.responses],
            fields={
                name: [row for part in parts for row in part.fields[name]]
                for name in parts[0].fields
            },
            scalars={
                name: torch.cat([part.scalars[name] for part in parts]) for name in parts[0].scalars
            },
            whole=[text for part in parts for text in part.whole],
            drawn=[row for part in parts for row in part.drawn],
            routes=[row for part in parts for row in part.routes],
            pictures=_joined([(part.pictures, len(part.prompts)) for part in parts]),
            text_pictures=_joined([(part.text_pictures, part.num_samples) for part in parts]),
        )

    def select(self, samples: Sequence[int]) -> "SampleBatch":
        """The batch of these samples, in this order, with only the prompts that they use."""
        chosen = self.keep(samples)
        groups, group_of_B = torch.unique(chosen.group_of_B, return_inverse=True)
        used = groups.tolist()
        pictures = [self.pictures[group] for group in used] if self.pictures else []
        prompts = [self.prompts[group] for group in used]
        return replace(chosen, prompts=prompts, group_of_B=group_of_B, pictures=pictures)

    def keep(self, samples: Sequence[int]) -> "SampleBatch":
        """The batch of these samples, in this order, with all prompts, also those of none of them."""
        index_B = torch.tensor(samples, dtype=torch.int64)
        return SampleBatch(
            prompts=self.prompts,
            group_of_B=self.group_of_B[index_B],
            responses=[self.responses[i] for i in samples],
            fields={name: [rows[i] for i in samples] for name, rows in self.fields.items()},
            scalars={name: values_B[index_B] for name, values_B in self.scalars.items()},
            whole=[self.whole[i] for i in samples] if self.whole else [],
            drawn=[self.drawn[i] for i in samples] if self.drawn else [],
            routes=[self.routes[i] for i in samples] if self.routes else [],
            pictures=self.pictures,
            text_pictures=[self.text_pictures[i] for i in samples] if self.text_pictures else [],
        )


def _joined(parts: list[tuple[list[list[Picture]], int]]) -> list[list[Picture]]:
    """Pictures of the rows of all parts, each with how many rows it has; empty where no part has any."""
    if not any(pictures for pictures, _ in parts):
        return []
    return [row for pictures, count in parts for row in pictures or [[] for _ in range(count)]]
