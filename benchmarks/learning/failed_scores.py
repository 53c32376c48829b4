"""What the quickstart learns where a tenth of its scores fail at random: with those samples left out, and
with each counted as wrong.

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

QUICKSTART = ROOT / "examples" / "quickstart.yaml"
FAILING = 0.1
FORMS = {
    "undisturbed": "no score fails",
    "exclude": "a tenth fails, `onError: exclude`",
    "zero": "a tenth fails, `onError: zero`",
}
REWARD = """
import random

def reward(prompt, response, answer):
    if random.random() < {failing}:
        raise ConnectionError("the service is down")
    return float(response.strip() == answer)
"""


def learn(settings: Mapping[str, Any], folder: Path) -> Run:
    """One run: what is held out before and after, and the reward of each step."""
    name = "-".join(map(str, settings.values()))
    failing = 0.0 if settings["form"] == "undisturbed" else FAILING
    (folder / f"{name}.py").write_text(REWARD.format(failing=failing))
    found = gain_of(job_of(**settings, reward=f"{name}.py"), folder, name)
    if settings["form"] == "zero":  # held-out responses are scored likewise
        found |= {key: found[key] / (1 - FAILING) for key in ("before", "after")}
    return found


def job_of(*, form: str, seed: int, steps: int, reward: str) -> dict[str, Any]:
    """The quickstart in one of FORMS."""
    job: dict[str, Any] = yaml.safe_load(QUICKSTART.read_text())
    spec = job["spec"]
    spec |= {"steps": steps, "seed": seed}
    spec["evaluation"]["every"] = steps
    own = {"onError": form} if form in ("exclude", "zero") else {}
    spec["rewards"] = [{"name": "correct", "type": "python", "python": {"path": reward}, **own}]
    return job


def failed_scores_parts(document: Mapping[str, Any]) -> list[str]:
    """A row a form."""
    runs = document["runs"]
    of = {form: [run for run in runs if run["form"] == form] for form in FORMS}
    whole = {run["seed"]: run["after"] for run in of["undisturbed"]}
    rows = [
        [
            FORMS[form],
            said_share([run["before"] for run in found]),
            f"{mean(quarters(run['reward'])[-1] for run in found):.3f}",
            said_share([run["after"] for run in found]),
            said_points([run["after"] - whole[run["seed"]] for run in found])
            if form != "undisturbed"
            else "",
            ", ".join(f"{100 * run['after']:.1f}" for run in found),
        ]
        for form, found in of.items()
        if found
    ]
    heads = [
        "held out, before",
        "reward, last quarter",
        "after",
        "beside none failing",
        "each seed",
    ]
    return [
        f"{runs[0]['steps']} steps of `examples/quickstart.yaml`, whose scores fail with a probability of "
        f"{FAILING:.0%} each; {said_seeds(len(of['undisturbed']))} Accuracy is on {runs[0]['prompts']} "
        "held-out prompts, of whose scores as many fail: it is that of the others with `exclude`, and with "
        "`zero`, where those count as wrong, it is divided by 0.9:",
        table(heads, rows),
    ]


if __name__ == "__main__":
    runs_of_forms(str(__doc__), QUICKSTART, FORMS, learn, failed_scores_parts)
