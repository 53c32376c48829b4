"""A bucket on its way: its steps over shared memory, where ranks share a machine, and over collectives.

Called by `executor`. Shared memory is for devices whose memory is the host's. Others have links of their own
inside a machine, which their collectives know.
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
from rljob_runtime.weights.reshard.parcels import View
from rljob_runtime.weights.reshard.peers import Listening, machines_of
from rljob_runtime.weights.reshard.shared import SharedExchange, SharedSteps, is_shared
from rljob_runtime.weights.reshard.step_collectives import Collective
from rljob_runtime.weights.reshard.step_deltas import DeltaStep

Wait = Callable[[Sequence[Pending], Iterable[int]], None]
"""For what is on its way from these ranks."""


class Exchanges:
    """This device's steps of a plan, in its order. All members make it together.

    plan: with the steps of all devices. members: these, by rank. shares_memory: False sends everything over
    collectives. deltas: whether both ends keep what was sent last, so that changes alone travel, over those.
    sent: type on the way. Raises WorkerError when a device does not come within timeout_seconds.
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
        self._device, self._whole = members.rank, members.full_group
        self._backend, self._sent = backend, sent
        own = plan.of_device(self._device)
        self._steps = [
            [step for step in own.steps(bucket) if step.kind != "copy"] for bucket in plan.buckets
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

    def begin(self, bucket: int, hop: int, own: View) -> "Exchange | None":
        """Allocate a hop's buffers; None where nothing is to be exchanged. own: the weights that are given
        of. Raises DeviceMemoryError when buffers do not fit."""
        ledger = self._backend.ledger
        steps = [step for step in self._steps[bucket] if step.hop == hop]
        there = [step for step in steps if is_shared(step, self._machine)]
        shared = self._shared.exchange(bucket, hop, there) if self._shared else None
        if shared is not None:
            ledger.track(MemoryKind.BUFFERS, shared.buffers)
        collectives: list[Collective | DeltaStep] = []
        for step in steps:
            if not is_shared(step, self._machine):
                ledger.require(MemoryKind.BUFFERS, step.bytes)
                made, buffers = self._on_its_way(bucket, step)
                collectives.append(made)
                ledger.track(MemoryKind.BUFFERS, buffers)
        if shared is None and not collectives:
            return None
        what = f"reshard rank {self._device}, bucket {bucket} of {len(self._steps)}"
        return Exchange(own, shared, collectives, what, self.wait)

    def end(self) -> None:
        """After the last bucket; shared memory goes back to the system."""
        if self._shared is not None:
            self._shared.end()

    def close(self) -> None:
        """No other reshard follows."""
        if self._shared is not None:
            self._shared.peers.close()
        if self._presence is not None:
            self._presence.close()

    def wait(self, pending: Sequence[Pending], ranks: Iterable[int] | None = None) -> None:
        """For what comes from `ranks`, or from all. The host hears meanwhile who is gone or gives up; it
        does not wait for what is on its way to memory of a device's own."""
        on_host = all(one.result.is_cpu for one in pending)
        if self._presence is not None and on_host:
            self._presence.await_all(pending, self._ranks if ranks is None else ranks)
            return
        for one in pending:
            one.wait()

    def give_up(self, error: BaseException) -> str:
        """This rank does not go on, which all others hear, with the error and who is gone, where it says
        neither; this text. Once."""
        if self._shared is not None:
            self._shared.give_up()
        return str(error) if self._presence is None else self._presence.give_up(error)

    @property
    def kept_bytes(self) -> int:
        """Of what was sent last and came last, for deltas."""
        if self._deltas is None:
            return 0
        steps = (step for steps in self._steps for step in steps)
        return sum(step.bytes for step in steps)

    @property
    def delta_bytes(self) -> int | None:
        """That came in the last reshard; None without deltas, and where all of it was whole since nothing had
        come before."""
        if not self._deltas or any(step.exchanges < 2 for step in self._deltas.values()):
            return None
        return sum(step.came_bytes for step in self._deltas.values())

    def _on_its_way(
        self, bucket: int, step: TransferStep
    ) -> tuple[Collective | DeltaStep, list[Tensor]]:
        """A step, and what it takes anew."""
        place, deltas = (bucket, step.hop, step.group), self._deltas
        if deltas is not None and place in deltas:
            return deltas[place], deltas[place].allocate()
        made = (Collective if deltas is None else DeltaStep)(
            step,
            self._device,
            sent=self._sent,
            group=self._groups.get(step.group),
            whole=self._whole,
            like=torch.empty(0, device=self._backend.device),
        )
        if isinstance(made, Collective):
            return made, made.buffers
        assert deltas is not None, "steps of deltas have a place"
        deltas[place] = made
        return made, made.allocate()


class Exchange:
    """A hop of a bucket. own: the weights that are given of. what: for messages. wait: for
    collectives."""

    def __init__(
        self,
        own: View,
        shared: SharedExchange | None,
        collectives: Sequence[Collective | DeltaStep],
        what: str,
        wait: Wait,
    ) -> None:
        self._own, self._shared, self._collectives, self._what = own, shared, collectives, what
        self._wait = wait

    def carry_out(self) -> None:
        """Give, and wait for what others give; on a side stream. Raises WorkerError when one is gone or
        does not come in time."""
        try:
            pending = [work for one in self._collectives for work in one.start(self._own)]
            if self._shared is not None:
                self._shared.carry_out(self._own)
            self._await(pending)
            self._await([work for one in self._collectives for work in one.follow()])
        except (RuntimeError, WorkerError) as error:
            raise WorkerError(f"{self._what}: {error}") from error

    def _await(self, pending: Sequence[Pending]) -> None:
        ranks = sorted({rank for one in self._collectives for rank in one.devices})
        try:
            self._wait(pending, ranks)
        except RuntimeError as error:
            raise WorkerError(f"in collectives of ranks {ranks}: {error}") from error

    def pieces(self) -> Iterator[tuple[TensorBox, Tensor]]:
        """What others gave."""
        for one in self._collectives:
            yield from one.pieces()
        if self._shared is not None:
            yield from self._shared.pieces()

    def taken(self) -> None:
        """All pieces were copied; buffers go."""
        for one in self._collectives:
            one.release()
        self._collectives = ()
        if self._shared is not None:
            self._shared.taken()


def make_groups(
    plan: ReshardPlan,
    machines: Sequence[frozenset[int]],
    members: Members,
    timeout_seconds: float,
) -> dict[tuple[int, ...], ProcessGroup]:
    """This rank's groups of more than two devices. plan: with the steps of all devices. machines: by rank,
    those that share its memory, and need no group among themselves.

    timeout_seconds: of one collective. Raises WorkerError when a member does not come in that time.
    """
    groups = {group_of(move) for moves in plan.moves for move in moves}
    groups = {group for group in groups if not machines[group[0]].issuperset(group)}
    own: dict[tuple[int, ...], ProcessGroup] = {}
    for group in sorted(group for group in groups if len(group) > 2):
        try:
            made = members.subgroup(group, seconds=timeout_seconds)
        except RuntimeError as error:
            raise WorkerError(
                f"reshard rank {members.rank}: ranks {list(group)} did not all come to make a group "
                f"within {timeout_seconds:g} s: {error}"
            ) from error
        if made is not None:
            own[group] = made
    return own
