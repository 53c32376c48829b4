"""The exchange of a bucket: its steps over shared memory, where ranks share a machine, and over collectives.

Called by `executor`. Shared memory is for devices whose memory is the host's. Others have direct links inside
a machine, which their collectives use.
"""

from collections.abc import Callable, Iterable, Iterator, Sequence

import torch
from torch import Tensor
from torch.distributed import ProcessGroup

from rljob_plan.resharding.boxes import TensorBox
from rljob_plan.resharding.resharding_plan import ReshardPlan, TransferStep, group_of
from rljob_runtime.devices.backend import Backend
from rljob_runtime.devices.members import Members
from rljob_runtime.devices.memory_ledger import MemoryKind
from rljob_runtime.devices.wire import Pending
from rljob_runtime.errors import WorkerError
from rljob_runtime.weights.reshard.parcels import LocalView
from rljob_runtime.weights.reshard.peers import Listening, machines_of
from rljob_runtime.weights.reshard.shared import SharedExchange, SharedSteps, is_shared
from rljob_runtime.weights.reshard.step_collectives import CollectiveStep
from rljob_runtime.weights.reshard.step_deltas import DeltaStep

Wait = Callable[[Sequence[Pending], Iterable[int]], None]
"""Waits for pending transfers with these ranks."""


class Exchanges:
    """This device's steps of a plan, in its order. All members create it together.

    plan: with the steps of all devices. members: these, by rank. shares_memory: False sends everything over
    collectives. deltas: whether both ends keep what was sent last, so that collectives send changes alone.
    sent: type in transit. Raises WorkerError when a device does not join within timeout_seconds.
    """

    def __init__(
        self,
        plan: ReshardPlan,
        backend: Backend,
        members: Members,
        *,
        sent: torch.dtype,
        timeout_seconds: float,
        shares_memory: bool,
        deltas: bool = False,
    ) -> None:
        shares_memory = shares_memory and not deltas
        self._deltas: dict[tuple[int, int, tuple[int, ...]], DeltaStep] | None = (
            {} if deltas else None
        )
        self._device, self._world_group = members.rank, members.full_group
        self._backend, self._sent = backend, sent
        local_plan = plan.of_device(self._device)
        self._steps = [
            [step for step in local_plan.steps(bucket) if step.kind != "copy"]
            for bucket in plan.buckets
        ]
        self._ranks = range(members.size)
        machines = [frozenset([rank]) for rank in self._ranks]
        if shares_memory and members.size > 1 and backend.device.type == "cpu":
            machines = machines_of(members)
        self._machine = machines[self._device]
        self._presence = members.presence(f"reshard rank {self._device}")
        self._groups = make_groups(plan, machines, members, timeout_seconds)
        self._shared: SharedSteps | None = None
        if max(map(len, machines)) > 1:
            listening = Listening(members)
            if len(self._machine) > 1:
                self._shared = SharedSteps(
                    plan, self._machine, listening, sent=sent, timeout_seconds=timeout_seconds
                )

    def begin(self, bucket: int, hop: int, local_view: LocalView) -> "Exchange | None":
        """Allocate a hop's buffers; None where nothing is to be exchanged. local_view: returns the weights to
        send. Raises DeviceMemoryError when buffers do not fit."""
        ledger = self._backend.ledger
        steps = [step for step in self._steps[bucket] if step.hop == hop]
        shared_steps = [step for step in steps if is_shared(step, self._machine)]
        shared = self._shared.exchange(bucket, hop, shared_steps) if self._shared else None
        if shared is not None:
            ledger.track(MemoryKind.BUFFERS, shared.buffers)
        collectives: list[CollectiveStep | DeltaStep] = []
        for step in steps:
            if not is_shared(step, self._machine):
                ledger.require(MemoryKind.BUFFERS, step.bytes)
                collective, buffers = self._step_with_buffers(bucket, step)
                collectives.append(collective)
                ledger.track(MemoryKind.BUFFERS, buffers)
        if shared is None and not collectives:
            return None
        label = f"reshard rank {self._device}, bucket {bucket} of {len(self._steps)}"
        return Exchange(local_view, shared, collectives, label, self.wait)

    def end(self) -> None:
        """Free shared memory after the last bucket."""
        if self._shared is not None:
            self._shared.end()

    def close(self) -> None:
        """Close the connections; no other reshard follows."""
        if self._shared is not None:
            self._shared.peers.close()
        if self._presence is not None:
            self._presence.close()

    def wait(self, pending: Sequence[Pending], ranks: Iterable[int] | None = None) -> None:
        """Wait for transfers from `ranks`, or from all. Meanwhile the host is notified of a device that is
        lost or gives up; it does not wait for transfers to memory of a device's own."""
        on_host = all(transfer.result.is_cpu for transfer in pending)
        if self._presence is not None and on_host:
            self._presence.await_all(pending, self._ranks if ranks is None else ranks)
            return
        for transfer in pending:
            transfer.wait()

    def give_up(self, error: BaseException) -> str:
        """Notify all others, once, that this rank does not continue. Return the error and the lost device,
        where the error names neither."""
        if self._shared is not None:
            self._shared.give_up()
        return str(error) if self._presence is None else self._presence.give_up(error)

    @property
    def kept_bytes(self) -> int:
        """Bytes of what was sent last and received last, for deltas."""
        if self._deltas is None:
            return 0
        steps = (step for steps in self._steps for step in steps)
        return sum(step.bytes for step in steps)

    @property
    def delta_bytes(self) -> int | None:
        """Bytes received in the last reshard; None without deltas, and where they were full parcels since
        nothing had been received before."""
        if not self._deltas or any(step.exchanges < 2 for step in self._deltas.values()):
            return None
        return sum(step.received_bytes for step in self._deltas.values())

    def _step_with_buffers(
        self, bucket: int, step: TransferStep
    ) -> tuple[CollectiveStep | DeltaStep, list[Tensor]]:
        """Return a step, and the buffers that it newly allocates."""
        key, deltas = (bucket, step.hop, step.group), self._deltas
        if deltas is not None and key in deltas:
            return deltas[key], deltas[key].allocate()
        exchange_step = (CollectiveStep if deltas is None else DeltaStep)(
            step,
            self._device,
            sent=self._sent,
            group=self._groups.get(step.group),
            world_group=self._world_group,
            like=torch.empty(0, device=self._backend.device),
        )
        if isinstance(exchange_step, CollectiveStep):
            return exchange_step, exchange_step.buffers
        assert deltas is not None, "steps of deltas have a place"
        deltas[key] = exchange_step
        return exchange_step, exchange_step.allocate()


