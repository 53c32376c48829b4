"""Which candidates of dynamic sampling are trained on, and their rows in the batches. Called by the reward
worker; no torch.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.dock.rows import NewRow, RowMeta
from rljob_runtime.samples.batches import BatchName

ROW_COLUMNS = ("response", "rollout_logprobs")
"""With tools, the mask goes along."""
GROUP_COLUMNS = ("prompt", "position")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroup:
    """A candidate. shared: columns of the group; columns: of each row; signal: whether it can teach."""

    rows: Sequence[RowMeta]
    shared: Mapping[str, NDArray[Any]]
    columns: Sequence[Mapping[str, NDArray[Any]]]
    rewards: Sequence[float]
    signal: bool

    @property
    def position(self) -> int:
        """Of its prompt in the training stream."""
        return int(self.shared["position"][0])


def has_signal(rewards: Sequence[float], passes: Sequence[bool], *, by: str) -> bool:
    """Whether a group's samples differ, in their rewards or in having passed."""
    return len(set(passes if by == "accuracy" else rewards)) > 1


def select_groups(
    signals: Sequence[bool], *, missing: int, fill: bool
) -> tuple[list[int], list[int]]:
    """Groups for the places that are missing, in their order, and those that are left over.

    Groups with a signal come first; fill: others take the places that these leave.
    """
    kept = [i for i, signal in enumerate(signals) if signal]
    taken, left_over = kept[:missing], kept[missing:]
    if fill:
        others = [i for i, signal in enumerate(signals) if not signal]
        taken += others[: missing - len(taken)]
    return taken, left_over


def batch_rows(
    batch: BatchName, place: int, group: ScoredGroup, *, reserve_bytes: int
) -> Iterator[NewRow]:
    """Rows of a scored group in a step's batch; each as old as it was. A group without a signal has its
    mean as the reward of all."""
    mean = sum(group.rewards) / len(group.rewards)
    rewards = group.rewards if group.signal else [mean] * len(group.rows)
    for number, (row, columns) in enumerate(zip(group.rows, group.columns, strict=True)):
        reward = np.asarray([rewards[number]], dtype=np.float32)
        yield NewRow(
            uid=batch.row(place, number),
            group=batch.group(place),
            group_index=place,
            version=row.version,
            columns={**columns, "reward": reward},
            group_columns=group.shared,
            reserve_bytes=reserve_bytes,
        )
