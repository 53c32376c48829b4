"""Why a layout is ahead of the job's own or behind it, and the YAML that makes the job have it.

Called by `text` and `as_json`.
"""

from typing import Any

import yaml

from rljob_api.model.volumes import GB
from rljob_api.spec.rljob import RLJob, RLJobSpec
from rljob_plan.memory import Memory, Phase
from rljob_plan.search.candidates import Layout
from rljob_plan.search.estimates import Found
from rljob_plan.search.ranking import Own, Proposal

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
"""Of the largest difference between two layouts: the least that is told beside it."""


def shown_parts(found: Found) -> dict[str, float]:
    """Seconds of a step by the words of `SHOWN`."""
    return {name: sum(found.parts[part] for part in parts) for name, parts in SHOWN.items()}


def tightest(memory: Memory) -> Phase:
    """The phase in which a device holds most."""
    return max(memory.phases, key=lambda phase: phase.device)


def reason(found: Found, own: Own) -> str:
    """One sentence on a layout beside the job's."""
    if found.layout == own.found.layout:
        return "This is the job's own layout."
    gained = own.found.seconds - found.seconds
    differences = {
        name: seconds - shown_parts(own.found)[name] for name, seconds in shown_parts(found).items()
    }
    fits = "" if not own.problems else "It fits, which the job's own layout does not, and would be "
    size = f"{abs(gained):.3g} s"
    if abs(gained) < 5e-4 * own.found.seconds:
        return f"{fits or 'It is '}as fast as the job's own layout, to a part in 2,000."
    where = "ahead of" if gained > 0 else "behind"
    share = abs(gained) / own.found.seconds
    told = _told(differences, found.layout, own.found.layout, ahead=gained > 0)
    return f"{fits or 'It is '}{size} ({share:.0%}) {where} the job's own layout: {told}."


def _told(differences: dict[str, float], layout: Layout, own: Layout, *, ahead: bool) -> str:
    """The largest part of the difference with what changed, and the largest against it."""
    sign = 1 if ahead else -1
    by_size = sorted(differences.items(), key=lambda one: sign * one[1])
    name, seconds = by_size[0]
    told = f"{name} takes {_less(seconds)}{_because(name, layout, own)}"
    against, cost = by_size[-1]
    if sign * cost > WORTH_SAYING * abs(seconds):
        told += f"; against that, {against} takes {_less(cost)}"
    return told


def _less(seconds: float) -> str:
    return f"{abs(seconds):.3g} s {'less' if seconds < 0 else 'more'}"


def _because(part: str, layout: Layout, own: Layout) -> str:
    """The degrees and settings that differ and bear on the part."""
    if part == "generate":
        changed = _changed(layout.rollout, own.rollout, "rollout ")
    else:
        changed = _changed(layout.update, own.update, "update ")
        changed += _changed(layout.setting, own.setting, "")
    changed = changed[:3]
    return f", with {', '.join(changed)}" if changed else ""


def _changed(new: Any, old: Any, whose: str) -> list[str]:
    """`tensor 2 in place of 4` for each field that differs."""
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
    """What of the job's manifest is to be replaced. job: as written."""
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
    found: dict[str, Any] = {}
    for name in ("recompute", "offload", "redundancy"):
        if getattr(new.update, name) != getattr(old.update, name):
            found[name] = getattr(new.update, name)
    degrees = _dumped(new.update.parallelism)
    plain = {"virtualPipeline": 1, "contextAlgorithm": "ulysses"}
    mine = _dumped(old.update.parallelism)
    for name, usual in plain.items():
        if degrees[name] == mine[name] == usual:
            del degrees[name]
    return {**found, "parallelism": degrees}


def _dumped(section: Any) -> dict[str, Any]:
    dumped: dict[str, Any] = section.model_dump(by_alias=True, exclude_none=True)
    return dumped


def fragment_yaml(proposal: Proposal, job: RLJob) -> str:
    """The same as text."""
    return yaml.safe_dump(fragment(proposal, job), sort_keys=False, default_flow_style=None)


def gigabytes(size: float) -> str:
    """Three digits."""
    return f"{size / GB:,.0f} GB" if size >= 100 * GB else f"{size / GB:.3g} GB"
