"""A run's Prometheus figures, accumulated from its events.

The `row_watch` passes the current rows of the dock. Counters start with the driver's process. `status_server`
serves them.
"""

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field

from rljob_runtime.dock.stats import RowCounts
from rljob_runtime.record.event_types import (
    AlarmEvent,
    CheckpointEvent,
    DockEvent,
    EvaluationEvent,
    Event,
    HangEvent,
    InFlightEvent,
    PhaseEvent,
    RecoveryEvent,
    ReplicasEvent,
    ReshardEvent,
    ResizeEvent,
    RewardErrorEvent,
    RunStartedEvent,
    StepEvent,
    StragglerEvent,
    WarningEvent,
)
from rljob_runtime.record.hang_files import ASKED
from rljob_runtime.report.busy_seconds import BusySeconds
from rljob_runtime.report.prometheus import families as f
from rljob_runtime.report.prometheus.exposition import CONTENT_TYPE, MetricFamily, MetricValues

__all__ = ["CONTENT_TYPE", "RunFigures"]

AGE_BOUNDS = (0, 1, 2, 4, 8, 16)
ROW_KINDS = ("lacking", "ready", "leased")
PEAK_OF = "memory/peak_bytes/"
REWARD_OF = "reward/"
NO_REWARDS = ("reward/errors",)
"""Metrics with a reward's prefix that are not rewards."""
FROM_ZERO = (f.STEPS, f.STEP_SECONDS, f.WARNINGS, f.HANGS, f.RECOVERY_SECONDS, f.SLOW)
OF_LAST_STEP = (*f.STEP_METRICS.values(), f.REWARD, f.MEMORY_PEAK, f.STEP_METRIC)
DROP_REASONS = ("lost", "stale")
IN_FLIGHT_PARTS = {
    "received_seconds": "receive",
    "hidden_seconds": "hidden",
    "switch_seconds": "switch",
    "check_seconds": "check",
}
RESHARD_PARTS = {
    "seconds": "all",
    "gather_seconds": "gather",
    "select_seconds": "select",
    "swap_seconds": "swap",
    "back_seconds": "back",
    "check_seconds": "check",
}
"""Label of each duration of the event."""
RESHARD_GAUGES = {
    "peak_bytes": f.RESHARD_PEAK,
    "bound_bytes": f.RESHARD_BOUND,
    "kept_bytes": f.REDUNDANT,
    "released_bytes": f.RELEASED,
    "overlap": f.OVERLAP,
}


