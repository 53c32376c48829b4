"""Carry out a decision: the status first, then the actions in order, then the events.

Called by `reconcile`. The order makes a killed operator harmless: what identifies an action is in the status
before the action is taken.
"""

import logging
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, Protocol

from rljob_api.spec.rljob import GROUP, KIND, VERSION, RLJob
from rljob_api.spec.status import RLJobStatus
from rljob_operator.build import children
from rljob_operator.build.entrypoint import entrypoint
from rljob_operator.build.grants import PodGrant, flavors, grants
from rljob_operator.build.identity import JobIdentity
from rljob_operator.build.kueue import (
    KUEUE,
    finished_status,
    pods_status,
    released_status,
    workload,
)
from rljob_operator.build.names import Role, child_name
from rljob_operator.build.pod_group import VOLCANO
from rljob_operator.decide.attempt import attempt_of
from rljob_operator.decide.model import (
    Action,
    AskCheckpoint,
    AskStacks,
    Decision,
    DeleteCluster,
    DeleteJob,
    DeletePod,
    DeleteWorkload,
    FinishWorkload,
    JobEvent,
    MakeChildren,
    MakeWorkload,
    ReleaseQuota,
    ReleaseWorkers,
    ScaleRollout,
    StopSubmission,
    Submit,
    TellPods,
)
from rljob_operator.driver.ray_jobs import RayJobs
from rljob_operator.errors import Conflict, Forbidden, Invalid, NotFound, NotOwned, OperatorError
from rljob_operator.kube.events import event_about
from rljob_operator.kube.kube_answers import Manifest
from rljob_operator.reconcile.observe import is_owned
from rljob_operator.settings import Settings

logger = logging.getLogger(__name__)

REFUSED = (Forbidden, Invalid, NotOwned)
"""Errors that a user or an administrator can fix."""
RAY = ("ray.io/v1", "RayCluster")
RLJOB = (f"{GROUP}/{VERSION}", KIND)


