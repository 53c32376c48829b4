"""Processes that exchange tensors: those of torch.distributed's default group, or of a separate group
(`SyncGroup`)."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Protocol

import torch.distributed as dist
from torch.distributed import ProcessGroup

from rljob_runtime.devices.collectives import texts_over_ranks
from rljob_runtime.devices.presence import Presence
from rljob_runtime.devices.world_connections import CONNECTIONS


class Members(Protocol):
    """This process among others; ranks are numbers from 0. All members call `share`, `subgroup` and
    `presence` together, in one order."""

    @property
    def rank(self) -> int:
        """Return the rank of this process."""
        ...

    @property
    def size(self) -> int:
        """Return the number of processes."""
        ...

    @property
    def full_group(self) -> ProcessGroup | None:
        """Return the group of all members; None for a single process."""
        ...

    def share(self, text: str) -> list[str]:
        """Exchange texts: return each member's text, by rank."""
        ...

    def subgroup(self, ranks: Sequence[int], *, seconds: float) -> ProcessGroup | None:
        """Create a group of these ranks; return None in other processes. seconds: timeout of one collective.
        Raises RuntimeError or WorkerError when a rank does not arrive."""
        ...

    def presence(self, activity: str) -> Presence | None:
        """Return the detector of lost ranks; None for a single process. activity: of this process, for
        messages."""
        ...


class DefaultGroupMembers:
    """The ranks of torch.distributed's default group, or a single process without one."""

    def __init__(self) -> None:
        alone = not dist.is_initialized()
        self.rank, self.size = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
        self.full_group = None if alone else dist.group.WORLD

    def share(self, text: str) -> list[str]:
        """Exchange texts over the default group, signed with the secret of its rendezvous."""
        signer = CONNECTIONS.signer
        topic = signer.next_topic()
        signed_texts = texts_over_ranks(signer.sign(text, f"{topic}/{self.rank}"), self.full_group)
        return [signer.read(signed, f"{topic}/{rank}") for rank, signed in enumerate(signed_texts)]

    def subgroup(self, ranks: Sequence[int], *, seconds: float) -> ProcessGroup | None:
        """Create a group by `torch.distributed.new_group`."""
        group = dist.new_group(list(ranks), timeout=timedelta(seconds=seconds))
        return group if isinstance(group, ProcessGroup) else None

    def presence(self, activity: str) -> Presence | None:
        """Return a new detector of lost ranks."""
        if self.full_group is None:
            return None
        return Presence(self.rank, self.share, name=f"rank {self.rank}", activity=activity)
