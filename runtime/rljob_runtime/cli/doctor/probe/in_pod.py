"""The program in a probe's pods: `python -c THIS look|reduce JSON`. Knows nothing of rljob.

Every line that it prints is JSON: `{"stage": ...}` so often that nobody takes it for dead, the result last.
"""

import json
import os
import re
import socket
import sys
import threading
import time
from collections.abc import Callable
from datetime import timedelta
from glob import glob
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

BEAT_SECONDS = 5.0
BYTES = {"gloo": 16 * 2**20, "hccl": 256 * 2**20}
TIMES = 3
HCCN = Path("/etc/hccn.conf")
VARIABLES = ("HCCL_", "GLOO_", "ASCEND_VISIBLE_DEVICES", "NCCL_")


def main() -> None:
    """Entry point."""
    work, given = sys.argv[1], json.loads(sys.argv[2])
    stage = Stage(given["seconds"])
    result = {"look": look, "reduce": reduce}[work](given, stage)
    say({"result": result})
    os._exit(0)  # a library that does not end would hold the shell


def say(line: dict[str, Any]) -> None:
    """One line, at once."""
    sys.stdout.write(json.dumps(line) + "\n")
    sys.stdout.flush()


class Stage:
    """What the program does now, and knows by then; ends it when its time is over, whatever it hangs in."""

    def __init__(self, seconds: float) -> None:
        self.name = "start"
        self.known: dict[str, Any] = {}
        self.end = time.monotonic() + seconds
        threading.Thread(target=self._beat, daemon=True).start()

    def left(self) -> float:
        """Seconds that are left, 1 at least."""
        return max(1.0, self.end - time.monotonic())

    def _beat(self) -> None:
        while time.monotonic() < self.end:
            say({"stage": self.name})
            time.sleep(min(BEAT_SECONDS, self.left()))
        say({"result": {**self.known, "failure": f"no end of: {self.name}"}})
        os._exit(1)


def look(given: dict[str, Any], stage: Stage) -> dict[str, Any]:
    """What there is. given: folders, where room is wanted."""
    return {
        "time": time.time(),
        "shm_bytes": room("/dev/shm", total=True),
        "disk": {folder: room(folder) for folder in given["folders"]},
        "writable": {folder: os.access(folder, os.W_OK) for folder in given["folders"]},
        "interfaces": interfaces(),
        "environment": {k: v for k, v in os.environ.items() if k.startswith(VARIABLES)},
        "devices": len(glob("/dev/davinci[0-9]*")),
        "device_addresses": device_addresses(),
        "software": {name: installed(name) for name in ("rljob", "ray", "torch", "torch-npu")},
    }


def room(folder: str, *, total: bool = False) -> int | None:
    """Free bytes of a folder's file system, or all of them."""
    try:
        found = os.statvfs(folder)
    except OSError:
        return None
    return found.f_frsize * (found.f_blocks if total else found.f_bavail)


def interfaces() -> dict[str, dict[str, Any]]:
    """Network interfaces but lo: whether they are up, their addresses."""
    import psutil

    addresses, states = psutil.net_if_addrs(), psutil.net_if_stats()
    families = (socket.AF_INET, socket.AF_INET6)
    return {
        name: {
            "up": states[name].isup if name in states else False,
            "mtu": states[name].mtu if name in states else 0,
            "addresses": [a.address for a in addresses[name] if a.family in families],
        }
        for name in addresses
        if name != "lo"
    }


def device_addresses() -> dict[str, str] | None:
    """Addresses of the devices' own NICs by device; None without Ascend's file of them."""
    try:
        text = HCCN.read_text()
    except OSError:
        return None
    return dict(re.findall(r"^\s*address_(\d+)\s*=\s*(\S+)", text, re.MULTILINE))


def installed(package: str) -> str | None:
    """Version of a package of the image."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def reduce(given: dict[str, Any], stage: Stage) -> dict[str, Any]:
    """Sum a tensor over all pods that come. given: backend, rank, size, address and port of rank 0, and
    arrival, the seconds for which others are waited for."""
    stage.name = "import of torch"
    import torch
    import torch.distributed as dist

    backend, rank = given["backend"], given["rank"]
    if backend == "hccl":
        import torch_npu  # noqa: F401

        torch.npu.set_device(0)  # type: ignore[attr-defined]
    stage.name = f"connection to {given['address']}:{given['port']}"
    store = dist.TCPStore(  # type: ignore[attr-defined]
        given["address"],
        given["port"],
        is_master=rank == 0,
        wait_for_workers=False,
        timeout=timedelta(seconds=stage.left()),
    )
    stage.name = "arrival of the others"
    members = gather(store, rank, given["size"], given["arrival"])
    stage.known = {"rank": rank, "members": members}
    if rank not in members or len(members) < 2:
        return stage.known
    stage.name = f"first {backend} collective with {len(members)} pods"
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("sum", store),  # type: ignore[attr-defined]
        rank=members.index(rank),
        world_size=len(members),
        timeout=timedelta(seconds=stage.left()),
    )
    device = "npu:0" if backend == "hccl" else "cpu"
    values = torch.ones(BYTES[backend] // 4, device=device)
    dist.all_reduce(values)  # connects
    right = float(values[0]) == len(members) == float(values[-1])
    stage.name = f"{backend} all-reduce of {BYTES[backend] // 2**20} MiB"
    seconds = timed(lambda: (dist.all_reduce(values), float(values[0])))
    stage.name = "the others' end"
    dist.barrier()
    dist.destroy_process_group()
    if rank == members[0]:  # holds the store: leaves last
        time.sleep(0.5)
    return {**stage.known, "correct": right, "bytes": BYTES[backend], "seconds": seconds}


def timed(work: Callable[[], object]) -> float:
    """Seconds of the quickest of TIMES."""
    taken = []
    for _ in range(TIMES):
        began = time.monotonic()
        work()
        taken.append(time.monotonic() - began)
    return min(taken)


def gather(store: Any, rank: int, size: int, seconds: float) -> list[int]:
    """The ranks that came within the time, as rank 0 counts them; the same list on each."""
    store.set(f"here-{rank}", "1")
    if rank == 0:
        end = time.monotonic() + seconds
        while True:
            here = [other for other in range(size) if store.check([f"here-{other}"])]
            if len(here) == size or time.monotonic() > end:
                break
            time.sleep(0.1)
        store.set("members", json.dumps(here))
    found: list[int] = json.loads(store.get("members"))
    return found


if __name__ == "__main__":
    main()
