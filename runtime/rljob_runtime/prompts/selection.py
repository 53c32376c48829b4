"""Which candidates of dynamic sampling are trained on, and their rows in the batches. Called by the reward
worker; no torch.
"""

from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from rljob_runtime.dock.rows import NewRow, RowMeta
from rljob_runtime.prompts.rounds import Selected
from rljob_runtime.samples.batches import BatchName
from rljob_runtime.samples.flow import counts

ROW_COLUMNS = ("response", "rollout_logprobs")
"""With tools, the mask goes along, and in a partial rollout the version of each token."""
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

    @property
    def oldest(self) -> int:
        """Version of the weights that drew its oldest token."""
        return min(row.version for row in self.rows)


def has_signal(rewards: Sequence[float], passes: Sequence[bool], *, by: str) -> bool:
    """Whether a group's samples that count differ, in their rewards or in having passed."""
    told = passes if by == "accuracy" else rewards
    return len({value for value, reward in zip(told, rewards, strict=True) if counts(reward)}) > 1


def select_groups(
    signals: Sequence[bool], *, missing: int, fill: bool, last: Container[int] = ()
) -> Selected:
    """Groups by their places: those for what is missing in a step's batch, and what becomes of the others.

    Groups with a signal come first, and of these the ones that no later step can take (`last`); otherwise
    in their order. fill: groups without a signal take the places that these leave.
    """
    kept = [i for i, signal in enumerate(signals) if signal]
    in_order = sorted(kept, key=lambda i: i not in last)
    taken, others = in_order[:missing], in_order[missing:]
    silent = [i for i, signal in enumerate(signals) if not signal]
    filling = silent[: missing - len(taken)] if fill else []
    return Selected(
        taken=(*taken, *filling),
        left_over=tuple(i for i in others if i not in last),
        lost=tuple(i for i in others if i in last),
        silent=tuple(silent[len(filling) :]),
        kept=len(kept),
    )


def batch_rows(
    batch: BatchName, place: int, group: ScoredGroup, *, reserve_bytes: int
) -> Iterator[NewRow]:
    """Rows of a scored group in a step's batch; each as old as it was. A group without a signal has its
    mean as the reward of all that count."""
    rewards = group.rewards
    if not group.signal:
        counted = [reward for reward in rewards if counts(reward)]
        mean = sum(counted) / max(len(counted), 1)
        rewards = [mean if counts(reward) else reward for reward in rewards]
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
