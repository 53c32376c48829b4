"""The quickstart over several seeds: held-out accuracy before and after, minutes, tokens a second.

`--seeds 0 1 2 3` runs `examples/quickstart.yaml` once for each seed, one after the other; every seed
that is run is shown. `--json FILE` writes the figures for `write_docs.py`.
"""

import argparse
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import yaml

from benchmarks import ROOT
from benchmarks.support.results import describe_machine


def run(seed: int, folder: Path, steps: int | None) -> dict[str, Any]:
    """One quickstart, with its own tiny model."""
    job = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    job["spec"]["seed"] = seed
    if steps is not None:
        job["spec"]["steps"] = steps
    file, output = folder / f"seed-{seed}.yaml", folder / f"seed-{seed}"
    file.write_text(yaml.safe_dump(job))
    command = [str(Path(sys.executable).with_name("rljob")), "run", str(file)]
    started = time.monotonic()
    subprocess.run([*command, "--output", str(output)], check=True, stdout=subprocess.DEVNULL)
    seconds = time.monotonic() - started
    events = [json.loads(line) for line in (output / "events.jsonl").read_text().splitlines()]
    checks = [event for event in events if event["kind"] == "evaluation"]
    steps_seen = [event for event in events if event["kind"] == "step"]
    speeds = sorted(event["metrics"]["response_tokens_per_second"] for event in steps_seen)
    return {
        "seed": seed,
        "before": checks[0]["accuracy"],
        "after": checks[-1]["accuracy"],
        "stderr": checks[-1]["stderr"],
        "prompts": checks[-1]["n"],
        "seconds": seconds,
        "training_seconds": steps_seen[-1]["time"] - steps_seen[0]["time"],
        "response_tokens_per_second": speeds[len(speeds) // 2],
    }


def main() -> None:
    """Run the seeds and print a row for each."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2, 3])
    parser.add_argument("--quick", action="store_true", help="one seed, 20 steps")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    seeds, steps = (options.seeds[:1], 20) if options.quick else (options.seeds, None)
    with tempfile.TemporaryDirectory() as folder:
        rows = []
        for seed in seeds:
            row = run(seed, Path(folder), steps)
            rows.append(row)
            print(
                f"seed {seed}: {row['before']:.1%} → {row['after']:.1%} "
                f"(±{1.96 * row['stderr']:.1%}), {row['seconds']:.0f} s",
                flush=True,
            )
    if options.json:
        machine = describe_machine(["torch", "ray", "reasoning-gym"])
        options.json.write_text(json.dumps({"machine": machine, "seeds": rows}, indent=2) + "\n")


if __name__ == "__main__":
    main()
