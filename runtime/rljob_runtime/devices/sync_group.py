"""A group of processes that is made anew while they live: the source of weights and who takes them.

torch.distributed's groups are parts of one world that is fixed when a process starts. This one stands
beside it, so that devices come and go without touching the ranks that train. gloo alone so far. A member
waits for others that wait for a third, and hears of that one's end within seconds (`presence`).
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
from rljob_runtime.devices.meetings import assemble, attend, place_of
from rljob_runtime.devices.presence import Presence
from rljob_runtime.devices.wire import Pending
from rljob_runtime.errors import WorkerError

MEET_SECONDS = 30.0
"""How long a process waits for the others of its group; all of them were alive a moment before."""
TRANSFER_SECONDS = 300.0
"""How long one tensor may take; a process that hangs, rather than ends, is found then."""
SOURCE_RANK = 0
LISTEN_SECONDS = 1.0
"""After which a member that waits for an announcement looks whether it still should."""


class SyncGroup:
    """One process' membership, for whoever runs a plan with the others too (`Members`). address: of the
    meeting, which everybody joins at the same time. name: of this member in what others say of it, such as
    "device 3".

    Raises WorkerError when the others do not come within MEET_SECONDS.
    """

    def __init__(self, address: str, *, rank: int, size: int, name: str = "") -> None:
        self._address, self._announced = address, 0
        self.rank, self.size = rank, size
        self._met = attend(address, seconds=MEET_SECONDS)
        store = self._met.store
        limit = timedelta(seconds=MEET_SECONDS)
        name = name or f"member {rank}"
        self._where = f"weights on {name}"
        notes = GroupNotes(f"weights, met at {place_of(address)}", rank=rank, size=size)
        self._notes = NOTES.add(self, notes)
        with notes.whole("meet"):
            assemble(store, rank, size, seconds=MEET_SECONDS)
            self._group = dist.ProcessGroupGloo(store, rank, size, limit)
            self._groups: list[ProcessGroup] = []
            self._presence = Presence(rank, self.share, name=name, where=self._where)

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
        what = self._met.signer.share()
        self._met.set(f"{what}/{self.rank}", own)
        return [self._met.get(f"{what}/{rank}") for rank in range(self.size)]

    def subgroup(self, ranks: Sequence[int], *, seconds: float) -> ProcessGroup | None:
        """A group of these members, None for another one. seconds: of one collective. Raises WorkerError
        when one does not come within MEET_SECONDS."""
        if self.rank not in ranks:
            return None
        named, place = ",".join(map(str, ranks)), list(ranks).index(self.rank)
        store = PrefixStore(f"members {named}", self._met.store)
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
            self._met.set("problem", problem)
        whole = torch.tensor([int(not problem)])
        options = dist.AllreduceOptions()
        options.reduceOp = dist.ReduceOp.MIN  # type: ignore[assignment]
        options.timeout = timedelta(seconds=TRANSFER_SECONDS)
        with self.telling(what), self._notes.whole("all_reduce min", whole):
            work = self._group.allreduce([whole], options)  # type: ignore[attr-defined]
            self._await(whole, work)
        return "" if whole.item() else self._met.get("problem")

    def announce(self, version: int) -> None:
        """Tell those who listen that weights of this version come now. The source's."""
        self._announced += 1
        self._met.set(f"announced/{self._announced}", str(version))

    def announcements(self, wanted: Callable[[], bool]) -> Iterator[int]:
        """Each version that the source announces, as it does; ends LISTEN_SECONDS after it is wanted no more.

        For a thread of its own. Raises WorkerError when the source is gone.
        """
        try:
            met, number = attend(self._address, seconds=MEET_SECONDS), 1
            while wanted():
                try:
                    met.store.wait([f"announced/{number}"], timedelta(seconds=LISTEN_SECONDS))
                except dist.DistStoreError:
                    continue
                yield int(met.get(f"announced/{number}"))
                number += 1
        except RuntimeError as error:
            source = self._presence.names[SOURCE_RANK]
            raise WorkerError(f"{self._where}: {source}, their source, is gone: {error}") from error

    def _await(self, result: Tensor, work: dist.Work) -> None:
        self._presence.await_all([Pending(result, [work])], range(self.size))


def _as_group(gloo: dist.ProcessGroupGloo, store: Store, named: str) -> ProcessGroup:
    """As torch.distributed's functions take it, and noted."""
    group = ProcessGroup(store, gloo.rank(), gloo.size())
    kind = ProcessGroup.BackendType.GLOO
    group._register_backend(torch.device("cpu"), kind, gloo)
    group._set_default_backend(kind)
    NOTES.add(group, GroupNotes(named, rank=gloo.rank(), size=gloo.size()))
    return group
