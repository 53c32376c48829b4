"""What a probe's pods say of networks: interfaces, the devices' NICs, the sum over all pods. Pure."""

from collections.abc import Iterator
from typing import Any

from rljob_runtime.cli.doctor.findings import Finding, Skip, fail, ok, skipped, warn
from rljob_runtime.cli.doctor.probe.plan import Plan
from rljob_runtime.cli.doctor.probe.seen import Answers, PodSeen

MIB = 2**20
SOCKETS = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def networks(plan: Plan, looked: Answers) -> Iterator[Finding]:
    """Each pod has an interface, and the one that HCCL or gloo is told of."""
    for pod, one in looked:
        there: dict[str, Any] = one.answer["interfaces"]
        up = {name for name, at in there.items() if at["up"] and at["addresses"]}
        for variable in SOCKETS:
            named = one.answer["environment"].get(variable)
            if named and not _names_one(variable, named, up):
                text = (
                    f"{pod.node}: {variable}={named}, but up are {', '.join(sorted(up)) or 'none'}"
                )
                yield fail(text, "set it in podTemplates.worker.env to one that is up")
        if not up:
            yield fail(f"{pod.node}: no interface is up with an address", "see the CNI plugin")
    sizes = {
        (name, at["mtu"]): pod.node
        for pod, one in reversed(looked)
        for name, at in sorted(one.answer["interfaces"].items())
        if at["up"] and at["addresses"]
    }
    shown = ", ".join(f"{name} mtu {mtu} ({node})" for (name, mtu), node in sorted(sizes.items()))
    if len(sizes) > len({name for name, _ in sizes}):
        remedy = "give the interface one mtu on all nodes: larger packets may be lost on the way"
        yield warn(f"nodes differ: {shown}", remedy)
    elif sizes:
        yield ok(shown)


def _names_one(variable: str, named: str, up: set[str]) -> bool:
    """Whether the variable's value fits an interface. gloo takes whole names; HCCL beginnings of names, with
    `=` in front whole ones, with `^` all others."""
    whole = variable.startswith("GLOO") or named.startswith(("=", "^="))
    words = [word for word in named.lstrip("^=").split(",") if word]

    def fits(name: str) -> bool:
        return any(name == word if whole else name.startswith(word) for word in words)

    return any(fits(name) != named.startswith("^") for name in up)


def device_networks(plan: Plan, looked: Answers) -> Iterator[Finding]:
    """On Ascend, each device's NIC has an address."""
    if not plan.ascend:
        return
    for pod, one in looked:
        given, devices, where = (
            one.answer["device_addresses"],
            one.answer["devices"],
            "/etc/hccn.conf",
        )
        if given is None:
            given, where = pod.nics, "the device plugin"
        if given is None:
            why = (
                "neither /etc/hccn.conf in the pod, which Ascend's container runtime does not mount, nor "
                "the device plugin's annotation of it; on the node, hccn_tool -i 0 -ip -g shows addresses"
            )
            yield skipped(f"{pod.node}: {why}")
        elif len(given) < devices:
            text = f"{pod.node}: {where} has addresses of {len(given)} devices, the pod {devices}"
            yield warn(text, "hccn_tool -i N -ip -s address ... on the node")
        else:
            yield ok(f"{pod.node}: {len(given)} devices with addresses of their own")


def sums(plan: Plan, looked: Answers) -> Iterator[Finding]:
    """The all-reduce: who came, who hung, how fast it was."""
    name = "hccl" if plan.ascend else "gloo"
    asked = [pod for pod, _ in looked if pod.summed is not None]
    if not asked:
        raise Skip("it takes two pods that run")
    members = max((_members(pod) for pod in asked), key=len)
    absent = [pod for rank, pod in enumerate(asked) if rank not in members]
    for pod in absent:
        why = _failure(pod) or "it was not heard"
        remedy = (
            f"let pods of the namespace reach each other: NetworkPolicies, routes to {pod.node}"
        )
        yield fail(f"{pod.name} on {pod.node} did not arrive: {why}", remedy)
    broken = [pod for pod in asked if pod not in absent and _failure(pod)]
    for pod in broken:
        remedy = "see networks; firewalls between nodes, HCCL_SOCKET_IFNAME, the devices' NICs"
        yield fail(f"{pod.name} on {pod.node}: {_failure(pod)}", remedy)
    wrong = [pod for pod in asked if (pod.summed or {}).get("correct") is False]
    for pod in wrong:
        yield fail(f"{pod.name} on {pod.node} got a wrong sum", "take the node out of use")
    done = [pod.summed for pod in asked if pod.summed and "seconds" in pod.summed]
    if done and not broken and not wrong:
        yield ok(_bandwidth(name, members, done))


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
