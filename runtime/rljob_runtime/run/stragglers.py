"""Find, report and replace devices, and links of hosts, that are slower than their peers. They are compared
by the work that devices did without waiting and by the rows that they moved.

The driver calls `StragglerActions` after each step; `loop` lets `recovery` replace those of a `LeaveSlow`.
The rule is `slowness` and `StragglerWatch`, which are pure.
"""

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import reduce
from operator import add
from statistics import median
from typing import Any

from rljob_api.spec.guards import Stragglers as Settings
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.dock.stats import ROOM, DockTraffic
from rljob_runtime.errors import RljobError
from rljob_runtime.processes.calls import results
from rljob_runtime.processes.placement import Actors, Member
from rljob_runtime.processes.workers import Call
from rljob_runtime.record.event_types import StragglerEvent
from rljob_runtime.record.events import EventLog
from rljob_runtime.record.spans import DeviceWork, StageSpan
from rljob_runtime.run.stages import BatchCalls
from rljob_runtime.samples.flow import INFERENCE_STATES

STATES = ("generate", *INFERENCE_STATES, "update")
LEAST_SECONDS = 0.1
"""Least work of a device in a step: with less of it no device is slow, because it does not delay the
others."""
WINDOWS_APART = 20
"""Windows of `steps` within which a device is replaced only once."""

Unit = tuple[int, ...]
"""Numbers of the devices whose work is reported together: one device, those that share a model to generate,
or those of a host that move the same rows."""
LINK = "link"
"""Used in place of a state if a host's devices take long to read and write rows."""
COPY = "copy"
"""Used in place of a state if a device takes long to receive another one's second copy: the unit is the
sending and the receiving device."""


class LeaveSlow(Exception):
    """Devices are to be replaced between two steps."""

    def __init__(self, slow: "Sequence[Straggler]", members: Sequence[Member]) -> None:
        super().__init__("; ".join(map(str, slow)))
        self.slow, self.members = slow, members


@dataclass(frozen=True, slots=True, kw_only=True)
class Straggler:
    """Devices that were slow in a state. factor: the median of the factors measured in the steps."""

    state: str
    unit: Unit
    factor: float
    steps: int

    def __str__(self) -> str:
        return (
            f"{self.factor:.1f} times its peers' time in {self.state}, {self.steps} steps in a row"
        )


def slowness(peers: Mapping[Unit, DeviceWork]) -> dict[Unit, float]:
    """Return how many times the median of its peers each unit takes, per token or per pass, whichever is
    less. Few long samples take many passes and many short ones many tokens, and neither makes a device slow.
    Units without peers are left out; the factor is at most 1 for units that took less than LEAST_SECONDS."""
    seconds_per_token = {unit: work.seconds / work.tokens for unit, work in peers.items()}
    seconds_per_pass = {unit: work.seconds / work.passes for unit, work in peers.items()}
    factors = [_times_others(paces) for paces in (seconds_per_token, seconds_per_pass)]
    return {
        unit: min(
            *(factor_by_unit[unit] for factor_by_unit in factors),
            math.inf if work.seconds >= LEAST_SECONDS else 1.0,
        )
        for unit, work in peers.items()
        if all(unit in factor_by_unit for factor_by_unit in factors)
    }


