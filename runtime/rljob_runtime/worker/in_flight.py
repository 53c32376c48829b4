"""New weights that come to a rollout device while it generates, and its switch to them.

A thread of its own takes each version that the source sends into host memory: the one who uses the group
meanwhile. All devices agree that they have everything before any of them switches, so that one which fails
leaves the old version on all. A device that holds a whole model switches between two tokens; those that
share one, whose passes meet, before the next call of `generate`. Made by `build`, called by the
device worker.
"""

import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.devices.host_arena import HostArena
from rljob_runtime.devices.sync_group import SyncGroup
from rljob_runtime.errors import WeightsError, WorkerError
from rljob_runtime.models.weight_stream import Announced, unpack_outlines
from rljob_runtime.models.weights import WeightsDigest, check_weights
from rljob_runtime.record.reports import InFlightFigures, SyncReport
from rljob_runtime.record.spans import Span
from rljob_runtime.rollout.rollout_engine import SwitchingEngine
from rljob_runtime.rollout.sync_probe import check_probe, gap_of
from rljob_runtime.weights.reshard_checks import REMEDY
from rljob_runtime.weights.weight_sync import Seal, check_agreed, check_arrived, weights_named
from rljob_runtime.worker.rollout_replica import RolloutReplica

READY_SECONDS = 30.0
"""How long a switch waits for weights of which the source has said that all devices have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrived:
    """A version whose weights are on the host, verified. seconds: that they took; hidden: of these, in which
    the device generated; tokens: that it drew meanwhile."""

    version: int
    seal: Seal
    seconds: float
    hidden: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Token ids whose log-probs are compared after each switch. dtype: the narrowest that the weights have
    had, which says by how much they may differ."""

    sequences: Sequence[Sequence[int]]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class _Switched:
    """before: version that the engine held. seconds: of the copy. generating: between two tokens."""

    arrived: _Arrived
    before: int
    seconds: float
    generating: bool


