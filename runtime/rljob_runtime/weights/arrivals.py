"""Receive weights in host memory while a device generates, and load them into its engine from there.

Called by `in_flight`, which decides when: `receive` runs in a separate thread, the other calls between two
tokens or two batches. Full tensors come from `weight_sync`, slices by the plan of `reshard_state`.
"""

from collections.abc import Callable, Mapping
from typing import Protocol

import torch
from torch import Tensor

from rljob_runtime.devices.host_arena import HostArena
from rljob_runtime.devices.sync_group import SyncGroup
from rljob_runtime.errors import WeightsError
from rljob_runtime.models.weight_stream import AnnouncedWeights, unpack_outlines
from rljob_runtime.models.weights import WeightsDigest, check_weights
from rljob_runtime.rollout.rollout_engine import SlicedEngine, SwitchingEngine
from rljob_runtime.weights.reshard_checks import REMEDY, ReceivedSlices
from rljob_runtime.weights.reshard_state import Reshard
from rljob_runtime.weights.rollout_weights import RolloutWeights
from rljob_runtime.weights.weight_sync import Seal, check_agreed, check_arrived, weights_named

HostBuffer = Callable[[int], Tensor]
"""Allocates bytes on the host, which the device copies from."""


class Arrival(Protocol):
    """One device's end of a transfer in flight. received_bytes: of a version; delta_bytes: those received as
    changes, None without deltas; checks: the number of names and sums that were compared."""

    @property
    def received_bytes(self) -> int:
        """Return the bytes of the last received version."""
        ...

    @property
    def delta_bytes(self) -> int | None:
        """Return the bytes of the last version that were received as changes, None without deltas."""
        ...

    @property
    def checks(self) -> int:
        """Return the number of names and sums that were compared for the last version."""
        ...

    def receive(self, group: SyncGroup, version: int) -> Tensor:
        """Receive a version into host memory; return the log-probs of the probe's tokens under it [T],
        natural log.

        Raises WeightsError on all devices where one has not received all of it, and WorkerError where one is
        lost. The engine's weights stay unchanged.
        """
        ...

    def load(self, version: int) -> None:
        """Load the last received version into the engine."""
        ...

    def check(self, version: int) -> str:
        """Return the sum of the engine's weights, "" where it is not one sum of all weights. Raises
        WeightsError unless the engine holds what was received. Devices that share a model call it
        together."""
        ...


class SliceArrival:
    """Receives the device's slices from any device that trains them. reshard: this device's end."""

    def __init__(self, reshard: Reshard, host_buffer: HostBuffer) -> None:
        assert isinstance(reshard.rollout, RolloutWeights), "weights that may be filled in place"
        assert isinstance(reshard.engine, SlicedEngine), "and an engine that has them"
        self._reshard, self._engine = reshard, reshard.engine
        self._live = reshard.rollout.slices
        arena = HostArena(host_buffer, {name: tensor.nbytes for name, tensor in self._live.items()})
        self._received = {
            name: arena[name].view(tensor.dtype).view(tensor.shape)
            for name, tensor in self._live.items()
        }
        self._received_sums = ReceivedSlices()

    @property
    def received_bytes(self) -> int:
        """Bytes received, in the narrower type of both sides."""
        return self._reshard.received_bytes

    @property
    def delta_bytes(self) -> int | None:
        """Bytes of the last received version."""
        return self._reshard.setup.resharder.delta_bytes

    @property
    def checks(self) -> int:
        """The checks of a reshard, and one of each slice in the engine."""
        return self._reshard.setup.checks.count + len(self._received)

    def receive(self, group: SyncGroup, version: int) -> Tensor:
        """Receive by the plan; all devices compare sums before any of them has the version."""
        expected_T = self._reshard.take(version, lambda target: self._received[target.tensor.name])
        self._received_sums = self._reshard.setup.checks.received_slices(self._received)
        return expected_T

    def load(self, version: int) -> None:
        """Copy each slice into the live one."""
        with torch.no_grad():
            for name, tensor in self._live.items():
                tensor.copy_(self._received[name], non_blocking=True)
        self._engine.filled(version)

    def check(self, version: int) -> str:
        """Compare a sum of each box that was received."""
        live_sums, received_sums = (
            self._reshard.setup.checks.received_slices(self._live).sums,
            self._received_sums.sums,
        )
        if any(int(live_sums[box]) != int(received_sums[box]) for box in received_sums):
            raise WeightsError(
                f"weights version {version} did not arrive in the rollout engine as they came to the host; "
                f"{REMEDY}"
            )
        return ""


class TensorArrival:
    """Receives full tensors, for an engine that takes no slices. dtype: of the engine's weights."""

    def __init__(
        self, engine: SwitchingEngine, *, dtype: torch.dtype, host_buffer: HostBuffer
    ) -> None:
        self._engine, self._dtype, self._host_buffer = engine, dtype, host_buffer
        self._received: dict[str, Tensor] = {}
        self._checksum = ""

    @property
    def received_bytes(self) -> int:
        """Bytes of all tensors."""
        return sum(tensor.nbytes for tensor in self._received.values())

    @property
    def delta_bytes(self) -> None:
        """There are no deltas: full tensors are sent."""

    @property
    def checks(self) -> int:
        """One check for every name with its shape, one for the sum in transit and one for that in the
        engine."""
        return len(self._received) + 2

    def receive(self, group: SyncGroup, version: int) -> Tensor:
        """Receive tensors one after the other; devices agree on names and shapes before the first, on sums
        after the last."""
        label = weights_named(version)
        with group.reporting_errors(label):
            outlines = unpack_outlines(group.broadcast_bytes(description=f"{label}, names"))
            problem = group.agree(self._allocate(outlines), f"{label}, names")
        check_agreed(problem, version)
        with group.reporting_errors(label):
            digest = WeightsDigest(self._dtype)
            for name in outlines:
                group.broadcast(self._received[name], f"{label}, {name}")
                for _ in digest.of([(name, self._received[name])]):
                    pass
            sum_label = f"{label}, their sum"
            seal = Seal.unpack(group.broadcast_bytes(description=sum_label))
            problem = group.agree(_wrong_sum(digest.hex(), seal.checksum), sum_label)
        check_agreed(problem, version)
        self._checksum = seal.checksum
        return torch.tensor(seal.logprobs)

    def load(self, version: int) -> None:
        """Load through the engine's `load_weights`."""
        received = AnnouncedWeights(outlines=self._received, weights=self._received.items())
        self._engine.load_weights(received, version=version)

    def check(self, version: int) -> str:
        """Compare one sum of all weights."""
        check_arrived(self._checksum, self._engine.checksum(), version)
        return self._checksum

    def _allocate(self, outlines: Mapping[str, Tensor]) -> str:
        """Allocate host memory for all tensors, reused between versions; return a description of any
        mismatch."""
        try:
            check_weights(outlines, self._engine.shapes, where="the rollout engine")
            if {n: (o.shape, o.dtype) for n, o in outlines.items()} != {
                n: (h.shape, h.dtype) for n, h in self._received.items()
            }:
                self._received = {}
                sizes = {name: outline.nbytes for name, outline in outlines.items()}
                arena = HostArena(self._host_buffer, sizes)
                self._received = {
                    name: arena[name].view(outline.dtype).view(outline.shape)
                    for name, outline in outlines.items()
                }
        except (WeightsError, RuntimeError, MemoryError) as error:
            return str(error)
        return ""


def _wrong_sum(actual: str, sent: str) -> str:
    return "" if sent == actual else f"their sum is {actual} on the way, {sent} at the source"
