"""How long a run takes to its first step, and to its end, with Ray and without: `rljob run`, `--local`.

Both sides in turn, `--repetitions` times, on the quickstart cut to two steps, whose model is made before.
"""

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks import ROOT
from benchmarks.support.results import describe_machine

SIDES: dict[str, list[str]] = {"ray": [], "local": ["--local"]}


def job_file(folder: Path) -> Path:
    """The quickstart's first two steps."""
    job = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    job["spec"] |= {"steps": 2, "evaluation": None}
    file = folder / "job.yaml"
    file.write_text(yaml.safe_dump(job))
    return file


def run(file: Path, output: Path, options: list[str]) -> dict[str, float]:
    """Seconds from the command to the end of its first step and to its own end."""
    command = [str(Path(sys.executable).with_name("rljob")), "run", str(file)]
    clock, began = time.time(), time.monotonic()
    subprocess.run(
        [*command, "--output", str(output), *options], check=True, stdout=subprocess.DEVNULL
    )
    ended = time.monotonic() - began
    events = [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]
    first = next(event["time"] for event in events if event["kind"] == "step")
    return {"first_step": first - clock, "end": ended}


def main() -> None:
    """Print the medians of both sides and their ratio."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--repetitions", type=int, default=5)
    parser.add_argument("--quick", action="store_true", help="two repetitions")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    found: dict[str, list[dict[str, float]]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        file = job_file(Path(folder))
        run(file, Path(folder) / "before", SIDES["local"])
        for turn in range(2 if options.quick else options.repetitions):
            for side, words in SIDES.items():
                found[side].append(run(file, Path(folder) / f"{side}-{turn}", words))
    medians: dict[str, Any] = {
        side: {key: statistics.median(row[key] for row in rows) for key in rows[0]}
        for side, rows in found.items()
    }
    for key in ("first_step", "end"):
        ray, local = medians["ray"][key], medians["local"][key]
        print(f"{key}: with Ray {ray:.1f} s, without {local:.1f} s, ratio {ray / local:.2f}")
    if options.json:
        machine = describe_machine(["torch", "ray"])
        told = {"machine": machine, "sides": found}
        options.json.write_text(json.dumps(told, indent=2) + "\n")


if __name__ == "__main__":
    main()
