"""Where processes meet, and a group of them that is made anew while they live: the source of weights and
who takes them.

torch.distributed's groups are parts of one world that is fixed when a process starts. This one stands
beside it, so that devices come and go without touching the ranks that train. gloo alone so far. A member
waits for others that wait for a third, and hears of that one's end within seconds (`presence`).
"""

import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import asdict
from datetime import timedelta
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import ProcessGroup

from rljob_runtime.devices.collective_notes import NOTES, GroupNotes
from rljob_runtime.devices.presence import Address, Presence
from rljob_runtime.devices.wire import Pending
from rljob_runtime.errors import WorkerError

MEET_SECONDS = 30.0
"""How long a process waits for the others of its group; all of them were alive a moment before."""
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
    try:  # a store would try again and again, though its owner can only be gone
        socket.create_connection((host, int(port)), timeout=seconds).close()
    except OSError as error:
        raise RuntimeError(f"the process that keeps {address} is gone: {error}") from error
    limit = timedelta(seconds=seconds)
    return dist.TCPStore(host, int(port), is_master=False, timeout=limit)  # type: ignore[attr-defined]


def assemble(store: Store, rank: int, size: int, *, seconds: float) -> None:
    """Return once all ranks are there. A process group that is made before waits for who died on the way as
    long as its collectives may take. Raises WorkerError after so long, which says who is missing."""
    store.set(f"assembled/{rank}", "")
    there = {other: f"assembled/{other}" for other in range(size)}
    try:
        store.wait([*there.values()], timedelta(seconds=seconds))
    except dist.DistStoreError as error:
        missing = [str(other) for other, key in there.items() if not store.check([key])]
        raise WorkerError(
            f"rank {', '.join(missing)} of {size} is gone: it did not come within {seconds:g} s to where "
            "they meet"
        ) from error


