"""A decision in progress: the new status, conditions with their times, events, and actions.

Used only by `decide`. An unchanged condition keeps its time, so deciding twice about the same observation
gives the same status. A condition whose status or reason changes is also an event.
"""

from collections.abc import Iterable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Literal

from rljob_api.spec.status import Condition, RayClusterStatus, RLJobStatus
from rljob_api.topology.devices import pods
from rljob_operator.decide.model import (
    Action,
    Decision,
    JobEvent,
    MakeChildren,
    Observation,
    ReleaseWorkers,
)

MESSAGE_CHARACTERS = 1000
BAD_NEWS = (("Validated", "False"), ("GuardAlarm", "True"), ("FewerReplicas", "True"))
ConditionStatus = Literal["True", "False", "Unknown"]


def rfc3339(seconds: float) -> str:
    """Return a time in Kubernetes' format. seconds: unix."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix(text: str) -> float:
    """Return the unix seconds of a time in Kubernetes' format."""
    return datetime.fromisoformat(text).timestamp()


def condition(status: RLJobStatus, kind: str) -> Condition | None:
    """Return the condition of this type, or None."""
    return next((candidate for candidate in status.conditions if candidate.type == kind), None)


def holds(status: RLJobStatus, kind: str) -> bool:
    """Return whether the condition of this type is True."""
    match = condition(status, kind)
    return match is not None and match.status == "True"


@dataclass(slots=True)
class Draft:
    """Collects the parts of a decision. observed: the state of the job; unix_time: seconds. requeue_seconds:
    seconds until the next pass."""

    observed: Observation
    unix_time: float
    status: RLJobStatus = field(init=False)
    actions: list[Action] = field(default_factory=list)
    events: list[JobEvent] = field(default_factory=list)
    requeue_seconds: float | None = None

    def __post_init__(self) -> None:
        self.status = self.observed.status.model_copy(
            update={"observed_generation": self.observed.identity.generation}
        )

    def update(self, **fields: Any) -> None:
        """Set fields of the status."""
        self.status = self.status.model_copy(update=fields)

    def update_cluster(self, **fields: Any) -> None:
        """Set fields of status.rayCluster."""
        cluster = self.status.ray_cluster
        assert cluster is not None, "no RayCluster has been named yet"
        self.update(ray_cluster=RayClusterStatus.model_copy(cluster, update=fields))

    def set(
        self,
        kind: str,
        status: ConditionStatus,
        reason: str,
        message: str = "",
        *,
        emit: bool = True,
    ) -> None:
        """Set a condition. emit: whether a change of status or reason is an event."""
        message = message[:MESSAGE_CHARACTERS]
        old = condition(self.status, kind)
        changed = old is None or (old.status, old.reason) != (status, reason)
        transition_time = (
            old.last_transition_time if old and old.status == status else rfc3339(self.unix_time)
        )
        new = Condition(
            type=kind,
            status=status,
            reason=reason,
            message=message,
            last_transition_time=transition_time,
            observed_generation=self.observed.identity.generation,
        )
        others = [other for other in self.status.conditions if other.type != kind]
        self.update(conditions=sorted([*others, new], key=lambda other: other.type))
        if changed and emit:
            bad = kind == "Failed" or (kind, status) in BAD_NEWS
            self.events.append(JobEvent(reason=reason, message=message or reason, warning=bad))

    def since(self, kind: str) -> float:
        """Return the seconds since the condition got its current status; 0 if it is not set."""
        match = condition(self.status, kind)
        return max(0.0, self.unix_time - unix(match.last_transition_time)) if match else 0.0

    def left(self, since: str | None, limit: int | None) -> float | None:
        """Return the seconds until a deadline `limit` seconds after `since`; None without one."""
        if since is None or limit is None:
            return None
        return limit - (self.unix_time - unix(since))

    def do(self, *actions: Action) -> None:
        """Add actions, each once."""
        self.actions += [action for action in actions if action not in self.actions]

    def make(
        self, cluster: str, *, workers: int | None = None, leaving: tuple[str, ...] = ()
    ) -> None:
        """Apply the job's children; worker pods that are created from now on avoid nodes with a bad chip."""
        avoid = self.observed.faulty_nodes
        self.do(MakeChildren(cluster=cluster, workers=workers, leaving=leaving, avoid=avoid))

    def make_again(self) -> None:
        """Apply the children of the current cluster again, which keeps its pods."""
        assert self.observed.cluster is not None and self.observed.spec is not None
        if holds(self.status, "Held"):
            self.do(ReleaseWorkers(cluster=self.observed.cluster.name))
            return
        have, needed = self.observed.cluster.workers, pods(self.observed.spec)
        more = have > needed.worker + needed.spare  # a pod is removed after its devices
        self.make(self.observed.cluster.name, workers=have if more else None)

    def requeue_after(self, seconds: Iterable[float | None] | float) -> None:
        """Request the next pass after this many seconds at the latest."""
        times = [seconds] if isinstance(seconds, (int, float)) else list(seconds)
        delays = [max(0.5, time) for time in [*times, self.requeue_seconds] if time is not None]
        self.requeue_seconds = min(delays, default=None)

    def decision(self) -> Decision:
        """Return the collected decision."""
        return Decision(
            status=self.status,
            actions=tuple(self.actions),
            events=tuple(self.events),
            requeue_seconds=self.requeue_seconds,
        )
