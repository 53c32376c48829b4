"""New weights that come to a rollout device while it generates, and its switch to them.

A thread of its own takes each version that the source sends into host memory: the one who uses the group
meanwhile. All devices agree that they have everything before any of them switches, so that one which fails
leaves the old version on all. A device that holds a whole model switches between two tokens; those that
share one, whose passes meet, before the next call of `generate`. Made by `build`, called by the
device worker.
"""

import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.devices.sync_group import SyncGroup
from rljob_runtime.errors import WorkerError
from rljob_runtime.record.reports import InFlightFigures, SyncReport
from rljob_runtime.record.spans import StageSpan
from rljob_runtime.rollout.rollout_engine import SwitchingEngine
from rljob_runtime.rollout.sync_probe import check_probe, gap_of
from rljob_runtime.weights.arrivals import Arrival
from rljob_runtime.weights.reshard_checks import REMEDY
from rljob_runtime.worker.rollout_replica import RolloutReplica

READY_SECONDS = 30.0
"""How long a switch waits for weights of which the source has said that all devices have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrived:
    """A version whose weights are on the host, verified. expected_T: log-probs of the probe's tokens.
    seconds: that they took; hidden: of these, in which the device generated; tokens: that it drew
    meanwhile."""

    version: int
    expected_T: Tensor
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
    """One rollout device's part. engine: of `replica`, the devices that generate together. arrival: how
    weights come to its host. probe: None where they are rounded, so that log-probs tell nothing of what
    came."""

    def __init__(
        self,
        engine: SwitchingEngine,
        replica: RolloutReplica,
        *,
        arrival: Arrival,
        probe: Probe | None,
    ) -> None:
        self._engine, self._replica = engine, replica
        self._arrival, self._probe = arrival, probe
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
        checksum = self._arrival.check(version)
        gap = self._probed(switched.arrived.expected_T, version)
        seconds = time.perf_counter() - checked
        figures = self._figures(switched, probe_gap=gap, check_seconds=seconds)
        return SyncReport(checksum=checksum, span=StageSpan.since(started), in_flight=figures)

    def _probed(self, expected_T: Tensor, version: int) -> float | None:
        """Distance of log-probs from the source's, in nats. Raises WeightsError where it is more than types
        explain."""
        if self._probe is None:
            return None
        found = self._engine.token_logprobs(self._probe.sequences)
        gap = gap_of(found, expected_T)
        check_probe(gap, dtype=self._probe.dtype, version=version)
        return gap

    def _figures(
        self, switched: _Switched, *, probe_gap: float | None, check_seconds: float
    ) -> InFlightFigures:
        """checks: those of the arrival, and each sequence."""
        arrived, sequences = switched.arrived, self._probe.sequences if self._probe else ()
        return InFlightFigures(
            probe_gap=probe_gap,
            checks=self._arrival.checks + len(sequences),
            before=switched.before,
            received_seconds=arrived.seconds,
            hidden_seconds=arrived.hidden,
            tokens=arrived.tokens if self._replica.leads else 0,
            received_bytes=self._arrival.received_bytes,
            delta_bytes=self._arrival.delta_bytes,
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
        self._arrival.load(arrived.version)
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
        """Raises as the arrival."""
        began, hidden = time.perf_counter(), self._replica.generating.seconds()
        drawn = self._engine.drawn
        self._switched = None  # a version may come again after a rollback
        expected_T = self._arrival.receive(group, version)
        return _Arrived(
            version=version,
            expected_T=expected_T,
            # asked before the clock, as at the beginning after it: no more of the time than there was
            hidden=self._replica.generating.seconds() - hidden,
            seconds=time.perf_counter() - began,
            tokens=self._engine.drawn - drawn,
        )
