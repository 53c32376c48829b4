"""Steps within one machine: each rank lays what it gives in its memory, and the others read it there.

Called by `exchange`. A rank's memory has a slot for hop 0 of even buckets, one for odd ones, and one for
hop 1. A slot is filled again when all others have told that they took what they need of it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rljob_plan.resharding.boxes import TensorBox
from rljob_plan.resharding.resharding_plan import ReshardPlan, TransferStep
from rljob_runtime.weights.reshard.parcels import Parcel, View
from rljob_runtime.weights.reshard.peers import Listening, Peers, Told

ALIGNED = 4
FILLED = (Told.FILLED_0, Told.FILLED_1)
TAKEN = (Told.TAKEN_0, Told.TAKEN_1)


class Place(NamedTuple):
    """Of a step in the plan."""

    bucket: int
    hop: int
    group: tuple[int, ...]


class Table:
    """Where in its memory a rank lays what it gives in each step among `machine`."""

    def __init__(
        self, plan: ReshardPlan, rank: int, machine: frozenset[int], sent: torch.dtype
    ) -> None:
        self.parcels: dict[Place, Parcel] = {}
        self._firsts: dict[Place, int] = {}
        self._filled: dict[tuple[int, int], int] = {}
        own, sizes = plan.of_device(rank), [0, 0, 0]
        for number, bucket in enumerate(plan.buckets):
            for step in own.steps(bucket):
                if rank in step.pieces and is_shared(step, machine):
                    place = Place(number, step.hop, step.group)
                    first = self._filled.get((number, step.hop), 0)
                    self.parcels[place] = parcel = Parcel(step.pieces[rank], sent)
                    self._firsts[place] = first
                    self._filled[number, step.hop] = (
                        first + -(-parcel.num_bytes // ALIGNED) * ALIGNED
                    )
        for (number, hop), size in self._filled.items():
            sizes[_slot(number, hop)] = max(sizes[_slot(number, hop)], size)
        self._slots = (0, sizes[0], sizes[0] + sizes[1])
        self.num_bytes = sum(sizes)

    def span(self, bucket: int, hop: int) -> tuple[int, int]:
        """First byte and number of bytes of all that the rank gives in a hop of a bucket."""
        return self._slots[_slot(bucket, hop)], self._filled.get((bucket, hop), 0)

    def views(self, place: Place, memory: Tensor) -> Iterator[tuple[TensorBox, Tensor]]:
        """The pieces of a step. memory: all of the rank's."""
        first, parcel = self._first(place), self.parcels[place]
        return parcel.views(memory[first : first + parcel.num_bytes])

    def fill(self, place: Place, memory: Tensor, own: View) -> None:
        """Lay the pieces of a step there."""
        first, parcel = self._first(place), self.parcels[place]
        parcel.fill(memory[first : first + parcel.num_bytes], own)

    def _first(self, place: Place) -> int:
        return self._slots[_slot(place.bucket, place.hop)] + self._firsts[place]


class SharedSteps:
    """This rank's steps among `machine`, the ranks of this one; they make it together, after `listening`.

    sent: type on the way. timeout_seconds: of a wait. Raises WorkerError as `Peers`.
    """

    def __init__(
        self,
        plan: ReshardPlan,
        machine: frozenset[int],
        listening: Listening,
        *,
        sent: torch.dtype,
        timeout_seconds: float,
    ) -> None:
        self.tables = {rank: Table(plan, rank, machine, sent) for rank in sorted(machine)}
        self.device = listening.rank
        own = self.tables[self.device]
        self.peers = Peers(listening, self.tables, own.num_bytes, timeout_seconds)
        self._hops = {place.hop for table in self.tables.values() for place in table.parcels}
        self.begun = [0, 0]

    def exchange(
        self, bucket: int, hop: int, steps: Sequence[TransferStep]
    ) -> "SharedExchange | None":
        """A hop of a bucket; every rank begins each, in the plan's order. None where no bucket has any."""
        if hop not in self._hops:
            return None
        return SharedExchange(self, bucket, hop, steps)

    def give_up(self) -> None:
        """The others of the machine do not wait for this rank any more."""
        self.peers.tell(Told.GAVE_UP)

    def end(self) -> None:
        """After the last bucket, when the others have taken everything, the memory's pages go."""
        for hop in (0, 1):
            self.peers.await_told(TAKEN[hop], self.begun[hop])
        self.peers.forget()


class SharedExchange:
    """steps: of this rank, those in which it only receives among them."""

    def __init__(
        self, of: SharedSteps, bucket: int, hop: int, steps: Sequence[TransferStep]
    ) -> None:
        self._of, self._bucket, self._hop, self._steps = of, bucket, hop, steps
        self._before = of.begun[hop]
        of.begun[hop] += 1
        self.buffers = [of.peers.window(*of.tables[of.device].span(bucket, hop))]

    def carry_out(self, own: View) -> None:
        """Give, and wait until what others give is there."""
        of, hop = self._of, self._hop
        in_slot_before = self._before if hop else self._before - 1
        of.peers.await_told(TAKEN[hop], in_slot_before)
        table = of.tables[of.device]
        for step in self._steps:
            if of.device in step.pieces:
                table.fill(self._place(step), of.peers.memory, own)
        of.peers.tell(FILLED[hop])
        givers = {rank for step in self._steps for rank in step.pieces} - {of.device}
        of.peers.await_told(FILLED[hop], self._before + 1, givers)

    def pieces(self) -> Iterator[tuple[TensorBox, Tensor]]:
        """What others gave, in their memory."""
        for step in self._steps:
            for rank in step.pieces:
                if rank != self._of.device:
                    memory = self._of.peers.memories[rank]
                    yield from self._of.tables[rank].views(self._place(step), memory)

    def taken(self) -> None:
        """Nothing of it is read any more by this rank."""
        self.buffers.clear()
        self._of.peers.tell(TAKEN[self._hop])

    def _place(self, step: TransferStep) -> Place:
        return Place(self._bucket, step.hop, step.group)


def is_shared(step: TransferStep, machine: frozenset[int]) -> bool:
    """Whether a step goes over memory: all of its devices are of one machine, and are more than one."""
    return len(step.group) > 1 and machine.issuperset(step.group)


def _slot(bucket: int, hop: int) -> int:
    return 2 if hop else bucket % 2
