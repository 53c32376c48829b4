"""What a client of the Kubernetes API costs the operator: memory beside kopf.

Each in an environment of its own under `.bench/`, made on first use. kopf imports the official clients by
itself where they are installed. `--json FILE` writes the figures for `write_docs.py`.
"""

import argparse
import statistics
import subprocess
from pathlib import Path

from benchmarks.operator.operator_process import PACKAGES
from benchmarks.support.environment import make_environment
from benchmarks.support.figures import Figures

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
import importlib, resource, sys
import kopf
importlib.import_module(sys.argv[1])
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
"""


def measure(programs: Path, module: str) -> float:
    """Median of the most MiB that were resident during the imports."""
    command = [str(programs / "python"), "-c", MEASURE, module]
    return statistics.median(float(subprocess.check_output(command)) for _ in range(REPETITIONS))


def main() -> None:
    """Measure all and print the figures."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    figures = Figures()
    for name, (packages, module) in CLIENTS.items():
        folder = f"client-{name.replace(' ', '-')}"
        programs = make_environment(folder, [KOPF, *packages], torch="")
        figures.add(f"{name}: memory", measure(programs, module), "MiB")
    if options.json:
        figures.write(options.json, packages=PACKAGES, facts={})


if __name__ == "__main__":
    main()
