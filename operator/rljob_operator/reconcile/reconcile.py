"""One pass over one RLJob: observe, decide, apply. The queue's work; owns what is kept between passes."""

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
from rljob_operator.build.identity import Identity
from rljob_operator.build.kueue import granted
from rljob_operator.build.names import TOKEN_KEY, child_name, head_host
from rljob_operator.decide.decide import decide
from rljob_operator.decide.draft import condition, holds
from rljob_operator.decide.model import AskStacks, Claim, Observed, RayAnswer
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
    observed,
    own_workload,
    status_of,
)
from rljob_operator.settings import Settings
from rljob_operator.watch.cache import Cache, JobKey
from rljob_operator.watch.fault_reports import ChipFault
from rljob_operator.watch.fault_watch import ChipFaults

logger = logging.getLogger(__name__)

POLLS_PER_SECOND = 50.0
HICCUP_SECONDS = 15.0
"""So long Ray may leave requests unanswered before anybody is told."""


def head_url(cluster: str, namespace: str, port: int) -> str:
    """Where the head of a RayCluster answers, for those inside the Kubernetes cluster."""
    return f"http://{head_host(cluster, namespace)}:{port}"


class Later(Protocol):
    """The queue, as far as a pass uses it."""

    def add_after(self, key: JobKey, seconds: float) -> None: ...


