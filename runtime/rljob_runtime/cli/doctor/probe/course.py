"""Run a probe: create the pods, wait for them, inspect them, run an all-reduce, and always delete them.

Every wait has a deadline, and `ProbeIO.report` receives a line about what is awaited.
"""

import json
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from typing import Any, Protocol

from rljob_runtime.cli.cluster.job_facts import is_ready, state
from rljob_runtime.cli.doctor.cluster_facts import Manifest, name_of
from rljob_runtime.cli.doctor.probe.plan import ProbePlan
from rljob_runtime.cli.doctor.probe.pods import FOLDERS, LABEL, command, pods_of
from rljob_runtime.cli.doctor.probe.seen import LookResult, PodReport, ProbeReport
from rljob_runtime.errors import ClusterError, NotThere

LOOK_SECONDS = 30.0
ARRIVAL_SECONDS = 45.0
"""How long pods wait for each other: imports of torch on a busy node take long."""
SUM_SECONDS = 120.0
UNPLACED_SECONDS = 20.0
"""How long to wait for a pod that is not scheduled: the pods that hold the devices may be ending."""
NICS_SECONDS = 10.0
"""How long to wait for the device plugin, which updates its pods every few seconds."""
GONE_SECONDS = 30.0
POLL_SECONDS = 1.0
PORT = 29555
MOST_SHELLS = 32
"""Limit of concurrent shells where pods need not wait for each other."""
NICS_ANNOTATION = "ascend.kubectl.kubernetes.io/ascend-910-configuration"
FATAL_REASONS = (
    "ImagePullBackOff", "InvalidImageName", "ErrImageNeverPull", "CreateContainerConfigError",
    "CreateContainerError", "RunContainerError", "CrashLoopBackOff",
)  # fmt: skip
"""Waiting reasons of a container that do not resolve with time."""


class PodsApi(Protocol):
    """The subset of `Calls` that a probe uses."""

    def request(
        self,
        verb: str,
        path: str,
        *,
        resource: str,
        name: str = "",
        body: Manifest | None = None,
        query: Mapping[str, str] | None = None,
    ) -> Manifest:
        """Make a call to the API server and return its answer. Raises NotThere and other ClusterErrors."""
        ...