class SyncGroup:
    """One process' membership, for whoever runs a plan with the others too (`Members`). address: of the
    meeting, which everybody joins at the same time. name: of this member in what others say of it, such as
    "device 3".

    Raises WorkerError when the others do not come within MEET_SECONDS.
    """

    def __init__(self, address: str, *, rank: int, size: int, name: str = "") -> None:
        self._address, self._announced, self._shared = address, 0, 0
        self.rank, self.size = rank, size
        self._store = attend(address, seconds=MEET_SECONDS)
        limit = timedelta(seconds=MEET_SECONDS)
        name = name or f"member {rank}"
        self._where = f"weights on {name}"
        notes = GroupNotes(f"weights, met at {address}", rank=rank, size=size)
        self._notes = NOTES.add(self, notes)
        with notes.whole("meet"):
            assemble(self._store, rank, size, seconds=MEET_SECONDS)
            self._group = dist.ProcessGroupGloo(self._store, rank, size, limit)
            self._groups: list[ProcessGroup] = []
            self._presence = Presence(rank, self._addresses, name=name, where=self._where)

    def close(self) -> None:
        """Leave it; who still waits for this member hears that it is gone.

        gloo's group ends only with what is on its way in it, which others may never take: in a thread, as
        that may last TRANSFER_SECONDS. Nothing may be called after it.
        """
        self._presence.close()
        self.__dict__.pop("whole", None)
        last = [self.__dict__.pop("_group"), *self.__dict__.pop("_groups")]
        threading.Thread(target=last.clear, name="leaves a group", daemon=True).start()

    @property
    def is_source(self) -> bool:
        """Whether this process has the weights that the others take."""
        return self.rank == SOURCE_RANK

    @cached_property
    def whole(self) -> ProcessGroup:
        """Of all members, who ask for it together."""
        group = self.subgroup(range(self.size), seconds=TRANSFER_SECONDS)
        assert group is not None, "this member is one of all"
        return group

    def share(self, own: str) -> list[str]:
        """What each member gives, by rank, over the meeting's store."""
        self._shared += 1
        self._store.set(f"shared/{self._shared}/{self.rank}", own)
        keys = [f"shared/{self._shared}/{rank}" for rank in range(self.size)]
        return [self._store.get(key).decode() for key in keys]

    def subgroup(self, ranks: Sequence[int], *, seconds: float) -> ProcessGroup | None:
        """A group of these members, None for another one. seconds: of one collective. Raises WorkerError
        when one does not come within MEET_SECONDS."""
        if self.rank not in ranks:
            return None
        named, place = ",".join(map(str, ranks)), list(ranks).index(self.rank)
        store = PrefixStore(f"members {named}", self._store)
        assemble(store, place, len(ranks), seconds=MEET_SECONDS)
        limit = timedelta(seconds=seconds)
        gloo = dist.ProcessGroupGloo(store, place, len(ranks), limit)
        self._groups.append(_as_group(gloo, store, f"{self._notes.key}, members {named}"))
        return self._groups[-1]

    def presence(self, where: str) -> Presence:
        """Its own, which names itself."""
        return self._presence

    def broadcast(self, tensor: Tensor, what: str = "a tensor") -> None:
        """The source's tensor, [shape] → [shape] on all members, each byte once a member, in place. what: for
        messages.

        Raises WorkerError, which names who it is, when a member is gone or gives up, and when one takes
        longer than TRANSFER_SECONDS.
        """
        limit = timedelta(seconds=TRANSFER_SECONDS)
        with self.telling(what), self._notes.whole("broadcast", tensor):
            work = self._group.broadcast(tensor, SOURCE_RANK, timeout=limit)  # type: ignore[attr-defined]
            self._await(tensor, work)

    def broadcast_bytes(self, content: bytes = b"", what: str = "bytes") -> bytes:
        """The source's bytes, [n] → [n] on all members, after their number; others give none."""
        size = torch.tensor([len(content)])
        self.broadcast(size, what)
        held = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else None
        if held is None:
            held = torch.empty(int(size), dtype=torch.uint8)
        self.broadcast(held, what)
        return held.numpy().tobytes()

    @contextmanager
    def telling(self, what: str) -> Iterator[None]:
        """What fails in the body, on this member alone, all others hear while they wait for it; what: this
        member did. Raises WorkerError in place of what does not say who is gone."""
        try:
            yield
        except (RuntimeError, WorkerError) as error:
            if self._presence.gave_up:
                raise
            text = self._presence.give_up(WorkerError(f"{what}: {error}"))
            raise WorkerError(text) from error
        except Exception as error:
            self._presence.give_up(error)
            raise

    def agree(self, problem: str = "", what: str = "an agreement") -> str:
        """A problem that a member has; "" where none has one. All call it together.

        Raises WorkerError as `broadcast`.
        """
        if problem:
            self._store.set("problem", problem)
        whole = torch.tensor([int(not problem)])
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN  # type: ignore[assignment]
        options.timeout = timedelta(seconds=TRANSFER_SECONDS)
        with self.telling(what), self._notes.whole("all_reduce min", whole):
            work = self._group.allreduce([whole], options)  # type: ignore[attr-defined]
            self._await(whole, work)
        return "" if whole.item() else self._store.get("problem").decode()

    def announce(self, version: int) -> None:
        """Tell those who listen that weights of this version come now. The source's."""
        self._announced += 1
        self._store.set(f"announced/{self._announced}", str(version))

    def announcements(self, wanted: Callable[[], bool]) -> Iterator[int]:
        """Each version that the source announces, as it does; ends LISTEN_SECONDS after it is wanted no more.

        For a thread of its own. Raises WorkerError when the source is gone.
        """
        try:
            store, number = attend(self._address, seconds=MEET_SECONDS), 1
            while wanted():
                try:
                    store.wait([f"announced/{number}"], timedelta(seconds=LISTEN_SECONDS))
                except dist.DistStoreError:
                    continue
                yield int(store.get(f"announced/{number}"))
                number += 1
        except RuntimeError as error:
            source = self._presence.names[SOURCE_RANK]
            raise WorkerError(f"{self._where}: {source}, their source, is gone: {error}") from error

    def _await(self, result: Tensor, work: dist.Work) -> None:
        self._presence.await_all([Pending(result, [work])], range(self.size))

    def _addresses(self, own: Address) -> list[Address]:
        return [Address(**json.loads(given)) for given in self.share(json.dumps(asdict(own)))]


def _as_group(gloo: dist.ProcessGroupGloo, store: Store, named: str) -> ProcessGroup:
    """As torch.distributed's functions take it, and noted."""
    group = ProcessGroup(store, gloo.rank(), gloo.size())
    kind = ProcessGroup.BackendType.GLOO
    group._register_backend(torch.device("cpu"), kind, gloo)
    group._set_default_backend(kind)
    NOTES.add(group, GroupNotes(named, rank=gloo.rank(), size=gloo.size()))
    return group
