"""The program in a probe's pods: `python -c THIS look|reduce JSON`. It does not import rljob.

Every line that it prints is JSON: a `{"stage": ...}` heartbeat, and the result as the last line.
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
    """Run the command of the arguments, print its result and exit."""
    command, arguments = sys.argv[1], json.loads(sys.argv[2])
    stage = ProgramStage(arguments["seconds"])
    result = {"look": inspect, "reduce": reduce}[command](arguments, stage)
    write_line({"result": result})
    os._exit(0)  # threads of a library that do not end would keep the shell open


def write_line(message: dict[str, Any]) -> None:
    """Print one line of JSON and flush it."""
    sys.stdout.write(json.dumps(message) + "\n")
    sys.stdout.flush()


class ProgramStage:
    """The current stage and partial result; exits the process at the deadline, whatever it hangs in."""

    def __init__(self, seconds: float) -> None:
        self.name = "start"
        self.partial_result: dict[str, Any] = {}
        self.end = time.monotonic() + seconds
        threading.Thread(target=self._beat, daemon=True).start()

    def seconds_left(self) -> float:
        """Return the seconds until the deadline, at least 1."""
        return max(1.0, self.end - time.monotonic())

    def _beat(self) -> None:
        while time.monotonic() < self.end:
            write_line({"stage": self.name})
            time.sleep(min(BEAT_SECONDS, self.seconds_left()))
        write_line({"result": {**self.partial_result, "failure": f"no end of: {self.name}"}})
        os._exit(1)


def inspect(arguments: dict[str, Any], stage: ProgramStage) -> dict[str, Any]:
    """Describe the pod's environment. arguments: `folders`, whose free space is reported."""
    return {
        "time": time.time(),
        "shm_bytes": file_system_bytes("/dev/shm", total=True),
        "disk": {folder: file_system_bytes(folder) for folder in arguments["folders"]},
        "writable": {folder: os.access(folder, os.W_OK) for folder in arguments["folders"]},
        "interfaces": interfaces(),
        "environment": {k: v for k, v in os.environ.items() if k.startswith(VARIABLES)},
        "devices": len(glob("/dev/davinci[0-9]*")),
        "device_addresses": device_addresses(),
        "software": {name: installed(name) for name in ("rljob", "ray", "torch", "torch-npu")},
    }


def file_system_bytes(folder: str, *, total: bool = False) -> int | None:
    """Return the free bytes of a folder's file system, or its size with `total`; None without the folder."""
    try:
        statistics = os.statvfs(folder)
    except OSError:
        return None
    return statistics.f_frsize * (statistics.f_blocks if total else statistics.f_bavail)


def interfaces() -> dict[str, dict[str, Any]]:
    """Return all network interfaces except lo: whether each is up, its mtu and addresses."""
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
    """Return the addresses of the devices' NICs by device; None without Ascend's file of them."""
    try:
        text = HCCN.read_text()
    except OSError:
        return None
    return dict(re.findall(r"^\s*address_(\d+)\s*=\s*(\S+)", text, re.MULTILINE))


def installed(package: str) -> str | None:
    """Return the version of a package of the image; None without it."""
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def reduce(arguments: dict[str, Any], stage: ProgramStage) -> dict[str, Any]:
    """Sum a tensor over all pods that arrive. arguments: backend, rank, size, address and port of rank 0, and
    arrival, the seconds to wait for other pods."""
    stage.name = "import of torch"
    import torch
    import torch.distributed as dist

    backend, rank = arguments["backend"], arguments["rank"]
    if backend == "hccl":
        import torch_npu  # noqa: F401

        torch.npu.set_device(0)  # type: ignore[attr-defined]
    stage.name = f"connection to {arguments['address']}:{arguments['port']}"
    store = dist.TCPStore(  # type: ignore[attr-defined]
        arguments["address"],
        arguments["port"],
        is_master=rank == 0,
        wait_for_workers=False,
        timeout=timedelta(seconds=stage.seconds_left()),
    )
    stage.name = "arrival of the others"
    members = gather(store, rank, arguments["size"], arguments["arrival"])
    stage.partial_result = {"rank": rank, "members": members}
    if rank not in members or len(members) < 2:
        return stage.partial_result
    stage.name = f"first {backend} collective with {len(members)} pods"
    dist.init_process_group(
        backend,
        store=dist.PrefixStore("sum", store),  # type: ignore[attr-defined]
        rank=members.index(rank),
        world_size=len(members),
        timeout=timedelta(seconds=stage.seconds_left()),
    )
    device = "npu:0" if backend == "hccl" else "cpu"
    values = torch.ones(BYTES[backend] // 4, device=device)
    dist.all_reduce(values)  # connects
    is_correct = float(values[0]) == len(members) == float(values[-1])
    stage.name = f"{backend} all-reduce of {BYTES[backend] // 2**20} MiB"
    seconds = timed(lambda: (dist.all_reduce(values), float(values[0])))
    stage.name = "the others' end"
    dist.barrier()
    dist.destroy_process_group()
    if rank == members[0]:  # hosts the store, so it exits last
        time.sleep(0.5)
    return {
        **stage.partial_result,
        "correct": is_correct,
        "bytes": BYTES[backend],
        "seconds": seconds,
    }


def timed(work: Callable[[], object]) -> float:
    """Return the seconds of the fastest of TIMES calls."""
    durations = []
    for _ in range(TIMES):
        started = time.monotonic()
        work()
        durations.append(time.monotonic() - started)
    return min(durations)


def gather(store: Any, rank: int, size: int, seconds: float) -> list[int]:
    """Return the ranks that arrived in time, counted by rank 0; the list is the same on each rank."""
    store.set(f"here-{rank}", "1")
    if rank == 0:
        end = time.monotonic() + seconds
        while True:
            arrived = [other for other in range(size) if store.check([f"here-{other}"])]
            if len(arrived) == size or time.monotonic() > end:
                break
            time.sleep(0.1)
        store.set("members", json.dumps(arrived))
    members: list[int] = json.loads(store.get("members"))
    return members


if __name__ == "__main__":
    main()
