"""Each algorithm goes with each mode of the flow and each placement, or is refused with reason and remedy."""

from typing import Any

import pytest

from rljob_api.check.load import read_job
from rljob_api.spec.algorithms import PARAMS as ALGORITHMS
from rljob_api.spec.problems import InvalidJob

NAME, PARAMS, FLOW = "spec.algorithm.name", "spec.algorithm.params", "spec.flow"
REFILLING, PAIRS = "dapo with dynamicSampling", "dpo on preferences"
JOBS: dict[str, Any] = {
    **{name: {NAME: name} for name in ALGORITHMS},
    "distillation": {NAME: "distillation", "spec.teacher": {"path": "larger"}},
    REFILLING: {NAME: "dapo", f"{PARAMS}.dynamicSampling": {}},
    PAIRS: {
        NAME: "dpo",
        "spec.data": {"preferences": {"path": "pairs.jsonl"}},
        "spec.rewards": [],
        "spec.batch.samplesPerPrompt": 2,
    },
}
OPEN = {"partialRollout": {"budgetTokens": 16}}
FLOWS: dict[str, Any] = {
    "sync": {"mode": "sync"},
    "streaming": {"mode": "streaming"},
    "async 1": {"mode": "async", "maxStaleness": 1},
    "async 2": {"mode": "async", "maxStaleness": 2},
    "async 4": {"mode": "async", "maxStaleness": 4},
    "partialRollout": OPEN,
    "partialRollout async 1": {"mode": "async", "maxStaleness": 1, **OPEN},
    "partialRollout async 2": {"mode": "async", "maxStaleness": 2, **OPEN},
}
PLACEMENTS: dict[str, Any] = {
    "colocated": {},
    "separated": {"spec.placement.mode": "separated", "spec.placement.updateDevices": 2},
}

ASYNC = {flow for flow in FLOWS if "async" in flow}
PARTIAL = {flow for flow in FLOWS if "partialRollout" in flow}
ANYWHERE = set(PLACEMENTS)
REFUSED = (
    (
        (set(JOBS), ASYNC, {"colocated"}),
        (
            f"{FLOW}.mode",
            "a device either generates or trains",
            "placement.mode: separated, or use",
        ),
    ),
    (
        (set(JOBS), {"partialRollout async 1"}, ANYWHERE),
        (f"{FLOW}.maxStaleness", "uses up by running ahead", "use 2 or more, or mode: streaming"),
    ),
    (
        ({PAIRS}, ASYNC, ANYWHERE),
        (f"{FLOW}.mode", "nothing is generated", "use streaming or sync"),
    ),
    (
        ({PAIRS}, PARTIAL, ANYWHERE),
        (f"{FLOW}.partialRollout", "nothing is generated", "leave it out"),
    ),
    (
        ({PAIRS}, set(FLOWS), {"separated"}),
        ("spec.placement.mode", "nothing is generated", "use colocated"),
    ),
)
"""Jobs, flows and placements; path, reason and remedy. All else is taken."""


@pytest.mark.parametrize("placement", PLACEMENTS)
@pytest.mark.parametrize("flow", FLOWS)
@pytest.mark.parametrize("name", JOBS)
def test_it_is_taken_or_refused_with_reason_and_remedy(manifest, name, flow, placement):
    devices = {"spec.accelerator.devicesPerNode": 4}
    changes = {**JOBS[name], **devices, FLOW: FLOWS[flow], **PLACEMENTS[placement]}
    expected = [
        told
        for (jobs, flows, places), told in REFUSED
        if name in jobs and flow in flows and placement in places
    ]

    problems = []
    try:
        read_job(manifest(changes))
    except InvalidJob as refused:
        problems = refused.problems

    assert sorted(p.path for p in problems) == sorted(path for path, _, _ in expected)
    for path, reason, remedy in expected:
        (message,) = [p.message for p in problems if p.path == path and reason in p.message]
        assert remedy in message
