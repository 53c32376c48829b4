"""Explain why a layout is faster or slower than the job's own, and return the YAML that selects it.

Called by `search_text` and `search_json`.
"""

from typing import Any

import yaml

from rljob_api.model.volumes import GB
from rljob_api.spec.rljob import RLJob, RLJobSpec
from rljob_plan.memory import MemoryPlan, Phase
from rljob_plan.search.candidates import CandidateLayout
from rljob_plan.search.estimates import LayoutEstimate
from rljob_plan.search.ranking import JobLayout, Proposal

SHOWN = {
    "pictures": ("pictures", "pictures again"),
    "generate": ("prompts", "decoding"),
    "inference": ("inference",),
    "update compute": ("update", "optimizer"),
    "communication": ("communication",),
    "bubble": ("bubbles",),
    "reshard": ("reshard",),
    "other": ("dispatch", "copies", "fixed", "hidden"),
    "failures": ("failures",),
}
"""Parts of a step as a user reads them, by those of `step_parts`."""
WORTH_SAYING = 0.1
"""Smallest fraction of the largest difference between two layouts that is reported with it."""


def shown_parts(estimate: LayoutEstimate) -> dict[str, float]:
    """Return the seconds of a step by the names of `SHOWN`."""
    return {
        name: sum(estimate.parts[step_part] for step_part in parts) for name, parts in SHOWN.items()
    }


def tightest(memory: MemoryPlan) -> Phase:
    """Return the phase in which a device holds most."""
    return max(memory.phases, key=lambda phase: phase.device)


def reason(estimate: LayoutEstimate, job_layout: JobLayout) -> str:
    """Return one sentence that compares a layout with the job's."""
    if estimate.layout == job_layout.estimate.layout:
        return "This is the job's own layout."
    gained = job_layout.estimate.seconds - estimate.seconds
    differences = {
        name: seconds - shown_parts(job_layout.estimate)[name]
        for name, seconds in shown_parts(estimate).items()
    }
    fits = (
        ""
        if not job_layout.problems
        else "It fits, which the job's own layout does not, and would be "
    )
    size = f"{abs(gained):.3g} s"
    if abs(gained) < 5e-4 * job_layout.estimate.seconds:
        return f"{fits or 'It is '}as fast as the job's own layout, to a part in 2,000."
    where = "ahead of" if gained > 0 else "behind"
    share = abs(gained) / job_layout.estimate.seconds
    difference = _main_difference(
        differences, estimate.layout, job_layout.estimate.layout, ahead=gained > 0
    )
    return f"{fits or 'It is '}{size} ({share:.0%}) {where} the job's own layout: {difference}."


def _main_difference(
    differences: dict[str, float],
    layout: CandidateLayout,
    job_layout: CandidateLayout,
    *,
    ahead: bool,
) -> str:
    """Describe the largest part of the difference and its changes, and the largest part against it."""
    sign = 1 if ahead else -1
    by_size = sorted(differences.items(), key=lambda one: sign * one[1])
    name, seconds = by_size[0]
    text = f"{name} takes {_less(seconds)}{_because(name, layout, job_layout)}"
    against, cost = by_size[-1]
    if sign * cost > WORTH_SAYING * abs(seconds):
        text += f"; against that, {against} takes {_less(cost)}"
    return text


def _less(seconds: float) -> str:
    return f"{abs(seconds):.3g} s {'less' if seconds < 0 else 'more'}"


def _because(step_part: str, layout: CandidateLayout, job_layout: CandidateLayout) -> str:
    """Return the degrees and settings that differ and affect the part."""
    if step_part == "generate":
        changed = _changed(layout.rollout, job_layout.rollout, "rollout ")
    else:
        changed = _changed(layout.update, job_layout.update, "update ")
        changed += _changed(layout.setting, job_layout.setting, "")
    changed = changed[:3]
    return f", with {', '.join(changed)}" if changed else ""


def _changed(new: Any, old: Any, whose: str) -> list[str]:
    """Return `tensor 2 in place of 4` for each field that differs."""
    fields = type(new).model_fields if hasattr(type(new), "model_fields") else new.__slots__
    return [
        f"{whose}{name.replace('_', ' ')} {_value(getattr(new, name))} in place of "
        f"{_value(getattr(old, name))}"
        for name in fields
        if getattr(new, name) != getattr(old, name)
        and None not in (getattr(new, name), getattr(old, name))
    ]


def _value(value: object) -> str:
    return f"{value:,}" if isinstance(value, int) else str(value)


def fragment(proposal: Proposal, job: RLJob) -> dict[str, Any]:
    """Return the part of the job's manifest that has to be replaced. job: as written."""
    new, old = proposal.job.spec, job.spec
    spec: dict[str, Any] = {}
    if new.placement != old.placement:
        spec["placement"] = _dumped(new.placement)
    batch = {
        key: value
        for key, value in (
            ("microBatchSize", new.batch.micro_batch_size),
            ("microBatchTokens", new.batch.micro_batch_tokens),
        )
        if value is not None or _dumped(old.batch).get(key) is not None
    }
    if batch:
        spec["batch"] = batch
    spec["rollout"] = {"parallelism": _dumped(new.rollout.parallelism)}
    spec["update"] = _update_fragment(new, old)
    return {"spec": spec}


def _update_fragment(new: RLJobSpec, old: RLJobSpec) -> dict[str, Any]:
    changed: dict[str, Any] = {}
    for name in ("recompute", "offload", "redundancy"):
        if getattr(new.update, name) != getattr(old.update, name):
            changed[name] = getattr(new.update, name)
    degrees = _dumped(new.update.parallelism)
    plain = {"virtualPipeline": 1, "contextAlgorithm": "ulysses"}
    job_degrees = _dumped(old.update.parallelism)
    for name, usual in plain.items():
        if degrees[name] == job_degrees[name] == usual:
            del degrees[name]
    return {**changed, "parallelism": degrees}


def _dumped(section: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = section.model_dump(by_alias=True, exclude_none=True)
    return dumped


def fragment_yaml(proposal: Proposal, job: RLJob) -> str:
    """Return the replaced part of the job's manifest as YAML."""
    return yaml.safe_dump(fragment(proposal, job), sort_keys=False, default_flow_style=None)


def gigabytes(size: float) -> str:
    """Format bytes as gigabytes with three digits."""
    return f"{size / GB:,.0f} GB" if size >= 100 * GB else f"{size / GB:.3g} GB"
