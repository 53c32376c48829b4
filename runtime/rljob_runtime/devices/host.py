"""Memory that this machine, or the container around it, still has. Called before a run starts."""

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
"""Of a container, as it sees it itself (cgroup v2)."""


def host_bytes(cgroup: Path = CGROUP) -> int:
    """Bytes that can still be taken: of the machine, and not beyond the container's limit."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        cached = _inactive(cgroup / "memory.stat")
    except OSError:
        return available
    return available if limit == "max" else min(available, int(limit) - used + cached)


def _inactive(stat: Path) -> int:
    """Pages of files that are given back when memory is wanted."""
    for line in stat.read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0
