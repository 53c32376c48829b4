"""The devices that generate the same samples as one: the first of them reads and writes, all generate.

Called by the generate states. Passes of replicas that share experts meet: these generate equally often,
and a failure of one is a failure of all of them.
"""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from pydantic import TypeAdapter

from rljob_runtime.devices.collectives import broadcast_bytes, rank_of
from rljob_runtime.errors import DockError
from rljob_runtime.record.spans import Stopwatch
from rljob_runtime.rollout.rollout_engine import Generated, PromptGroup, RolloutEngine, Sampling
from rljob_runtime.rollout.rollout_grid import Purpose
from rljob_runtime.rollout.rollout_groups import RolloutGroups
from rljob_runtime.worker.agree import agreed, any_of

GROUPS = TypeAdapter(list[PromptGroup])


@dataclass(frozen=True, slots=True, kw_only=True)
class RolloutReplica:
    """One device's view of its replica. groups: as the engine has them; None for a device alone.
    generating: runs while the engine does."""

    engine: RolloutEngine
    groups: RolloutGroups | None = None
    generating: Stopwatch = field(default_factory=Stopwatch)

    @property
    def leads(self) -> bool:
        """Whether this device speaks with the dock for its replica."""
        return self.groups is None or rank_of(self.groups[Purpose.REPLICA]) == 0

    def agreed(self) -> AbstractContextManager[None]:
        """What fails in the body on one device fails on all whose passes meet."""
        return agreed(self.groups[Purpose.MODEL] if self.groups else None)

    def any_of(self, value: bool) -> bool:
        """Whether it is so on any device whose passes meet this one's."""
        return any_of(self.groups[Purpose.MODEL] if self.groups else None, value)

    def generate(
        self,
        asked: Sequence[PromptGroup],
        sampling: Sampling,
        take: Callable[[Sequence[Generated]], None],
    ) -> None:
        """Generate what the leader asks for; `take` gets the samples there, as they end.

        What others ask is not read. Raises the DockError of `take`, and DockLost on the other devices, once
        all have generated: one that stopped would let the others wait in their pass.
        """
        if self.groups is None:
            with self.generating.running():
                for ended in self.engine.generate(asked, sampling):
                    take(ended)
            return
        told = broadcast_bytes(pack(asked) if self.leads else b"", self.groups[Purpose.REPLICA])
        with self.agreed(), self.generating.running():
            failure: DockError | None = None
            for ended in self.engine.generate(unpack(told), sampling):
                try:
                    if self.leads and failure is None:
                        take(ended)
                except DockError as error:
                    failure = error
            if failure is not None:
                raise failure


def pack(groups: Sequence[PromptGroup]) -> bytes:
    """As JSON."""
    return GROUPS.dump_json(list(groups), by_alias=True)


def unpack(content: bytes) -> list[PromptGroup]:
    """What `pack` took."""
    return GROUPS.validate_json(content)
