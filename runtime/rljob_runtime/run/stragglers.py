"""Devices and hosts' links that are slower than their peers: found in what devices did by themselves and in
what they moved, told, and left.

`Stragglers` is asked by the driver after each step; `loop` has `recovery` replace those of a `LeaveSlow`. The
rule is `slowness` and `StragglerWatch`, which are pure.
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
from rljob_runtime.dock.stats import ROOM, Traffic
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
"""Of a device's own work in a step: with less of it nobody is slow, as it costs the others nothing."""
WINDOWS_APART = 20
"""Windows of `steps` within which a device is replaced once."""

Unit = tuple[int, ...]
"""Numbers of the devices whose work is told together: one, those that share a model to generate, or those of
a host that move the same."""
LINK = "link"
"""In place of a state, where a host's devices take long to read and write rows."""
COPY = "copy"
"""In place of a state, where a device takes long to receive another one's second copy: a unit is the device
that sends and the one that receives."""


class LeaveSlow(Exception):
    """Devices are to be replaced between two steps."""

    def __init__(self, slow: "Sequence[Slow]", members: Sequence[Member]) -> None:
        super().__init__("; ".join(map(str, slow)))
        self.slow, self.members = slow, members


@dataclass(frozen=True, slots=True, kw_only=True)
class Slow:
    """factor: the median of what was found in the steps."""

    state: str
    unit: Unit
    factor: float
    steps: int

    def __str__(self) -> str:
        return (
            f"{self.factor:.1f} times its peers' time in {self.state}, {self.steps} steps in a row"
        )


def slowness(peers: Mapping[Unit, DeviceWork]) -> dict[Unit, float]:
    """How many times the median of the others each takes, for a token or for a pass, whichever is less: few
    long samples take many passes, many short ones many tokens, and neither makes a device slow. Without those
    who are alone; at most 1 for who took less than LEAST_SECONDS."""
    a_token = {unit: own.seconds / own.tokens for unit, own in peers.items()}
    a_pass = {unit: own.seconds / own.passes for unit, own in peers.items()}
    found = [_times_others(paces) for paces in (a_token, a_pass)]
    return {
        unit: min(
            *(times[unit] for times in found), math.inf if own.seconds >= LEAST_SECONDS else 1.0
        )
        for unit, own in peers.items()
        if all(unit in times for times in found)
    }