class Exchange:
    """A hop of a bucket. local_view: returns the weights to send. label: for messages. wait: for
    collectives."""

    def __init__(
        self,
        local_view: LocalView,
        shared: SharedExchange | None,
        collectives: Sequence[CollectiveStep | DeltaStep],
        label: str,
        wait: Wait,
    ) -> None:
        self._local_view, self._shared, self._collectives, self._label = (
            local_view,
            shared,
            collectives,
            label,
        )
        self._wait = wait

    def carry_out(self) -> None:
        """Send, and wait for what others send; on a side stream. Raises WorkerError when a device is lost or
        does not send in time."""
        try:
            pending = [
                work
                for collective in self._collectives
                for work in collective.start(self._local_view)
            ]
            if self._shared is not None:
                self._shared.carry_out(self._local_view)
            self._await(pending)
            self._await([work for collective in self._collectives for work in collective.follow()])
        except (RuntimeError, WorkerError) as error:
            raise WorkerError(f"{self._label}: {error}") from error

    def _await(self, pending: Sequence[Pending]) -> None:
        ranks = sorted({rank for collective in self._collectives for rank in collective.devices})
        try:
            self._wait(pending, ranks)
        except RuntimeError as error:
            raise WorkerError(f"in collectives of ranks {ranks}: {error}") from error

    def pieces(self) -> Iterator[tuple[TensorBox, Tensor]]:
        """Yield the pieces that others sent."""
        for collective in self._collectives:
            yield from collective.pieces()
        if self._shared is not None:
            yield from self._shared.pieces()

    def release(self) -> None:
        """Free the buffers, once all pieces were copied."""
        for collective in self._collectives:
            collective.release()
        self._collectives = ()
        if self._shared is not None:
            self._shared.release()


def make_groups(
    plan: ReshardPlan,
    machines: Sequence[frozenset[int]],
    members: Members,
    timeout_seconds: float,
) -> dict[tuple[int, ...], ProcessGroup]:
    """Create this rank's groups of more than two devices. plan: with the steps of all devices. machines: by
    rank, those that share its memory, and need no group among themselves.

    timeout_seconds: of one collective. Raises WorkerError when a member does not join in that time.
    """
    groups = {group_of(move) for moves in plan.moves for move in moves}
    groups = {group for group in groups if not machines[group[0]].issuperset(group)}
    local_groups: dict[tuple[int, ...], ProcessGroup] = {}
    for group in sorted(group for group in groups if len(group) > 2):
        try:
            process_group = members.subgroup(group, seconds=timeout_seconds)
        except RuntimeError as error:
            raise WorkerError(
                f"reshard rank {members.rank}: ranks {list(group)} did not all come to make a group "
                f"within {timeout_seconds:g} s: {error}"
            ) from error
        if process_group is not None:
            local_groups[group] = process_group
    return local_groups
