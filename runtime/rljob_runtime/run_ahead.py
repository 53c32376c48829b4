"""Decide what an asynchronous run begins next: generation may be ahead of the update, within a bound.

Pure: `async_steps` tells it what ended and carries out what it answers. Batch b, counted from 1, is
consumed by the update that makes weights version b out of b − 1. Its staleness is b − 1 minus the version
that the rollout devices held when its generation began.
"""

from dataclasses import dataclass, field
from typing import Literal

Action = tuple[Literal["sync", "generate", "update"], int]
"""What to begin: give the rollout devices weights of a version, generate a batch, train on a batch."""


@dataclass(slots=True, kw_only=True)
class RunAhead:
    """done: steps that are done, the version of the update's weights. held: that of the rollout devices.
    steps: of the run. max_staleness: the bound. paused: begin nothing but a sync, so that all come to
    rest. made: version that each batch was generated with, of those that were not consumed."""

    done: int
    held: int
    steps: int
    max_staleness: int
    paused: bool = False
    generating: int | None = None
    updating: int | None = None
    made: dict[int, int] = field(default_factory=dict)

    def next(self) -> list[Action]:
        """What may begin now; the caller begins all of it. Empty while there is only to wait."""
        if self.generating is None and self.updating is None and self.held < self.done:
            return [("sync", self.done)]
        actions: list[Action] = []
        if not self.paused and self.generating is None and self._may_generate(self._todo()):
            actions.append(("generate", self._todo()))
        if not self.paused and self.updating is None and self.done + 1 in self.made:
            actions.append(("update", self.done + 1))
        return actions

    @property
    def at_rest(self) -> bool:
        """True when nothing is under way and the rollout devices hold the newest weights."""
        return self.generating is None and self.updating is None and self.held == self.done

    def begun(self, action: Action) -> None:
        """The caller has begun it; a sync has ended as well."""
        what, number = action
        if what == "sync":
            self.held = number
        elif what == "generate":
            self.generating = number
        else:
            self.updating = number

    def generated(self, batch: int) -> None:
        """The batch's generation has ended."""
        assert self.generating == batch, f"batch {batch} is not being generated"
        self.generating = None
        self.made[batch] = self.held

    def updated(self, batch: int) -> None:
        """The batch was trained on."""
        assert self.updating == batch == self.done + 1, f"batch {batch} is not being trained on"
        self.updating = None
        self.done = batch
        del self.made[batch]

    def failed(self, batch: int) -> None:
        """The batch is lost, whatever was under way with it: it starts over."""
        self.made.pop(batch, None)
        self.generating = None if self.generating == batch else self.generating
        self.updating = None if self.updating == batch else self.updating

    def _todo(self) -> int:
        """The first batch that waits for its generation."""
        return next(b for b in range(self.done + 1, self.steps + 2) if b not in self.made)

    def _may_generate(self, batch: int) -> bool:
        return batch <= self.steps and batch - 1 - self.held <= self.max_staleness