def _times_others(paces: Mapping[Unit, float]) -> dict[Unit, float]:
    """Each pace over the median of the others."""
    order = sorted(paces, key=lambda unit: paces[unit])
    others = len(order) - 1
    found: dict[Unit, float] = {}
    for place, unit in enumerate(order if others else []):
        middle = [(others - 1) // 2, others // 2]
        usual = sum(paces[order[at + (at >= place)]] for at in middle) / 2
        if usual > 0:
            found[unit] = paces[unit] / usual
    return found


@dataclass(slots=True, kw_only=True)
class StragglerWatch:
    """slow: those that were told and are not over, by state and unit."""

    settings: Settings
    slow: dict[tuple[str, Unit], Slow] = field(default_factory=dict)
    _row: dict[tuple[str, Unit], list[float]] = field(default_factory=dict)
    """What was found in the last steps, of those that are otherwise than told."""

    def look(
        self, work: Iterable[tuple[str, Mapping[Unit, DeviceWork]]]
    ) -> tuple[list[Slow], list[Slow]]:
        """Take a step in, (state, peers) each; who is slow from now on, and who no more. A step in which a
        device has nothing to do says nothing of it."""
        found: list[Slow] = []
        over: list[Slow] = []
        for state, peers in work:
            for unit, factor in slowness(peers).items():
                key = (state, unit)
                if (factor > self.settings.factor) == (key in self.slow):
                    self._row.pop(key, None)
                    continue
                row = self._row.setdefault(key, [])
                row.append(factor)
                if len(row) < self.settings.steps:
                    continue
                del self._row[key]
                told = Slow(state=state, unit=unit, factor=median(row), steps=len(row))
                if key in self.slow:
                    del self.slow[key]
                    over.append(told)
                else:
                    self.slow[key] = told
                    found.append(told)
        return found, over

    def forget(self, devices: Collection[int]) -> list[Slow]:
        """Others are in their places; those of them that were slow."""
        gone = [key for key in {**self.slow, **self._row} if {*key[1]} & {*devices}]
        for key in gone:
            self._row.pop(key, None)
        return [self.slow.pop(key) for key in gone if key in self.slow]


@dataclass(slots=True, kw_only=True)
class Stragglers:
    """Those of one run. replaced: the step after which each device was last."""

    job: ResolvedJob
    actors: Actors
    log: EventLog
    watch: StragglerWatch = field(init=False)
    replaced: dict[int, int] = field(default_factory=dict)

    def __post_init__(self) -> None:
        self.watch = StragglerWatch(settings=self.job.spec.stragglers)

    def look(self, step: int, calls: BatchCalls) -> None:
        """Tell of a step that is done, all of whose calls have ended."""
        each = self.job.spec.rollout.parallelism.model_devices
        first = 0 if self.job.spec.placement.mode == "colocated" else self.job.spec.roles.update
        hosts = {member.role.rank: member.place.host for member in self.actors.members}
        work = [
            (state, own_work(calls, state, *((each, first) if state == "generate" else (1, 0))))
            for state in STATES
        ]
        work += [(LINK, peers) for peers in moved_rows(calls, hosts)]
        work.append((COPY, copies_received(calls)))
        present = {member.role.rank for member in self.actors.members}
        left = {device for _, unit in self.watch.slow for device in unit} - present
        gone = self.watch.forget(left)
        found, over = self.watch.look(work)
        for slow in found:
            self._tell(step, slow, "slow")
        for slow in [*gone, *over]:
            self._tell(step, slow, "over")

    def due(self, step: int) -> list[Slow]:
        """Those that are to be replaced as soon as nothing is under way."""
        settings = self.job.spec.stragglers
        if settings.action == "tell":
            return []
        apart = WINDOWS_APART * settings.steps
        return [
            slow
            for slow in self.watch.slow.values()
            if slow.state != COPY  # which end of it is at fault, nobody knows
            and all(step - self.replaced.get(device, -apart) >= apart for device in slow.unit)
        ]

    def leave(self, step: int) -> None:
        """Raise LeaveSlow where there are any."""
        slow = self.due(step)
        devices = {device for each in slow for device in each.unit}
        members = [m for m in self.actors.members if m.role.rank in devices]
        if members:
            raise LeaveSlow(slow, members)

    def have_left(self, step: int, devices: Collection[int]) -> None:
        """Others are in the places of these, whoever was slow."""
        for slow in self.watch.forget(devices):
            self._tell(step, slow, "replaced")
            self.replaced |= dict.fromkeys(slow.unit, step)

    def _tell(self, step: int, slow: Slow, status: str) -> None:
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


def own_work(calls: BatchCalls, state: str, each: int, first: int) -> dict[Unit, DeviceWork]:
    """Of a state's devices, by unit: `each` devices from number `first` on share one."""
    found: dict[int, DeviceWork] = {}
    for device, call in zip(
        calls.devices.get(state, []), calls.of_stage.get(state, []), strict=True
    ):
        own = _own(call)
        if own is not None:
            found[device] = found[device] + own if device in found else own
    units: dict[Unit, list[DeviceWork]] = {}
    for device, own in found.items():
        begin = device - (device - first) % each
        units.setdefault(tuple(range(begin, begin + each)), []).append(own)
    return {
        unit: DeviceWork(
            seconds=max(own.seconds for own in members),
            tokens=sum(own.tokens for own in members),
            passes=max(own.passes for own in members),
        )
        for unit, members in units.items()
    }


def moved_rows(calls: BatchCalls, hosts: Mapping[int, str]) -> list[dict[Unit, DeviceWork]]:
    """What the devices of each host moved to and from the dock, bytes as tokens and rows as passes, without
    waits for room. Peers are those that read and write for the same states by the same kinds of path: what is
    in shared memory takes less than what comes over TCP."""
    alike: dict[Any, dict[str, list[tuple[int, DeviceWork]]]] = {}
    for device, call in calls.moved.items():
        states = _result(call) or {}
        traffic = Traffic()
        for moved in states.values():
            traffic.add(moved)
        num_bytes = traffic.bytes_read.total() + traffic.bytes_written
        if device not in hosts or not num_bytes:
            continue
        kind = (frozenset(states), traffic.shared_paths > 0, traffic.tcp_paths > 0)
        own = DeviceWork(
            seconds=traffic.transfer_seconds - traffic.waits.get(ROOM, 0.0),
            tokens=num_bytes,
            passes=max(1, traffic.rows + traffic.rows_read.total()),
        )
        alike.setdefault(kind, {}).setdefault(hosts[device], []).append((device, own))
    return [
        {
            tuple(sorted(device for device, _ in there)): reduce(add, (own for _, own in there))
            for there in on.values()
        }
        for on in alike.values()
    ]


def copies_received(calls: BatchCalls) -> dict[Unit, DeviceWork]:
    """Second copies of the step before, by the device that sent each and the one that received it."""
    devices, updates = calls.devices.get("update", []), calls.of_stage.get("update", [])
    return {
        (devices[sender], receiver): own
        for receiver, call in zip(devices, updates, strict=True)
        for sender, own in getattr(_result(call), "received", {}).items()
    }


def _own(call: Call) -> DeviceWork | None:
    """What it reports of itself; None of one that failed."""
    report = _result(call)
    span = getattr(report, "span", report)
    return span.device_work if isinstance(span, StageSpan) else None


def _result(call: Call) -> Any:
    """None of one that failed."""
    try:
        (report,) = results([call])
    except RljobError:
        return None
    return report
