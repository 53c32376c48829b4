"""Seconds of a training step under each flow: sync, streaming and async, on the same separated job; and the
share of the time in which each worker had work.

Quickstart-like: one device generates, one trains, and a reward service takes 300 ms for each prompt's
samples. The modes take turns; every run has the same prompts and seeds. `--json FILE` writes the table.
"""

import argparse
import statistics
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

from benchmarks import ROOT
from benchmarks.run.flow_docs import busy_parts
from benchmarks.support.results import report, summarize
from benchmarks.support.runs import history_of, seconds_a_step
from rljob_runtime.report.display.busy import busy_workers
from rljob_runtime.report.display.history import RunHistory

WARM_UP_STEPS = 2
FLOWS: dict[str, dict[str, Any]] = {
    "sync": {"mode": "sync"},
    "streaming": {"mode": "streaming"},
    "async": {"mode": "async", "maxStaleness": 1},
}
SERVICE = '''
import time
last = [None]
def reward(prompt, response, answer):
    """A service that is asked once for all samples of a prompt, which come one after the other."""
    if prompt != last[0]:
        last[0] = prompt
        time.sleep(0.3)
    return float(response == answer)
'''


def job_of(flow: dict[str, Any], steps: int) -> dict[str, Any]:
    """The quickstart with a device for each role and the slow reward."""
    job: dict[str, Any] = yaml.safe_load((ROOT / "examples" / "quickstart.yaml").read_text())
    spec = job["spec"]
    spec.pop("evaluation", None)
    spec |= {
        "steps": steps,
        "flow": flow,
        "accelerator": {"type": "emulated", "devicesPerNode": 2},
        "placement": {"mode": "separated", "updateDevices": 1, "rolloutDevices": 1},
        "rewards": [{"name": "service", "type": "python", "python": {"path": "service.py"}}],
        "checkpoint": {},
    }
    spec["batch"] |= {"globalBatchSize": 8, "samplesPerPrompt": 64, "microBatchSize": 1}
    return job


def busy_shares(history: RunHistory) -> dict[str, float]:
    """Worker and phase → share of the time from the end of the warm-up to that of the last step."""
    since, until = (history.steps[step].time for step in (WARM_UP_STEPS, history.step))
    return {
        f"{busy.worker}: {phase}": share
        for busy in busy_workers(history, since=since, until=until)
        for phase, share in busy.phases.items()
    }


def medians(shares: Mapping[str, Sequence[dict[str, float]]]) -> dict[str, dict[str, float]]:
    """Row → mode → median over the repetitions."""
    rows = dict.fromkeys(row for runs in shares.values() for run in runs for row in run)
    return {
        row: {
            mode: statistics.median(run.get(row, 0.0) for run in runs)
            for mode, runs in shares.items()
        }
        for row in rows
    }


def main() -> None:
    """Let the modes take turns and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="one repetition of few steps")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    repetitions, steps = (1, 5) if options.quick else (3, 8)
    found: dict[str, list[float]] = {mode: [] for mode in FLOWS}
    shares: dict[str, list[dict[str, float]]] = {mode: [] for mode in FLOWS}
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        (folder / "service.py").write_text(SERVICE)
        for repetition in range(repetitions):
            for mode, flow in FLOWS.items():
                history = history_of(job_of(flow, steps), folder, f"{mode}-{repetition}")
                ends = [history.steps[step].time for step in sorted(history.steps)]
                seconds = seconds_a_step(ends, warm_up=WARM_UP_STEPS)
                found[mode].append(seconds)
                shares[mode].append(busy_shares(history))
                print(f"{mode}: {seconds:.2f} s a step", flush=True)
    results = [
        summarize(
            f"a step with a reward of 300 ms: {mode}",
            ours=found[mode],
            peers={"sync": found["sync"]},
            unit="seconds",
            better="lower",
            target=1.2,
        )
        for mode in ("streaming", "async")
    ]
    busy = medians(shares)
    report(results, packages=["rljob", "torch", "ray"], file=options.json, busy=busy)
    print("\n\n".join(["", *busy_parts({"busy": busy})]))


if __name__ == "__main__":
    main()
