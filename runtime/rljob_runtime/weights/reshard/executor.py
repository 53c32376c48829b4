"""Run a plan on this device: bucket by bucket, with three of them in progress.

Called by the strategies; all devices of both layouts run the same plan together. A bucket is gathered on a
side stream while the previous one is selected into the weights to generate with. The update weights of the
bucket before that may leave the device.
"""

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_plan.resharding.boxes import Box, TensorBox
from rljob_plan.resharding.buckets import StackMember
from rljob_plan.resharding.resharding_plan import ReshardPlan
from rljob_runtime.devices.backend import Backend, Mark
from rljob_runtime.devices.members import DefaultGroupMembers, Members
from rljob_runtime.devices.wire import Pending
from rljob_runtime.errors import WorkerError
from rljob_runtime.weights.reshard.exchange import Exchange, Exchanges
from rljob_runtime.weights.reshard.merging import Merge, as_trained
from rljob_runtime.weights.reshard.parcels import LocalView, box_view

NewTensor = Callable[[TensorBox], Tensor]
"""Allocates an uninitialised tensor for a slice that this device generates with, or returns an existing
one."""

FinishRelease = Callable[[], None]
Release = Callable[[Sequence[str]], FinishRelease | None]
"""Takes the names of update weights that are not read again and may leave the device. It may return a
function that finishes their release, which is called when the next bucket is selected."""


@dataclass(frozen=True, slots=True)
class GatheringBucket:
    """A hop of a bucket in progress, and the mark of its completion."""

    exchange: Exchange
    completed: Mark


