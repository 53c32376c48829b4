"""Findings of a probe about networks: interfaces, the devices' NICs and the all-reduce. Pure."""

from collections.abc import Iterator
from typing import Any

from rljob_runtime.cli.doctor.findings import Finding, Skip, fail, ok, skipped, warn
from rljob_runtime.cli.doctor.probe.plan import ProbePlan
from rljob_runtime.cli.doctor.probe.seen import Answers, PodReport

MIB = 2**20
SOCKET_VARIABLES = ("HCCL_SOCKET_IFNAME", "GLOO_SOCKET_IFNAME")


def networks(plan: ProbePlan, answers: Answers) -> Iterator[Finding]:
    """Check that each pod has an interface that is up, and the one that HCCL's or gloo's variable names."""
    for pod, result in answers:
        interfaces: dict[str, Any] = result.answer["interfaces"]
        up = {
            name
            for name, interface in interfaces.items()
            if interface["up"] and interface["addresses"]
        }
        for variable in SOCKET_VARIABLES:
            named = result.answer["environment"].get(variable)
            if named and not _matches_interface(variable, named, up):
                text = (
                    f"{pod.node}: {variable}={named}, but up are {', '.join(sorted(up)) or 'none'}"
                )
                yield fail(text, "set it in podTemplates.worker.env to one that is up")
        if not up:
            yield fail(f"{pod.node}: no interface is up with an address", "see the CNI plugin")
    sizes = {
        (name, interface["mtu"]): pod.node
        for pod, result in reversed(answers)
        for name, interface in sorted(result.answer["interfaces"].items())
        if interface["up"] and interface["addresses"]
    }
    shown = ", ".join(f"{name} mtu {mtu} ({node})" for (name, mtu), node in sorted(sizes.items()))
    if len(sizes) > len({name for name, _ in sizes}):
        remedy = "give the interface one mtu on all nodes: larger packets may be lost on the way"
        yield warn(f"nodes differ: {shown}", remedy)
    elif sizes:
        yield ok(shown)


def _matches_interface(variable: str, named: str, up: set[str]) -> bool:
    """Return whether the variable's value matches an interface that is up. gloo takes full names. HCCL takes
    prefixes, with `=` in front full names, and with `^` in front excludes what matches."""
    is_exact = variable.startswith("GLOO") or named.startswith(("=", "^="))
    words = [word for word in named.lstrip("^=").split(",") if word]

    def fits(name: str) -> bool:
        return any(name == word if is_exact else name.startswith(word) for word in words)

    return any(fits(name) != named.startswith("^") for name in up)


def device_networks(plan: ProbePlan, answers: Answers) -> Iterator[Finding]:
    """Check that on Ascend each device's NIC has an address."""
    if not plan.ascend:
        return
    for pod, result in answers:
        addresses, devices, source = (
            result.answer["device_addresses"],
            result.answer["devices"],
            "/etc/hccn.conf",
        )
        if addresses is None:
            addresses, source = pod.nics, "the device plugin"
        if addresses is None:
            why = (
                "neither /etc/hccn.conf in the pod, which Ascend's container runtime does not mount, nor "
                "the device plugin's annotation of it; on the node, hccn_tool -i 0 -ip -g shows addresses"
            )
            yield skipped(f"{pod.node}: {why}")
        elif len(addresses) < devices:
            text = (
                f"{pod.node}: {source} has addresses of {len(addresses)} devices, the pod {devices}"
            )
            yield warn(text, "hccn_tool -i N -ip -s address ... on the node")
        else:
            yield ok(f"{pod.node}: {len(addresses)} devices with addresses of their own")


def all_reduce(plan: ProbePlan, answers: Answers) -> Iterator[Finding]:
    """Check the all-reduce: which pods arrived, which failed, and its bandwidth."""
    name = "hccl" if plan.ascend else "gloo"
    participants = [pod for pod, _ in answers if pod.all_reduce is not None]
    if not participants:
        raise Skip("it takes two pods that run")
    members = max((_members(pod) for pod in participants), key=len)
    absent = [pod for rank, pod in enumerate(participants) if rank not in members]
    for pod in absent:
        why = _failure(pod) or "it was not heard"
        remedy = (
            f"let pods of the namespace reach each other: NetworkPolicies, routes to {pod.node}"
        )
        yield fail(f"{pod.name} on {pod.node} did not arrive: {why}", remedy)
    broken = [pod for pod in participants if pod not in absent and _failure(pod)]
    for pod in broken:
        remedy = "see networks; firewalls between nodes, HCCL_SOCKET_IFNAME, the devices' NICs"
        yield fail(f"{pod.name} on {pod.node}: {_failure(pod)}", remedy)
    wrong = [pod for pod in participants if (pod.all_reduce or {}).get("correct") is False]
    for pod in wrong:
        yield fail(f"{pod.name} on {pod.node} got a wrong sum", "take the node out of use")
    results = [
        pod.all_reduce for pod in participants if pod.all_reduce and "seconds" in pod.all_reduce
    ]
    if results and not broken and not wrong:
        yield ok(_bandwidth(name, members, results))


def _bandwidth(name: str, members: list[int], results: list[dict[str, Any]]) -> str:
    """Return the bandwidth of the slowest rank; a ring moves 2 (n - 1) / n of the bytes over each link."""
    number, size = len(members), results[0]["bytes"]
    seconds = max(result["seconds"] for result in results)
    rate = 2 * (number - 1) / number * size / seconds
    return (
        f"{name} over {number} pods: {rate / 1e9:.2f} GB/s each way "
        f"({size // MIB} MiB in {1000 * seconds:.0f} ms)"
    )


def _members(pod: PodReport) -> list[int]:
    return list((pod.all_reduce or {}).get("members") or [])


def _failure(pod: PodReport) -> str:
    return str((pod.all_reduce or {}).get("failure") or "")
