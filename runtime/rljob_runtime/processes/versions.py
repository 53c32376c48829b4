"""All nodes of a run have the same rljob, Ray and Python; called by `launch` on a cluster.

Ray itself refuses a node or a driver with another Ray or Python. It knows nothing of rljob, and an
older rljob on one node fails late and unclearly; so every node is asked before the first actor.
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
    """`ray.init`. Raises VersionError where the cluster has another Ray or Python."""
    try:
        ray.init(**options)
    except RuntimeError as error:
        if "Version mismatch" not in str(error):
            raise
        raise VersionError(f"{' '.join(str(error).split())}; {REMEDY}") from error


def check_nodes() -> None:
    """Ask every living node for its versions. Raises VersionError naming the nodes that differ."""
    question = _question()
    differing = differences(question(), _versions_of_nodes(question))
    if differing:
        raise VersionError(f"{'; '.join(differing)}; {REMEDY}")


def differences(own: dict[str, str], found: dict[str, dict[str, str]]) -> list[str]:
    """What differs from the driver's versions; found: versions by node."""
    return [
        f"node {node} has {package} {theirs.get(package, 'missing')}, the driver {wanted}"
        for node, theirs in sorted(found.items())
        for package, wanted in own.items()
        if theirs.get(package) != wanted
    ]


def _versions_of_nodes(question: Callable[[], dict[str, str]]) -> dict[str, dict[str, str]]:
    """Versions by address of every living node. One that leaves while it is asked is not waited for: Ray
    still lists a lost node as living for a while."""
    ask = ray.remote(num_cpus=0, max_retries=0)(question)
    deadline = time.monotonic() + DEADLINE_SECONDS
    found: dict[str, dict[str, str]] = {}
    while missing := {n: address for n, address in _living().items() if n not in found}:
        left = deadline - time.monotonic()
        if left <= 0:
            unheard = ", ".join(sorted(missing.values()))
            raise WorkerError(f"no answer within {DEADLINE_SECONDS:.0f} s from nodes {unheard}")
        calls = {
            ask.options(
                scheduling_strategy=NodeAffinitySchedulingStrategy(node, soft=False)
            ).remote(): node
            for node in missing
        }
        answered, _ = ray.wait(list(calls), num_returns=len(calls), timeout=left)
        for call in answered:
            with suppress(*LEFT_MEANWHILE):
                found[calls[call]] = ray.get(call, timeout=max(deadline - time.monotonic(), 0))
        if len(answered) == len(calls) and not found.keys() >= missing.keys():
            time.sleep(ASK_AGAIN_SECONDS)
    return {address: found[node] for node, address in _living().items() if node in found}


def _living() -> dict[str, str]:
    return {node["NodeID"]: node["NodeManagerAddress"] for node in ray.nodes() if node["Alive"]}


def _question() -> Callable[[], dict[str, str]]:
    """A function that Ray sends as code: a node's rljob may not have this module."""

    def versions() -> dict[str, str]:
        import platform
        from contextlib import suppress
        from importlib.metadata import PackageNotFoundError, version

        found = {"python": ".".join(platform.python_version_tuple()[:2])}
        for package in ("ray", "rljob"):
            with suppress(PackageNotFoundError):
                found[package] = version(package)
        return found

    return versions
