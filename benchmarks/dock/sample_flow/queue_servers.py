"""TransferQueue's servers on a cluster, as many storage units as nodes, each on a machine of its own.

Its actors need a Ray over these machines: the head's has the controller, every other one a unit. The
workers are not part of that Ray: they are told where the servers listen.
"""

import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.dock.sample_flow.network import Network
from benchmarks.dock.sample_flow.processes import Process, environment

HEAD, GCS_PORT = "head", 6379
UNIT_RESOURCE = "storage_unit"
STORE_BYTES = 100 << 20
STARTED = "Ray runtime started"
FEW_PROCESSES = {"RAY_enable_worker_prestart": "0", "RAY_prestart_worker_first_driver": "0"}
"""No worker processes but those of the actors."""
START_ATTEMPTS = 3
CLOSE_SECONDS = 20.0


class QueueServers:
    """See sample_flow.cluster.Servers. programs: of TransferQueue's environment."""

    side = "TransferQueue"
    claimed_rows = 8

    def __init__(self, units: int, programs: Path) -> None:
        self.data = [f"data{i}" for i in range(units)]
        self.machines = [*self.data, HEAD]
        self.python = str(programs / "python")
        self._ray = str(programs / "ray")
        self._rays: list[subprocess.Popen[str]] = []
        self._host: Process | None = None

    def start(self, network: Network, workers: Sequence[str], folder: Path) -> Any:
        """See Servers."""
        gcs = f"{network.address(HEAD)}:{GCS_PORT}"
        head = ["--head", f"--port={GCS_PORT}", "--include-dashboard=false", "--num-cpus=2"]
        self._start_ray(network, HEAD, head, folder)
        for name in self.data:
            room = f'--resources={{"{UNIT_RESOURCE}": 1}}'
            self._start_ray(network, name, [f"--address={gcs}", "--num-cpus=1", room], folder)
        prefix = network.prefix(HEAD)
        self._host = Process(self.python, folder / "queue.log", prefix=prefix)
        options = {"units": len(self.data), "address": gcs, "resource": UNIT_RESOURCE}
        return self._host.ask("host", side=self.side, **options)

    def close(self) -> None:
        """See Servers."""
        if self._host is not None:
            self._host.close()
        for ray in reversed(self._rays):
            ray.terminate()
        for ray in self._rays:
            try:
                ray.wait(CLOSE_SECONDS)
            except subprocess.TimeoutExpired:
                ray.kill()
                ray.wait()
        self._rays.clear()

    def _start_ray(self, network: Network, name: str, options: list[str], folder: Path) -> None:
        """A node of Ray that lives as long as its process; back when it is there. Ray itself gives up
        after 30 s, which a busy machine may need more than once."""
        command = [
            *network.prefix(name),
            self._ray,
            "start",
            "--block",
            "--disable-usage-stats",
            "--include-log-monitor=false",
            f"--node-ip-address={network.address(name)}",
            f"--object-store-memory={STORE_BYTES}",
            f"--temp-dir={folder / f'r{len(self._rays)}'}",  # short: paths of sockets go on from it
            *options,
        ]
        log = folder / "ray.log"
        for _ in range(START_ATTEMPTS):
            with log.open("ab") as errors:
                ray = subprocess.Popen(
                    command,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    text=True,
                    env=environment() | FEW_PROCESSES,
                )
            self._rays.append(ray)
            assert ray.stdout is not None, "a node of Ray without its output"
            if any(STARTED in line for line in ray.stdout):
                return
        raise RuntimeError(f"Ray's node on {name} ended:\n{log.read_text()[-3000:]}")
