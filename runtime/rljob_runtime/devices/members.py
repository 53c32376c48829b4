"""Processes that exchange tensors: those of torch.distributed's world, or of a group beside it
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
    """This process among others; its rank and the others' are numbers from 0. All of them call `share`,
    `subgroup` and `presence` together, in one order."""

    @property
    def rank(self) -> int:
        """Of this process."""
        ...

    @property
    def size(self) -> int:
        """Processes."""
        ...

    @property
    def whole(self) -> ProcessGroup | None:
        """The group of all of them; None for one process alone."""
        ...

    def share(self, own: str) -> list[str]:
        """What each of them gives, by rank."""
        ...

    def subgroup(self, ranks: Sequence[int], *, seconds: float) -> ProcessGroup | None:
        """A group of these, None for a process that is not among them. seconds: of one collective. Raises
        RuntimeError or WorkerError when one does not come."""
        ...

    def presence(self, where: str) -> Presence | None:
        """Who is gone or gives up; None for one process alone. where: what this one does, for messages."""
        ...


class World:
    """The ranks of torch.distributed's default group, or one process alone where there is none."""

    def __init__(self) -> None:
        alone = not dist.is_initialized()
        self.rank, self.size = (0, 1) if alone else (dist.get_rank(), dist.get_world_size())
        self.whole = None if alone else dist.group.WORLD

    def share(self, own: str) -> list[str]:
        """Over the default group, signed with the secret of the meeting where it was made."""
        signer = CONNECTIONS.signer
        what = signer.share()
        signed = texts_over_ranks(signer.sign(own, f"{what}/{self.rank}"), self.whole)
        return [signer.read(text, f"{what}/{rank}") for rank, text in enumerate(signed)]

    def subgroup(self, ranks: Sequence[int], *, seconds: float) -> ProcessGroup | None:
        """torch.distributed's."""
        made = dist.new_group(list(ranks), timeout=timedelta(seconds=seconds))
        return made if isinstance(made, ProcessGroup) else None

    def presence(self, where: str) -> Presence | None:
        """A new one."""
        if self.whole is None:
            return None
        return Presence(self.rank, self.share, name=f"rank {self.rank}", where=where)
