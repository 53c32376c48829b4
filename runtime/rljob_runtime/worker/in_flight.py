"""Receiving new weights on a rollout device while it generates, and switching to them.

A separate thread receives each version that the source sends into host memory; it is the only user of the
group meanwhile. All devices agree that they have received everything before any of them switches, so that a
failed device leaves the old version on all. A device that holds a full model switches between two tokens;
devices that share one, whose passes meet, switch before the next call of `generate`. `build` creates it, and
the device worker calls it.
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
"""How long a switch waits for weights that, according to the source, all devices have received."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _ReceivedVersion:
    """A version whose weights are on the host, verified.

    expected_T: log-probs of the probe's tokens. seconds: duration of the transfer; hidden: the part of it
    during which the device generated; tokens: drawn meanwhile.
    """

    version: int
    expected_T: Tensor
    seconds: float
    hidden: float
    tokens: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Probe:
    """Token ids whose log-probs are compared after each switch.

    dtype: the narrowest that the weights have had, which determines how much they may differ.
    """

    sequences: Sequence[Sequence[int]]
    dtype: torch.dtype


@dataclass(frozen=True, slots=True, kw_only=True)
class _VersionSwitch:
    """A completed switch of the engine's weights.

    before: version that the engine had. seconds: of the copy. generating: whether it was between two tokens.
    """

    arrived: _ReceivedVersion
    before: int
    seconds: float
    generating: bool


class InFlight:
    """Weights in flight on one rollout device.

    engine: of `replica`, the devices that generate together. arrival: how weights arrive on its host. probe:
    None if weights are rounded, so that log-probs cannot verify them.
    """

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
        self._arrived: _ReceivedVersion | None = None
        self._switched: _VersionSwitch | None = None
        self._failure: Exception | None = None
        self._turn = threading.Condition()
        self._group: SyncGroup | None = None
        if replica.groups is None:
            engine.between = self._between

    def listen(self, group: SyncGroup | None) -> None:
        """Receive what this group's source sends from now on, and nothing of another group; None: stop
        receiving."""
        self._group, self._failure, self._arrived = group, None, None
        if group is not None:
            threading.Thread(
                target=self._take, args=(group,), name="weights-in-flight", daemon=True
            ).start()

    def switch(self, version: int) -> SyncReport:
        """Generate with this version from now on at the latest, and check it. All devices have received it.

        Raises WeightsError if the engine's weights or results differ from the source's, and the arrival's
        errors. Devices that share a model call it together.
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
        """Return the difference of log-probs from the source's, in nats.

        Raises WeightsError if dtypes do not explain it.
        """
        if self._probe is None:
            return None
        logprobs = self._engine.token_logprobs(self._probe.sequences)
        gap = gap_of(logprobs, expected_T)
        check_probe(gap, dtype=self._probe.dtype, version=version)
        return gap

    def _figures(
        self, switched: _VersionSwitch, *, probe_gap: float | None, check_seconds: float
    ) -> InFlightFigures:
        """Return the figures of a switch; checks are those of the arrival, and one per sequence."""
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
            received is not None and received.version == version
            for received in (self._arrived, loaded)
        )

    def _between(self) -> None:
        """Load arrived weights between two tokens."""
        if (arrived := self._arrived) is not None:
            self._load(arrived, generating=True)

    def _load(self, arrived: _ReceivedVersion, *, generating: bool) -> None:
        began, before = time.perf_counter(), self._engine.version
        self._arrival.load(arrived.version)
        seconds = time.perf_counter() - began
        self._switched = _VersionSwitch(
            arrived=arrived, before=before, seconds=seconds, generating=generating
        )
        self._arrived = None

    def _take(self, group: SyncGroup) -> None:
        """Receive versions in the background thread."""
        try:
            for version in group.announcements(lambda: self._group is group):
                arrived = self._receive(group, version)
                with self._turn:
                    self._arrived = arrived
                    self._turn.notify_all()
        except Exception as error:  # nothing else would report a thread's error
            if self._group is group:  # otherwise its source has left the group
                with self._turn:
                    self._failure = error
                    self._turn.notify_all()

    def _receive(self, group: SyncGroup, version: int) -> _ReceivedVersion:
        """Receive one version; raises as the arrival."""
        began, hidden = time.perf_counter(), self._replica.generating.seconds()
        drawn = self._engine.drawn
        self._switched = None  # a version may come again after a rollback
        expected_T = self._arrival.receive(group, version)
        return _ReceivedVersion(
            version=version,
            expected_T=expected_T,
            # read before the clock, and after it at the beginning: never more than the elapsed time
            hidden=self._replica.generating.seconds() - hidden,
            seconds=time.perf_counter() - began,
            tokens=self._engine.drawn - drawn,
        )
