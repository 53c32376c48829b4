"""What the end-to-end tests need from the outside: how this cluster takes images and loses nodes.

Read from the environment, because every kind of cluster has its own way; `make e2e` and docs/e2e.md say
which. Nothing here knows RLJobs.
"""

import os
import shlex
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import UTC, datetime
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
IMAGES = ("operator", "runtime", "device-plugin")
BUILD_SECONDS, LOAD_SECONDS, NODE_SECONDS, LEASE_SECONDS = 1500, 900, 120, 45


@dataclass(frozen=True, slots=True, kw_only=True)
class Tools:
    """Commands of this cluster. load: takes archives of images as arguments. kill_node, start_node: take a
    node's name; empty where nodes cannot be killed."""

    load: str
    kill_node: str
    start_node: str
    registry: str
    tag: str

    @classmethod
    def from_environment(cls) -> "Tools":
        """RLJOB_E2E_LOAD and so on; without RLJOB_E2E_LOAD the nodes must be able to pull the images."""
        return cls(
            load=os.environ.get("RLJOB_E2E_LOAD", ""),
            kill_node=os.environ.get("RLJOB_E2E_KILL_NODE", ""),
            start_node=os.environ.get("RLJOB_E2E_START_NODE", ""),
            registry=os.environ.get("REGISTRY", "localhost"),
            tag=os.environ.get("TAG", "dev"),
        )

    def image(self, name: str) -> str:
        """Full name of one of rljob's images."""
        return f"{self.registry}/rljob-{name}:{self.tag}"


def run(command: str | list[str], *, seconds: float, check: bool = True) -> str:
    """Output of a command; an error shows all of it."""
    words = shlex.split(command) if isinstance(command, str) else command
    done = subprocess.run(
        words, cwd=ROOT, capture_output=True, text=True, timeout=seconds, check=False
    )
    if check and done.returncode != 0:
        raise AssertionError(
            f"{' '.join(words)} ended with {done.returncode}:\n{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
        )
    return done.stdout


@contextmanager
def without(tools: Tools, node: str) -> Iterator[None]:
    """The node is lost meanwhile."""
    if not tools.kill_node:
        pytest.skip("RLJOB_E2E_KILL_NODE says how this cluster loses a node; it is not set")
    run(f"{tools.kill_node} {node}", seconds=NODE_SECONDS)
    try:
        yield
    finally:
        start_node(tools, node)


def start_node(tools: Tools, node: str) -> None:
    """Bring it back; again where its kubelet does not report, which may have come before its container
    runtime."""
    for _ in range(3):
        since = datetime.now(UTC)
        run(f"{tools.start_node} {node}", seconds=NODE_SECONDS)
        if _reports(node, since):
            return
        run(f"{tools.kill_node} {node}", seconds=NODE_SECONDS)
    raise AssertionError(f"node {node} does not report, {LEASE_SECONDS} s after its third start")


def _reports(node: str, since: datetime) -> bool:
    """Whether its kubelet renews its lease within LEASE_SECONDS."""
    ask = [
        "kubectl",
        "get",
        "lease",
        node,
        "-n",
        "kube-node-lease",
        "-o",
        "jsonpath={.spec.renewTime}",
    ]
    deadline = time.monotonic() + LEASE_SECONDS
    while time.monotonic() < deadline:
        if datetime.fromisoformat(run(ask, seconds=30)) > since:
            return True
        time.sleep(0.5)
    return False


def build_and_load(tools: Tools, folder: Path) -> None:
    """Build all images from the tree, and give them to every node."""
    run(["images/build.sh", *IMAGES], seconds=BUILD_SECONDS)
    if not tools.load:
        return
    for name in IMAGES:
        archive = folder / f"{name}.tar"
        save_image(tools.image(name), archive)
        run([*shlex.split(tools.load), str(archive)], seconds=LOAD_SECONDS)
        archive.unlink()


def save_image(image: str, archive: Path) -> None:
    """Write an image that docker or buildah holds into a file."""
    if subprocess.run(["docker", "info"], capture_output=True, check=False).returncode == 0:
        run(["docker", "save", "-o", str(archive), image], seconds=LOAD_SECONDS)
    else:
        target = f"docker-archive:{archive}:{image}"
        run(["buildah", "push", "-q", image, target], seconds=LOAD_SECONDS)
