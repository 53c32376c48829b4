"""Steps of small jobs on emulated devices, as `rljob simulate --from` foretells them, and as measured.

Rates come from one run, the quickstart's job, made shorter. Each job that is held out is then simulated with
these rates and run. Spearman's rank correlation is 1 where both orders agree. The jobs of `JOBS` differ in
lengths, batch, layout and flow; devices share this machine's processors.
"""

import argparse
import tempfile
from collections.abc import Mapping, Sequence
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import yaml

from benchmarks.plan.search import spearman
from benchmarks.support.runs import steps_of
from benchmarks.support.tables import table
from rljob_api.check.load import read_job
from rljob_runtime.report.analysis.advice import merge_change
from rljob_runtime.simulate.fit import Measured, fit_run
from rljob_runtime.simulate.several import SimulationSettings, simulate_seeds

QUICKSTART = Path(__file__).parents[2] / "examples" / "quickstart.yaml"
STEPS = 8
BATCHES = (16, 64)
LENGTHS = (8, 24)
SAMPLES = (4, 16)
MODES = ("sync", "streaming", "async")
JOBS: dict[str, dict[str, Any]] = {
    f"{prompts} × {samples}, {length} tokens, {mode}": {
        "batch": {
            "globalBatchSize": prompts,
            "samplesPerPrompt": samples,
            "maxResponseLength": length,
        },
        "flow": {"mode": mode},
    }
    for prompts, samples, length, mode in product(BATCHES, SAMPLES, LENGTHS, MODES)
}
"""What each of them changes in the job that rates come from."""


def job_of(change: Mapping[str, Any]) -> dict[str, Any]:
    """The quickstart, short, without evaluations, after a warm-up of a few steps."""
    job = yaml.safe_load(QUICKSTART.read_text())
    del job["spec"]["evaluation"]
    base = {"steps": STEPS, "model": {"warmup": {"targetAccuracy": 0.01, "maxSteps": 20}}}
    return merge_change(merge_change(job, {"spec": base}), {"spec": change})


def measured_seconds(job: dict[str, Any], folder: Path, name: str) -> float:
    """Median of its steps but the first."""
    return median(step["seconds"] for step in steps_of(job, folder, name)[1:])


def predicted_seconds(job: dict[str, Any], measured: Measured) -> float:
    """Mean of three simulated runs."""
    asked = SimulationSettings(steps=STEPS, measured=measured)
    return simulate_seeds(read_job(job), base_dir=QUICKSTART.parent, settings=asked).seconds.mean


def compare(names: Sequence[str]) -> str:
    """The table of these jobs, and the rank correlation below."""
    rows, pairs = [], []
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place)
        steps_of(job_of({}), folder, "fitted")
        measured = fit_run(folder / "fitted").measured
        for number, name in enumerate(names):
            job = job_of(JOBS[name])
            told = predicted_seconds(job, measured)
            seen = measured_seconds(job, folder, f"held-out-{number}")
            pairs.append((told, seen))
            rows.append([name, f"{told:.3f} s", f"{seen:.3f} s", f"{told / seen:.2f}"])
    found = table(["predicted", "measured", "ratio"], rows)
    if len(pairs) > 2:
        correlation = spearman([told for told, _ in pairs], [seen for _, seen in pairs])
        found += f"\n\nrank correlation: {correlation:.2f}"
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument(
        "--jobs", type=int, default=len(JOBS), help="so many, spread over all of them"
    )
    options = parser.parse_args()
    stride = max(1, len(JOBS) // options.jobs)
    print(compare(list(JOBS)[::stride][: options.jobs]))


if __name__ == "__main__":
    main()
