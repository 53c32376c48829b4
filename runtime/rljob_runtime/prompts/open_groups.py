"""Decide which of a rank's open groups a step trains on, and which continue in the next step. Pure.

Used by the generate state of a partial rollout. Every rank decides alone. It owes the batch one group for
each pool index below `prompts`, and continues one group for each other index. So every batch is full
whatever the ranks decide. No rank has more groups that are too old to continue than it owes the batch.
"""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class OpenGroups:
    """One rank's groups in one step, by their index in the pool.

    oldest: version of the weights that drew each group's oldest token, or of the current weights if it
    has none. prompts: number of groups in a full batch. budget: tokens that each of a group's samples
    generates at a time. forced: groups that run to their end, because their oldest token would be too old
    in the next step, or because none may continue. trained: each group's number in the batch, for the
    groups that are in it.
    """

    step: int
    max_staleness: int
    prompts: int
    budget: int
    oldest: dict[int, int]
    forced: frozenset[int] = field(init=False)
    trained: dict[int, int] = field(default_factory=dict)
    _complete: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        too_old = {
            g for g, version in self.oldest.items() if self.step - version > self.max_staleness
        }
        none_goes_on = max(self.oldest, default=0) < self.prompts
        self.forced = frozenset(self.oldest if none_goes_on else too_old)
        assert len(self.forced) <= self._quota, (
            f"{len(self.forced)} groups for {self._quota} places"
        )

    @property
    def full(self) -> bool:
        """Return whether every group that this rank owes the batch is complete."""
        return len(self.trained) == self._quota

    @property
    def unfinished(self) -> list[int]:
        """Return the groups with unfinished samples, the oldest first."""
        return [group for group in self._by_age() if group not in self._complete]

    def budget_of(self, group: int) -> int | None:
        """Return the tokens that each sample of the group may generate before the next decision; None:
        until its end."""
        return None if group in self.forced else self.budget

    def completed(self, group: int) -> int | None:
        """Record that all samples of the group have ended. Return its number in the step's batch, or
        None if it continues."""
        assert group not in self._complete, f"group {group} is complete already"
        self._complete.add(group)
        owed = len(self.forced - self.trained.keys()) - (group in self.forced)
        if self._quota - len(self.trained) <= owed:
            return None
        slots = sorted(index for index in self.oldest if index < self.prompts)
        self.trained[group] = slots[len(self.trained)]
        return self.trained[group]

    def going_on(self) -> dict[int, int]:
        """Return the index in the next pool of each group that was not trained on. The batch must be
        full."""
        assert self.full, f"{len(self.trained)} of {self._quota} groups are complete"
        left = [group for group in self._by_age() if group not in self.trained]
        places = sorted(index - self.prompts for index in self.oldest if index >= self.prompts)
        return dict(zip(left, places, strict=True))

    @property
    def _quota(self) -> int:
        return sum(index < self.prompts for index in self.oldest)

    def _by_age(self) -> list[int]:
        return sorted(self.oldest, key=lambda group: (self.oldest[group], group))
