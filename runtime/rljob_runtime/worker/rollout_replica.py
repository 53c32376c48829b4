"""The devices that generate the same samples: the first of them reads and writes, all generate.

The generate states call this. Passes of replicas that share experts meet: these replicas generate equally
often, and a failure of one fails all of them.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from rljob_runtime.devices.collectives import broadcast_bytes, rank_of
from rljob_runtime.errors import DockError
from rljob_runtime.record.spans import Stopwatch
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup, RolloutEngine, Sampling
from rljob_runtime.rollout.rollout_grid import RolloutPurpose
from rljob_runtime.rollout.rollout_groups import RolloutGroups
from rljob_runtime.worker.agree import any_of, fail_together

GROUPS = TypeAdapter(list[PromptGroup])


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReplica:
    """One device's view of its replica.

    groups: those of the engine; None for a single device. generating: runs while the engine generates.
    """

    engine: RolloutEngine
    groups: RolloutGroups | None = None
    generating: Stopwatch = field(default_factory=Stopwatch)

    @property
    def leads(self) -> bool:
        """Return whether this device accesses the dock for its replica."""
        return self.groups is None or rank_of(self.groups[RolloutPurpose.REPLICA]) == 0

    def fail_together(self) -> AbstractContextManager[None]:
        """Fail on all devices whose passes meet if the body fails on one."""
        return fail_together(self.groups[RolloutPurpose.MODEL] if self.groups else None)

    def any_of(self, value: bool) -> bool:
        """Return whether the value is true on any device whose passes meet this one's."""
        return any_of(self.groups[RolloutPurpose.MODEL] if self.groups else None, value)

    def generate(
        self,
        requests: Sequence[PromptGroup],
        sampling: Sampling,
        take: Callable[[Sequence[Generated]], None],
    ) -> None:
        """Generate the leader's requests; `take` receives the samples on the leader as they end.

        Requests of other devices are ignored. Raises the DockError of `take`, and DockLost on the other
        devices, after all have generated: one that stopped early would leave the others waiting in their
        pass.
        """
        if self.groups is None:
            with self.generating.running():
                for finished in self.engine.generate(requests, sampling):
                    take(finished)
            return
        broadcast = broadcast_bytes(
            pack(requests) if self.leads else b"", self.groups[RolloutPurpose.REPLICA]
        )
        with self.fail_together(), self.generating.running():
            failure: DockError | None = None
            for finished in self.engine.generate(unpack(broadcast), sampling):
                try:
                    if self.leads and failure is None:
                        take(finished)
                except DockError as error:
                    failure = error
            if failure is not None:
                raise failure


def pack(groups: Sequence[PromptGroup]) -> bytes:
    """Return the groups as JSON."""
    return GROUPS.dump_json(list(groups), by_alias=True)


def unpack(content: bytes) -> list[PromptGroup]:
    """Return the groups that were passed to `pack`."""
    return GROUPS.validate_json(content)
