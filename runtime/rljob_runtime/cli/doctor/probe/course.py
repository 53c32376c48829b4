"""A probe's course: make the pods, wait for them, ask them, let them sum; delete them whatever happens.

Every wait ends at a deadline, and says through `tell` what it waits for.
"""

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rljob_runtime.cli.cluster.job_facts import is_ready, state
from rljob_runtime.cli.doctor.cluster_facts import Manifest, name_of
from rljob_runtime.cli.doctor.probe.plan import Plan
from rljob_runtime.cli.doctor.probe.pods import FOLDERS, LABEL, command, pods_of
from rljob_runtime.cli.doctor.probe.seen import Looked, PodSeen, Seen
from rljob_runtime.errors import ClusterError, NotThere

LOOK_SECONDS = 30.0
ARRIVAL_SECONDS = 45.0
"""For which pods wait for each other: imports of torch on a busy node take long."""
SUM_SECONDS = 120.0
UNPLACED_SECONDS = 20.0
"""For which a pod without a place is waited for: what holds the devices may just be ending."""
NICS_SECONDS = 10.0
"""For which the device plugin is waited for, which looks after its pods every few seconds."""
GONE_SECONDS = 30.0
POLL_SECONDS = 1.0
PORT = 29555
MOST_SHELLS = 32
"""At once, where pods need not wait for each other."""
NICS_ANNOTATION = "ascend.kubectl.kubernetes.io/ascend-910-configuration"
HOPELESS = (
    "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
    "CreateContainerError", "RunContainerError", "CrashLoopBackOff",
)  # fmt: skip
"""Reasons of a container that waiting does not mend."""


