"""The oracles' inputs as packed tokens."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from rljob_runtime.samples.sample import SampleBatch

ORACLES = Path(__file__).parents[1] / "fixtures" / "rl-oracles.json"


class Oracles:
    """Outputs of verl 0.9.1 and TRL 1.16.0, and the padded inputs that they were run on."""

    def __init__(self) -> None:
        document = json.loads(ORACLES.read_text())
        self.inputs = {name: torch.tensor(values) for name, values in document["inputs"].items()}
        self.verl = document["verl_0.9.1"]
        self.trl = document["trl_1.16.0"]
        self.mask = self.inputs["mask"].bool()
        self.sample_of_T = self.mask.nonzero()[:, 0]
        self.num_tokens = int(self.mask.sum())
        self.num_sequences = len(self.mask)

    def packed(self, name: str) -> Tensor:
        """An input [B, T] without its padding."""
        return self.inputs[name][self.mask]

    def packed_output(self, name: str) -> Tensor:
        """A verl output [B, T] without its padding."""
        return torch.tensor(self.verl[name])[self.mask]

    def per_sample(self, name: str) -> list[Tensor]:
        """An input as one tensor a sample."""
        return [row[keep] for row, keep in zip(self.inputs[name], self.mask, strict=True)]

    def batch(self, advantages_B: Tensor) -> SampleBatch:
        """All samples; prompts are of no interest here."""
        return SampleBatch(
            prompts=[torch.tensor([1]), torch.tensor([2])],
            group_of_B=self.inputs["index"],
            responses=[torch.zeros(int(keep.sum()), dtype=torch.int64) for keep in self.mask],
            fields={
                "rollout_logprobs": self.per_sample("rollout_logp"),
                "old_logprobs": self.per_sample("old_logp"),
                "reference_logprobs": self.per_sample("ref_logp"),
                "teacher_logprobs": self.per_sample("ref_logp"),
            },
            scalars={"advantage": advantages_B},
        )


@pytest.fixture(scope="session")
def oracles() -> Oracles:
    """The oracles, read once."""
    return Oracles()