@dataclass(slots=True, kw_only=True)
class Reconciler:
    """Reconciles any job. faults: of chips, None where nobody reads their reports. wall: unix seconds.
    head_url: (RayCluster, namespace, port) to a URL."""

    kube: Kube
    cache: Cache
    queue: Later
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
    _claims: dict[JobKey, Claim | None] = field(default_factory=dict)

    async def __call__(self, key: JobKey) -> None:
        """One pass; a job that is gone needs none."""
        rljob = self.cache.get("RLJob", key.namespace, key.name)
        if rljob is None or "deletionTimestamp" in rljob["metadata"]:
            self._forget(key)
            return
        identity, status = identity_of(rljob), status_of(rljob)
        if self._uids.setdefault(key, identity.uid) != identity.uid:  # another job of the same name
            self._forget(key)
            self._uids[key] = identity.uid
        asked, _ = job_of(rljob, self.settings)
        workload = own_workload(rljob, self.cache)
        job = granted(asked, workload) if asked else None
        token = await self._token(identity, new=not rljob.get("status")) if job else ""
        ray = self._ray(identity, status, token)
        answer, log = await ask_ray(status, ray) if ray else (RayAnswer(reached=False), "")
        answer = self._patient(identity, status, answer)
        report = await self._report(identity, status, answer, token)
        seen = observed(rljob, self.cache, answer, report, log, settings=self.settings)
        seen = replace(
            seen,
            poll_seconds=poll_seconds(self.cache.count("RLJob"), self.chance()),
            stop_seconds=self.settings.stop_seconds,
            stacks=self._stacks.get(identity.uid),
            refused=self._refused.get(identity.uid, ""),
            faults=self._chip_faults(seen),
            faulty_nodes=self.faults.nodes() if self.faults else (),
            rivals=self._rivals(key, seen),
        )
        decision = decide(seen, self.wall())
        applier = Applier(
            kube=self.kube,
            ray=ray or self._ray(identity, decision.status, token),
            settings=self.settings,
            rljob=rljob,
            identity=identity,
            job=job,
            asked=asked,
            workload=workload,
            token=token,
            living=living_cluster(rljob, self.cache, decision.status),
            pods={pod.name: pod.uid for pod in (*seen.pods, *seen.older_pods)},
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
        self.cache.put("RLJob", stored, now=self.clock())
        self._count(seen, decision.status)
        self._tell_rivals(key, self._claim(replace(seen, status=decision.status)))
        if not any(isinstance(action, AskStacks) for action in decision.actions):
            self._stacks.pop(identity.uid, None)
        if decision.again is not None:
            self.queue.add_after(key, decision.again)

    def _forget(self, key: JobKey) -> None:
        """What was kept for a job that is gone."""
        uid = self._uids.pop(key, "")
        self._tell_rivals(key, None)
        self._claims.pop(key, None)
        self._tokens.pop(uid, None)
        self._silent_since.pop(uid, None)
        self._stacks.pop(uid, None)
        self._refused.pop(uid, None)

    def _patient(self, identity: Identity, status: RLJobStatus, answer: RayAnswer) -> RayAnswer:
        """A short silence is a hiccup: of the network, or of a busy operator."""
        asked = status.ray_cluster is not None and status.ray_cluster.submission_id is not None
        if answer.reached or not asked:
            self._silent_since.pop(identity.uid, None)
            return answer
        since = self._silent_since.setdefault(identity.uid, self.clock())
        return replace(answer, hiccup=self.clock() - since < HICCUP_SECONDS)

    async def _token(self, identity: Identity, *, new: bool) -> str:
        """The token of the job's Ray cluster: made once, then read from its Secret. new: no status was
        written yet, after which alone the Secret is made."""
        if identity.uid not in self._tokens:
            known = None if new else await self._known_token(identity)
            self._tokens[identity.uid] = known or secrets.token_urlsafe(32)
        return self._tokens[identity.uid]

    async def _known_token(self, identity: Identity) -> str | None:
        name = child_name(identity)
        secret = await self.kube.find("v1", "Secret", identity.namespace, name)
        if secret is None or not is_owned(secret, identity.uid):
            return None
        return base64.b64decode(secret["data"][TOKEN_KEY]).decode()

    def _ray(self, identity: Identity, status: RLJobStatus, token: str) -> RayJobs | None:
        if status.ray_cluster is None or not token:
            return None
        return RayJobs(
            url=self.head_url(status.ray_cluster.name, identity.namespace, ports.DASHBOARD),
            token=token,
            session=self.session,
            metrics=self.metrics,
        )

    async def _report(
        self, identity: Identity, status: RLJobStatus, answer: RayAnswer, token: str
    ) -> Report | None:
        cluster = status.ray_cluster
        if cluster is None or answer.job is None or answer.job.status.is_final:
            return None
        url = self.head_url(cluster.name, identity.namespace, ports.STATUS)
        return await ask_driver(self.session, url, token)

    def _scale(
        self, identity: Identity, status: RLJobStatus, token: str
    ) -> Callable[[int], Awaitable[None]] | None:
        """How the driver is told another number of rollout devices."""
        if status.ray_cluster is None:
            return None
        url = self.head_url(status.ray_cluster.name, identity.namespace, ports.STATUS)
        return functools.partial(scale_driver, self.session, url, token)

    def _checkpoint(
        self, identity: Identity, status: RLJobStatus, token: str
    ) -> Callable[[], Awaitable[None]] | None:
        """How the driver is told to save."""
        if status.ray_cluster is None:
            return None
        url = self.head_url(status.ray_cluster.name, identity.namespace, ports.STATUS)
        return functools.partial(ask_checkpoint, self.session, url, token)

    def _chip_faults(self, seen: Observed) -> tuple[ChipFault, ...] | None:
        """On nodes where the job has pods, or had one on a chip that is still reported. None for a job
        without chips."""
        if self.faults is None or not self._has_devices(seen):
            return None
        had = {chip.node for chip in seen.status.faulty_chips}
        return self.faults.on({pod.node for pod in seen.pods} | had)

    def _has_devices(self, seen: Observed) -> bool:
        """Whether the job's pods ask their nodes for devices."""
        if seen.spec is None:
            return False
        return is_ascend(seen.spec.accelerator) or self.settings.emulated_device_plugin

    def _claim(self, seen: Observed) -> Claim | None:
        return claim_of(seen) if self._has_devices(seen) else None

    def _rivals(self, key: JobKey, seen: Observed) -> tuple[Claim, ...]:
        """Other jobs that want the same devices, for one that lacks some. Each as its last pass left it, or
        before its first pass as it is."""
        own = self._claim(seen)
        if own is None or not own.waits or not (own.held or own.refused):
            return ()
        for other in self.cache.jobs():
            rljob = self.cache.get("RLJob", other.namespace, other.name)
            if other not in self._claims and rljob is not None:
                unasked = RayAnswer(reached=False)
                there = observed(rljob, self.cache, unasked, None, "", settings=self.settings)
                self._claims[other] = self._claim(there)
        claims = (claim for other, claim in self._claims.items() if claim and other != key)
        return tuple(claim for claim in claims if claim.resource == own.resource)

    def _tell_rivals(self, key: JobKey, now: Claim | None) -> None:
        """Have those looked at that wait for the same devices, once the job lets them go first."""
        before = self._claims.get(key)
        self._claims[key] = now
        if before is None or not before.waits:
            return
        if now is not None and now.waits and now.stepped_back == before.stepped_back:
            return
        for other, claim in self._claims.items():
            if claim is not None and claim.held and claim.resource == before.resource:
                self.queue.add_after(other, 0)

    def _ask_stacks(
        self, identity: Identity, status: RLJobStatus, token: str
    ) -> Callable[[str, str], Awaitable[None]] | None:
        """How the driver is asked for its stacks; the answer is kept for the next pass."""
        if status.ray_cluster is None:
            return None
        url = self.head_url(status.ray_cluster.name, identity.namespace, ports.STATUS)

        async def ask(deadline: str, message: str) -> None:
            self._stacks[identity.uid] = await ask_stacks(
                self.session, url, token, deadline=deadline, message=message
            )

        return ask

    def _count(self, seen: Observed, after: RLJobStatus) -> None:
        if holds(after, "Running") and not holds(seen.status, "Running") and not after.attempt:
            self.metrics.time_to_running.observe(self.wall() - seen.created)
        if (after.restarts or 0) > (seen.status.restarts or 0) and after.failures:
            self.metrics.restarts.labels(after.failures[-1].reason).inc()
        known = {chip.key for chip in seen.status.faulty_chips}
        for chip in after.faulty_chips:
            if chip.key not in known:
                self.metrics.chip_faults.labels(chip.level).inc()
        if reason := new_failure(seen.status, after):
            logger.warning(
                "job=%s/%s failure=%s", seen.identity.namespace, seen.identity.name, reason
            )
            self.metrics.failures.labels(reason).inc()


def new_failure(before: RLJobStatus, after: RLJobStatus) -> str:
    """Why an attempt, or else the job, has failed in between; "" where none has."""
    if after.failures[-1:] != before.failures[-1:]:
        return after.failures[-1].reason
    ended = condition(after, "Failed")
    return ended.reason if ended and holds(after, "Failed") and not holds(before, "Failed") else ""


def poll_seconds(jobs: int, chance: float) -> float:
    """How long after a pass Ray is asked about a running job again: 5 s, with many jobs so that all make
    50 passes a second, at most 30 s; give or take a quarter, lest all ask at once. chance: 0 to 1."""
    return min(30.0, max(5.0, jobs / POLLS_PER_SECOND)) * (0.75 + chance / 2)


def states(cache: Cache) -> dict[str, int]:
    """Jobs by phase, for the metrics."""
    counts: dict[str, int] = {}
    for key in cache.jobs():
        rljob: Manifest = cache.get("RLJob", key.namespace, key.name) or {}
        phase = str((rljob.get("status") or {}).get("phase") or "New")
        counts[phase] = counts.get(phase, 0) + 1
    return counts
