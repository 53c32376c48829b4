"""Weights that come to a device's host while it generates, and go from there into its engine.

Called by `in_flight`, which knows when: `receive` in a thread of its own, the rest between two tokens or two
batches. Whole tensors come from what `weight_sync` sends, slices by the plan of `reshard_state`.
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
from rljob_runtime.weights.reshard_checks import REMEDY, Taken
from rljob_runtime.weights.reshard_state import Reshard
from rljob_runtime.weights.rollout_weights import RolloutWeights
from rljob_runtime.weights.weight_sync import Seal, check_agreed, check_arrived, weights_named

HostBuffer = Callable[[int], Tensor]
"""Gives bytes on the host, which the device copies from."""


class Arrival(Protocol):
    """One device's. received_bytes: of a version; delta_bytes: what came of them as changes, None without
    deltas; checks: how many names and sums were compared."""

    @property
    def received_bytes(self) -> int: ...
    @property
    def delta_bytes(self) -> int | None: ...
    @property
    def checks(self) -> int: ...

    def receive(self, group: SyncGroup, version: int) -> Tensor:
        """Take a version into host memory; the log-probs of the probe's tokens under it [T], natural log.

        Raises WeightsError where a device has not got all of it, on all devices, and WorkerError where one is
        gone. The engine keeps what it has.
        """
        ...

    def load(self, version: int) -> None:
        """Give the engine what came last."""
        ...

    def check(self, version: int) -> str:
        """The sum of what the engine holds, "" where it is not one of all weights. Raises WeightsError unless
        it is what came. Devices that share a model call it together."""
        ...


class SlicesArrive:
    """What the device needs, of whoever trains it. reshard: this device's end."""

    def __init__(self, reshard: Reshard, host_buffer: HostBuffer) -> None:
        assert isinstance(reshard.rollout, RolloutWeights), "weights that may be filled in place"
        assert isinstance(reshard.engine, SlicedEngine), "and an engine that has them"
        self._reshard, self._engine = reshard, reshard.engine
        self._live = reshard.rollout.slices
        arena = HostArena(host_buffer, {name: own.nbytes for name, own in self._live.items()})
        self._held = {
            name: arena[name].view(own.dtype).view(own.shape) for name, own in self._live.items()
        }
        self._came = Taken()

    @property
    def received_bytes(self) -> int:
        """On their way, in the narrower type of both sides."""
        return self._reshard.received_bytes

    @property
    def delta_bytes(self) -> int | None:
        """Of the last version that came."""
        return self._reshard.on.resharder.delta_bytes

    @property
    def checks(self) -> int:
        """Those of a reshard, and each slice as the engine holds it."""
        return self._reshard.on.checks.count + len(self._held)

    def receive(self, group: SyncGroup, version: int) -> Tensor:
        """By the plan; all devices compare sums before any has the version."""
        expected_T = self._reshard.take(version, lambda piece: self._held[piece.tensor.name])
        self._came = self._reshard.on.checks.taken(self._held)
        return expected_T

    def load(self, version: int) -> None:
        """Each slice is copied into the live one."""
        with torch.no_grad():
            for name, own in self._live.items():
                own.copy_(self._held[name], non_blocking=True)
        self._engine.filled(version)

    def check(self, version: int) -> str:
        """By a sum of each box that came."""
        found, came = self._reshard.on.checks.taken(self._live).sums, self._came.sums
        if any(int(found[box]) != int(came[box]) for box in came):
            raise WeightsError(
                f"weights version {version} did not arrive in the rollout engine as they came to the host; "
                f"{REMEDY}"
            )
        return ""


class TensorsArrive:
    """Whole tensors, for an engine that takes no slices. dtype: of the engine's weights."""

    def __init__(
        self, engine: SwitchingEngine, *, dtype: torch.dtype, host_buffer: HostBuffer
    ) -> None:
        self._engine, self._dtype, self._host_buffer = engine, dtype, host_buffer
        self._held: dict[str, Tensor] = {}
        self._checksum = ""

    @property
    def received_bytes(self) -> int:
        """Of all tensors."""
        return sum(tensor.nbytes for tensor in self._held.values())

    @property
    def delta_bytes(self) -> None:
        """Whole tensors come."""

    @property
    def checks(self) -> int:
        """Every name with its shape, the sum on the way and as held."""
        return len(self._held) + 2

    def receive(self, group: SyncGroup, version: int) -> Tensor:
        """One after the other; names and shapes are agreed on before the first, sums after the last."""
        named = weights_named(version)
        with group.reporting_errors(named):
            outlines = unpack_outlines(group.broadcast_bytes(description=f"{named}, names"))
            problem = group.agree(self._make_room(outlines), f"{named}, names")
        check_agreed(problem, version)
        with group.reporting_errors(named):
            digest = WeightsDigest(self._dtype)
            for name in outlines:
                group.broadcast(self._held[name], f"{named}, {name}")
                for _ in digest.of([(name, self._held[name])]):
                    pass
            last = f"{named}, their sum"
            seal = Seal.unpack(group.broadcast_bytes(description=last))
            problem = group.agree(_wrong_sum(digest.hex(), seal.checksum), last)
        check_agreed(problem, version)
        self._checksum = seal.checksum
        return torch.tensor(seal.logprobs)

    def load(self, version: int) -> None:
        """By the engine's own way."""
        held = AnnouncedWeights(outlines=self._held, weights=self._held.items())
        self._engine.load_weights(held, version=version)

    def check(self, version: int) -> str:
        """By one sum of all weights."""
        check_arrived(self._checksum, self._engine.checksum(), version)
        return self._checksum

    def _make_room(self, outlines: Mapping[str, Tensor]) -> str:
        """On the host for all that comes, kept between versions; returns what is wrong with it."""
        try:
            check_weights(outlines, self._engine.shapes, where="the rollout engine")
            if {n: (o.shape, o.dtype) for n, o in outlines.items()} != {
                n: (h.shape, h.dtype) for n, h in self._held.items()
            }:
                self._held = {}
                sizes = {name: outline.nbytes for name, outline in outlines.items()}
                arena = HostArena(self._host_buffer, sizes)
                self._held = {
                    name: arena[name].view(outline.dtype).view(outline.shape)
                    for name, outline in outlines.items()
                }
        except (WeightsError, RuntimeError, MemoryError) as error:
            return str(error)
        return ""


def _wrong_sum(found: str, sent: str) -> str:
    return "" if sent == found else f"their sum is {found} on the way, {sent} at the source"
