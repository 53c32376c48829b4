"""Decide what a run starts next: generation may be ahead of the update, within a bound.

Pure: `loop` reports what ended and carries out the returned actions. Batch b, counted from 1, is consumed by
the update that makes weights version b out of b − 1. Its staleness is b − 1 minus the version that the
rollout devices had when its generation started. They may switch to a newer one before it ends.
"""

from dataclasses import dataclass, field
from typing import Literal

Action = tuple[Literal["sync", "send", "generate", "update"], int]
"""What to start: sync the rollout devices to a version, send it to them while they generate, generate a
batch, or train on a batch."""


@dataclass(slots=True, kw_only=True)
class RunAhead:
    """done: number of completed steps, which is the version of the update's weights. rollout_version: that of
    the rollout devices. steps: of the run. max_staleness: the bound; 0: one step after the other. paused:
    start nothing but a sync, so that all devices become idle between two steps. generated_with: version that
    the generation of each batch started with, for batches that were not consumed. in_flight: whether weights
    may be sent while devices generate. streams: whether a batch is trained on while it is generated. sending:
    the version that is being sent, from devices that train nothing meanwhile. switching: the version that the
    rollout devices have and will switch to."""

    done: int
    rollout_version: int
    steps: int
    max_staleness: int
    paused: bool = False
    in_flight: bool = False
    streams: bool = False
    sending: int | None = None
    switching: int | None = None
    generating: int | None = None
    updating: int | None = None
    generating_with: int = 0
    generated_with: dict[int, int] = field(default_factory=dict)

    def next(self) -> list[Action]:
        """Return what may start now; the caller starts all of it. Returns nothing while there is only to
        wait."""
        if self.updating is None and self.rollout_version < self.done and self._no_delivery:
            if self.generating is None:
                return [("sync", self.done)]
            if self.in_flight:
                return [("send", self.done)]
        actions: list[Action] = []
        if not self.paused and self.generating is None and self._may_generate(self._next_batch()):
            actions.append(("generate", self._next_batch()))
        busy = self.updating is not None or self.sending is not None
        ready = self.done + 1 in self.generated_with or (
            self.streams and self.generating == self.done + 1
        )
        if ready and not busy and not (self.paused and self.max_staleness):
            actions.append(("update", self.done + 1))
        return actions

    @property
    def at_rest(self) -> bool:
        """True if no action is in progress and the rollout devices have the newest weights. Batches that run
        ahead may be there."""
        idle = (
            self.generating is None and self.updating is None and self.rollout_version == self.done
        )
        return idle and (self.max_staleness > 0 or not self.generated_with)

    def action_started(self, action: Action) -> None:
        """Record an action that the caller has started; a sync has also ended."""
        kind, number = action
        if kind == "sync":
            self.rollout_version = number
        elif kind == "send":
            self.sending = number
        elif kind == "generate":
            self.generating, self.generating_with = number, self.rollout_version
        else:
            self.updating = number

    def weights_sent(self) -> None:
        """Record that all rollout devices have the version that was sent. They switch to it before they
        generate another batch."""
        self.sending, self.switching = None, self.sending

    def weights_switched(self) -> None:
        """Record that the rollout devices generate with the version that was sent."""
        assert self.switching is not None, "no version was sent"
        self.rollout_version, self.switching = self.switching, None

    def batch_generated(self, batch: int) -> None:
        """Record that the batch's generation has ended."""
        assert self.generating == batch, f"batch {batch} is not being generated"
        self.generating = None
        self.generated_with[batch] = self.generating_with

    def batch_updated(self, batch: int) -> None:
        """Record that the batch was trained on."""
        assert self.updating == batch == self.done + 1, f"batch {batch} is not being trained on"
        self.batch_failed(batch)  # no action on it is in progress
        self.done = batch

    def batch_failed(self, batch: int) -> None:
        """Record that the batch is lost with all work on it: it starts over."""
        self.generated_with.pop(batch, None)
        self.generating = None if self.generating == batch else self.generating
        self.updating = None if self.updating == batch else self.updating

    @property
    def _no_delivery(self) -> bool:
        return self.sending is None and self.switching is None

    def _next_batch(self) -> int:
        """Return the number of the first batch that waits for its generation."""
        return next(b for b in range(self.done + 1, self.steps + 2) if b not in self.generated_with)

    def _may_generate(self, batch: int) -> bool:
        return batch <= self.steps and batch - 1 - self.rollout_version <= self.max_staleness
