"""What a client of the Kubernetes API costs the operator: memory and time to import it beside kopf.

Each in an environment of its own under `.bench/`, made on first use. kopf imports the official clients by
itself where they are installed. `--json FILE` writes the figures for `write_docs.py`.
"""

import argparse
import json
import statistics
import subprocess
from pathlib import Path

from operators import Figures
from peers.environment import make_environment

KOPF = "kopf==1.45.2"
CLIENTS = {
    "kopf alone": ([], "kopf"),
    "lightkube": (["lightkube==1.0.1"], "lightkube"),
    "kr8s": (["kr8s"], "kr8s.asyncio"),
    "kubernetes_asyncio": (["kubernetes_asyncio"], "kubernetes_asyncio.client"),
    "kubernetes": (["kubernetes"], "kubernetes.client"),
}
"""Packages beside kopf, and the module that is imported."""
REPETITIONS = 5
MEASURE = """
import json, resource, sys, time
began = time.perf_counter()
import kopf
import importlib
importlib.import_module(sys.argv[1])
used = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
print(json.dumps([used, time.perf_counter() - began]))
"""


def measure(programs: Path, module: str) -> tuple[float, float]:
    """Medians of resident MiB and seconds after the imports; the first is a warm-up."""
    command = [str(programs / "python"), "-c", MEASURE, module]
    found = [json.loads(subprocess.check_output(command)) for _ in range(REPETITIONS + 1)][1:]
    return statistics.median(f[0] for f in found), statistics.median(f[1] for f in found)


def main() -> None:
    """Measure all and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = Figures()
    for name, (packages, module) in CLIENTS.items():
        folder = f"client-{name.replace(' ', '-')}"
        memory, seconds = measure(make_environment(folder, [KOPF, *packages], torch=""), module)
        figures.add(f"{name}: memory", memory, "MiB")
        figures.add(f"{name}: time to import", 1000 * seconds, "ms")
    if options.json:
        figures.write(options.json)


if __name__ == "__main__":
    main()