class Resharder:
    """This device's end of a plan, for any number of reshards. All members, which are the plan's devices,
    create it at the same time, after all other groups.

    members: None for the ranks of the default group. sent: type in transit, the narrower of both layouts'.
    shares_memory: whether devices of one machine whose memory is the host's exchange weights there.
    timeout_seconds: of one wait for another device; after it a reshard raises WorkerError, and a new
    Resharder is needed. merge: of what this device sends. Raises WorkerError when a device does not join in
    that time. gather_seconds, select_seconds: of the last reshard's exchanges, on the side stream, and of the
    selection and its copies, as the host measures them; received_bytes: received from others in it.
    """

    def __init__(
        self,
        plan: ReshardPlan,
        backend: Backend,
        *,
        sent: torch.dtype,
        timeout_seconds: float,
        members: Members | None = None,
        shares_memory: bool = True,
        deltas: bool = False,
        merge: Merge = as_trained,
    ) -> None:
        members = members or DefaultGroupMembers()
        self._merge, self.device = merge, members.rank
        self._plan = plan.of_device(self.device)
        self._update_boxes = _boxes(plan.update.local_boxes(self.device))
        self._rollout_pieces = {
            region.tensor.name: region for region in plan.rollout.local_boxes(self.device)
        }
        self._copies = [list(self._local_copies(bucket)) for bucket in plan.buckets]
        self._rollout_names = [
            self._names_of(bucket, self._rollout_pieces) for bucket in plan.buckets
        ]
        self._released_names = [
            self._names_of(bucket, self._update_boxes) for bucket in plan.buckets
        ]
        self._stream = backend.side_stream()
        self.gather_seconds = self.select_seconds = 0.0
        self.received_bytes = 0
        self._exchanges = Exchanges(
            plan,
            backend,
            members,
            sent=sent,
            timeout_seconds=timeout_seconds,
            shares_memory=shares_memory,
            deltas=deltas,
        )

    def close(self) -> None:
        """Release everything; no other reshard follows. After a failed reshard this includes the update's
        weights: a mark of the side stream has the error, and the error its frames."""
        del self._stream
        self._exchanges.close()

    @property
    def kept_bytes(self) -> int:
        """Bytes that are kept for deltas."""
        return self._exchanges.kept_bytes

    @property
    def delta_bytes(self) -> int | None:
        """Bytes received in the last reshard, as in `Exchanges`."""
        return self._exchanges.delta_bytes

    @property
    def rollout_pieces(self) -> Mapping[str, TensorBox]:
        """The slices that this device generates with, by Hugging Face name."""
        return self._rollout_pieces

    @torch.no_grad()
    def run(
        self, update: Mapping[str, Tensor], new: NewTensor, *, release: Release | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """Yield the slices to generate with, by Hugging Face name, as they arrive; all devices iterate
        together, each to the end. At most one bucket's slices are held at a time, apart from those that the
        caller keeps.

        update: this device's slices of the layout that trains, by the same names; they are not written.
        release: None where they stay. Raises DeviceMemoryError when buffers do not fit, WorkerError that
        names the lost device.
        """
        try:
            yield from self._run(update, new, release)
        except (RuntimeError, WorkerError) as error:
            raise WorkerError(self.give_up(error)) from error
        except BaseException as error:
            self.give_up(error)
            raise

    def give_up(self, error: BaseException) -> str:
        """Notify all others, once, that this device does not continue. Return the error, preceded by the lost
        device where it does not name one."""
        return self._exchanges.give_up(error)

    def wait(self, pending: Pending) -> Tensor:
        """Wait for an exchange of all devices apart from the weights. Raises WorkerError when a device is
        lost or gives up."""
        self._exchanges.wait([pending])
        return pending.result

    def _run(
        self, update: Mapping[str, Tensor], new: NewTensor, release: Release | None
    ) -> Iterator[tuple[str, Tensor]]:
        gathering: GatheringBucket | None = None
        self.gather_seconds = self.select_seconds = 0.0
        self.received_bytes = 0
        buckets = len(self._plan.buckets)
        for number in range(buckets + 2):
            next_gathering = None
            if number < buckets:
                next_gathering = self._begin(
                    number, 0, lambda region: self._sent_values(update, region)
                )
            finish_release = None
            if number > 1 and release is not None:
                finish_release = release(self._released_names[number - 2])
            slices: dict[str, Tensor] = {}
            if 1 <= number <= buckets:
                self._select(number - 1, gathering, update, new, slices)
            if finish_release is not None:
                finish_release()
            gathering = next_gathering
            yield from slices.items()
        self._stream.run(self._exchanges.end).wait()

    def _sent_values(self, update: Mapping[str, Tensor], region: TensorBox) -> Tensor:
        return self._merge(region, _view(update, self._update_boxes, region))

    def _begin(self, number: int, hop: int, local_view: LocalView) -> GatheringBucket | None:
        """Start a bucket's hop. local_view: returns what is sent."""
        exchange = self._exchanges.begin(number, hop, local_view)
        if exchange is None:
            return None

        def carry_out() -> None:
            started = time.perf_counter()
            exchange.carry_out()
            self.gather_seconds += time.perf_counter() - started

        return GatheringBucket(exchange, self._stream.run(carry_out))

    def _select(
        self,
        number: int,
        gathering: GatheringBucket | None,
        update: Mapping[str, Tensor],
        new: NewTensor,
        slices: dict[str, Tensor],
    ) -> None:
        """Fill the slices of a bucket: from this device, from others, and from pieces forwarded within the
        node."""
        for name in self._rollout_names[number]:
            slices[name] = new(self._rollout_pieces[name])
        boxes = {name: self._rollout_pieces[name].box for name in self._rollout_names[number]}
        started = time.perf_counter()
        for region in self._copies[number]:
            _view(slices, boxes, region).copy_(self._sent_values(update, region))
        self.select_seconds += time.perf_counter() - started
        self._take(gathering, slices, boxes)
        forwarding = self._begin(number, 1, lambda region: _view(slices, boxes, region))
        self._take(forwarding, slices, boxes)

    def _take(
        self,
        gathering: GatheringBucket | None,
        slices: Mapping[str, Tensor],
        boxes: Mapping[str, Box],
    ) -> None:
        """Copy the pieces that others sent, once received."""
        if gathering is None:
            return
        gathering.completed.hold_main()
        started = time.perf_counter()
        for region, arrived in gathering.exchange.pieces():
            _view(slices, boxes, region).copy_(arrived)
            self.received_bytes += arrived.nbytes
        self.select_seconds += time.perf_counter() - started
        gathering.exchange.release()

    def _local_copies(self, bucket: Sequence[StackMember]) -> Iterator[TensorBox]:
        """Yield the pieces that this device has in both layouts."""
        for step in self._plan.steps(bucket):
            if step.kind == "copy":
                yield from step.pieces[self.device]

    def _names_of(self, bucket: Sequence[StackMember], tensors: Mapping[str, object]) -> list[str]:
        return [name for name in self._plan.freed(bucket) if name in tensors]


def _view(tensors: Mapping[str, Tensor], boxes: Mapping[str, Box], region: TensorBox) -> Tensor:
    name = region.tensor.name
    return box_view(tensors[name], boxes[name], region.box)


def _boxes(pieces: Iterator[TensorBox]) -> dict[str, Box]:
    return {region.tensor.name: region.box for region in pieces}
