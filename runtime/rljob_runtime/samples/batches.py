"""Names of batches and rows in the dock: `train/12`, `eval/40`, and `train/12/3/0` for a row.

A retried step appends its attempt (`train/12~1`): new rows in the dock, the same seeds. After a rollback, it
appends how many steps were skipped (`train/12+5`): other prompts, other seeds. `pool/12` are the prompts of a
partial rollout for step 12; `candidates/12` those of a round of dynamic sampling.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchName:
    """The name of a batch: a step's training rows, an evaluation's rows, or the prompts that a step's rows
    come from. suite: name of an evaluation's set; empty for the job's own held-out prompts."""

    kind: Literal["train", "eval", "pool", "candidates"]
    step: int
    attempt: int = 0
    suite: str = ""
    skipped: int = 0

    def __str__(self) -> str:
        skipped = f"+{self.skipped}" if self.skipped else ""
        attempt = f"~{self.attempt}" if self.attempt else ""
        kind = f"{self.kind}:{self.suite}" if self.suite else self.kind
        return f"{kind}/{self.step}{skipped}{attempt}"

    @property
    def draw(self) -> int:
        """Number of the step's prompts in the training stream, from 1."""
        return self.step + self.skipped

    def group(self, prompt: int) -> str:
        """Return the id of the group of a prompt."""
        return f"{self}/{prompt}"

    def row(self, prompt: int, sample: int) -> str:
        """Return the uid of a sample."""
        return f"{self}/{prompt}/{sample}"
