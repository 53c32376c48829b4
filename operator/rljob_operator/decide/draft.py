"""A decision in the making: the status as it will be, conditions with their times, events, actions.

Used by `decide` alone. A condition that stays as it is keeps its time, so that deciding twice about the
same world gives the same status; a condition whose status or reason changes is an event as well.
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
    Event,
    MakeChildren,
    Observed,
    ReleaseWorkers,
)

MESSAGE_CHARACTERS = 1000
BAD_NEWS = (("Validated", "False"), ("GuardAlarm", "True"), ("FewerReplicas", "True"))
ConditionStatus = Literal["True", "False", "Unknown"]


def rfc3339(seconds: float) -> str:
    """A time as Kubernetes writes it. seconds: unix."""
    return datetime.fromtimestamp(int(seconds), UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def unix(text: str) -> float:
    """Unix seconds of a time as Kubernetes writes it."""
    return datetime.fromisoformat(text).timestamp()


def condition(status: RLJobStatus, kind: str) -> Condition | None:
    """The condition of this type."""
    return next((found for found in status.conditions if found.type == kind), None)


def holds(status: RLJobStatus, kind: str) -> bool:
    """Whether the condition of this type is True."""
    found = condition(status, kind)
    return found is not None and found.status == "True"


@dataclass(slots=True)
class Draft:
    """Collects what a decision will say. seen: the world; now: unix seconds."""

    seen: Observed
    now: float
    status: RLJobStatus = field(init=False)
    actions: list[Action] = field(default_factory=list)
    events: list[Event] = field(default_factory=list)
    again: float | None = None

    def __post_init__(self) -> None:
        self.status = self.seen.status.model_copy(
            update={"observed_generation": self.seen.identity.generation}
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
        tell: bool = True,
    ) -> None:
        """Set a condition. tell: whether a change of status or reason is an event."""
        message = message[:MESSAGE_CHARACTERS]
        old = condition(self.status, kind)
        changed = old is None or (old.status, old.reason) != (status, reason)
        kept = old.last_transition_time if old and old.status == status else rfc3339(self.now)
        new = Condition(
            type=kind,
            status=status,
            reason=reason,
            message=message,
            last_transition_time=kept,
            observed_generation=self.seen.identity.generation,
        )
        others = [found for found in self.status.conditions if found.type != kind]
        self.update(conditions=sorted([*others, new], key=lambda found: found.type))
        if changed and tell:
            bad = kind == "Failed" or (kind, status) in BAD_NEWS
            self.events.append(Event(reason=reason, message=message or reason, warning=bad))

    def since(self, kind: str) -> float:
        """Seconds since the condition has its present status; 0 where it is not set."""
        found = condition(self.status, kind)
        return max(0.0, self.now - unix(found.last_transition_time)) if found else 0.0

    def left(self, since: str | None, limit: int | None) -> float | None:
        """Seconds until a deadline `limit` seconds after `since`; None without one."""
        if since is None or limit is None:
            return None
        return limit - (self.now - unix(since))

    def do(self, *actions: Action) -> None:
        """Add actions, each once."""
        self.actions += [action for action in actions if action not in self.actions]

    def make(
        self, cluster: str, *, workers: int | None = None, leaving: tuple[str, ...] = ()
    ) -> None:
        """Apply the job's children; worker pods that are made from now on keep off nodes with a bad chip."""
        avoid = self.seen.faulty_nodes
        self.do(MakeChildren(cluster=cluster, workers=workers, leaving=leaving, avoid=avoid))

    def make_again(self) -> None:
        """The same of the present cluster, which keeps its pods."""
        assert self.seen.cluster is not None and self.seen.spec is not None
        if holds(self.status, "Held"):
            self.do(ReleaseWorkers(cluster=self.seen.cluster.name))
            return
        have, wanted = self.seen.cluster.workers, pods(self.seen.spec)
        more = have > wanted.worker + wanted.spare  # a pod goes after its devices
        self.make(self.seen.cluster.name, workers=have if more else None)

    def requeue_after(self, seconds: Iterable[float | None] | float) -> None:
        """Come back after so many seconds at the latest."""
        times = [seconds] if isinstance(seconds, (int, float)) else list(seconds)
        wanted = [max(0.5, time) for time in [*times, self.again] if time is not None]
        self.again = min(wanted, default=None)

    def decision(self) -> Decision:
        """What was collected."""
        return Decision(
            status=self.status,
            actions=tuple(self.actions),
            events=tuple(self.events),
            again=self.again,
        )
