"""New weights that come to a rollout device while it generates, and its switch to them.

A thread of its own takes each version that the source sends into host memory: the one who uses the group
meanwhile. All devices agree that they have everything before any of them switches, so that one which fails
leaves the old version on all. A device that holds a whole model switches between two tokens; those that
share one, whose passes meet, before the next call of `generate`. Made by `making`, called by the
device worker.
"""

import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from rljob_runtime.backends.sync_group import SyncGroup
from rljob_runtime.engines.base import SwitchingEngine
from rljob_runtime.errors import WeightsError, WorkerError
from rljob_runtime.models.weight_stream import Announced, unpack_outlines
from rljob_runtime.models.weights import WeightsDigest, check_weights
from rljob_runtime.spans import Span
from rljob_runtime.states.reports import InFlightFigures, SyncReport
from rljob_runtime.states.reshard_checks import REMEDY
from rljob_runtime.states.weight_sync import check_agreed, check_arrived

READY_SECONDS = 30.0
"""How long a switch waits for weights of which the source has said that all devices have them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class _Arrived:
    """A version whose weights are on the host, verified. seconds: that they took."""

    version: int
    checksum: str
    seconds: float


class InFlight:
    """One rollout device's part. dtype: of the engine's weights. alone: whether the engine computes without
    other devices."""

    def __init__(self, engine: SwitchingEngine, *, dtype: torch.dtype, alone: bool) -> None:
        self._engine, self._dtype = engine, dtype
        self._held: dict[str, Tensor] = {}
        self._arrived: _Arrived | None = None
        self._switched: tuple[_Arrived, float, bool] | None = None
        self._failure: Exception | None = None
        self._turn = threading.Condition()
        self._group: SyncGroup | None = None
        if alone:
            engine.between = self._between

    def listen(self, group: SyncGroup | None) -> None:
        """Take what this group's source sends from now on, and nothing of another group's; None: of none."""
        self._group, self._failure = group, None
        if group is not None:
            threading.Thread(
                target=self._take, args=(group,), name="weights-in-flight", daemon=True
            ).start()

    def switch(self, version: int) -> SyncReport:
        """Generate with this version, which all devices have got, from now on at the latest, and check it.

        Raises WeightsError where what the engine holds is not what was sent, and what the arrival raised.
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
        (arrived, seconds, generating), checked = self._switched, time.perf_counter()
        check_arrived(arrived.checksum, self._engine.checksum(), version)
        return SyncReport(
            checksum=arrived.checksum,
            span=Span.since(started),
            in_flight=InFlightFigures(
                received_seconds=arrived.seconds,
                switch_seconds=seconds,
                check_seconds=time.perf_counter() - checked,
                generating=generating,
            ),
        )

    def _has(self, version: int) -> bool:
        loaded = self._switched[0] if self._switched else None
        return any(
            known is not None and known.version == version for known in (self._arrived, loaded)
        )

    def _between(self) -> None:
        """Between two tokens."""
        if (arrived := self._arrived) is not None:
            self._load(arrived, generating=True)

    def _load(self, arrived: _Arrived, *, generating: bool) -> None:
        began = time.perf_counter()
        held = Announced(outlines=self._held, weights=self._held.items())
        self._engine.load_weights(held, version=arrived.version)
        self._switched = arrived, time.perf_counter() - began, generating
        self._arrived = None

    def _take(self, group: SyncGroup) -> None:
        """The thread."""
        try:
            for version in group.announcements(lambda: self._group is group):
                arrived = self._receive(group, version)
                with self._turn:
                    self._arrived = arrived
                    self._turn.notify_all()
        except (RuntimeError, WeightsError, OSError) as error:
            if self._group is group:  # else its source has left it, as everybody does
                with self._turn:
                    self._failure = error
                    self._turn.notify_all()

    def _receive(self, group: SyncGroup, version: int) -> _Arrived:
        """Raises WeightsError where a device has not got all of the version, and RuntimeError where one is
        gone."""
        began = time.perf_counter()
        self._switched = None  # a version may come again after a rollback
        outlines = unpack_outlines(group.broadcast_bytes())
        problem = self._make_room(outlines)
        check_agreed(group.agree(problem), version)
        digest = WeightsDigest(self._dtype)
        for name in outlines:
            group.broadcast(self._held[name])
            for _ in digest.of([(name, self._held[name])]):
                pass
        sent, found = group.broadcast_bytes().decode(), digest.hex()
        problem = "" if sent == found else f"their sum is {found} on the way, {sent} at the source"
        check_agreed(group.agree(problem), version)
        return _Arrived(version=version, checksum=found, seconds=time.perf_counter() - began)

    def _make_room(self, outlines: Mapping[str, Tensor]) -> str:
        """On the host for all that comes, kept between versions; returns what is wrong with it."""
        try:
            check_weights(outlines, self._engine.shapes, where="the rollout engine")
            for name, outline in outlines.items():
                held = self._held.get(name)
                if held is None or held.dtype != outline.dtype:
                    self._held[name] = torch.empty_like(outline, device="cpu")
        except (WeightsError, RuntimeError, MemoryError) as error:
            return str(error)
        return ""
