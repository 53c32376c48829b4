"""One pass over one RLJob: observe, decide, apply. The queue's work; owns what is stored between passes."""

import base64
import functools
import logging
import random
import secrets
import time
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field, replace
from typing import Protocol

import aiohttp

from rljob_api.spec.status import RLJobStatus
from rljob_api.topology.worker_pods import is_ascend
from rljob_operator.build import ports
from rljob_operator.build.identity import JobIdentity
from rljob_operator.build.kueue import admitted_job
from rljob_operator.build.names import TOKEN_KEY, child_name, head_host
from rljob_operator.decide.decide import decide
from rljob_operator.decide.draft import condition, holds
from rljob_operator.decide.model import AskStacks, DeviceClaim, Observation, RayAnswer
from rljob_operator.decide.turns import claim_of
from rljob_operator.driver.progress import (
    Report,
    ask_checkpoint,
    ask_driver,
    ask_stacks,
    scale_driver,
)
from rljob_operator.driver.ray_jobs import RayJobs
from rljob_operator.kube.kube_answers import Manifest
from rljob_operator.kube.kube_client import Kube
from rljob_operator.metrics import Metrics
from rljob_operator.reconcile.apply import REFUSED, Applier
from rljob_operator.reconcile.observe import (
    ask_ray,
    identity_of,
    is_owned,
    job_of,
    living_cluster,
    observation_of,
    status_of,
    workload_of_job,
)
from rljob_operator.settings import Settings
from rljob_operator.watch.cache import Cache, JobKey
from rljob_operator.watch.fault_reports import ChipFault
from rljob_operator.watch.fault_watch import ChipFaults

logger = logging.getLogger(__name__)

POLLS_PER_SECOND = 50.0
HICCUP_SECONDS = 15.0
"""Time for which Ray may leave requests unanswered before it is reported."""


def head_url(cluster: str, namespace: str, port: int) -> str:
    """Return the URL of the head of a RayCluster, for clients inside the Kubernetes cluster."""
    return f"http://{head_host(cluster, namespace)}:{port}"


