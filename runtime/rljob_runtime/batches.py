"""Names of batches and rows in the dock: `train/12`, `eval/40`, and `train/12/3/0` for a row.

A retried step appends its attempt (`train/12~1`): new rows in the dock, the same seeds. `pool/12` are
the prompts that a partial rollout works on for step 12.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchName:
    """A step's training rows, an evaluation's rows, or the open prompts of a step."""

    kind: Literal["train", "eval", "pool"]
    step: int
    attempt: int = 0

    def __str__(self) -> str:
        suffix = f"~{self.attempt}" if self.attempt else ""
        return f"{self.kind}/{self.step}{suffix}"

    def group(self, prompt: int) -> str:
        """Id of the group of a prompt."""
        return f"{self}/{prompt}"

    def row(self, prompt: int, sample: int) -> str:
        """Uid of a sample."""
        return f"{self}/{prompt}/{sample}"
