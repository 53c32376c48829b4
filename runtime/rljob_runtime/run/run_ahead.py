"""Decide what a run begins next: generation may be ahead of the update, within a bound.

Pure: `loop` tells it what ended and carries out what it answers. Batch b, counted from 1, is
consumed by the update that makes weights version b out of b − 1. Its staleness is b − 1 minus the version
that the rollout devices held when its generation began; they may switch to a newer one before it ends.
"""

from dataclasses import dataclass, field
from typing import Literal

Action = tuple[Literal["sync", "send", "generate", "update"], int]
"""What to begin: give the rollout devices weights of a version, send it to them while they generate, generate
a batch, train on a batch."""


@dataclass(slots=True, kw_only=True)
class RunAhead:
    """done: steps that are done, the version of the update's weights. held: that of the rollout devices.
    steps: of the run. max_staleness: the bound; 0: a step after the other. paused: begin nothing but a sync,
    so that all come to rest between two steps. made: version that each batch was begun with, of those that
    were not consumed. in_flight: whether weights may be sent while devices generate. streams: whether a batch
    is trained on while it is generated. sending: the version that is, from devices that train nothing
    meanwhile. switching: the one that the rollout devices have and are to switch to."""

    done: int
    held: int
    steps: int
    max_staleness: int
    paused: bool = False
    in_flight: bool = False
    streams: bool = False
    sending: int | None = None
    switching: int | None = None
    generating: int | None = None
    updating: int | None = None
    began_with: int = 0
    made: dict[int, int] = field(default_factory=dict)

    def next(self) -> list[Action]:
        """What may begin now; the caller begins all of it. Empty while there is only to wait."""
        if self.updating is None and self.held < self.done and self._nothing_comes:
            if self.generating is None:
                return [("sync", self.done)]
            if self.in_flight:
                return [("send", self.done)]
        actions: list[Action] = []
        if not self.paused and self.generating is None and self._may_generate(self._todo()):
            actions.append(("generate", self._todo()))
        busy = self.updating is not None or self.sending is not None
        ready = self.done + 1 in self.made or (self.streams and self.generating == self.done + 1)
        if ready and not busy and not (self.paused and self.max_staleness):
            actions.append(("update", self.done + 1))
        return actions

    @property
    def at_rest(self) -> bool:
        """True when nothing is under way and the rollout devices hold the newest weights; batches that run
        ahead may be there."""
        idle = self.generating is None and self.updating is None and self.held == self.done
        return idle and (self.max_staleness > 0 or not self.made)

    def begun(self, action: Action) -> None:
        """The caller has begun it; a sync has ended as well."""
        what, number = action
        if what == "sync":
            self.held = number
        elif what == "send":
            self.sending = number
        elif what == "generate":
            self.generating, self.began_with = number, self.held
        else:
            self.updating = number

    def sent(self) -> None:
        """All rollout devices have the version that was sent; they switch to it before they generate another
        batch."""
        self.sending, self.switching = None, self.sending

    def switched(self) -> None:
        """They generate with it."""
        assert self.switching is not None, "no version was sent"
        self.held, self.switching = self.switching, None

    def generated(self, batch: int) -> None:
        """The batch's generation has ended."""
        assert self.generating == batch, f"batch {batch} is not being generated"
        self.generating = None
        self.made[batch] = self.began_with

    def updated(self, batch: int) -> None:
        """The batch was trained on."""
        assert self.updating == batch == self.done + 1, f"batch {batch} is not being trained on"
        self.failed(batch)  # nothing of it is under way
        self.done = batch

    def failed(self, batch: int) -> None:
        """The batch is lost, whatever was under way with it: it starts over."""
        self.made.pop(batch, None)
        self.generating = None if self.generating == batch else self.generating
        self.updating = None if self.updating == batch else self.updating

    @property
    def _nothing_comes(self) -> bool:
        return self.sending is None and self.switching is None

    def _todo(self) -> int:
        """The first batch that waits for its generation."""
        return next(b for b in range(self.done + 1, self.steps + 2) if b not in self.made)

    def _may_generate(self, batch: int) -> bool:
        return batch <= self.steps and batch - 1 - self.held <= self.max_staleness