@dataclass(slots=True)
class RunFigures:
    """The current figures of a run.

    on_event and set_rows are called by the driver's process, text by a server's thread.
    """

    _samples: MetricValues = field(default_factory=lambda: MetricValues(bounds=AGE_BOUNDS))
    _busy: BusySeconds = field(default_factory=BusySeconds)
    _slow: dict[tuple[str, ...], set[int]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    def on_event(self, event: Event) -> None:
        """Update the figures; some kinds of events change nothing."""
        with self._lock:
            match event:
                case RunStartedEvent():
                    self._take_start(event)
                case PhaseEvent():
                    self._busy.add(event)
                case StepEvent():
                    self._take_step(event)
                    self._take_metrics(event.metrics)
                case EvaluationEvent():
                    self._take_evaluation(event)
                case DockEvent():
                    self._take_dock(event)
                case ReshardEvent():
                    self._take_reshard(event)
                case InFlightEvent():
                    self._take_in_flight(event)
                case ResizeEvent():
                    self._samples.add(f.DEVICES, event.to - event.from_)
                    self._busy.resize(event.time)
                case ReplicasEvent():
                    self._samples.set(f.REPLICAS["live"], event.live)
                    self._samples.set(f.REPLICAS["wanted"], event.wanted)
                case _:
                    self._take_trouble(event)

    def set_rows(self, rows: Mapping[str, RowCounts]) -> None:
        """Set the current rows at each state."""
        with self._lock:
            for state, counts in rows.items():
                for kind in ROW_KINDS:
                    self._samples.set(f.ROWS, getattr(counts, kind), state=state, rows=kind)

    def text(self) -> str:
        """Return the figures in the exposition format."""
        with self._lock:
            return self._samples.text()

    def _take_start(self, event: RunStartedEvent) -> None:
        samples = self._samples
        samples.set(f.INFO, 1, **{fact: str(getattr(event, fact) or "") for fact in f.FACTS})
        samples.set(f.SPEC_STEPS, event.steps)
        samples.set(f.DEVICES, event.devices)
        samples.set(f.MEMORY_LIMIT, event.device_memory_bytes)
        samples.set(f.STEP, event.resumed_from or 0)
        samples.set(f.STEP_TIME, event.time)
        for family in FROM_ZERO:
            samples.add(family, 0)
        devices = ("device",) if event.placement == "colocated" else ("update", "rollout")
        for role in (*devices, "feeder", "reward", "driver"):
            samples.add(f.RECOVERIES, 0, role=role)
        for state in ("generate", "update"):
            samples.add(f.STRAGGLERS, 0, state=state)
        for reason in DROP_REASONS:
            samples.add(f.DROPPED, 0, reason=reason)

    def _take_step(self, event: StepEvent) -> None:
        samples = self._samples
        samples.set(f.STEP, event.step)
        samples.set(f.LAST_STEP_SECONDS, event.seconds)
        samples.set(f.STEP_TIME, event.time)
        samples.add(f.STEPS, 1)
        samples.add(f.STEP_SECONDS, event.seconds)
        for phase, seconds in event.phases.items():
            samples.add(f.PHASE_SECONDS, seconds, phase=phase)
        for age, rows in event.staleness.items():
            samples.count(f.AGES, age, rows)
        samples.clear(f.BUBBLE)
        for (role, device), share in self._busy.bubbles(event.time).items():
            samples.set(f.BUBBLE, share, role=role, device=device)
        for (role, device), seconds in self._busy.seconds().items():
            samples.set(f.BUSY, seconds, role=role, device=device)

    def _take_metrics(self, metrics: Mapping[str, float | None]) -> None:
        """Set the metrics of the last step; missing and non-finite ones are removed."""
        for family in OF_LAST_STEP:
            self._samples.clear(family)
        for name, value in metrics.items():
            if name in f.STEP_METRICS:
                self._samples.set(f.STEP_METRICS[name], value)
            elif name.startswith(PEAK_OF):
                self._samples.set(f.MEMORY_PEAK, value, device=name.removeprefix(PEAK_OF))
            elif name.startswith(REWARD_OF) and name not in NO_REWARDS:
                self._samples.set(f.REWARD, value, reward=name.removeprefix(REWARD_OF))
            else:
                self._samples.set(f.STEP_METRIC, value, metric=name)

    def _take_evaluation(self, event: EvaluationEvent) -> None:
        self._samples.set(f.EVALUATION_STEP, event.step)
        for suite, figures in {"": event, **(event.suites or {})}.items():
            for name, family in f.EVALUATION.items():
                self._samples.set(family, getattr(figures, name), suite=suite)

    def _take_trouble(self, event: Event) -> None:
        """Count alarms, warnings, hangs, deaths and reward errors, and set the last checkpoint."""
        samples = self._samples
        match event:
            case AlarmEvent(alarm=alarm):
                raised = event.state == "raised"
                samples.set(f.ALARM, int(raised), alarm=alarm)
                samples.add(f.ALARMS, int(raised), alarm=alarm)
                samples.add(f.ROLLBACKS, int(event.rolled_back_to is not None), alarm=alarm)
            case StragglerEvent():
                self._take_straggler(event)
            case RewardErrorEvent():
                samples.add(f.REWARD_ERRORS, event.count, reward=event.reward)
            case WarningEvent():
                samples.add(f.WARNINGS, 1)
            case HangEvent():
                samples.add(f.HANGS, int(event.stage != ASKED))
            case CheckpointEvent():
                samples.set(f.CHECKPOINT, event.step)
            case RecoveryEvent():
                for role in (*event.roles, *(name.partition("-")[0] for name in event.others)):
                    samples.add(f.RECOVERIES, 1, role=role)
                samples.add(f.RECOVERY_SECONDS, event.seconds)

    def _take_straggler(self, event: StragglerEvent) -> None:
        key = (event.state, *map(str, event.devices))
        self._slow.pop(key, None)
        if event.status == "slow":
            self._slow[key] = {*event.devices}
            self._samples.add(f.STRAGGLERS, 1, state=event.state)
        self._samples.set(f.SLOW, len({device for unit in self._slow.values() for device in unit}))

    def _take_dock(self, event: DockEvent) -> None:
        samples = self._samples
        for warehouse in event.warehouses:
            index = str(warehouse.index)
            samples.set(f.PEAK, warehouse.peak_bytes, warehouse=index)
            samples.set(f.CAPACITY, warehouse.capacity_bytes, warehouse=index)
            if warehouse.replicated is not None:
                samples.set(f.REPLICATED, int(warehouse.replicated), warehouse=index)
        for state, moved in event.states.items():
            samples.add(f.DONE, moved.rows, state=state)
            samples.add(f.WRITTEN, moved.bytes_written, state=state)
            samples.add(f.TRANSFER, moved.transfer_seconds, state=state)
            for awaited, seconds in moved.waits.items():
                samples.add(f.WAITED, seconds, state=state, awaited=awaited)
        for edge in event.edges:
            ends = {"writer": edge.from_, "reader": edge.to}
            samples.add(f.READ_ROWS, edge.rows, **ends)
            samples.add(f.READ_BYTES, edge.bytes, **ends)
        for reason, rows in (event.dropped or {}).items():
            samples.add(f.DROPPED, rows, reason=reason)

    def _take_reshard(self, event: ReshardEvent) -> None:
        """Add a reshard; fields that are missing or null are skipped."""
        self._samples.add(f.RESHARDS, 1)
        self._add_parts(f.RESHARD_SECONDS, event, RESHARD_PARTS)
        self._add_totals(event, {"received_bytes": f.MOVED, "checks": f.RESHARD_CHECKS})
        for name, gauge in RESHARD_GAUGES.items():
            if (value := getattr(event, name)) is not None:
                self._samples.set(gauge, value)

    def _take_in_flight(self, event: InFlightEvent) -> None:
        self._samples.add(f.IN_FLIGHT, 1)
        self._samples.set(f.IN_FLIGHT_VERSION, event.step)
        self._add_parts(f.IN_FLIGHT_SECONDS, event, IN_FLIGHT_PARTS)
        totals = {"tokens": f.IN_FLIGHT_TOKENS, "received_bytes": f.IN_FLIGHT_BYTES}
        self._add_totals(event, {**totals, "checks": f.RESHARD_CHECKS})

    def _add_parts(self, family: MetricFamily, event: Event, parts: Mapping[str, str]) -> None:
        for name, label in parts.items():
            if (seconds := getattr(event, name)) is not None:
                self._samples.add(family, seconds, part=label)

    def _add_totals(self, event: Event, totals: Mapping[str, MetricFamily]) -> None:
        for name, family in totals.items():
            if (number := getattr(event, name)) is not None:
                self._samples.add(family, number)
