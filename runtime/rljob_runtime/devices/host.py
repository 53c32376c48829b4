"""Available memory of this machine or its container. Called before a run starts."""

from pathlib import Path

import psutil

CGROUP = Path("/sys/fs/cgroup")
"""The control group of a container, mounted inside it (cgroup v2)."""


def host_bytes(cgroup: Path = CGROUP) -> int:
    """Return the bytes that can be allocated: the machine's, bounded by the container's limit."""
    available = int(psutil.virtual_memory().available)
    try:
        limit = (cgroup / "memory.max").read_text().strip()
        used = int((cgroup / "memory.current").read_text())
        cached = _inactive_file_bytes(cgroup / "memory.stat")
    except OSError:
        return available
    return available if limit == "max" else min(available, int(limit) - used + cached)


def _inactive_file_bytes(stat: Path) -> int:
    """Return the bytes of file cache that the kernel reclaims under memory pressure."""
    for line in stat.read_text().splitlines():
        name, _, value = line.partition(" ")
        if name == "inactive_file":
            return int(value)
    return 0