class Api(Protocol):
    """`Calls`, as far as a probe goes."""

    def request(
        self,
        verb: str,
        path: str,
        *,
        resource: str,
        name: str = "",
        body: Manifest | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Manifest: ...


Shell = Callable[[str, list[str]], tuple[int, bytes, str]]
"""Run a command in a pod: (exit code, output, what it complained of). Raises ClusterError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Means:
    """What a probe acts by. tell: a line for people. wall: unix seconds."""

    api: Api
    shell: Shell
    tell: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


def probe(plan: Plan, means: Means) -> Seen:
    """Make the pods, and tell what was seen of them. They are gone afterwards, or named."""
    try:
        refused = _make(plan, means)
        there = _wait(plan, means, refused)
        pods, images = there[: plan.pods], there[plan.pods :]
        pods = _look(pods, means)
        pods = _sum(plan, pods, means)
        pods = _nics(plan, pods, means)
    finally:
        left = _delete(plan, means)
        for name, why in left.items():
            means.tell(f"{name} is left: {why}")
    return Seen(pods=tuple(pods), images=tuple(images), left=left)


def _make(plan: Plan, means: Means) -> str:
    """Why not all could be made; "" where they were. A quota refuses one pod as all others."""
    for pod in pods_of(plan):
        try:
            means.api.request("create", _path(plan), resource="pods", name=name_of(pod), body=pod)
        except ClusterError as error:
            return str(error)
    return ""


def _wait(plan: Plan, means: Means, refused: str) -> list[PodSeen]:
    """Until each pod runs, or will not."""
    deadline, told = means.clock() + plan.seconds, ""
    unplaced: dict[str, float] = {}
    while True:
        there = {name_of(pod): pod for pod in _listed(plan, means)}
        waiting = {}
        for name, pod in there.items():
            if _is_unplaced(pod):
                unplaced.setdefault(name, means.clock())
            else:
                unplaced.pop(name, None)
            lost = means.clock() - unplaced.get(name, means.clock()) >= UNPLACED_SECONDS
            if not (is_ready(pod) or lost or _is_hopeless(pod)):
                waiting[name] = state(pod)
        if not waiting or means.clock() >= deadline:
            break
        news = "; ".join(f"{name}: {what}" for name, what in sorted(waiting.items())[:3])
        if news != told:
            means.tell(
                f"waiting for {len(waiting)} of {len(plan.pod_names)} pods, "
                f"{plan.seconds:.0f} s at most: {news}"
            )
            told = news
        means.sleep(POLL_SECONDS)
    return [_seen(name, there.get(name), refused, plan.seconds) for name in plan.pod_names]


def _seen(name: str, pod: Manifest | None, refused: str, seconds: float) -> PodSeen:
    if pod is None:
        return PodSeen(name=name, problem=refused or "it vanished")
    problem = "" if is_ready(pod) else state(pod)
    if problem and not (_is_unplaced(pod) or _is_hopeless(pod)):
        problem = f"does not run after {seconds:.0f} s: {problem}"
    return PodSeen(
        name=name,
        node=pod["spec"].get("nodeName", ""),
        address=pod.get("status", {}).get("podIP", ""),
        problem=problem,
    )


def _look(pods: list[PodSeen], means: Means) -> list[PodSeen]:
    """Ask each pod that runs what it has around it."""
    given = json.dumps({"seconds": LOOK_SECONDS, "folders": FOLDERS})

    def ask(pod: PodSeen) -> PodSeen:
        sent = means.wall()
        answer, problem = _ask(means, pod.name, command("look", given))
        if answer is None:
            return replace(pod, problem=problem)
        return replace(pod, looked=Looked(sent=sent, heard=means.wall(), answer=answer))

    return _each(pods, ask, at_once=MOST_SHELLS)


def _sum(plan: Plan, pods: list[PodSeen], means: Means) -> list[PodSeen]:
    """Let all pods that answered sum a tensor."""
    able = [pod for pod in pods if pod.looked is not None]
    if len(able) < 2:
        return pods
    means.tell(f"all-reduce over {len(able)} pods, {SUM_SECONDS:.0f} s at most")
    common = {
        "backend": "hccl" if plan.ascend else "gloo",
        "size": len(able),
        "address": able[0].address,
        "port": PORT,
        "arrival": ARRIVAL_SECONDS,
        "seconds": SUM_SECONDS,
    }
    ranks = {pod.name: rank for rank, pod in enumerate(able)}

    def ask(pod: PodSeen) -> PodSeen:
        given = json.dumps({**common, "rank": ranks[pod.name]})
        answer, problem = _ask(means, pod.name, command("reduce", given))
        return replace(pod, summed=answer or {"failure": problem})

    return _each(pods, ask, at_once=len(pods))


def _nics(plan: Plan, pods: list[PodSeen], means: Means) -> list[PodSeen]:
    """On Ascend, what the device plugin says of the devices of pods that cannot read it from a file."""
    asked = {
        pod.name for pod in pods if pod.looked and pod.looked.answer["device_addresses"] is None
    }
    if not plan.ascend or not asked:
        return pods
    deadline = means.clock() + NICS_SECONDS
    while True:
        found = {name_of(pod): nics_of(pod) for pod in _listed(plan, means)}
        if all(found.get(name) is not None for name in asked) or means.clock() >= deadline:
            return [replace(pod, nics=found.get(pod.name)) for pod in pods]
        means.sleep(POLL_SECONDS)


def nics_of(pod: Manifest) -> dict[str, str] | None:
    """Addresses by device of a pod's annotation; None where there is none that can be read."""
    try:
        told = json.loads(pod["metadata"]["annotations"][NICS_ANNOTATION])
        given = {str(one["device_id"]): str(one.get("device_ip") or "") for one in told["devices"]}
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return {device: address for device, address in given.items() if address}


def _each(pods: list[PodSeen], ask: Callable[[PodSeen], PodSeen], *, at_once: int) -> list[PodSeen]:
    """All pods, those that are well by what they answer, so many of them at once."""
    threads = ThreadPoolExecutor(max_workers=at_once)
    try:
        return list(threads.map(lambda pod: pod if pod.problem else ask(pod), pods))
    finally:  # on Ctrl-C the pods go, and with them the shells
        threads.shutdown(wait=False, cancel_futures=True)


def _ask(means: Means, pod: str, words: list[str]) -> tuple[dict[str, Any] | None, str]:
    """(the program's result, why there is none)."""
    try:
        code, output, complaint = means.shell(pod, words)
    except ClusterError as error:
        return None, str(error)
    for line in reversed(output.decode(errors="replace").splitlines()):
        try:
            said = json.loads(line)
        except ValueError:
            continue
        if isinstance(said, dict) and "result" in said:
            result: dict[str, Any] = said["result"]
            return result, ""
    last = complaint.strip().splitlines()[-1:] or ["it said nothing"]
    return None, f"the program in the pod ended with {code}: {last[0]}"


def _delete(plan: Plan, means: Means) -> dict[str, str]:
    """Delete all pods and wait until they are gone; those that are left, and why."""
    left: dict[str, str] = {}
    for name in plan.pod_names:
        try:
            means.api.request(
                "delete",
                f"{_path(plan)}/{name}",
                resource="pods",
                name=name,
                body={"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 1},
            )
        except NotThere:
            continue
        except ClusterError as error:
            left[name] = str(error)
    deadline = means.clock() + GONE_SECONDS
    while True:
        try:
            there = {name_of(pod) for pod in _listed(plan, means)}
        except ClusterError as error:
            return left | {plan.name: str(error)}
        if not there - left.keys():
            return left
        if means.clock() >= deadline:
            return left | dict.fromkeys(there, f"it is still there after {GONE_SECONDS:.0f} s")
        means.sleep(POLL_SECONDS)


def _listed(plan: Plan, means: Means) -> list[Manifest]:
    query = {"labelSelector": f"{LABEL}={plan.name}"}
    found = means.api.request("list", _path(plan), resource="pods", query=query)
    return list(found.get("items") or [])


def _path(plan: Plan) -> str:
    return f"/api/v1/namespaces/{plan.namespace}/pods"


def _is_unplaced(pod: Manifest) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)


def _is_hopeless(pod: Manifest) -> bool:
    status = pod.get("status", {})
    containers = status.get("containerStatuses") or []
    reasons = [c.get("state", {}).get("waiting", {}).get("reason") for c in containers]
    return status.get("phase") in ("Failed", "Succeeded") or any(r in HOPELESS for r in reasons)
