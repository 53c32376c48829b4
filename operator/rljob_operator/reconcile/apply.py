"""Carry a decision out: the status first, then the actions in order, then the events.

Called by `reconcile`. The order is what makes a killed operator harmless: whatever an action needs to be
recognised again is in the status before the action is taken.
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
from rljob_operator.build.grants import Grant, flavors, grants
from rljob_operator.build.identity import Identity
from rljob_operator.build.kueue import KUEUE, finished, quota_released, told_of_pods, workload
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
    Event,
    FinishWorkload,
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
"""What a user or an administrator can mend."""
RAY = ("ray.io/v1", "RayCluster")
RLJOB = (f"{GROUP}/{VERSION}", KIND)


class Writer(Protocol):
    """`Kube`, as far as a pass writes."""

    async def find(
        self, api_version: str, kind: str, namespace: str, name: str
    ) -> Manifest | None: ...
    async def get_of_cluster(self, api_version: str, kind: str, name: str) -> Manifest: ...
    async def patch_status(
        self, manifest: Manifest, status: dict[str, Any], resource_version: str
    ) -> Manifest: ...
    async def apply(self, manifest: Manifest, *, uid: str | None = None) -> Manifest: ...
    async def delete(
        self,
        api_version: str,
        kind: str,
        namespace: str,
        name: str,
        *,
        uid: str,
        grace_seconds: int | None = None,
    ) -> bool: ...
    async def create_event(self, event: Manifest) -> None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Applier:
    """Acts on one job. job: None for one that is refused, which has no actions; asked: as its spec says,
    also where Kueue admitted fewer pods, which `workload` tells. living: its RayCluster as it is, None
    where it is to be made. pods: uids of its pods, by name. scale: tells the driver how many devices
    shall generate. checkpoint: tells it to save after its step. stacks: asks the driver for them; takes
    deadline and message."""

    kube: Writer
    ray: RayJobs | None
    settings: Settings
    rljob: Manifest
    identity: Identity
    job: RLJob | None
    token: str
    asked: RLJob | None = None
    workload: Manifest | None = None
    living: Manifest | None = None
    pods: Mapping[str, str] = field(default_factory=dict)
    scale: Callable[[int], Awaitable[None]] | None = None
    checkpoint: Callable[[], Awaitable[None]] | None = None
    stacks: Callable[[str, str], Awaitable[None]] | None = None
    wall: Callable[[], datetime] = lambda: datetime.now(UTC)

    async def apply(self, decision: Decision) -> Manifest:
        """Returns the job as it is after its status was written."""
        stored = await self.kube.patch_status(
            self.rljob, plain(decision.status), self.rljob["metadata"]["resourceVersion"]
        )
        for action in decision.actions:
            logger.info("action=%s", action)
            try:
                await self._act(action)
            except REFUSED as error:
                await self._tell(Event(reason="Refused", message=str(error), warning=True))
                raise
        for event in decision.events:
            await self._tell(event)
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
                assert self.asked is not None, "a Workload of a job that is refused"
                priority = await self._priority(self.asked.spec.scheduling.priority_class)
                wanted = workload(self.asked, self.identity, self.settings, priority=priority)
                await self._apply(wanted)
            case DeleteWorkload():
                await self._delete(KUEUE, "Workload", child_name(self.identity))
            case ReleaseQuota() | TellPods() | FinishWorkload():
                await self._tell_kueue(action)
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
        """Make a child, or set what its manifest says. Raises NotOwned."""
        uid = await self._own(
            manifest["apiVersion"], manifest["kind"], manifest["metadata"]["name"]
        )
        await self.kube.apply(manifest, uid=uid)

    async def _delete(self, version: str, kind: str, name: str) -> None:
        """Raises NotOwned."""
        if (uid := await self._own(version, kind, name)) is not None:
            await self.kube.delete(version, kind, self.identity.namespace, name, uid=uid)

    async def _own(self, version: str, kind: str, name: str) -> str | None:
        """The uid of one of the job's objects; None where there is none. Raises NotOwned for somebody else's,
        and Conflict for one of an earlier job of the same name, which Kubernetes deletes."""
        found = await self.kube.find(version, kind, self.identity.namespace, name)
        if found is None:
            return None
        metadata, what = found["metadata"], f"{kind} {self.identity.namespace}/{name}"
        owners = metadata.get("ownerReferences", [])
        if is_owned(found, self.identity.uid):
            return str(metadata["uid"])
        if any((o["kind"], o["name"]) == (KIND, self.identity.name) for o in owners):
            raise Conflict(f"{what} is of an earlier RLJob of this name, and goes with it")
        of = ", ".join(f"{o['kind']} {o['name']}" for o in owners) or "nobody"
        raise NotOwned(
            f"{what} is there already and belongs to {of}, not to this RLJob; delete it, or give the RLJob "
            "another name"
        )

    async def _grants(self) -> dict[Role, Grant] | None:
        """What Kueue's admission adds to the pods, None where it has none to do with them."""
        if self.workload is None:
            return None
        known = {
            name: await self.kube.get_of_cluster(KUEUE, "ResourceFlavor", name)
            for name in sorted(flavors(self.workload))
        }
        return grants(self.workload, known)

    async def _priority(self, name: str | None) -> int | None:
        """The value of a class of Kueue's; where there is none of the name, the user is told."""
        if name is None:
            return None
        try:
            found = await self.kube.get_of_cluster(KUEUE, "WorkloadPriorityClass", name)
        except NotFound:
            message = (
                f"spec.scheduling.priorityClass is {name}, and there is no WorkloadPriorityClass of "
                "that name; make it, or make the job anew with another one"
            )
            await self._tell(Event(reason="NoPriorityClass", message=message, warning=True))
            raise
        return int(found["value"])

    async def _tell_kueue(self, action: ReleaseQuota | TellPods | FinishWorkload) -> None:
        found, now = self.workload, self.wall().strftime("%Y-%m-%dT%H:%M:%SZ")
        assert found is not None, "an action on a Workload that was not seen"
        match action:
            case ReleaseQuota():
                status = quota_released(found, now)
            case TellPods(ready=ready, workers=workers):
                status = told_of_pods(found, ready=ready, workers=workers, now=now)
            case FinishWorkload(succeeded=succeeded, message=message):
                status = finished(found, succeeded=succeeded, message=message, now=now)
        await self.kube.patch_status(found, status, found["metadata"]["resourceVersion"])

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
