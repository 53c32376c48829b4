"""Which samples passed their first reward, as the reward worker notes it in the dock beside the reward.

With `data.difficultyFilter`. The update reads and reports it, so that whoever was trained on is known,
whatever becomes of the reward worker meanwhile. No torch.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.dock.client import DockClient
from rljob_runtime.dock.rows import RowMeta
from rljob_runtime.samples.flow import PASSED


def passed_mark(*, passed: bool, failed: bool) -> NDArray[np.uint8]:
    """A sample's in the column PASSED. failed: a scorer did."""
    return np.asarray([passed + 2 * failed], dtype=np.uint8)


@dataclass(slots=True, kw_only=True)
class Passed:
    """Of the samples of an update, as `schedule.Scored`; passes of those alone whose score did not fail."""

    prompts: list[int] = field(default_factory=list)
    passes: list[float] = field(default_factory=list)
    failed: int = 0

    def add(self, dock: DockClient, rows: Sequence[RowMeta]) -> None:
        """Read these rows of a batch."""
        marks = dock.read(rows, [PASSED])[PASSED].values
        failed = marks // 2 > 0
        self.prompts += [
            row.group_index for row, fell in zip(rows, failed, strict=True) if not fell
        ]
        self.passes += (marks % 2)[~failed].astype(float).tolist()
        self.failed += int(failed.sum())
