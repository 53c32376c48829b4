"""Record which samples passed their first reward, in a dock column beside the reward.

The reward worker writes the column in jobs with `data.difficultyFilter`. The update reads and reports it,
so the driver learns the result of every trained sample even if the reward worker has died since. No
torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.samples.flow import PASSED


def passed_mark(*, passed: bool, failed: bool) -> NDArray[np.uint8]:
    """Return a sample's value in the column PASSED. failed: whether a scorer failed on the sample."""
    return np.asarray([passed + 2 * failed], dtype=np.uint8)


@dataclass(slots=True, kw_only=True)
class PassedSamples:
    """Collect the results of an update's samples, as a `schedule.PassResults`. Samples whose score
    failed have no entry in `passes`."""

    prompts: list[int] = field(default_factory=list)
    passes: list[float] = field(default_factory=list)
    failed: int = 0

    def add(self, dock: DockClient, rows: Sequence[RowMeta]) -> None:
        """Read these rows of a batch and add their results."""
        marks = dock.read(rows, [PASSED])[PASSED].values
        failed = marks // 2 > 0
        self.prompts += [
            row.group_index for row, has_failed in zip(rows, failed, strict=True) if not has_failed
        ]
        self.passes += (marks % 2)[~failed].astype(float).tolist()
        self.failed += int(failed.sum())