Shell = Callable[[str, list[str]], tuple[int, bytes, str]]
"""Runs a command in a pod and returns (exit code, stdout, stderr). Raises ClusterError."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeIO:
    """The API, shell, output and clocks that a probe uses. report: prints a line. wall: unix seconds."""

    api: PodsApi
    shell: Shell
    report: Callable[[str], None]
    sleep: Callable[[float], None] = time.sleep
    clock: Callable[[], float] = time.monotonic
    wall: Callable[[], float] = time.time


def probe(plan: ProbePlan, io: ProbeIO) -> ProbeReport:
    """Create the pods, run the probe and return its report. Pods that could not be deleted are named in
    it."""
    try:
        refusal = _create_pods(plan, io)
        reports = _wait_for_pods(plan, io, refusal)
        pods, images = reports[: plan.pods], reports[plan.pods :]
        pods = _inspect_pods(pods, io)
        pods = _all_reduce(plan, pods, io)
        pods = _read_nics(plan, pods, io)
    finally:
        undeleted = _delete_pods(plan, io)
        for name, reason in undeleted.items():
            io.report(f"{name} is left: {reason}")
    return ProbeReport(pods=tuple(pods), images=tuple(images), undeleted=undeleted)


def _create_pods(plan: ProbePlan, io: ProbeIO) -> str:
    """Create all pods; return the first refusal, or "". A quota that refuses one pod refuses all others."""
    for pod in pods_of(plan):
        try:
            io.api.request("create", _path(plan), resource="pods", name=name_of(pod), body=pod)
        except ClusterError as error:
            return str(error)
    return ""


def _wait_for_pods(plan: ProbePlan, io: ProbeIO, refusal: str) -> list[PodReport]:
    """Wait until each pod runs or cannot run, and return a report for each."""
    deadline, last_message = io.clock() + plan.seconds, ""
    unplaced: dict[str, float] = {}
    while True:
        pods = {name_of(pod): pod for pod in _list_pods(plan, io)}
        waiting = {}
        for name, pod in pods.items():
            if _is_unscheduled(pod):
                unplaced.setdefault(name, io.clock())
            else:
                unplaced.pop(name, None)
            is_lost = io.clock() - unplaced.get(name, io.clock()) >= UNPLACED_SECONDS
            if not (is_ready(pod) or is_lost or _is_fatal(pod)):
                waiting[name] = state(pod)
        if not waiting or io.clock() >= deadline:
            break
        message = "; ".join(
            f"{name}: {pod_state}" for name, pod_state in sorted(waiting.items())[:3]
        )
        if message != last_message:
            io.report(
                f"waiting for {len(waiting)} of {len(plan.pod_names)} pods, "
                f"{plan.seconds:.0f} s at most: {message}"
            )
            last_message = message
        io.sleep(POLL_SECONDS)
    return [_pod_report(name, pods.get(name), refusal, plan.seconds) for name in plan.pod_names]


def _pod_report(name: str, pod: Manifest | None, refusal: str, seconds: float) -> PodReport:
    if pod is None:
        return PodReport(name=name, problem=refusal or "it vanished")
    problem = "" if is_ready(pod) else state(pod)
    if problem and not (_is_unscheduled(pod) or _is_fatal(pod)):
        problem = f"does not run after {seconds:.0f} s: {problem}"
    return PodReport(
        name=name,
        node=pod["spec"].get("nodeName", ""),
        address=pod.get("status", {}).get("podIP", ""),
        problem=problem,
    )


def _inspect_pods(pods: list[PodReport], io: ProbeIO) -> list[PodReport]:
    """Run the program's `look` in each running pod."""
    arguments = json.dumps({"seconds": LOOK_SECONDS, "folders": FOLDERS})

    def inspect(pod: PodReport) -> PodReport:
        sent = io.wall()
        answer, problem = _run_in_pod(io, pod.name, command("look", arguments))
        if answer is None:
            return replace(pod, problem=problem)
        return replace(pod, look_result=LookResult(sent=sent, received=io.wall(), answer=answer))

    return _map_pods(pods, inspect, max_workers=MOST_SHELLS)


def _all_reduce(plan: ProbePlan, pods: list[PodReport], io: ProbeIO) -> list[PodReport]:
    """Run an all-reduce over all pods that answered `look`."""
    participants = [pod for pod in pods if pod.look_result is not None]
    if len(participants) < 2:
        return pods
    io.report(f"all-reduce over {len(participants)} pods, {SUM_SECONDS:.0f} s at most")
    common = {
        "backend": "hccl" if plan.ascend else "gloo",
        "size": len(participants),
        "address": participants[0].address,
        "port": PORT,
        "arrival": ARRIVAL_SECONDS,
        "seconds": SUM_SECONDS,
    }
    ranks = {pod.name: rank for rank, pod in enumerate(participants)}

    def reduce(pod: PodReport) -> PodReport:
        arguments = json.dumps({**common, "rank": ranks[pod.name]})
        answer, problem = _run_in_pod(io, pod.name, command("reduce", arguments))
        return replace(pod, all_reduce=answer or {"failure": problem})

    return _map_pods(pods, reduce, max_workers=len(pods))


def _read_nics(plan: ProbePlan, pods: list[PodReport], io: ProbeIO) -> list[PodReport]:
    """On Ascend, read NIC addresses from the device plugin's annotation where the pod has no file of them."""
    unresolved = {
        pod.name
        for pod in pods
        if pod.look_result and pod.look_result.answer["device_addresses"] is None
    }
    if not plan.ascend or not unresolved:
        return pods
    deadline = io.clock() + NICS_SECONDS
    while True:
        nics_by_pod = {name_of(pod): nics_of(pod) for pod in _list_pods(plan, io)}
        if all(nics_by_pod.get(name) is not None for name in unresolved) or io.clock() >= deadline:
            return [replace(pod, nics=nics_by_pod.get(pod.name)) for pod in pods]
        io.sleep(POLL_SECONDS)


