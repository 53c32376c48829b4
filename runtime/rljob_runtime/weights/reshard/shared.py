"""Steps within one machine: each rank copies what it sends into its shared memory, and the others read it
there.

Called by `exchange`. A rank's memory has a slot for hop 0 of even buckets, one for odd ones, and one for hop
1. A slot is filled again once all others have signalled that they have read it.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from rljob_plan.resharding.boxes import TensorBox
from rljob_plan.resharding.resharding_plan import ReshardPlan, TransferStep
from rljob_runtime.weights.reshard.parcels import LocalView, Parcel
from rljob_runtime.weights.reshard.peers import Listening, Peers, PeerSignal

ALIGNED = 4
FILLED = (PeerSignal.FILLED_0, PeerSignal.FILLED_1)
READ = (PeerSignal.TAKEN_0, PeerSignal.TAKEN_1)


class StepKey(NamedTuple):
    """The key of a step in the plan."""

    bucket: int
    hop: int
    group: tuple[int, ...]


class SharedMemoryLayout:
    """The offsets in a rank's memory of what it sends in each step among `machine`."""

    def __init__(
        self, plan: ReshardPlan, rank: int, machine: frozenset[int], sent: torch.dtype
    ) -> None:
        self.parcels: dict[StepKey, Parcel] = {}
        self._offsets: dict[StepKey, int] = {}
        self._filled: dict[tuple[int, int], int] = {}
        local_plan, sizes = plan.of_device(rank), [0, 0, 0]
        for number, bucket in enumerate(plan.buckets):
            for step in local_plan.steps(bucket):
                if rank in step.pieces and is_shared(step, machine):
                    key = StepKey(number, step.hop, step.group)
                    offset = self._filled.get((number, step.hop), 0)
                    self.parcels[key] = parcel = Parcel(step.pieces[rank], sent)
                    self._offsets[key] = offset
                    self._filled[number, step.hop] = (
                        offset + -(-parcel.num_bytes // ALIGNED) * ALIGNED
                    )
        for (number, hop), size in self._filled.items():
            sizes[_slot(number, hop)] = max(sizes[_slot(number, hop)], size)
        self._slots = (0, sizes[0], sizes[0] + sizes[1])
        self.num_bytes = sum(sizes)

    def span(self, bucket: int, hop: int) -> tuple[int, int]:
        """Return the first byte and the number of bytes of everything that the rank sends in a hop of a
        bucket."""
        return self._slots[_slot(bucket, hop)], self._filled.get((bucket, hop), 0)

    def views(self, key: StepKey, memory: Tensor) -> Iterator[tuple[TensorBox, Tensor]]:
        """Yield the pieces of a step. memory: all of the rank's."""
        offset, parcel = self._offset(key), self.parcels[key]
        return parcel.views(memory[offset : offset + parcel.num_bytes])

    def fill(self, key: StepKey, memory: Tensor, local_view: LocalView) -> None:
        """Copy the pieces of a step into the rank's memory."""
        offset, parcel = self._offset(key), self.parcels[key]
        parcel.fill(memory[offset : offset + parcel.num_bytes], local_view)

    def _offset(self, key: StepKey) -> int:
        return self._slots[_slot(key.bucket, key.hop)] + self._offsets[key]


class SharedSteps:
    """This rank's steps among `machine`, the ranks on this machine; they create it together, after
    `listening`.

    sent: type in transit. timeout_seconds: of a wait. Raises WorkerError as `Peers`.
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
        self.layouts = {
            rank: SharedMemoryLayout(plan, rank, machine, sent) for rank in sorted(machine)
        }
        self.device = listening.rank
        local_layout = self.layouts[self.device]
        self.peers = Peers(listening, self.layouts, local_layout.num_bytes, timeout_seconds)
        self._hops = {key.hop for layout in self.layouts.values() for key in layout.parcels}
        self.begun = [0, 0]

    def exchange(
        self, bucket: int, hop: int, steps: Sequence[TransferStep]
    ) -> "SharedExchange | None":
        """Begin a hop of a bucket; every rank begins each, in the plan's order. None where no bucket has this
        hop."""
        if hop not in self._hops:
            return None
        return SharedExchange(self, bucket, hop, steps)

    def give_up(self) -> None:
        """Signal the other ranks of the machine not to wait for this one."""
        self.peers.signal(PeerSignal.GAVE_UP)

    def end(self) -> None:
        """Free the memory's pages after the last bucket, when the others have read everything."""
        for hop in (0, 1):
            self.peers.await_signals(READ[hop], self.begun[hop])
        self.peers.forget()


class SharedExchange:
    """One hop of a bucket. steps: of this rank, including those in which it only receives."""

    def __init__(
        self, shared_steps: SharedSteps, bucket: int, hop: int, steps: Sequence[TransferStep]
    ) -> None:
        self._shared_steps, self._bucket, self._hop, self._steps = shared_steps, bucket, hop, steps
        self._earlier_exchanges = shared_steps.begun[hop]
        shared_steps.begun[hop] += 1
        self.buffers = [
            shared_steps.peers.window(*shared_steps.layouts[shared_steps.device].span(bucket, hop))
        ]

    def carry_out(self, local_view: LocalView) -> None:
        """Copy what this rank sends, and wait until the others have done so."""
        shared_steps, hop = self._shared_steps, self._hop
        readers_before = self._earlier_exchanges if hop else self._earlier_exchanges - 1
        shared_steps.peers.await_signals(READ[hop], readers_before)
        layout = shared_steps.layouts[shared_steps.device]
        for step in self._steps:
            if shared_steps.device in step.pieces:
                layout.fill(self._key(step), shared_steps.peers.memory, local_view)
        shared_steps.peers.signal(FILLED[hop])
        senders = {rank for step in self._steps for rank in step.pieces} - {shared_steps.device}
        shared_steps.peers.await_signals(FILLED[hop], self._earlier_exchanges + 1, senders)

    def pieces(self) -> Iterator[tuple[TensorBox, Tensor]]:
        """Yield the pieces that others sent, in their memory."""
        for step in self._steps:
            for rank in step.pieces:
                if rank != self._shared_steps.device:
                    memory = self._shared_steps.peers.memories[rank]
                    yield from self._shared_steps.layouts[rank].views(self._key(step), memory)

    def release(self) -> None:
        """Signal that this rank reads nothing of it any more."""
        self.buffers.clear()
        self._shared_steps.peers.signal(READ[self._hop])

    def _key(self, step: TransferStep) -> StepKey:
        return StepKey(self._bucket, step.hop, step.group)


def is_shared(step: TransferStep, machine: frozenset[int]) -> bool:
    """Return whether a step uses shared memory: all of its devices are on one machine, and there are
    several."""
    return len(step.group) > 1 and machine.issuperset(step.group)


def _slot(bucket: int, hop: int) -> int:
    return 2 if hop else bucket % 2
