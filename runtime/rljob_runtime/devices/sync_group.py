"""A group of processes that can be recreated while they run: the source of weights and their receivers.

torch.distributed's groups are subsets of one world that is fixed when a process starts. This group is
separate from it, so that devices join and leave without affecting the ranks that train. It supports only
gloo. A member may wait for others that wait for a third one, and detects the third one's end within seconds
(`presence`).
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from datetime import timedelta
from functools import cached_property

import torch
import torch.distributed as dist
from torch import Tensor
from torch._C._distributed_c10d import PrefixStore, Store
from torch.distributed import ProcessGroup

from rljob_runtime.devices.collective_notes import NOTES, GroupNotes
from rljob_runtime.devices.meetings import assemble, host_and_port, join_rendezvous
from rljob_runtime.devices.presence import Presence
from rljob_runtime.devices.wire import Pending
from rljob_runtime.errors import WorkerError

MEET_SECONDS = 30.0
"""How long a process waits for the other members of its group, which were all alive shortly before."""
TRANSFER_SECONDS = 300.0
"""Limit of one tensor's transfer, after which a hanging process is detected."""
SOURCE_RANK = 0
LISTEN_SECONDS = 1.0
"""How often a member that waits for an announcement checks whether it still should."""


class SyncGroup:
    """One process' membership of the group; implements `Members`. address: of the rendezvous, which all
    members join at the same time. name: of this member in others' messages, such as "device 3".

    Raises WorkerError when the others do not arrive within MEET_SECONDS.
    """

    def __init__(self, address: str, *, rank: int, size: int, name: str = "") -> None:
        self._address, self._num_announced = address, 0
        self.rank, self.size = rank, size
        self._store = join_rendezvous(address, seconds=MEET_SECONDS)
        store = self._store.store
        limit = timedelta(seconds=MEET_SECONDS)
        name = name or f"member {rank}"
        self._activity = f"weights on {name}"
        notes = GroupNotes(f"weights, met at {host_and_port(address)}", rank=rank, size=size)
        self._notes = NOTES.add(self, notes)
        with notes.blocking("meet"):
            assemble(store, rank, size, seconds=MEET_SECONDS)
            self._group = dist.ProcessGroupGloo(store, rank, size, limit)
            self._groups: list[ProcessGroup] = []
            self._presence = Presence(rank, self.share, name=name, activity=self._activity)

    def close(self) -> None:
        """Leave the group; members that still wait for this one detect that it is gone.

        gloo's group ends only after its pending transfers, which others may never receive. It ends in a
        thread, as that may take TRANSFER_SECONDS. No method may be called afterwards.
        """
        self._presence.close()
        self.__dict__.pop("full_group", None)
        groups = [self.__dict__.pop("_group"), *self.__dict__.pop("_groups")]
        threading.Thread(target=groups.clear, name="leaves a group", daemon=True).start()

    @property
    def is_source(self) -> bool:
        """Return whether this process has the weights that the others receive."""
        return self.rank == SOURCE_RANK

    @cached_property
    def full_group(self) -> ProcessGroup:
        """Return the group of all members, which call this property together."""
        group = self.subgroup(range(self.size), seconds=TRANSFER_SECONDS)
        assert group is not None, "this member is one of all"
        return group

    def share(self, text: str) -> list[str]:
        """Exchange texts over the rendezvous' store: return each member's text, by rank."""
        topic = self._store.signer.next_topic()
        self._store.set(f"{topic}/{self.rank}", text)
        return [self._store.get(f"{topic}/{rank}") for rank in range(self.size)]

    def subgroup(self, ranks: Sequence[int], *, seconds: float) -> ProcessGroup | None:
        """Create a group of these ranks; return None in other members. seconds: timeout of one collective.
        Raises WorkerError when a rank does not arrive within MEET_SECONDS."""
        if self.rank not in ranks:
            return None
        rank_list, group_rank = ",".join(map(str, ranks)), list(ranks).index(self.rank)
        store = PrefixStore(f"members {rank_list}", self._store.store)
        assemble(store, group_rank, len(ranks), seconds=MEET_SECONDS)
        limit = timedelta(seconds=seconds)
        gloo = dist.ProcessGroupGloo(store, group_rank, len(ranks), limit)
        self._groups.append(_as_group(gloo, store, f"{self._notes.key}, members {rank_list}"))
        return self._groups[-1]

    def presence(self, activity: str) -> Presence:
        """Return the group's detector of lost members, which has its own activity text."""
        return self._presence

    def broadcast(self, tensor: Tensor, description: str = "a tensor") -> None:
        """Broadcast the source's tensor, [shape] → [shape] on all members, in place; each byte is sent once
        per member. description: for messages.

        Raises WorkerError that names the member when one is gone, gives up, or takes longer than
        TRANSFER_SECONDS.
        """
        limit = timedelta(seconds=TRANSFER_SECONDS)
        with self.reporting_errors(description), self._notes.blocking("broadcast", tensor):
            work = self._group.broadcast(tensor, SOURCE_RANK, timeout=limit)  # type: ignore[attr-defined]
            self._await(tensor, work)

    def broadcast_bytes(self, content: bytes = b"", description: str = "bytes") -> bytes:
        """Return the source's bytes on all members, [n] → [n], after a broadcast of n; others pass none."""
        size = torch.tensor([len(content)])
        self.broadcast(size, description)
        buffer = torch.frombuffer(bytearray(content), dtype=torch.uint8) if content else None
        if buffer is None:
            buffer = torch.empty(int(size), dtype=torch.uint8)
        self.broadcast(buffer, description)
        return buffer.numpy().tobytes()

    @contextmanager
    def reporting_errors(self, description: str) -> Iterator[None]:
        """Send an error of the body to all other members, which may wait for this one. description: of this
        member's work. Raises WorkerError in place of errors that do not name the lost members."""
        try:
            yield
        except (RuntimeError, WorkerError) as error:
            if self._presence.gave_up:
                raise
            text = self._presence.give_up(WorkerError(f"{description}: {error}"))
            raise WorkerError(text) from error
        except Exception as error:
            self._presence.give_up(error)
            raise

    def agree(self, problem: str = "", description: str = "an agreement") -> str:
        """Return a problem that a member reports, "" without one. All members call it together.

        Raises WorkerError like `broadcast`.
        """
        if problem:
            self._store.set("problem", problem)
        no_problem = torch.tensor([int(not problem)])
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN  # type: ignore[assignment]
        options.timeout = timedelta(seconds=TRANSFER_SECONDS)
        with self.reporting_errors(description), self._notes.blocking("all_reduce min", no_problem):
            work = self._group.allreduce([no_problem], options)  # type: ignore[attr-defined]
            self._await(no_problem, work)
        return "" if no_problem.item() else self._store.get("problem")

    def announce(self, version: int) -> None:
        """Announce to listening members that weights of this version follow. Called by the source."""
        self._num_announced += 1
        self._store.set(f"announced/{self._num_announced}", str(version))

    def announcements(self, is_active: Callable[[], bool]) -> Iterator[int]:
        """Yield each version that the source announces; end within LISTEN_SECONDS once `is_active` returns
        False.

        Must run in a separate thread. Raises WorkerError when the source is gone.
        """
        try:
            store, number = join_rendezvous(self._address, seconds=MEET_SECONDS), 1
            while is_active():
                try:
                    store.store.wait([f"announced/{number}"], timedelta(seconds=LISTEN_SECONDS))
                except dist.DistStoreError:
                    continue
                yield int(store.get(f"announced/{number}"))
                number += 1
        except RuntimeError as error:
            source = self._presence.names[SOURCE_RANK]
            raise WorkerError(
                f"{self._activity}: {source}, their source, is gone: {error}"
            ) from error

    def _await(self, result: Tensor, work: dist.Work) -> None:
        self._presence.await_all([Pending(result, [work])], range(self.size))


def _as_group(gloo: dist.ProcessGroupGloo, store: Store, key: str) -> ProcessGroup:
    """Wrap a gloo group for torch.distributed's functions, and register its notes."""
    group = ProcessGroup(store, gloo.rank(), gloo.size())
    kind = ProcessGroup.BackendType.GLOO
    group._register_backend(torch.device("cpu"), kind, gloo)
    group._set_default_backend(kind)
    NOTES.add(group, GroupNotes(key, rank=gloo.rank(), size=gloo.size()))
    return group
