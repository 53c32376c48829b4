"""Two machines and an unlimited link: the dock's reads over TCP beside bare sockets, in turns."""

import json
import subprocess
import sys
from statistics import median, quantiles
from typing import Any

from benchmarks.dock.sample_flow.network import Network
from benchmarks.dock.sample_flow.processes import environment
from benchmarks.support.figures import Figures

PORT = 7001
BARE_PORT = 7101
ROW_BYTES = 1_000_000
BATCH_BYTES = 64 * ROW_BYTES
LEAST_PERCENT, MOST_SPREAD = 90.0, 10.0
PROBE = ("-m", "rljob_runtime.dock.probe")
BARE = ("-m", "benchmarks.dock.sample_flow.link")


def compare_with_sockets(figures: Figures, *, quick: bool) -> dict[str, list[float]]:
    """MB/s of each turn by side, rows of 1 MB. Raises NoNetworks."""
    repetitions, turns = (2, 2) if quick else (15, 3)
    rates: dict[str, list[float]] = {"dock": [], "sockets": []}
    with Network(["near", "far"]) as network:
        near, far = network.prefix("near"), network.address("far")
        at = ["--host", far, "--port", str(PORT)]
        servers = [
            _start([*network.prefix("far"), sys.executable, *PROBE, "serve", *at]),
            _start([*network.prefix("far"), sys.executable, *BARE, "serve", far, str(BARE_PORT)]),
        ]
        try:
            for _ in range(repetitions):
                sizes = ["--row-bytes", str(ROW_BYTES), "--turns", str(turns), "--mode", "tcp"]
                found = _ask(
                    [*near, sys.executable, *PROBE, "read", "--address", f"{far}:{PORT}", *sizes]
                )
                rates["dock"].append(1e3 * found["row_bytes"][str(ROW_BYTES)]["read_gb_per_second"])
                bare = [far, str(BARE_PORT), str(BATCH_BYTES), str(turns)]
                rates["sockets"].append(_ask([*near, sys.executable, *BARE, "read", *bare]) / 1e6)
        finally:
            for server in servers:
                server.kill()
                server.wait()
    for side, values in rates.items():
        figures.add(f"reading over TCP, another machine: {side}", median(values), "MB/s")
    shares = [100 * dock / bare for dock, bare in zip(*rates.values(), strict=True)]
    low, middle, high = quantiles(shares, n=4)
    figures.add("the dock's rate of the sockets'", middle, "%", least=LEAST_PERCENT)
    spread = 100 * (high - low) / middle
    figures.add("between the quartiles of its turns", spread, "% of it", MOST_SPREAD)
    return rates


def _start(command: list[str]) -> "subprocess.Popen[str]":
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment())
    assert server.stdout is not None, "a server without its output"
    if not server.stdout.readline():
        raise RuntimeError(f"{' '.join(command)} ended: {server.wait()}")
    return server


def _ask(command: list[str]) -> Any:
    done = subprocess.run(command, check=True, capture_output=True, text=True, env=environment())
    return json.loads(done.stdout)