class InFlight:
    """One rollout device's part. engine: of `replica`, the devices that generate together. dtype: of the
    engine's weights. probe: None where they are rounded, so that log-probs tell nothing of what came.
    host_buffer: gives bytes on the host, which the device copies from."""

    def __init__(
        self,
        engine: SwitchingEngine,
        replica: RolloutReplica,
        *,
        dtype: torch.dtype,
        probe: Probe | None,
        host_buffer: Callable[[int], Tensor],
    ) -> None:
        self._engine, self._replica, self._dtype = engine, replica, dtype
        self._probe, self._host_buffer = probe, host_buffer
        self._held: dict[str, Tensor] = {}
        self._arrived: _Arrived | None = None
        self._switched: _Switched | None = None
        self._failure: Exception | None = None
        self._turn = threading.Condition()
        self._group: SyncGroup | None = None
        if replica.groups is None:
            engine.between = self._between

    def listen(self, group: SyncGroup | None) -> None:
        """Take what this group's source sends from now on, and nothing of another group's; None: of none."""
        self._group, self._failure, self._arrived = group, None, None
        if group is not None:
            threading.Thread(
                target=self._take, args=(group,), name="weights-in-flight", daemon=True
            ).start()

    def switch(self, version: int) -> SyncReport:
        """Generate with this version, which all devices have got, from now on at the latest, and check it.

        Raises WeightsError where what the engine holds or computes is not what was sent, and what the arrival
        raised. Devices that share a model call it together.
        """
        started = time.time()
        with self._turn:
            self._turn.wait_for(lambda: self._has(version) or self._failure, READY_SECONDS)
        if not self._has(version):
            raise self._failure or WorkerError(
                f"weights version {version} are not on the host of a device that generates, "
                f"{READY_SECONDS:.0f} s after they were sent; {REMEDY}"
            )
        if self._arrived is not None:
            self._load(self._arrived, generating=False)
        assert self._switched is not None, "a version that is there and does not wait was loaded"
        switched, checked = self._switched, time.perf_counter()
        seal = switched.arrived.seal
        check_arrived(seal.checksum, self._engine.checksum(), version)
        gap = self._probed(seal, version)
        seconds = time.perf_counter() - checked
        figures = self._figures(switched, probe_gap=gap, check_seconds=seconds)
        return SyncReport(checksum=seal.checksum, span=Span.since(started), in_flight=figures)

    def _probed(self, seal: Seal, version: int) -> float | None:
        """Distance of log-probs from the source's, in nats. Raises WeightsError where it is more than types
        explain."""
        if self._probe is None:
            return None
        found = self._engine.token_logprobs(self._probe.sequences)
        gap = gap_of(found, torch.tensor(seal.logprobs))
        check_probe(gap, dtype=self._probe.dtype, version=version)
        return gap

    def _figures(
        self, switched: _Switched, *, probe_gap: float | None, check_seconds: float
    ) -> InFlightFigures:
        """checks: every name with its shape, the sum on the way and as held, each sequence."""
        arrived, sequences = switched.arrived, self._probe.sequences if self._probe else ()
        return InFlightFigures(
            probe_gap=probe_gap,
            checks=len(self._held) + 2 + len(sequences),
            before=switched.before,
            received_seconds=arrived.seconds,
            hidden_seconds=arrived.hidden,
            tokens=arrived.tokens if self._replica.leads else 0,
            received_bytes=sum(tensor.nbytes for tensor in self._held.values()),
            switch_seconds=switched.seconds,
            check_seconds=check_seconds,
            generating=switched.generating,
        )

    def _has(self, version: int) -> bool:
        loaded = self._switched.arrived if self._switched else None
        return any(
            known is not None and known.version == version for known in (self._arrived, loaded)
        )

    def _between(self) -> None:
        """Between two tokens."""
        if (arrived := self._arrived) is not None:
            self._load(arrived, generating=True)

    def _load(self, arrived: _Arrived, *, generating: bool) -> None:
        began, before = time.perf_counter(), self._engine.version
        held = Announced(outlines=self._held, weights=self._held.items())
        self._engine.load_weights(held, version=arrived.version)
        seconds = time.perf_counter() - began
        self._switched = _Switched(
            arrived=arrived, before=before, seconds=seconds, generating=generating
        )
        self._arrived = None

    def _take(self, group: SyncGroup) -> None:
        """The thread."""
        try:
            for version in group.announcements(lambda: self._group is group):
                arrived = self._receive(group, version)
                with self._turn:
                    self._arrived = arrived
                    self._turn.notify_all()
        except Exception as error:  # a thread's would be told to nobody
            if self._group is group:  # else its source has left it, as everybody does
                with self._turn:
                    self._failure = error
                    self._turn.notify_all()

    def _receive(self, group: SyncGroup, version: int) -> _Arrived:
        """Raises WeightsError where a device has not got all of the version, and WorkerError where one is
        gone."""
        named = weights_named(version)
        began, hidden = time.perf_counter(), self._replica.generating.seconds()
        drawn = self._engine.drawn
        self._switched = None  # a version may come again after a rollback
        with group.telling(named):
            outlines = unpack_outlines(group.broadcast_bytes(what=f"{named}, names"))
            problem = group.agree(self._make_room(outlines), f"{named}, names")
        check_agreed(problem, version)
        with group.telling(named):
            digest = WeightsDigest(self._dtype)
            for name in outlines:
                group.broadcast(self._held[name], f"{named}, {name}")
                for _ in digest.of([(name, self._held[name])]):
                    pass
            last = f"{named}, their sum"
            seal = Seal.unpack(group.broadcast_bytes(what=last))
            problem = group.agree(_wrong_sum(digest.hex(), seal.checksum), last)
        check_agreed(problem, version)
        return _Arrived(
            version=version,
            seal=seal,
            # asked before the clock, as at the beginning after it: no more of the time than there was
            hidden=self._replica.generating.seconds() - hidden,
            seconds=time.perf_counter() - began,
            tokens=self._engine.drawn - drawn,
        )

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
