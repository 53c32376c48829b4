"""Select the candidates of dynamic sampling to train on, and make their rows for the batches. Called
by the reward worker; no torch."""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.dock.rows import NewRow, RowMeta
from rljob_runtime.prompts.rounds import Selection
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import counts

ROW_COLUMNS = ("response", "rollout_logprobs")
"""Columns of each row that are copied. The caller adds the mask with tools, and each token's version
in a partial rollout."""
GROUP_COLUMNS = ("prompt", "position")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredGroup:
    """A candidate with its scores. shared: columns of the group; columns: those of each row; signal:
    whether its samples differ, so that it can teach."""

    rows: Sequence[RowMeta]
    shared: Mapping[str, NDArray[Any]]
    columns: Sequence[Mapping[str, NDArray[Any]]]
    rewards: Sequence[float]
    signal: bool

    @property
    def position(self) -> int:
        """Return the position of its prompt in the training stream."""
        return int(self.shared["position"][0])

    @property
    def oldest(self) -> int:
        """Return the version of the weights that drew its oldest token."""
        return min(row.version for row in self.rows)


def has_signal(rewards: Sequence[float], passes: Sequence[bool], *, by: str) -> bool:
    """Return whether a group's counted samples differ, in their rewards or, by "accuracy", in having
    passed."""
    signals = passes if by == "accuracy" else rewards
    return (
        len({value for value, reward in zip(signals, rewards, strict=True) if counts(reward)}) > 1
    )


def select_groups(
    signals: Sequence[bool], *, missing: int, fill: bool, last: Container[int] = ()
) -> Selection:
    """Select groups, by index, for the places missing in a step's batch, and sort the others into a
    Selection.

    Groups with a signal come first, and among these the ones that no later step can take (`last`);
    otherwise their order is kept. fill: groups without a signal fill the places that remain.
    """
    with_signal = [i for i, signal in enumerate(signals) if signal]
    in_order = sorted(with_signal, key=lambda i: i not in last)
    taken, others = in_order[:missing], in_order[missing:]
    silent = [i for i, signal in enumerate(signals) if not signal]
    filling = silent[: missing - len(taken)] if fill else []
    return Selection(
        taken=(*taken, *filling),
        left_over=tuple(i for i in others if i not in last),
        lost=tuple(i for i in others if i in last),
        silent=tuple(silent[len(filling) :]),
        num_with_signal=len(with_signal),
    )


def batch_rows(
    batch: BatchName, group_index: int, group: ScoredGroup, *, reserve_bytes: int
) -> Iterator[NewRow]:
    """Yield the rows of a scored group in a step's batch, each with its original version. In a group
    without a signal, every counted sample gets their mean as its reward."""
    rewards = group.rewards
    if not group.signal:
        counted = [reward for reward in rewards if counts(reward)]
        mean = sum(counted) / max(len(counted), 1)
        rewards = [mean if counts(reward) else reward for reward in rewards]
    for number, (row, columns) in enumerate(zip(group.rows, group.columns, strict=True)):
        reward = np.asarray([rewards[number]], dtype=np.float32)
        yield NewRow(
            uid=batch.row(group_index, number),
            group=batch.group(group_index),
            group_index=group_index,
            version=row.version,
            columns={**columns, "reward": reward},
            group_columns=group.shared,
            reserve_bytes=reserve_bytes,
        )
