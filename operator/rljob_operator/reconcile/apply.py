"""Carry a decision out: the status first, then the actions in order, then the events.

Called by `reconcile`. The order is what makes a killed operator harmless: whatever an action needs to be
recognised again is in the status before the action is taken.
"""

import logging
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, Protocol

from rljob_api.spec.rljob import RLJob
from rljob_api.spec.status import RLJobStatus
from rljob_operator.build import children
from rljob_operator.build.entrypoint import entrypoint
from rljob_operator.build.identity import Identity
from rljob_operator.decide.attempt import attempt_of
from rljob_operator.decide.model import (
    Action,
    AskStacks,
    Decision,
    DeleteCluster,
    DeleteJob,
    Event,
    MakeChildren,
    ReleaseWorkers,
    ScaleRollout,
    StopSubmission,
    Submit,
)
from rljob_operator.driver.ray_jobs import RayJobs
from rljob_operator.errors import OperatorError
from rljob_operator.kube.events import event_about
from rljob_operator.kube.kube_answers import Manifest
from rljob_operator.settings import Settings

logger = logging.getLogger(__name__)

RAY = ("ray.io/v1", "RayCluster")
RLJOB = ("rljob.io/v1alpha1", "RLJob")


class Writer(Protocol):
    """`Kube`, as far as a pass writes."""

    async def patch_status(
        self, rljob: Manifest, status: dict[str, Any], resource_version: str
    ) -> Manifest: ...
    async def apply(self, manifest: Manifest) -> Manifest: ...
    async def delete(self, api_version: str, kind: str, namespace: str, name: str) -> bool: ...
    async def create_event(self, event: Manifest) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Applier:
    """Acts on one job. job: None for one that is refused, which has no actions. scale: tells the driver
    how many devices shall generate. stacks: asks the driver for them; takes deadline and message."""

    kube: Writer
    ray: RayJobs | None
    settings: Settings
    rljob: Manifest
    identity: Identity
    job: RLJob | None
    token: str
    scale: Callable[[int], Awaitable[None]] | None = None
    stacks: Callable[[str, str], Awaitable[None]] | None = None
    wall: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def apply(self, decision: Decision) -> Manifest:
        """Returns the job as it is after its status was written."""
        stored = await self.kube.patch_status(
            self.rljob, plain(decision.status), self.rljob["metadata"]["resourceVersion"]
        )
        for action in decision.actions:
            logger.info("action=%s", action)
            await self._act(action)
        for event in decision.events:
            await self._tell(event)
        return stored

    async def _act(self, action: Action) -> None:
        namespace, name = self.identity.namespace, self.identity.name
        match action:
            case MakeChildren(cluster=cluster, workers=workers, leaving=leaving):
                await self._make(cluster, workers=workers, leaving=leaving)
            case ReleaseWorkers(cluster=cluster):
                await self._make(cluster, released=True)
            case DeleteCluster(cluster=cluster):
                await self.kube.delete(*RAY, namespace, cluster)
            case Submit(submission=submission):
                assert self.ray is not None and self.job is not None, "a valid job on a cluster"
                await self.ray.submit(
                    submission,
                    entrypoint=entrypoint(self.job, self.identity, attempt=attempt_of(submission)),
                    metadata={"rljob": f"{namespace}/{name}"},
                )
            case ScaleRollout(rollout=rollout):
                assert self.scale is not None, "a driver without a cluster"
                await self.scale(rollout)
            case StopSubmission(submission=submission):
                assert self.ray is not None, "a submission without a cluster"
                await self.ray.stop(submission)
            case AskStacks(deadline=deadline, message=message):
                assert self.stacks is not None, "a driver without a cluster"
                await self.stacks(deadline, message)
            case DeleteJob():
                await self.kube.delete(*RLJOB, namespace, name)

    async def _make(
        self,
        cluster: str,
        *,
        released: bool = False,
        workers: int | None = None,
        leaving: tuple[str, ...] = (),
    ) -> None:
        assert self.job is not None, "children of a job that is refused"
        for manifest in children(
            self.job,
            self.identity,
            self.settings,
            self.token,
            cluster=cluster,
            released=released,
            workers=workers,
            leaving=leaving,
        ):
            await self.kube.apply(manifest)

    async def _tell(self, event: Event) -> None:
        """Events are for people: one that cannot be posted is logged, and the pass goes on."""
        try:
            await self.kube.create_event(
                event_about(
                    self.rljob,
                    type="Warning" if event.warning else "Normal",
                    reason=event.reason,
                    message=event.message,
                    now=self.wall(),
                )
            )
        except OperatorError as error:
            logger.warning("event not posted reason=%s: %s", event.reason, error)


def plain(status: RLJobStatus) -> dict[str, Any]:
    """The status as Kubernetes stores it."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
