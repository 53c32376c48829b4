"""Check that all nodes of a run have the same rljob, Ray and Python; called by `launch` on a cluster.

Ray itself refuses a node or a driver with another Ray or Python. It does not check rljob, and an older
rljob on one node fails late and unclearly. So the versions of every node are requested before the first
actor starts.
"""

import time
from collections.abc import Callable
from contextlib import suppress
from typing import Any

import ray
from ray.exceptions import (
    GetTimeoutError,
    NodeDiedError,
    TaskUnschedulableError,
    WorkerCrashedError,
)
from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

from rljob_runtime.errors import VersionError, WorkerError

DEADLINE_SECONDS = 300.0
ASK_AGAIN_SECONDS = 1.0
LEFT_MEANWHILE = (TaskUnschedulableError, NodeDiedError, WorkerCrashedError, GetTimeoutError)
REMEDY = "use one image for all pods of a job (spec.image, spec.podTemplates.*.image)"


def connect(**options: Any) -> None:
    """Call `ray.init`. Raises VersionError if the cluster has another Ray or Python."""
    try:
        ray.init(**options)
    except RuntimeError as error:
        if "Version mismatch" not in str(error):
            raise
        raise VersionError(f"{' '.join(str(error).split())}; {REMEDY}") from error


def check_nodes() -> None:
    """Request the versions of every living node. Raises VersionError naming the nodes that differ."""
    versions_function = _versions_function()
    differing = differences(versions_function(), _versions_of_nodes(versions_function))
    if differing:
        raise VersionError(f"{'; '.join(differing)}; {REMEDY}")


def differences(expected: dict[str, str], by_node: dict[str, dict[str, str]]) -> list[str]:
    """Describe how nodes differ from the driver's versions. by_node: versions by node."""
    return [
        f"node {node} has {package} {actual.get(package, 'missing')}, the driver {version}"
        for node, actual in sorted(by_node.items())
        for package, version in expected.items()
        if actual.get(package) != version
    ]


def _versions_of_nodes(
    versions_function: Callable[[], dict[str, str]],
) -> dict[str, dict[str, str]]:
    """Return the versions by address of every living node. A node that leaves meanwhile is not waited
    for: Ray still lists a lost node as living for a while."""
    ask = ray.remote(num_cpus=0, max_retries=0)(versions_function)
    deadline = time.monotonic() + DEADLINE_SECONDS
    versions: dict[str, dict[str, str]] = {}
    while missing := {n: address for n, address in _living().items() if n not in versions}:
        left = deadline - time.monotonic()
        if left <= 0:
            silent = ", ".join(sorted(missing.values()))
            raise WorkerError(f"no answer within {DEADLINE_SECONDS:.0f} s from nodes {silent}")
        calls = {
            ask.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
            ).remote(): node
            for node in missing
        }
        answered, _ = ray.wait(list(calls), num_returns=len(calls), timeout=left)
        for call in answered:
            with suppress(*LEFT_MEANWHILE):
                versions[calls[call]] = ray.get(call, timeout=max(deadline - time.monotonic(), 0))
        if len(answered) == len(calls) and not versions.keys() >= missing.keys():
            time.sleep(ASK_AGAIN_SECONDS)
    return {address: versions[node] for node, address in _living().items() if node in versions}


def _living() -> dict[str, str]:
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def _versions_function() -> Callable[[], dict[str, str]]:
    """Return a function that Ray sends as code, since a node's rljob may not have this module."""

    def versions() -> dict[str, str]:
        import platform
        from contextlib import suppress
        from importlib.metadata import PackageNotFoundError, version

        installed = {"python": ".".join(platform.python_version_tuple()[:2])}
        for package in ("ray", "rljob"):
            with suppress(PackageNotFoundError):
                installed[package] = version(package)
        return installed

    return versions
