"""Processes of a Ray of several nodes on this machine."""

from typing import TYPE_CHECKING

import psutil
import pytest

from rljob_operator.build.pods import MISSED_NODES

if TYPE_CHECKING:
    from ray._private.node import Node


def processes_of(node: "Node") -> list[psutil.Process]:
    """Ray's workers on a node, the oldest at the front."""
    (raylet,) = node.all_processes["raylet"]
    found = psutil.Process(raylet.process.pid).children()
    workers = [process for process in found if process.name().startswith("ray::")]
    return sorted(workers, key=lambda process: process.create_time())


def miss_nodes_soon(patch: pytest.MonkeyPatch) -> None:
    """A Ray that starts after this misses nodes as one in pods does."""
    for name, value in MISSED_NODES.items():
        patch.setenv(f"RAY_health_check_{name}", value)
