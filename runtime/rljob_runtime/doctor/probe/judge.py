"""What a probe's pods say of the cluster: image, place, memory, room, clocks, networks, collectives. Pure."""

from collections.abc import Callable, Iterator
from typing import Any

from rljob_api.pod_rules import RUNS_DIRECTORY
from rljob_runtime.doctor.findings import Finding, fail, ok, skipped, warn
from rljob_runtime.doctor.probe.plan import Plan
from rljob_runtime.doctor.probe.seen import Looked, PodSeen, Seen

MIB, GIB = 2**20, 2**30
SCARCE_BYTES, LITTLE_BYTES = GIB, 10 * GIB
"""Room for a run's folder: below the first a run ends soon, below the second checkpoints may not fit."""
APART_SECONDS, WRONG_SECONDS = 2.0, 300.0
"""Clocks: from the first on logs of several nodes mislead, from the second on tokens and S3 are refused."""
SOCKETS = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")
DELETE = "kubectl -n {} delete pod -l rljob.io/probe={}"


def judge(plan: Plan, seen: Seen, *, store_bytes: int) -> list[Finding]:
    """All findings of a probe. store_bytes: of Ray's object store, which lies in /dev/shm."""
    looked = [(pod, pod.looked) for pod in seen.pods if pod.looked is not None]
    found = list(_pods(plan, seen.pods))
    if looked:
        found += _shared_memory(looked, store_bytes)
        found += _room(plan, looked)
        found += _clocks(looked)
        found += _networks(plan, looked)
        found += _sums(plan, seen.pods)
    if seen.left:
        text = "; ".join(f"{name}: {why}" for name, why in seen.left.items())
        found.append(fail("probe-end", text, DELETE.format(plan.namespace, plan.name)))
    return found


Answers = list[tuple[PodSeen, Looked]]


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


def _networks(plan: Plan, looked: Answers) -> Iterator[Finding]:
    check = "networks"
    for pod, one in looked:
        there: dict[str, Any] = one.answer["interfaces"]
        up = {name for name, at in there.items() if at["up"] and at["addresses"]}
        for variable in SOCKETS:
            named = one.answer["environment"].get(variable)
            if named and not _names_one(named, up):
                text = (
                    f"{pod.node}: {variable}={named}, but up are {', '.join(sorted(up)) or 'none'}"
                )
                yield fail(check, text, "set it in podTemplates.worker.env to one that is up")
        if not up:
            yield fail(
                check, f"{pod.node}: no interface is up with an address", "see the CNI plugin"
            )
    first, one = looked[0]
    shown = (
        f"{name} {' '.join(at['addresses'][:1])} mtu {at['mtu']}"
        for name, at in sorted(one.answer["interfaces"].items())
        if at["up"]
    )
    yield ok(check, f"{first.node}: {', '.join(shown)}")
    if plan.ascend:
        yield from _device_networks(looked)


def _names_one(named: str, up: set[str]) -> bool:
    """Whether a value of HCCL_SOCKET_IFNAME or GLOO_SOCKET_IFNAME fits an interface: beginnings of names;
    with `=` in front whole names, with `^` all others."""
    exact, other = named.startswith(("=", "^=")), named.startswith("^")
    words = [word for word in named.lstrip("^=").split(",") if word]
    match: Callable[[str], bool] = lambda name: any(  # noqa: E731
        name == word if exact else name.startswith(word) for word in words
    )
    return any(match(name) != other for name in up)


def _device_networks(looked: Answers) -> Iterator[Finding]:
    check = "device-networks"
    for pod, one in looked:
        given, devices = one.answer["device_addresses"], one.answer["devices"]
        if given is None:
            why = "no /etc/hccn.conf in the pod; on the node, hccn_tool -i 0 -ip -g shows addresses"
            yield skipped(check, f"{pod.node}: {why}")
        elif len(given) < devices:
            text = f"{pod.node}: /etc/hccn.conf has addresses of {len(given)} devices, the pod {devices}"
            yield warn(check, text, "hccn_tool -i N -ip -s address ... on the node")
        else:
            yield ok(check, f"{pod.node}: {len(given)} devices with addresses of their own")


def _sums(plan: Plan, pods: tuple[PodSeen, ...]) -> Iterator[Finding]:
    check, name = "all-reduce", "hccl" if plan.ascend else "gloo"
    asked = [pod for pod in pods if pod.summed is not None]
    if not asked:
        yield skipped(check, "it takes two pods that run")
        return
    members = max((_members(pod) for pod in asked), key=len)
    absent = [pod for rank, pod in enumerate(asked) if rank not in members]
    for pod in absent:
        why = _failure(pod) or "it was not heard"
        remedy = (
            f"let pods of the namespace reach each other: NetworkPolicies, routes to {pod.node}"
        )
        yield fail(check, f"{pod.name} on {pod.node} did not arrive: {why}", remedy)
    broken = [pod for pod in asked if pod not in absent and _failure(pod)]
    for pod in broken:
        remedy = "see networks; firewalls between nodes, HCCL_SOCKET_IFNAME, the devices' NICs"
        yield fail(check, f"{pod.name} on {pod.node}: {_failure(pod)}", remedy)
    wrong = [pod for pod in asked if (pod.summed or {}).get("correct") is False]
    for pod in wrong:
        yield fail(check, f"{pod.name} on {pod.node} got a wrong sum", "take the node out of use")
    done = [pod.summed for pod in asked if pod.summed and "seconds" in pod.summed]
    if done and not broken and not wrong:
        yield ok(check, _bandwidth(name, members, done))


def _bandwidth(name: str, members: list[int], done: list[dict[str, Any]]) -> str:
    """By the slowest rank; a ring moves 2 (n - 1) / n of the bytes over each link."""
    number, size = len(members), done[0]["bytes"]
    seconds = max(one["seconds"] for one in done)
    rate = 2 * (number - 1) / number * size / seconds
    return (
        f"{name} over {number} pods: {rate / 1e9:.2f} GB/s each way "
        f"({size // MIB} MiB in {1000 * seconds:.0f} ms)"
    )


def _members(pod: PodSeen) -> list[int]:
    return list((pod.summed or {}).get("members") or [])


def _failure(pod: PodSeen) -> str:
    return str((pod.summed or {}).get("failure") or "")


def _of(one: Looked, key: str) -> int | None:
    value: int | None = one.answer.get(key)
    return value


def _size(number: int) -> str:
    if number >= GIB:
        return f"{number / GIB:.1f} GiB"
    return f"{number // MIB} MiB"
