"""Changes of a job that would shorten its steps, best first. Pure; called by `run`.

`remedies` proposes the changes for each part of a step. Changes that the contract refuses, or that gain
almost nothing, are dropped.
"""

import copy
import math
from collections.abc import Mapping
from typing import Any

from rljob_api.check.load import read_job
from rljob_api.check.run_rules import refusals
from rljob_api.spec.problems import InvalidJob
from rljob_api.topology.resolved import ResolvedJob
from rljob_runtime.report.analysis.remedies import REMEDIES, Advice, Price, StepContext
from rljob_runtime.report.analysis.step_figures import StepFigures
from rljob_runtime.report.analysis.step_model import StepWork

SMALLEST_GAIN = 0.03
"""Share of a step; smaller gains are not advised."""
HANDICAP: Mapping[Price, float] = {
    "nothing": 1.0,
    "staleness": 1.1,
    "devices": 2.0,
    "learning": 1.0,
}
"""Factor in the order of advice: a change with a price must gain more; twice the devices, twice the speed."""


def advise(figures: StepFigures, job: ResolvedJob, *, parts: list[str]) -> list[Advice]:
    """Return the advice for a job.

    parts: of a step, longest first; changes without an estimate are advised for the first part only. job:
    from the run's folder, resolved.
    """
    context = StepContext(figures=figures, job=job, work=StepWork.of(figures, job.spec))
    advices: list[Advice] = []
    for advice in (advice for name in parts for advice in REMEDIES[name](context)):
        is_duplicate = advice.change in [other.change for other in advices]
        if _gains(advice, context, parts[0]) and not is_duplicate and is_legal(job, advice.change):
            advices.append(advice)
    return sorted(advices, key=_sort_key)


def is_legal(job: ResolvedJob, change: Mapping[str, Any]) -> bool:
    """Return whether the job with this change is valid."""
    manifest = job.model_dump(mode="json", by_alias=True, exclude_none=True)
    try:
        return not refusals(read_job(merge_change(manifest, change)))
    except InvalidJob:
        return False


def merge_change(manifest: Mapping[str, Any], change: Mapping[str, Any]) -> dict[str, Any]:
    """Merge a change into a manifest: null removes a key, lists are replaced."""
    result = dict(copy.deepcopy(manifest))
    for key, value in change.items():
        if value is None:
            result.pop(key, None)
        elif isinstance(value, Mapping) and isinstance(result.get(key), Mapping):
            result[key] = merge_change(result[key], value)
        else:
            result[key] = value
    return result


def _gains(advice: Advice, context: StepContext, longest: str) -> bool:
    if advice.seconds is None:
        return advice.part == longest
    return advice.seconds <= (1 - SMALLEST_GAIN) * context.figures.seconds


def _sort_key(advice: Advice) -> tuple[bool, float]:
    """Sort key: changes of the algorithm's result last, changes without an estimate before them."""
    seconds = math.inf if advice.seconds is None else advice.seconds
    return advice.price == "learning", seconds * HANDICAP[advice.price]