class Writer(Protocol):
    """The methods of `Kube` with which a pass writes."""

    async def find(self, api_version: str, kind: str, namespace: str, name: str) -> Manifest | None:
        """Return the object, or None if it does not exist."""
        ...

    async def get_of_cluster(self, api_version: str, kind: str, name: str) -> Manifest:
        """Return an object of a kind without namespaces. Raises NotFound."""
        ...

    async def patch_status(
        self, manifest: Manifest, status: dict[str, Any], resource_version: str
    ) -> Manifest:
        """Make `status` the full status. Raises Conflict if the object is no longer at `resource_version`."""
        ...

    async def apply(self, manifest: Manifest, *, uid: str | None = None) -> Manifest:
        """Create or change the object by server-side apply. Raises Conflict if the one with this uid is
        gone."""
        ...

    async def delete(
        self,
        api_version: str,
        kind: str,
        namespace: str,
        name: str,
        *,
        uid: str,
        grace_seconds: int | None = None,
    ) -> bool:
        """Delete the object with this uid; return False if it did not exist. Raises Conflict for another
        uid."""
        ...

    async def create_event(self, event: Manifest) -> None:
        """Post an event about the job; one that was posted before is counted up."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Applier:
    """Acts on one job. job: None if it is refused, without actions. requested_job: as its spec requests,
    even if Kueue admitted fewer pods, which `workload` describes. living: its RayCluster as it is, None if
    it has to be created. pods: uids of its pods, by name. scale: sets how many devices the driver lets
    generate. checkpoint: requests a checkpoint after its step. stacks: requests its stacks; takes deadline
    and message."""

    kube: Writer
    ray: RayJobs | None
    settings: Settings
    rljob: Manifest
    identity: JobIdentity
    job: RLJob | None
    token: str
    requested_job: RLJob | None = None
    workload: Manifest | None = None
    living: Manifest | None = None
    pods: Mapping[str, str] = field(default_factory=dict)
    scale: Callable[[int], Awaitable[None]] | None = None
    checkpoint: Callable[[], Awaitable[None]] | None = None
    stacks: Callable[[str, str], Awaitable[None]] | None = None
    wall: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def apply(self, decision: Decision) -> Manifest:
        """Carry out the decision, and return the job as it is after its status was written."""
        stored = await self.kube.patch_status(
            self.rljob, plain(decision.status), self.rljob["metadata"]["resourceVersion"]
        )
        for action in decision.actions:
            logger.info("action=%s", action)
            try:
                await self._act(action)
            except REFUSED as error:
                await self._post_event(JobEvent(reason="Refused", message=str(error), warning=True))
                raise
        for event in decision.events:
            await self._post_event(event)
        return stored

    async def _act(self, action: Action) -> None:
        namespace, name = self.identity.namespace, self.identity.name
        match action:
            case MakeChildren(cluster=cluster, workers=workers, leaving=leaving, avoid=avoid):
                await self._make(cluster, workers=workers, leaving=leaving, avoid=avoid)
            case ReleaseWorkers(cluster=cluster):
                await self._make(cluster, released=True)
            case DeleteCluster(cluster=cluster):
                await self._delete(*RAY, cluster)
                if self.settings.volcano:
                    await self._delete(VOLCANO, "PodGroup", cluster)
            case DeletePod(pod=pod, force=force):
                grace, uid = 0 if force else None, self.pods[pod]
                await self.kube.delete("v1", "Pod", namespace, pod, uid=uid, grace_seconds=grace)
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
            case AskCheckpoint():
                assert self.checkpoint is not None, "a driver without a cluster"
                await self.checkpoint()
            case StopSubmission(submission=submission):
                assert self.ray is not None, "a submission without a cluster"
                await self.ray.stop(submission)
            case AskStacks(deadline=deadline, message=message):
                assert self.stacks is not None, "a driver without a cluster"
                await self.stacks(deadline, message)
            case MakeWorkload():
                assert self.requested_job is not None, "a Workload of a job that is refused"
                priority = await self._priority(self.requested_job.spec.scheduling.priority_class)
                manifest = workload(
                    self.requested_job, self.identity, self.settings, priority=priority
                )
                await self._apply(manifest)
            case DeleteWorkload():
                await self._delete(KUEUE, "Workload", child_name(self.identity))
            case ReleaseQuota() | TellPods() | FinishWorkload():
                await self._report_to_kueue(action)
            case DeleteJob():
                await self.kube.delete(*RLJOB, namespace, name, uid=self.identity.uid)

    async def _make(
        self,
        cluster: str,
        *,
        released: bool = False,
        workers: int | None = None,
        leaving: tuple[str, ...] = (),
        avoid: tuple[str, ...] = (),
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
            grants=await self._grants() if self.living is None else None,
            living=self.living,
            avoid=avoid,
        ):
            await self._apply(manifest)

    async def _apply(self, manifest: Manifest) -> None:
        """Create a child, or set what its manifest contains. Raises NotOwned."""
        uid = await self._owned_uid(
            manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"]
        )
        await self.kube.apply(manifest, uid=uid)

    async def _delete(self, version: str, kind: str, name: str) -> None:
        """Delete one of the job's objects. Raises NotOwned."""
        if (uid := await self._owned_uid(version, kind, name)) is not None:
            await self.kube.delete(version, kind, self.identity.namespace, name, uid=uid)

    async def _owned_uid(self, version: str, kind: str, name: str) -> str | None:
        """Return the uid of one of the job's objects, or None if it does not exist. Raises NotOwned if it has
        another owner, and Conflict if it belongs to an earlier job of the same name, which Kubernetes
        deletes."""
        manifest = await self.kube.find(version, kind, self.identity.namespace, name)
        if manifest is None:
            return None
        metadata, description = manifest["metadata"], f"{kind} {self.identity.namespace}/{name}"
        owners = metadata.get("ownerReferences", [])
        if is_owned(manifest, self.identity.uid):
            return str(metadata["uid"])
        if any((o["kind"], o["name"]) == (KIND, self.identity.name) for o in owners):
            raise Conflict(f"{description} is of an earlier RLJob of this name, and goes with it")
        owner_names = ", ".join(f"{o['kind']} {o['name']}" for o in owners) or "nobody"
        raise NotOwned(
            f"{description} is there already and belongs to {owner_names}, not to this RLJob; "
            "delete it, or give the RLJob another name"
        )

    async def _grants(self) -> dict[Role, PodGrant] | None:
        """Return what Kueue's admission adds to the pods, or None if Kueue does not manage them."""
        if self.workload is None:
            return None
        flavors_by_name = {
            name: await self.kube.get_of_cluster(KUEUE, "ResourceFlavor", name)
            for name in sorted(flavors(self.workload))
        }
        return grants(self.workload, flavors_by_name)

    async def _priority(self, name: str | None) -> int | None:
        """Return the value of a class of Kueue's. If there is none of the name, an event reports it."""
        if name is None:
            return None
        try:
            priority_class = await self.kube.get_of_cluster(KUEUE, "WorkloadPriorityClass", name)
        except NotFound:
            message = (
                f"spec.scheduling.priorityClass is {name}, and there is no WorkloadPriorityClass of "
                "that name; make it, or make the job anew with another one"
            )
            await self._post_event(
                JobEvent(reason="NoPriorityClass", message=message, warning=True)
            )
            raise
        return int(priority_class["value"])

    async def _report_to_kueue(self, action: ReleaseQuota | TellPods | FinishWorkload) -> None:
        workload, timestamp = self.workload, self.wall().strftime("%Y-%m-%dT%H:%M:%SZ")
        assert workload is not None, "an action on a Workload that was not seen"
        match action:
            case ReleaseQuota():
                status = released_status(workload, timestamp)
            case TellPods(ready=ready, workers=workers):
                status = pods_status(workload, ready=ready, workers=workers, timestamp=timestamp)
            case FinishWorkload(succeeded=succeeded, message=message):
                status = finished_status(
                    workload, succeeded=succeeded, message=message, timestamp=timestamp
                )
        await self.kube.patch_status(workload, status, workload["metadata"]["resourceVersion"])

    async def _post_event(self, event: JobEvent) -> None:
        """Post an event. Events are for people: if posting fails, it is logged, and the pass continues."""
        try:
            await self.kube.create_event(
                event_about(
                    self.rljob,
                    type="Warning" if event.warning else "Normal",
                    reason=event.reason,
                    message=event.message,
                    timestamp=self.wall(),
                )
            )
        except OperatorError as error:
            logger.warning("event not posted reason=%s: %s", event.reason, error)


def plain(status: RLJobStatus) -> dict[str, Any]:
    """Return the status as Kubernetes stores it."""
    return status.model_dump(mode="json", by_alias=True, exclude_none=True)
