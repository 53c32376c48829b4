"""Decide which of a rank's open groups a step trains on, and which go on in the next. Pure.

Asked by the generate state of a partial rollout. Every rank decides alone: a group in the pool is one
group out, a train group for each place below `prompts` and one that goes on for each other place. So
every batch is full whatever the ranks decide, and no rank gets more groups that are too old to go on
than it has train groups to make.
"""

from dataclasses import dataclass, field


@dataclass(slots=True, kw_only=True)
class OpenGroups:
    """One rank's groups in one step, by their places in the pool.

    oldest: version of the weights of each group's oldest token; of those that work now, where it has
    none. prompts: groups of a whole batch. budget: tokens that a group's samples make at a time.
    forced: groups whose oldest token would be too old in the next step, or all where none may go on;
    they run to their end. trained: numbers in the batch of the groups that are in it.
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
        """True when every group that this rank owes the batch is complete."""
        return len(self.trained) == self._quota

    @property
    def unfinished(self) -> list[int]:
        """Groups with samples to be made, the oldest first."""
        return [group for group in self._by_age() if group not in self._complete]

    def budget_of(self, group: int) -> int | None:
        """Tokens that each sample of the group may make now; None: to its end."""
        return None if group in self.forced else self.budget

    def completed(self, group: int) -> int | None:
        """The group's samples have all ended. Its number in the step's batch; None where it goes on."""
        assert group not in self._complete, f"group {group} is complete already"
        self._complete.add(group)
        owed = len(self.forced - self.trained.keys()) - (group in self.forced)
        if self._quota - len(self.trained) <= owed:
            return None
        slots = sorted(place for place in self.oldest if place < self.prompts)
        self.trained[group] = slots[len(self.trained)]
        return self.trained[group]

    def going_on(self) -> dict[int, int]:
        """Place in the next pool of each group that was not trained on. The batch must be full."""
        assert self.full, f"{len(self.trained)} of {self._quota} groups are complete"
        left = [group for group in self._by_age() if group not in self.trained]
        places = sorted(place - self.prompts for place in self.oldest if place >= self.prompts)
        return dict(zip(left, places, strict=True))

    @property
    def _quota(self) -> int:
        return sum(place < self.prompts for place in self.oldest)

    def _by_age(self) -> list[int]:
        return sorted(self.oldest, key=lambda group: (self.oldest[group], group))
