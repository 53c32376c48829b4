"""A ranking of layouts as JSON. Called by `plan --search --json`; its keys are part of the contract."""

from typing import Any

from rljob_api.model.volumes import GB
from rljob_plan.memory import Memory
from rljob_plan.search.candidates import Layout
from rljob_plan.search.estimates import Found
from rljob_plan.search.ranking import Proposal, Ranking
from rljob_plan.search.reasons import fragment, reason, shown_parts, tightest


def search_json(ranking: Ranking, remedies: list[str]) -> dict[str, Any]:
    """Keys with GB count 1024³ bytes."""
    own, counts = ranking.own, ranking.counts
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
            **_found_json(own.found, own.memory),
            "place": own.place,
            "placeAtLeast": own.at_least,
            "problems": [
                {"path": problem.path, "message": problem.message} for problem in own.problems
            ],
        },
        "proposals": [_proposal_json(one, ranking) for one in ranking.proposals],
        "remedies": remedies,
    }


def _proposal_json(proposal: Proposal, ranking: Ranking) -> dict[str, Any]:
    return {
        **_found_json(proposal.found, proposal.memory),
        "reason": reason(proposal.found, ranking.own),
        "fragment": fragment(proposal, ranking.job),
    }


def _found_json(found: Found, memory: Memory) -> dict[str, Any]:
    phase = tightest(memory)
    return {
        "layout": _layout_json(found.layout),
        "seconds": found.seconds,
        "parts": shown_parts(found),
        "memory": {
            "deviceGB": phase.device / GB,
            "hostGB": max(one.host for one in memory.phases) / GB,
            "limitGB": None if memory.limit is None else memory.limit / GB,
            "phase": phase.name,
            "parts": {name: size / GB for name, size in phase.parts.items()},
        },
    }


def _layout_json(layout: Layout) -> dict[str, Any]:
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
