"""What `examples/shapes.yaml` learns to see: as it stands, with a vision tower that is trained too, and with
pictures left white.

All begin with the same warmed-up model of their seed. Nothing is timed, so runs go on beside each other
(`--at-once`). `--json FILE` writes what `write_docs.py` shows, after every run; those that the file has are
not made again.
"""

from collections.abc import Mapping
from pathlib import Path
from statistics import mean
from typing import Any

import yaml

from benchmarks import ROOT
from benchmarks.support.beside import Run, runs_of_forms
from benchmarks.support.intervals import said_points, said_seeds, said_share
from benchmarks.support.runs import gain_of, quarters
from benchmarks.support.tables import table

SHAPES = ROOT / "examples" / "shapes.yaml"
FORMS = {
    "frozen": "as it stands: the tower is frozen",
    "trained": "`vision: trained`",
    "blank": "`blank: true`, pictures are white",
}


def learn(settings: Mapping[str, Any], folder: Path) -> Run:
    """One run: what is held out before and after, and the reward of each step."""
    return gain_of(job_of(**settings), folder, "-".join(map(str, settings.values())))


def job_of(*, form: str, seed: int, steps: int) -> dict[str, Any]:
    """The example in one of FORMS."""
    job: dict[str, Any] = yaml.safe_load(SHAPES.read_text())
    spec = job["spec"]
    spec |= {"steps": steps, "seed": seed}
    spec["evaluation"]["every"] = steps
    if form == "trained":
        spec["model"]["vision"] = "trained"
    if form == "blank":
        spec["data"]["drawn"]["blank"] = True
    return job


def shapes_parts(document: Mapping[str, Any]) -> list[str]:
    """A row a form."""
    runs = document["runs"]
    of = {form: [run for run in runs if run["form"] == form] for form in FORMS}
    rows = [
        [
            FORMS[form],
            said_share([run["before"] for run in found]),
            f"{mean(quarters(run['reward'])[-1] for run in found):.3f}",
            said_share([run["after"] for run in found]),
            said_points([run["after"] - run["before"] for run in found]),
            ", ".join(f"{100 * run['after']:.1f}" for run in found),
        ]
        for form, found in of.items()
        if found
    ]
    heads = [
        "held out, before",
        "reward, last quarter",
        "after",
        "points gained",
        "each seed",
    ]
    return [
        f"{runs[0]['steps']} steps of `examples/shapes.yaml`; {said_seeds(len(of['frozen']))} Accuracy is on "
        f"{runs[0]['prompts']} held-out pictures, drawn from seeds that training never has:",
        table(heads, rows),
    ]


if __name__ == "__main__":
    runs_of_forms(str(__doc__), SHAPES, FORMS, learn, shapes_parts)