def nics_of(pod: Manifest) -> dict[str, str] | None:
    """Return NIC addresses by device from a pod's annotation; None without a readable one."""
    try:
        annotation = json.loads(pod["metadata"]["annotations"][NICS_ANNOTATION])
        addresses = {
            str(one["device_id"]): str(one.get("device_ip") or "") for one in annotation["devices"]
        }
    except (KeyError, TypeError, ValueError, AttributeError):
        return None
    return {device: address for device, address in addresses.items() if address}


def _map_pods(
    pods: list[PodReport], work: Callable[[PodReport], PodReport], *, max_workers: int
) -> list[PodReport]:
    """Apply `work` to each pod without a problem, in threads; return all pods in order."""
    threads = ThreadPoolExecutor(max_workers=max_workers)
    try:
        return list(threads.map(lambda pod: pod if pod.problem else work(pod), pods))
    finally:  # on Ctrl-C the pods are deleted, which ends the shells
        threads.shutdown(wait=False, cancel_futures=True)


def _run_in_pod(
    io: ProbeIO, pod: str, command_line: list[str]
) -> tuple[dict[str, Any] | None, str]:
    """Return (the program's result, the reason why there is none)."""
    try:
        code, output, stderr = io.shell(pod, command_line)
    except ClusterError as error:
        return None, str(error)
    for line in reversed(output.decode(errors="replace").splitlines()):
        try:
            message = json.loads(line)
        except ValueError:
            continue
        if isinstance(message, dict) and "result" in message:
            result: dict[str, Any] = message["result"]
            return result, ""
    last = stderr.strip().splitlines()[-1:] or ["it said nothing"]
    return None, f"the program in the pod ended with {code}: {last[0]}"


def _delete_pods(plan: ProbePlan, io: ProbeIO) -> dict[str, str]:
    """Delete all pods and wait until they are gone; return those that remain, with the reason."""
    undeleted: dict[str, str] = {}
    for name in plan.pod_names:
        try:
            io.api.request(
                "delete",
                f"{_path(plan)}/{name}",
                resource="pods",
                name=name,
                body={"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 1},
            )
        except NotThere:
            continue
        except ClusterError as error:
            undeleted[name] = str(error)
    deadline = io.clock() + GONE_SECONDS
    while True:
        try:
            remaining = {name_of(pod) for pod in _list_pods(plan, io)}
        except ClusterError as error:
            return undeleted | {plan.name: str(error)}
        if not remaining - undeleted.keys():
            return undeleted
        if io.clock() >= deadline:
            return undeleted | dict.fromkeys(
                remaining, f"it is still there after {GONE_SECONDS:.0f} s"
            )
        io.sleep(POLL_SECONDS)


def _list_pods(plan: ProbePlan, io: ProbeIO) -> list[Manifest]:
    query = {"labelSelector": f"{LABEL}={plan.name}"}
    pods = io.api.request("list", _path(plan), resource="pods", query=query)
    return list(pods.get("items") or [])


def _path(plan: ProbePlan) -> str:
    return f"/api/v1/namespaces/{plan.namespace}/pods"


def _is_unscheduled(pod: Manifest) -> bool:
    conditions = pod.get("status", {}).get("conditions") or []
    return any(c["type"] == "PodScheduled" and c["status"] == "False" for c in conditions)


def _is_fatal(pod: Manifest) -> bool:
    status = pod.get("status", {})
    containers = status.get("containerStatuses") or []
    reasons = [c.get("state", {}).get("waiting", {}).get("reason") for c in containers]
    return status.get("phase") in ("Failed", "Succeeded") or any(
        r in FATAL_REASONS for r in reasons
    )
