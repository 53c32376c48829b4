"""Changes of a job that would make its steps shorter, best first. Pure; called by `run`.

What is worth a try for a part of a step is said by `remedies`. What the contract refuses is not advised, nor
what gains next to nothing.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

from rljob_api.check.load import read_job
from rljob_api.check.run_rules import refusals
from rljob_api.spec.problems import InvalidJob
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.report.analysis.remedies import REMEDIES, Advice, Now, Price
from rljob_runtime.report.analysis.step_figures import StepFigures
from rljob_runtime.report.analysis.step_model import StepWork

SMALLEST_GAIN = 0.03
"""Share of a step; what gains less is not advised."""
HANDICAP: Mapping[Price, float] = {
    "nothing": 1.0,
    "staleness": 1.1,
    "devices": 2.0,
    "learning": 1.0,
}
"""Of the order: a change that asks for something has to gain more, twice the devices twice the speed."""


def advise(figures: StepFigures, job: ResolvedJob, *, parts: list[str]) -> list[Advice]:
    """parts: of a step, longest first; what cannot be estimated is advised for the first alone. job: as the
    run's folder has it, resolved."""
    now = Now(figures=figures, job=job, work=StepWork.of(figures, job.spec))
    found: list[Advice] = []
    for advice in (advice for part in parts for advice in REMEDIES[part](now)):
        known = advice.change in [other.change for other in found]
        if _gains(advice, now, parts[0]) and not known and is_legal(job, advice.change):
            found.append(advice)
    return sorted(found, key=_place)


def is_legal(job: ResolvedJob, change: Mapping[str, Any]) -> bool:
    """Whether the job with the change is one that runs."""
    manifest = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    try:
        return not refusals(read_job(merged(manifest, change)))
    except InvalidJob:
        return False


def merged(manifest: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """A manifest with a change: null takes a key away, lists are replaced."""
    found = dict(copy.deepcopy(manifest))
    for key, value in change.items():
        if value is None:
            found.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(found.get(key), Mapping):
            found[key] = merged(found[key], value)
        else:
            found[key] = value
    return found


def _gains(advice: Advice, now: Now, longest: str) -> bool:
    if advice.seconds is None:
        return advice.part == longest
    return advice.seconds <= (1 - SMALLEST_GAIN) * now.figures.seconds


def _place(advice: Advice) -> tuple[bool, float]:
    """What changes what is learned comes last, before it what is not estimated."""
    seconds = math.inf if advice.seconds is None else advice.seconds
    return advice.price == "learning", seconds * HANDICAP[advice.price]
