"""Format a ranking of layouts as JSON. Called by `plan --search --json`; its keys are part of the API."""

from typing import Any

from rljob_api.model.volumes import GB
from rljob_plan.memory import MemoryPlan
from rljob_plan.search.candidates import CandidateLayout
from rljob_plan.search.estimates import LayoutEstimate
from rljob_plan.search.ranking import Proposal, Ranking
from rljob_plan.search.reasons import fragment, reason, shown_parts, tightest


def search_json(ranking: Ranking, remedies: list[str]) -> dict[str, Any]:
    """Return a ranking as JSON; keys with GB count 1024³ bytes."""
    job_layout, counts = ranking.job_layout, ranking.counts
    return {
        "name": ranking.job.metadata.name,
        "layouts": {
            "tried": counts.tried,
            "illegal": counts.illegal,
            "tooLarge": counts.too_large,
            "lookedAt": counts.looked_at,
            "noRoom": counts.no_room,
            "fitting": ranking.fitting,
            "endedEarly": counts.ended,
        },
        "own": {
            **_estimate_json(job_layout.estimate, job_layout.memory),
            "place": job_layout.rank,
            "placeAtLeast": job_layout.at_least,
            "problems": [
                {"path": problem.path, "message": problem.message}
                for problem in job_layout.problems
            ],
        },
        "proposals": [_proposal_json(one, ranking) for one in ranking.proposals],
        "remedies": remedies,
    }


def _proposal_json(proposal: Proposal, ranking: Ranking) -> dict[str, Any]:
    return {
        **_estimate_json(proposal.estimate, proposal.memory),
        "reason": reason(proposal.estimate, ranking.job_layout),
        "fragment": fragment(proposal, ranking.job),
    }


def _estimate_json(estimate: LayoutEstimate, memory: MemoryPlan) -> dict[str, Any]:
    phase = tightest(memory)
    return {
        "layout": _layout_json(estimate.layout),
        "seconds": estimate.seconds,
        "parts": shown_parts(estimate),
        "memory": {
            "deviceGB": phase.device / GB,
            "hostGB": max(one.host for one in memory.phases) / GB,
            "limitGB": None if memory.limit is None else memory.limit / GB,
            "phase": phase.name,
            "parts": {name: size / GB for name, size in phase.parts.items()},
        },
    }


def _layout_json(layout: CandidateLayout) -> dict[str, Any]:
    setting = layout.setting
    return {
        "placement": layout.placement.model_dump(by_alias=True),
        "update": layout.update.model_dump(by_alias=True),
        "rollout": layout.rollout.model_dump(by_alias=True),
        "microBatchSize": setting.micro_batch_size,
        "microBatchTokens": setting.micro_batch_tokens,
        "recompute": setting.recompute,
        "offload": setting.offload,
        "redundancy": setting.redundancy,
    }
