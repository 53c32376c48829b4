"""What a probe's pods say of the cluster: place, image, software, memory, room, clocks. Pure.

`judge_network` has networks and collectives.
"""

from collections.abc import Iterator
from importlib.metadata import version

from rljob_api.topology.pod_names import RUNS_DIRECTORY
from rljob_runtime.cli.doctor.findings import Finding, fail, ok, warn
from rljob_runtime.cli.doctor.probe.judge_network import networks, sums
from rljob_runtime.cli.doctor.probe.plan import Plan
from rljob_runtime.cli.doctor.probe.seen import Answers, Looked, PodSeen, Seen

MIB, GIB = 2**20, 2**30
SCARCE_BYTES, LITTLE_BYTES = GIB, 10 * GIB
"""Room for a run's folder: below the first a run ends soon, below the second checkpoints may not fit."""
APART_SECONDS, WRONG_SECONDS = 2.0, 300.0
"""Clocks: from the first on logs of several nodes mislead, from the second on tokens and S3 are refused."""
DELETE = "kubectl -n {} delete pod -l rljob.io/probe={}"


def judge(plan: Plan, seen: Seen, *, store_bytes: int) -> list[Finding]:
    """All findings of a probe. store_bytes: of Ray's object store, which lies in /dev/shm."""
    looked = [(pod, pod.looked) for pod in seen.pods if pod.looked is not None]
    found = list(_pods(plan, seen.pods))
    if looked:
        found += _software(plan, looked)
        found += _shared_memory(looked, store_bytes)
        found += _room(plan, looked)
        found += _clocks(looked)
        found += networks(plan, looked)
        found += sums(plan, seen.pods)
    if seen.left:
        text = "; ".join(f"{name}: {why}" for name, why in seen.left.items())
        found.append(fail("probe-end", text, DELETE.format(plan.namespace, plan.name)))
    return found


def _pods(plan: Plan, pods: tuple[PodSeen, ...]) -> Iterator[Finding]:
    """Whether the pods ran: their place, their image."""
    check = "probe-pods"
    for pod in pods:
        where = f"{pod.name} on {pod.node}" if pod.node else pod.name
        if pod.problem:
            yield fail(check, f"{where}: {pod.problem}", _remedy(pod.problem, plan))
    running = [pod for pod in pods if not pod.problem]
    if len(running) == len(pods):
        nodes = ", ".join(sorted({pod.node for pod in pods}))
        yield ok(check, f"{len(pods)} of {len(pods)} run {plan.image} (on {nodes})")


def _remedy(problem: str, plan: Plan) -> str:
    if "Image" in problem:
        return (
            f"check that {plan.image} exists and that nodes may pull it: spec.image, the chart's image.*, "
            "imagePullSecrets"
        )
    if problem.startswith("Pending"):
        return "see placement; kubectl describe nodes shows what pods have asked for"
    if "quota" in problem or "forbidden" in problem:
        return "ask for a larger ResourceQuota, or for the policy that refuses the pod"
    return "kubectl get events tells more; a longer --deadline waits longer"


def _software(plan: Plan, looked: Answers) -> Iterator[Finding]:
    """What the image has installed."""
    check, own = "software", version("rljob")
    there = {name: number for name, number in looked[0][1].answer["software"].items() if number}
    text = ", ".join(f"{name} {number}" for name, number in there.items()) or "nothing"
    needed = ("rljob", "ray", "torch", *(("torch-npu",) if plan.ascend else ()))
    if lacking := [name for name in needed if name not in there]:
        remedy = "use rljob's image for these devices, or one made from it"
        yield fail(check, f"{plan.image} lacks {', '.join(lacking)}; it has {text}", remedy)
    elif there["rljob"] != own:
        yield warn(check, f"{text}; this client is rljob {own}", "use an image of this release")
    else:
        yield ok(check, text)


def _shared_memory(looked: Answers, store_bytes: int) -> Iterator[Finding]:
    check, least = "shared-memory", min((_of(one, "shm_bytes") or 0) for _, one in looked)
    text = f"/dev/shm has {_size(least)}; Ray's object store takes {_size(store_bytes)}"
    if least < store_bytes:
        remedy = f"podTemplates.worker.resources: memory of {_size(2 * store_bytes)} or more"
        yield fail(check, text, remedy)
    else:
        yield ok(check, f"{text}; the dock's rows lie in the pods' own memory")


def _room(plan: Plan, looked: Answers) -> Iterator[Finding]:
    check = "disk"
    closed = [pod.node for pod, one in looked if not one.answer["writable"].get(RUNS_DIRECTORY)]
    if closed:
        what = f"PersistentVolumeClaim {plan.claim}" if plan.claim else RUNS_DIRECTORY
        text = f"uid 1000 may not write {what} on {', '.join(closed)}"
        yield fail(check, text, "let the volume's folder belong to gid 1000, or open it")
    free = [(one.answer["disk"].get(RUNS_DIRECTORY) or 0, pod.node) for pod, one in looked]
    least, node = min(free)
    text = f"{_size(least)} free for the run's folder ({node})"
    if least < SCARCE_BYTES:
        yield fail(check, text, "free the node's disk, or name a larger claim")
    elif least < LITTLE_BYTES:
        yield warn(check, text, "see that checkpoint.keep checkpoints fit: rljob plan")
    else:
        yield ok(check, text)


def _clocks(looked: Answers) -> Iterator[Finding]:
    check = "clocks"
    apart = [(skew(one), pod.node) for pod, one in looked]
    worst, node = max(apart, key=lambda pair: abs(pair[0]))
    slowest = max(one.heard - one.sent for _, one in looked)
    if abs(worst) < APART_SECONDS:
        yield ok(check, f"nodes and this machine agree, within {max(slowest, abs(worst)):.1f} s")
        return
    text = f"{node} is {abs(worst):.0f} s {'ahead of' if worst > 0 else 'behind'} this machine"
    remedy = "let nodes and this machine set their clocks (chrony, ntpd)"
    yield (fail if abs(worst) >= WRONG_SECONDS else warn)(check, text, remedy)


def skew(one: Looked) -> float:
    """Seconds that a pod's clock is ahead of ours, at least; 0 where it may be right."""
    when = float(one.answer["time"])
    return max(0.0, when - one.heard) or min(0.0, when - one.sent)


def _of(one: Looked, key: str) -> int | None:
    value: int | None = one.answer.get(key)
    return value


def _size(number: int) -> str:
    if number >= GIB:
        return f"{number / GIB:.1f} GiB"
    return f"{number // MIB} MiB"