def _times_others(paces: Mapping[Unit, float]) -> dict[Unit, float]:
    """Return each unit's pace over the median of the other units."""
    order = sorted(paces, key=lambda unit: paces[unit])
    others = len(order) - 1
    factors: dict[Unit, float] = {}
    for index, unit in enumerate(order if others else []):
        middle = [(others - 1) // 2, others // 2]
        peer_median = (
            sum(paces[order[middle_index + (middle_index >= index)]] for middle_index in middle) / 2
        )
        if peer_median > 0:
            factors[unit] = paces[unit] / peer_median
    return factors


@dataclass(slots=True, kw_only=True)
class StragglerWatch:
    """Pure rule for one run's stragglers. slow: those that were reported and are not over, by state and
    unit."""

    settings: Settings
    slow: dict[tuple[str, Unit], Straggler] = field(default_factory=dict)
    _streaks: dict[tuple[str, Unit], list[float]] = field(default_factory=dict)
    """Factors of the last steps, for units whose state differs from the reported one."""

    def observe(
        self, work: Iterable[tuple[str, Mapping[Unit, DeviceWork]]]
    ) -> tuple[list[Straggler], list[Straggler]]:
        """Take the work of a step in, as (state, peers). Returns which units became slow, and which no longer
        are. A step in which a device has nothing to do does not count for it."""
        new: list[Straggler] = []
        over: list[Straggler] = []
        for state, peers in work:
            for unit, factor in slowness(peers).items():
                key = (state, unit)
                if (factor > self.settings.factor) == (key in self.slow):
                    self._streaks.pop(key, None)
                    continue
                streak = self._streaks.setdefault(key, [])
                streak.append(factor)
                if len(streak) < self.settings.steps:
                    continue
                del self._streaks[key]
                straggler = Straggler(
                    state=state, unit=unit, factor=median(streak), steps=len(streak)
                )
                if key in self.slow:
                    del self.slow[key]
                    over.append(straggler)
                else:
                    self.slow[key] = straggler
                    new.append(straggler)
        return new, over

    def forget(self, devices: Collection[int]) -> list[Straggler]:
        """Forget devices that have been replaced. Returns those of them that were slow."""
        gone = [key for key in {**self.slow, **self._streaks} if {*key[1]} & {*devices}]
        for key in gone:
            self._streaks.pop(key, None)
        return [self.slow.pop(key) for key in gone if key in self.slow]


@dataclass(slots=True, kw_only=True)
class StragglerActions:
    """Reports and replaces the stragglers of one run. replaced: by device, the step after which it was last
    replaced."""

    job: ResolvedJob
    actors: Actors
    log: EventLog
    watch: StragglerWatch = field(init=False)
    replaced: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.watch = StragglerWatch(settings=self.job.spec.stragglers)

    def observe(self, step: int, calls: BatchCalls) -> None:
        """Compare the work of a completed step, whose calls have all ended, and report changes."""
        devices_per_model = self.job.spec.rollout.parallelism.model_devices
        first = 0 if self.job.spec.placement.mode == "colocated" else self.job.spec.roles.update
        hosts = {member.role.rank: member.place.host for member in self.actors.members}
        work = [
            (
                state,
                device_work(
                    calls, state, *((devices_per_model, first) if state == "generate" else (1, 0))
                ),
            )
            for state in STATES
        ]
        work += [(LINK, peers) for peers in moved_rows(calls, hosts)]
        work.append((COPY, copies_received(calls)))
        present = {member.role.rank for member in self.actors.members}
        left = {device for _, unit in self.watch.slow for device in unit} - present
        gone = self.watch.forget(left)
        new, over = self.watch.observe(work)
        for slow in new:
            self._report(step, slow, "slow")
        for slow in [*gone, *over]:
            self._report(step, slow, "over")

    def due(self, step: int) -> list[Straggler]:
        """Return the stragglers that are to be replaced as soon as no action is in progress."""
        settings = self.job.spec.stragglers
        if settings.action == "tell":
            return []
        apart = WINDOWS_APART * settings.steps
        return [
            slow
            for slow in self.watch.slow.values()
            if slow.state != COPY  # either end of the link may be at fault
            and all(step - self.replaced.get(device, -apart) >= apart for device in slow.unit)
        ]

    def raise_if_due(self, step: int) -> None:
        """Raise LeaveSlow if any device is to be replaced."""
        slow = self.due(step)
        devices = {device for straggler in slow for device in straggler.unit}
        members = [m for m in self.actors.members if m.role.rank in devices]
        if members:
            raise LeaveSlow(slow, members)

    def mark_replaced(self, step: int, devices: Collection[int]) -> None:
        """Record that these devices have been replaced, slow or not."""
        for slow in self.watch.forget(devices):
            self._report(step, slow, "replaced")
            self.replaced |= dict.fromkeys(slow.unit, step)

    def _report(self, step: int, slow: Straggler, status: str) -> None:
        hosts = {m.place.host for m in self.actors.members if m.role.rank in slow.unit}
        self.log.write(
            StragglerEvent(
                step=step,
                state=slow.state,
                devices=list(slow.unit),
                hosts=sorted(hosts),
                status=status,
                factor=round(slow.factor, 3),
                steps=slow.steps,
            )
        )


def device_work(calls: BatchCalls, state: str, each: int, first: int) -> dict[Unit, DeviceWork]:
    """Return the work of a state's devices, by unit: `each` devices from number `first` on share one."""
    work_by_device: dict[int, DeviceWork] = {}
    for device, call in zip(
        calls.devices.get(state, []), calls.of_stage.get(state, []), strict=True
    ):
        work = _work_of(call)
        if work is not None:
            work_by_device[device] = (
                work_by_device[device] + work if device in work_by_device else work
            )
    units: dict[Unit, list[DeviceWork]] = {}
    for device, work in work_by_device.items():
        begin = device - (device - first) % each
        units.setdefault(tuple(range(begin, begin + each)), []).append(work)
    return {
        unit: DeviceWork(
            seconds=max(work.seconds for work in unit_works),
            tokens=sum(work.tokens for work in unit_works),
            passes=max(work.passes for work in unit_works),
        )
        for unit, unit_works in units.items()
    }


def moved_rows(calls: BatchCalls, hosts: Mapping[int, str]) -> list[dict[Unit, DeviceWork]]:
    """Return what the devices of each host moved to and from the dock, with bytes as tokens and rows as
    passes, without waits for room. Peers read and write for the same states over the same kinds of path:
    shared memory takes less time than TCP."""
    peers_by_kind: dict[Any, dict[str, list[tuple[int, DeviceWork]]]] = {}
    for device, call in calls.moved.items():
        states = _result(call) or {}
        traffic = DockTraffic()
        for state_traffic in states.values():
            traffic.add(state_traffic)
        num_bytes = traffic.bytes_read.total() + traffic.bytes_written
        if device not in hosts or not num_bytes:
            continue
        kind = (frozenset(states), traffic.shared_paths > 0, traffic.tcp_paths > 0)
        work = DeviceWork(
            seconds=traffic.transfer_seconds - traffic.waits.get(ROOM, 0.0),
            tokens=num_bytes,
            passes=max(1, traffic.rows + traffic.rows_read.total()),
        )
        peers_by_kind.setdefault(kind, {}).setdefault(hosts[device], []).append((device, work))
    return [
        {
            tuple(sorted(device for device, _ in device_works)): reduce(
                add, (work for _, work in device_works)
            )
            for device_works in by_host.values()
        }
        for by_host in peers_by_kind.values()
    ]


def copies_received(calls: BatchCalls) -> dict[Unit, DeviceWork]:
    """Return the second copies of the step before, by the device that sent and the one that received each."""
    devices, updates = calls.devices.get("update", []), calls.of_stage.get("update", [])
    return {
        (devices[sender], receiver): work
        for receiver, call in zip(devices, updates, strict=True)
        for sender, work in getattr(_result(call), "received", {}).items()
    }


def _work_of(call: Call) -> DeviceWork | None:
    """Return the work that a call reports; None if it failed."""
    report = _result(call)
    span = getattr(report, "span", report)
    return span.device_work if isinstance(span, StageSpan) else None


def _result(call: Call) -> Any:
    """Return the call's result; None if it failed."""
    try:
        (report,) = results([call])
    except RljobError:
        return None
    return report