class DelayedQueue(Protocol):
    """The part of the queue that a pass uses."""

    def add_after(self, key: JobKey, seconds: float) -> None:
        """Request a pass over the job after so many seconds; the earliest request counts."""
        ...


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """Reconciles any job. faults: of chips, None if their reports are not read. wall: unix seconds. head_url:
    (RayCluster, namespace, port) to a URL."""

    kube: Kube
    cache: Cache
    queue: DelayedQueue
    session: aiohttp.ClientSession
    metrics: Metrics
    settings: Settings
    faults: ChipFaults | None = None
    wall: Callable[[], float] = time.time
    clock: Callable[[], float] = time.monotonic
    head_url: Callable[[str, str, int], str] = head_url
    chance: Callable[[], float] = random.random
    _uids: dict[JobKey, str] = field(default_factory=dict)
    _tokens: dict[str, str] = field(default_factory=dict)
    _silent_since: dict[str, float] = field(default_factory=dict)
    _stacks: dict[str, str] = field(default_factory=dict)
    _refused: dict[str, str] = field(default_factory=dict)
    _claims: dict[JobKey, DeviceClaim | None] = field(default_factory=dict)

    async def __call__(self, key: JobKey) -> None:
        """Run one pass; a deleted job needs none."""
        rljob = self.cache.get("RLJob", key.namespace, key.name)
        if rljob is None or "deletionTimestamp" in rljob["metadata"]:
            self._forget(key)
            return
        identity, status = identity_of(rljob), status_of(rljob)
        if self._uids.setdefault(key, identity.uid) != identity.uid:  # another job of the same name
            self._forget(key)
            self._uids[key] = identity.uid
        requested_job, _ = job_of(rljob, self.settings)
        workload = workload_of_job(rljob, self.cache)
        job = admitted_job(requested_job, workload) if requested_job else None
        token = await self._token(identity, new=not rljob.get("status")) if job else ""
        ray = self._ray(identity, status, token)
        answer, log = await ask_ray(status, ray) if ray else (RayAnswer(reached=False), "")
        answer = self._patient(identity, status, answer)
        report = await self._report(identity, status, answer, token)
        observed = observation_of(rljob, self.cache, answer, report, log, settings=self.settings)
        observed = replace(
            observed,
            poll_seconds=poll_seconds(self.cache.count("RLJob"), self.chance()),
            stop_seconds=self.settings.stop_seconds,
            stacks=self._stacks.get(identity.uid),
            refused=self._refused.get(identity.uid, ""),
            faults=self._chip_faults(observed),
            faulty_nodes=self.faults.nodes() if self.faults else (),
            rivals=self._rivals(key, observed),
        )
        decision = decide(observed, self.wall())
        applier = Applier(
            kube=self.kube,
            ray=ray or self._ray(identity, decision.status, token),
            settings=self.settings,
            rljob=rljob,
            identity=identity,
            job=job,
            requested_job=requested_job,
            workload=workload,
            token=token,
            living=living_cluster(rljob, self.cache, decision.status),
            pods={pod.name: pod.uid for pod in (*observed.pods, *observed.older_pods)},
            scale=self._scale(identity, status, token),
            checkpoint=self._checkpoint(identity, status, token),
            stacks=self._ask_stacks(identity, status, token),
        )
        try:
            stored = await applier.apply(decision)
        except REFUSED as error:
            self._refused[identity.uid] = str(error)
            raise
        self._refused.pop(identity.uid, None)
        self.cache.put("RLJob", stored, observed_at=self.clock())
        self._count(observed, decision.status)
        self._requeue_rivals(key, self._claim(replace(observed, status=decision.status)))
        if not any(isinstance(action, AskStacks) for action in decision.actions):
            self._stacks.pop(identity.uid, None)
        if decision.requeue_seconds is not None:
            self.queue.add_after(key, decision.requeue_seconds)

    def _forget(self, key: JobKey) -> None:
        """Remove what was stored for a deleted job."""
        uid = self._uids.pop(key, "")
        self._requeue_rivals(key, None)
        self._claims.pop(key, None)
        self._tokens.pop(uid, None)
        self._silent_since.pop(uid, None)
        self._stacks.pop(uid, None)
        self._refused.pop(uid, None)

    def _patient(self, identity: JobIdentity, status: RLJobStatus, answer: RayAnswer) -> RayAnswer:
        """Mark a short silence as a hiccup: of the network, or of a busy operator."""
        is_submitted = (
            status.ray_cluster is not None and status.ray_cluster.submission_id is not None
        )
        if answer.reached or not is_submitted:
            self._silent_since.pop(identity.uid, None)
            return answer
        since = self._silent_since.setdefault(identity.uid, self.clock())
        return replace(answer, hiccup=self.clock() - since < HICCUP_SECONDS)

    async def _token(self, identity: JobIdentity, *, new: bool) -> str:
        """Return the token of the job's Ray cluster: created once, then read from its Secret. new: no status
        was written yet, and the Secret is created only after that."""
        if identity.uid not in self._tokens:
            stored = None if new else await self._known_token(identity)
            self._tokens[identity.uid] = stored or secrets.token_urlsafe(32)
        return self._tokens[identity.uid]

    async def _known_token(self, identity: JobIdentity) -> str | None:
        name = child_name(identity)
        secret = await self.kube.find("v1", "Secret", identity.namespace, name)
        if secret is None or not is_owned(secret, identity.uid):
            return None
        return base64.b64decode(secret["data"][TOKEN_KEY]).decode()

    def _ray(self, identity: JobIdentity, status: RLJobStatus, token: str) -> RayJobs | None:
        if status.ray_cluster is None or not token:
            return None
        return RayJobs(
            url=self.head_url(status.ray_cluster.name, identity.namespace, ports.DASHBOARD),
            token=token,
            session=self.session,
            metrics=self.metrics,
        )

    async def _report(
        self, identity: JobIdentity, status: RLJobStatus, answer: RayAnswer, token: str
    ) -> Report | None:
        cluster = status.ray_cluster
        if cluster is None or answer.job is None or answer.job.status.is_final:
            return None
        url = self.head_url(cluster.name, identity.namespace, ports.STATUS)
        return await ask_driver(self.session, url, token)

    def _scale(
        self, identity: JobIdentity, status: RLJobStatus, token: str
    ) -> Callable[[int], Awaitable[None]] | None:
        """Return the function that sets another number of rollout devices at the driver."""
        if status.ray_cluster is None:
            return None
        url = self.head_url(status.ray_cluster.name, identity.namespace, ports.STATUS)
        return functools.partial(scale_driver, self.session, url, token)

    def _checkpoint(
        self, identity: JobIdentity, status: RLJobStatus, token: str
    ) -> Callable[[], Awaitable[None]] | None:
        """Return the function that requests a checkpoint from the driver."""
        if status.ray_cluster is None:
            return None
        url = self.head_url(status.ray_cluster.name, identity.namespace, ports.STATUS)
        return functools.partial(ask_checkpoint, self.session, url, token)

    def _chip_faults(self, observed: Observation) -> tuple[ChipFault, ...] | None:
        """Return faults on nodes where the job has pods, or had one on a chip that is still reported. None
        for a job without chips."""
        if self.faults is None or not self._has_devices(observed):
            return None
        had = {chip.node for chip in observed.status.faulty_chips}
        return self.faults.on({pod.node for pod in observed.pods} | had)

    def _has_devices(self, observed: Observation) -> bool:
        """Return whether the job's pods request devices of their nodes."""
        if observed.spec is None:
            return False
        return is_ascend(observed.spec.accelerator) or self.settings.emulated_device_plugin

    def _claim(self, observed: Observation) -> DeviceClaim | None:
        return claim_of(observed) if self._has_devices(observed) else None

    def _rivals(self, key: JobKey, observed: Observation) -> tuple[DeviceClaim, ...]:
        """Return other jobs that compete for the same devices, if this one lacks some: each as its last pass
        left it, or, before its first pass, as it is."""
        job_claim = self._claim(observed)
        if job_claim is None or not job_claim.waits or not (job_claim.is_held or job_claim.refused):
            return ()
        for other in self.cache.jobs():
            rljob = self.cache.get("RLJob", other.namespace, other.name)
            if other not in self._claims and rljob is not None:
                no_answer = RayAnswer(reached=False)
                other_observed = observation_of(
                    rljob, self.cache, no_answer, None, "", settings=self.settings
                )
                self._claims[other] = self._claim(other_observed)
        claims = (claim for other, claim in self._claims.items() if claim and other != key)
        return tuple(claim for claim in claims if claim.resource == job_claim.resource)

    def _requeue_rivals(self, key: JobKey, claim_after: DeviceClaim | None) -> None:
        """Requeue jobs that wait for the same devices, once this job lets them go first."""
        before = self._claims.get(key)
        self._claims[key] = claim_after
        if before is None or not before.waits:
            return
        if (
            claim_after is not None
            and claim_after.waits
            and claim_after.stepped_back == before.stepped_back
        ):
            return
        for other, claim in self._claims.items():
            if claim is not None and claim.is_held and claim.resource == before.resource:
                self.queue.add_after(other, 0)

    def _ask_stacks(
        self, identity: JobIdentity, status: RLJobStatus, token: str
    ) -> Callable[[str, str], Awaitable[None]] | None:
        """Return the function that requests the driver's stacks; it stores the answer for the next pass."""
        if status.ray_cluster is None:
            return None
        url = self.head_url(status.ray_cluster.name, identity.namespace, ports.STATUS)

        async def ask(deadline: str, message: str) -> None:
            """Request the stacks and store the answer."""
            self._stacks[identity.uid] = await ask_stacks(
                self.session, url, token, deadline=deadline, message=message
            )

        return ask

    def _count(self, observed: Observation, after: RLJobStatus) -> None:
        if holds(after, "Running") and not holds(observed.status, "Running") and not after.attempt:
            self.metrics.time_to_running.observe(self.wall() - observed.created)
        if (after.restarts or 0) > (observed.status.restarts or 0) and after.failures:
            self.metrics.restarts.labels(after.failures[-1].reason).inc()
        known = {chip.key for chip in observed.status.faulty_chips}
        for chip in after.faulty_chips:
            if chip.key not in known:
                self.metrics.chip_faults.labels(chip.level).inc()
        if reason := new_failure(observed.status, after):
            logger.warning(
                "job=%s/%s failure=%s", observed.identity.namespace, observed.identity.name, reason
            )
            self.metrics.failures.labels(reason).inc()


def new_failure(before: RLJobStatus, after: RLJobStatus) -> str:
    """Return why an attempt, or else the job, has failed in between; "" if none has."""
    if after.failures[-1:] != before.failures[-1:]:
        return after.failures[-1].reason
    ended = condition(after, "Failed")
    return ended.reason if ended and holds(after, "Failed") and not holds(before, "Failed") else ""


def poll_seconds(jobs: int, chance: float) -> float:
    """Return how long after a pass Ray is queried again about a running job. It is 5 s; with many jobs it
    grows to keep 50 passes per second in total, at most 30 s. A quarter more or less keeps queries apart.
    chance: 0 to 1."""
    return min(30.0, max(5.0, jobs / POLLS_PER_SECOND)) * (0.75 + chance / 2)


def states(cache: Cache) -> dict[str, int]:
    """Count jobs by phase, for the metrics."""
    counts: dict[str, int] = {}
    for key in cache.jobs():
        rljob: Manifest = cache.get("RLJob", key.namespace, key.name) or {}
        phase = str((rljob.get("status") or {}).get("phase") or "New")
        counts[phase] = counts.get(phase, 0) + 1
    return counts
