"""Findings of a probe: scheduling, images, software, shared memory, disk and clocks. Pure.

`judge_network` has networks and collectives.
"""

from collections.abc import Callable, Iterator
from importlib.metadata import version

from rljob_api.topology.pod_names import RUNS_DIRECTORY
from rljob_api.topology.worker_pods import object_store_bytes
from rljob_runtime.cli.doctor.findings import Finding, fail, findings_of, ok, warn
from rljob_runtime.cli.doctor.probe.judge_network import all_reduce, device_networks, networks
from rljob_runtime.cli.doctor.probe.plan import ProbePlan
from rljob_runtime.cli.doctor.probe.seen import Answers, LookResult, ProbeReport
from rljob_runtime.cli.doctor.pulls import PULLABLE

MIB, GIB = 2**20, 2**30
MIN_BYTES, LOW_BYTES = GIB, 10 * GIB
"""Free bytes for a run's folder: below the first a run fails soon, below the second checkpoints may not
fit."""
SKEW_WARN_SECONDS, SKEW_FAIL_SECONDS = 2.0, 300.0
"""Clock skew: from the first on, logs of several nodes mislead; from the second on, tokens and S3 fail."""
DELETE_COMMAND = "kubectl -n {} delete pod -l rljob.io/probe={}"


def _pod_states(plan: ProbePlan, report: ProbeReport) -> Iterator[Finding]:
    """Check that the pods ran: their nodes and their image."""
    pods = report.pods
    for pod in pods:
        location = f"{pod.name} on {pod.node}" if pod.node else pod.name
        if pod.problem:
            yield fail(f"{location}: {pod.problem}", _remedy(pod.problem, plan.image))
    running = [pod for pod in pods if not pod.problem]
    if len(running) == len(pods):
        nodes = ", ".join(sorted({pod.node for pod in pods}))
        yield ok(f"{len(pods)} of {len(pods)} run {plan.image} (on {nodes})")


def _other_images(plan: ProbePlan, report: ProbeReport) -> Iterator[Finding]:
    """Check that the images of other roles were pulled."""
    for other, pod in zip(plan.images, report.images, strict=True):
        location = f" on {pod.node}" if pod.node else ""
        if pod.problem:
            yield fail(f"{other}{location}: {pod.problem}", _remedy(pod.problem, other.image))
        else:
            yield ok(f"{other} was pulled{location}")


def _remedy(problem: str, image: str) -> str:
    if "Image" in problem:
        return PULLABLE.format(image)
    if problem.startswith("Pending"):
        return "see placement; kubectl describe nodes shows what pods have asked for"
    if "quota" in problem or "forbidden" in problem:
        return "ask for a larger ResourceQuota, or for the policy that refuses the pod"
    return "kubectl get events tells more; a longer --deadline waits longer"


def _software(plan: ProbePlan, answers: Answers) -> Iterator[Finding]:
    """Check the packages that the image has installed."""
    client_version = version("rljob")
    versions = {name: number for name, number in answers[0][1].answer["software"].items() if number}
    text = ", ".join(f"{name} {number}" for name, number in versions.items()) or "nothing"
    needed = ("rljob", "ray", "torch", *(("torch-npu",) if plan.ascend else ()))
    if missing := [name for name in needed if name not in versions]:
        remedy = "use rljob's image for these devices, or one made from it"
        yield fail(f"{plan.image} lacks {', '.join(missing)}; it has {text}", remedy)
    elif versions["rljob"] != client_version:
        yield warn(f"{text}; this client is rljob {client_version}", "use an image of this release")
    else:
        yield ok(text)


def _shared_memory(plan: ProbePlan, answers: Answers) -> Iterator[Finding]:
    store_bytes = object_store_bytes(ascend=plan.ascend)
    least = min(int(result.answer["shm_bytes"] or 0) for _, result in answers)
    text = f"/dev/shm has {_format_bytes(least)}; Ray's object store takes {_format_bytes(store_bytes)}"
    if least < store_bytes:
        remedy = (
            f"podTemplates.worker.resources: memory of {_format_bytes(2 * store_bytes)} or more"
        )
        yield fail(text, remedy)
    else:
        yield ok(f"{text}; the dock's rows lie in the pods' own memory")


def _disk(plan: ProbePlan, answers: Answers) -> Iterator[Finding]:
    unwritable = [
        pod.node for pod, result in answers if not result.answer["writable"].get(RUNS_DIRECTORY)
    ]
    if unwritable:
        volume = f"PersistentVolumeClaim {plan.claim}" if plan.claim else RUNS_DIRECTORY
        text = f"uid 1000 may not write {volume} on {', '.join(unwritable)}"
        yield fail(text, "let the volume's folder belong to gid 1000, or open it")
    free = [(result.answer["disk"].get(RUNS_DIRECTORY) or 0, pod.node) for pod, result in answers]
    least, node = min(free)
    text = f"{_format_bytes(least)} free for the run's folder ({node})"
    if least < MIN_BYTES:
        yield fail(text, "free the node's disk, or name a larger claim")
    elif least < LOW_BYTES:
        yield warn(text, "see that checkpoint.keep checkpoints fit: rljob plan")
    else:
        yield ok(text)


def _clocks(plan: ProbePlan, answers: Answers) -> Iterator[Finding]:
    skews = [(skew(result), pod.node) for pod, result in answers]
    worst, node = max(skews, key=lambda pair: abs(pair[0]))
    slowest = max(result.received - result.sent for _, result in answers)
    if abs(worst) < SKEW_WARN_SECONDS:
        yield ok(f"nodes and this machine agree, within {max(slowest, abs(worst)):.1f} s")
        return
    text = f"{node} is {abs(worst):.0f} s {'ahead of' if worst > 0 else 'behind'} this machine"
    remedy = "let nodes and this machine set their clocks (chrony, ntpd)"
    yield (fail if abs(worst) >= SKEW_FAIL_SECONDS else warn)(text, remedy)


def skew(result: LookResult) -> float:
    """Return how many seconds a pod's clock is at least ahead of ours; 0 where it may be right."""
    pod_time = float(result.answer["time"])
    return max(0.0, pod_time - result.received) or min(0.0, pod_time - result.sent)


def _format_bytes(number: int) -> str:
    if number >= GIB:
        return f"{number / GIB:.1f} GiB"
    return f"{number // MIB} MiB"


def _undeleted_pods(plan: ProbePlan, report: ProbeReport) -> Iterator[Finding]:
    """Report the pods that could not be deleted."""
    if report.undeleted:
        text = "; ".join(f"{name}: {reason}" for name, reason in report.undeleted.items())
        yield fail(text, DELETE_COMMAND.format(plan.namespace, plan.name))


Check = Callable[[ProbePlan, ProbeReport], Iterator[Finding]]


def with_answers(check: Callable[[ProbePlan, Answers], Iterator[Finding]]) -> Check:
    """Wrap a check so that it yields nothing where no pod answered."""
    return lambda plan, report: check(plan, answers) if (answers := report.answers) else iter(())


CHECKS: dict[str, Check] = {
    "probe-pods": _pod_states,
    "other-images": _other_images,
    "software": with_answers(_software),
    "shared-memory": with_answers(_shared_memory),
    "disk": with_answers(_disk),
    "clocks": with_answers(_clocks),
    "networks": with_answers(networks),
    "device-networks": with_answers(device_networks),
    "all-reduce": with_answers(all_reduce),
    "probe-end": _undeleted_pods,
}


def judge(plan: ProbePlan, report: ProbeReport) -> list[Finding]:
    """Return all findings of a probe."""
    return findings_of(CHECKS, plan, report)
