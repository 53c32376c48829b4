"""Runs a plan on this device: bucket by bucket, three of them on their way.

Called by the strategies; all devices of both layouts run the same plan together. A bucket is gathered on a
side stream, while the one before is selected into the weights to generate with, and the update weights of
the one before that may leave the device.
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
from rljob_runtime.weights.reshard.parcels import View, part

New = Callable[[TensorBox], Tensor]
"""Makes an uninitialised tensor for a slice that this device generates with, or gives one that it has."""

End = Callable[[], None]
Release = Callable[[Sequence[str]], End | None]
"""Takes the names of update weights that are not read again: to the host, or nowhere. It may return what
ends that, which is called when the next bucket is selected."""


@dataclass(frozen=True, slots=True)
class Gathering:
    """A hop of a bucket on its way, and when it is there."""

    exchange: Exchange
    there: Mark


class Resharder:
    """This device's part of a plan, for any number of reshards. All members, which are the plan's devices,
    make it at the same time, after all other groups.

    members: None for the ranks of the default group. sent: type on the way, the narrower of both layouts'.
    shares_memory: whether devices of one machine whose memory is the host's exchange weights there.
    timeout_seconds: of one wait for another device; after it a reshard raises WorkerError, and another
    Resharder is needed. merge: of what this device gives. Raises WorkerError when a device does not come in
    that time. gather_seconds, select_seconds: of the last reshard, of its exchanges, on the side stream, and
    of the selection and its copies, as the host sees them; received_bytes: of what others gave in it.
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
        self._held = _boxes(plan.update.local_boxes(self.device))
        self._wanted = {piece.tensor.name: piece for piece in plan.rollout.local_boxes(self.device)}
        self._copies = [list(self._copied(bucket)) for bucket in plan.buckets]
        self._here = [self._named(bucket, self._wanted) for bucket in plan.buckets]
        self._gone = [self._named(bucket, self._held) for bucket in plan.buckets]
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
        """No other reshard follows. What one that failed held, the update's weights among it, is held no
        longer: a mark of the side stream has the error, and the error its frames."""
        del self._stream
        self._exchanges.close()

    @property
    def kept_bytes(self) -> int:
        """Of what is kept for deltas."""
        return self._exchanges.kept_bytes

    @property
    def delta_bytes(self) -> int | None:
        """That came in the last reshard, as `Exchanges` has them."""
        return self._exchanges.delta_bytes

    @property
    def wanted(self) -> Mapping[str, TensorBox]:
        """The slices that this device generates with, by Hugging Face name."""
        return self._wanted

    @torch.no_grad()
    def run(
        self, update: Mapping[str, Tensor], new: New, *, release: Release | None = None
    ) -> Iterator[tuple[str, Tensor]]:
        """The slices to generate with, by Hugging Face name, as they come; all devices go through them
        together, each to the end. Of those that the caller does not keep, a bucket's are held at a time.

        update: this device's slices of the layout that trains, by the same names; they are not written.
        release: None where they stay. Raises DeviceMemoryError when buffers do not fit, WorkerError that
        names who is gone.
        """
        try:
            yield from self._run(update, new, release)
        except (RuntimeError, WorkerError) as error:
            raise WorkerError(self.give_up(error)) from error
        except BaseException as error:
            self.give_up(error)
            raise

    def give_up(self, error: BaseException) -> str:
        """Tell all others, once, that this device does not go on; the error, and who is gone in front of
        one that does not say it."""
        return self._exchanges.give_up(error)

    def wait(self, pending: Pending) -> Tensor:
        """What all devices exchange beside the weights. Raises WorkerError when one is gone or gives up."""
        self._exchanges.wait([pending])
        return pending.result

    def _run(
        self, update: Mapping[str, Tensor], new: New, release: Release | None
    ) -> Iterator[tuple[str, Tensor]]:
        gathering: Gathering | None = None
        self.gather_seconds = self.select_seconds = 0.0
        self.received_bytes = 0
        buckets = len(self._plan.buckets)
        for number in range(buckets + 2):
            begun = None
            if number < buckets:
                begun = self._begin(number, 0, lambda piece: self._given(update, piece))
            end = None
            if number > 1 and release is not None:
                end = release(self._gone[number - 2])
            found: dict[str, Tensor] = {}
            if 1 <= number <= buckets:
                self._select(number - 1, gathering, update, new, found)
            if end is not None:
                end()
            gathering = begun
            yield from found.items()
        self._stream.run(self._exchanges.end).wait()

    def _given(self, update: Mapping[str, Tensor], piece: TensorBox) -> Tensor:
        return self._merge(piece, _view(update, self._held, piece))

    def _begin(self, number: int, hop: int, own: View) -> Gathering | None:
        """Start a bucket's hop. own: what is given."""
        exchange = self._exchanges.begin(number, hop, own)
        if exchange is None:
            return None

        def carry_out() -> None:
            started = time.perf_counter()
            exchange.carry_out()
            self.gather_seconds += time.perf_counter() - started

        return Gathering(exchange, self._stream.run(carry_out))

    def _select(
        self,
        number: int,
        gathering: Gathering | None,
        update: Mapping[str, Tensor],
        new: New,
        found: dict[str, Tensor],
    ) -> None:
        """Fill the slices of a bucket: from this device, from what arrives, and from what is passed on."""
        for name in self._here[number]:
            found[name] = new(self._wanted[name])
        wanted = {name: self._wanted[name].box for name in self._here[number]}
        started = time.perf_counter()
        for piece in self._copies[number]:
            _view(found, wanted, piece).copy_(self._given(update, piece))
        self.select_seconds += time.perf_counter() - started
        self._take(gathering, found, wanted)
        passed_on = self._begin(number, 1, lambda piece: _view(found, wanted, piece))
        self._take(passed_on, found, wanted)

    def _take(
        self,
        gathering: Gathering | None,
        found: Mapping[str, Tensor],
        wanted: Mapping[str, Box],
    ) -> None:
        """Copy what others gave, once it is there."""
        if gathering is None:
            return
        gathering.there.hold_main()
        started = time.perf_counter()
        for piece, arrived in gathering.exchange.pieces():
            _view(found, wanted, piece).copy_(arrived)
            self.received_bytes += arrived.nbytes
        self.select_seconds += time.perf_counter() - started
        gathering.exchange.taken()

    def _copied(self, bucket: Sequence[StackMember]) -> Iterator[TensorBox]:
        """Those that this device has in both layouts."""
        for step in self._plan.steps(bucket):
            if step.kind == "copy":
                yield from step.pieces[self.device]

    def _named(self, bucket: Sequence[StackMember], among: Mapping[str, object]) -> list[str]:
        return [name for name in self._plan.freed(bucket) if name in among]


def _view(tensors: Mapping[str, Tensor], boxes: Mapping[str, Box], piece: TensorBox) -> Tensor:
    name = piece.tensor.name
    return part(tensors[name], boxes[name], piece.box)


def _boxes(pieces: Iterator[TensorBox]) -> dict[str, Box]:
    return {piece.tensor.name: piece.box for piece in pieces}
