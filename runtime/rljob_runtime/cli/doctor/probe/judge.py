"""What a probe's pods say of the cluster: place, image, software, memory, room, clocks. Pure.

`judge_network` has networks and collectives.
"""

from collections.abc import Callable, Iterator
from importlib.metadata import version

from rljob_api.topology.pod_names import RUNS_DIRECTORY
from rljob_api.topology.worker_pods import object_store_bytes
from rljob_runtime.cli.doctor.findings import Finding, fail, findings_of, ok, warn
from rljob_runtime.cli.doctor.probe.judge_network import device_networks, networks, sums
from rljob_runtime.cli.doctor.probe.plan import Plan
from rljob_runtime.cli.doctor.probe.seen import Answers, Looked, Seen
from rljob_runtime.cli.doctor.pulls import PULLABLE

MIB, GIB = 2**20, 2**30
SCARCE_BYTES, LITTLE_BYTES = GIB, 10 * GIB
"""Room for a run's folder: below the first a run ends soon, below the second checkpoints may not fit."""
APART_SECONDS, WRONG_SECONDS = 2.0, 300.0
"""Clocks: from the first on logs of several nodes mislead, from the second on tokens and S3 are refused."""
DELETE = "kubectl -n {} delete pod -l rljob.io/probe={}"


def _pods(plan: Plan, seen: Seen) -> Iterator[Finding]:
    """Whether the pods ran: their place, their image."""
    pods = seen.pods
    for pod in pods:
        where = f"{pod.name} on {pod.node}" if pod.node else pod.name
        if pod.problem:
            yield fail(f"{where}: {pod.problem}", _remedy(pod.problem, plan.image))
    running = [pod for pod in pods if not pod.problem]
    if len(running) == len(pods):
        nodes = ", ".join(sorted({pod.node for pod in pods}))
        yield ok(f"{len(pods)} of {len(pods)} run {plan.image} (on {nodes})")


def _other_images(plan: Plan, seen: Seen) -> Iterator[Finding]:
    """Whether the images of other roles were pulled."""
    for other, pod in zip(plan.images, seen.images, strict=True):
        where = f" on {pod.node}" if pod.node else ""
        if pod.problem:
            yield fail(f"{other}{where}: {pod.problem}", _remedy(pod.problem, other.image))
        else:
            yield ok(f"{other} was pulled{where}")


def _remedy(problem: str, image: str) -> str:
    if "Image" in problem:
        return PULLABLE.format(image)
    if problem.startswith("Pending"):
        return "see placement; kubectl describe nodes shows what pods have asked for"
    if "quota" in problem or "forbidden" in problem:
        return "ask for a larger ResourceQuota, or for the policy that refuses the pod"
    return "kubectl get events tells more; a longer --deadline waits longer"


def _software(plan: Plan, looked: Answers) -> Iterator[Finding]:
    """What the image has installed."""
    own = version("rljob")
    there = {name: number for name, number in looked[0][1].answer["software"].items() if number}
    text = ", ".join(f"{name} {number}" for name, number in there.items()) or "nothing"
    needed = ("rljob", "ray", "torch", *(("torch-npu",) if plan.ascend else ()))
    if lacking := [name for name in needed if name not in there]:
        remedy = "use rljob's image for these devices, or one made from it"
        yield fail(f"{plan.image} lacks {', '.join(lacking)}; it has {text}", remedy)
    elif there["rljob"] != own:
        yield warn(f"{text}; this client is rljob {own}", "use an image of this release")
    else:
        yield ok(text)


def _shared_memory(plan: Plan, looked: Answers) -> Iterator[Finding]:
    store_bytes = object_store_bytes(ascend=plan.ascend)
    least = min(int(one.answer["shm_bytes"] or 0) for _, one in looked)
    text = f"/dev/shm has {_size(least)}; Ray's object store takes {_size(store_bytes)}"
    if least < store_bytes:
        remedy = f"podTemplates.worker.resources: memory of {_size(2 * store_bytes)} or more"
        yield fail(text, remedy)
    else:
        yield ok(f"{text}; the dock's rows lie in the pods' own memory")


def _room(plan: Plan, looked: Answers) -> Iterator[Finding]:
    closed = [pod.node for pod, one in looked if not one.answer["writable"].get(RUNS_DIRECTORY)]
    if closed:
        what = f"PersistentVolumeClaim {plan.claim}" if plan.claim else RUNS_DIRECTORY
        text = f"uid 1000 may not write {what} on {', '.join(closed)}"
        yield fail(text, "let the volume's folder belong to gid 1000, or open it")
    free = [(one.answer["disk"].get(RUNS_DIRECTORY) or 0, pod.node) for pod, one in looked]
    least, node = min(free)
    text = f"{_size(least)} free for the run's folder ({node})"
    if least < SCARCE_BYTES:
        yield fail(text, "free the node's disk, or name a larger claim")
    elif least < LITTLE_BYTES:
        yield warn(text, "see that checkpoint.keep checkpoints fit: rljob plan")
    else:
        yield ok(text)


def _clocks(plan: Plan, looked: Answers) -> Iterator[Finding]:
    apart = [(skew(one), pod.node) for pod, one in looked]
    worst, node = max(apart, key=lambda pair: abs(pair[0]))
    slowest = max(one.heard - one.sent for _, one in looked)
    if abs(worst) < APART_SECONDS:
        yield ok(f"nodes and this machine agree, within {max(slowest, abs(worst)):.1f} s")
        return
    text = f"{node} is {abs(worst):.0f} s {'ahead of' if worst > 0 else 'behind'} this machine"
    remedy = "let nodes and this machine set their clocks (chrony, ntpd)"
    yield (fail if abs(worst) >= WRONG_SECONDS else warn)(text, remedy)


def skew(one: Looked) -> float:
    """Seconds that a pod's clock is ahead of ours, at least; 0 where it may be right."""
    when = float(one.answer["time"])
    return max(0.0, when - one.heard) or min(0.0, when - one.sent)


def _size(number: int) -> str:
    if number >= GIB:
        return f"{number / GIB:.1f} GiB"
    return f"{number // MIB} MiB"


def _left(plan: Plan, seen: Seen) -> Iterator[Finding]:
    """Pods that could not be deleted."""
    if seen.left:
        text = "; ".join(f"{name}: {why}" for name, why in seen.left.items())
        yield fail(text, DELETE.format(plan.namespace, plan.name))


Check = Callable[[Plan, Seen], Iterator[Finding]]


def of_answers(check: Callable[[Plan, Answers], Iterator[Finding]]) -> Check:
    """A check that has nothing to say where no pod answered."""
    return lambda plan, seen: check(plan, answers) if (answers := seen.answers) else iter(())


CHECKS: dict[str, Check] = {
    "probe-pods": _pods,
    "other-images": _other_images,
    "software": of_answers(_software),
    "shared-memory": of_answers(_shared_memory),
    "disk": of_answers(_room),
    "clocks": of_answers(_clocks),
    "networks": of_answers(networks),
    "device-networks": of_answers(device_networks),
    "all-reduce": of_answers(sums),
    "probe-end": _left,
}


def judge(plan: Plan, seen: Seen) -> list[Finding]:
    """All findings of a probe."""
    return findings_of(CHECKS, plan, seen)
