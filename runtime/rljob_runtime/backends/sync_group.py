"""Where processes meet, and a group of them that is made anew while they live: the source of weights and
who takes them.

torch.distributed's groups are parts of one world that is fixed when a process starts. This one stands
beside it, so that devices come and go without touching the ranks that train. gloo alone so far.
"""

from collections.abc import Callable, Iterator
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import Store

from rljob_runtime.calls import MEET_SECONDS

TRANSFER_SECONDS = 300.0
"""How long one tensor may take; a process that hangs, rather than ends, is found then."""
SOURCE_RANK = 0
LISTEN_SECONDS = 1.0
"""After which a member that waits for an announcement looks whether it still should."""


class Meeting:
    """A place to meet, kept by the source. host: its own address."""

    def __init__(self, host: str) -> None:
        self._store = dist.TCPStore(host, 0, is_master=True, wait_for_workers=False)  # type: ignore[attr-defined]
        self.address = f"{host}:{self._store.port}"


def attend(address: str, *, seconds: float) -> Store:
    """The place to meet at this address. seconds: how long its owner and the others are waited for.

    Raises RuntimeError when nobody keeps it.
    """
    host, _, port = address.rpartition(":")
    limit = timedelta(seconds=seconds)
    return dist.TCPStore(host, int(port), is_master=False, timeout=limit)  # type: ignore[attr-defined]


class SyncGroup:
    """One process' membership. address: of the meeting, which everybody joins at the same time.

    Raises RuntimeError when the others do not come within MEET_SECONDS.
    """

    def __init__(self, address: str, *, rank: int, size: int) -> None:
        self._address, self._announced = address, 0
        self._store = attend(address, seconds=MEET_SECONDS)
        limit = timedelta(seconds=MEET_SECONDS)
        self._group = dist.ProcessGroupGloo(self._store, rank, size, limit)

    @property
    def is_source(self) -> bool:
        """Whether this process has the weights that the others take."""
        return self._group.rank() == SOURCE_RANK

    def broadcast(self, tensor: Tensor) -> None:
        """The source's tensor, [shape] → [shape] on all members, each byte once a member, in place.

        Raises RuntimeError when a member is gone or takes longer than TRANSFER_SECONDS.
        """
        limit = timedelta(seconds=TRANSFER_SECONDS)
        self._group.broadcast(tensor, SOURCE_RANK, timeout=limit).wait()  # type: ignore[attr-defined]

    def broadcast_bytes(self, content: bytes = b"") -> bytes:
        """The source's bytes, [n] → [n] on all members, after their number; others give none."""
        size = torch.tensor([len(content)])
        self.broadcast(size)
        held = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else None
        if held is None:
            held = torch.empty(int(size), dtype=torch.uint8)
        self.broadcast(held)
        return held.numpy().tobytes()

    def agree(self, problem: str = "") -> str:
        """A problem that a member has; "" where none has one. All call it together.

        Raises RuntimeError as `broadcast`.
        """
        if problem:
            self._store.set("problem", problem)
        whole = torch.tensor([int(not problem)])
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN  # type: ignore[assignment]
        options.timeout = timedelta(seconds=TRANSFER_SECONDS)
        self._group.allreduce([whole], options).wait()  # type: ignore[attr-defined]
        return "" if whole.item() else self._store.get("problem").decode()

    def announce(self, version: int) -> None:
        """Tell those who listen that weights of this version come now. The source's."""
        self._announced += 1
        self._store.set(f"announced/{self._announced}", str(version))

    def announcements(self, wanted: Callable[[], bool]) -> Iterator[int]:
        """Each version that the source announces, as it does; ends LISTEN_SECONDS after it is wanted no more.

        For a thread of its own. Raises RuntimeError when the source is gone.
        """
        store, number = attend(self._address, seconds=MEET_SECONDS), 1
        while wanted():
            try:
                store.wait([f"announced/{number}"], timedelta(seconds=LISTEN_SECONDS))
            except dist.DistStoreError:
                continue
            yield int(store.get(f"announced/{number}"))
            number += 1
