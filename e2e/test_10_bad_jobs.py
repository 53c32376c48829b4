"""RLJobs that are wrong, applied to the real API server: refused there, or named by the operator."""

import copy
from typing import Any

import pytest
from kubernetes.dynamic.exceptions import DynamicApiError
from support.cluster import Cluster
from support.jobs import condition, small

REFUSED_BY_THE_API_SERVER: dict[str, tuple[dict[str, Any], str]] = {
    "unknown field": ({"stepz": 3}, "stepz"),
    "unknown nested field": ({"batch": {"globalBatch": 3}}, "globalBatch"),
    "no steps": ({"steps": 0}, "spec.steps"),
    "steps as text": ({"steps": "many"}, "spec.steps"),
    "unknown algorithm": ({"algorithm": {"name": "magic"}}, "algorithm"),
    "parameter of no algorithm": ({"algorithm": {"name": "grpo", "params": {"clipp": 1}}}, "clipp"),
    "clip beyond its bound": (
        {"algorithm": {"name": "grpo", "params": {"clipHigh": 1000000}}},
        "clipHigh",
    ),
    "two models": ({"model": {"builtin": "tiny", "path": "/models/x"}}, "model"),
    "no reward": ({"rewards": []}, "rewards"),
    "negative learning rate": ({"update": {"optimizer": {"learningRate": -1}}}, "learningRate"),
    "unknown accelerator": ({"accelerator": {"type": "abacus"}}, "accelerator.type"),
    "no devices": ({"accelerator": {"type": "emulated", "devicesPerNode": 0}}, "devicesPerNode"),
    "unknown engine": ({"rollout": {"engine": "magic"}}, "engine"),
    "unknown scheduler": ({"scheduling": {"scheduler": "mine"}}, "scheduler"),
    "negative backoff": ({"backoffLimit": -1}, "backoffLimit"),
    "unknown cleanup": ({"cleanupPolicy": "Burn"}, "cleanupPolicy"),
    "more virtual stages than stages": (
        {"update": {"parallelism": {"virtualPipeline": 2}}},
        "virtualPipeline",
    ),
    "separated without devices to share": ({"placement": {"mode": "separated"}}, "placement"),
    "a split that devices do not have": (
        {
            "update": {"parallelism": {"tensor": 3}},
            "accelerator": {"type": "emulated", "nodes": 1, "devicesPerNode": 4},
        },
        "update.parallelism",
    ),
    "deadline of nothing": ({"activeDeadlineSeconds": 0}, "activeDeadlineSeconds"),
}
NAMED_BY_THE_OPERATOR: dict[str, tuple[dict[str, Any], str]] = {
    "batch that devices do not divide": (
        {"batch": {"globalBatchSize": 7}, "accelerator": {"type": "emulated", "devicesPerNode": 4}},
        "globalBatchSize",
    ),
    "a dock that a step's prompts do not fit into": (
        {"dock": {"capacity": "1Ki"}},
        "spec.dock.capacity",
    ),
}


def bad(changes: dict[str, Any]) -> dict[str, Any]:
    """A small job with these fields in place of its own."""
    job = small("bad")
    for section, value in copy.deepcopy(changes).items():
        mixed = section in ("batch",)
        job["spec"][section] = job["spec"][section] | value if mixed else value
    return job


@pytest.mark.parametrize("what", REFUSED_BY_THE_API_SERVER)
def test_the_api_server_refuses(cluster: Cluster, what: str) -> None:
    changes, named = REFUSED_BY_THE_API_SERVER[what]

    with pytest.raises(DynamicApiError) as refused:
        cluster.apply(bad(changes))

    assert named in str(refused.value.body)
    assert cluster.objects("RLJob", "rljob.io/v1alpha1") == []


@pytest.mark.parametrize("what", NAMED_BY_THE_OPERATOR)
def test_the_operator_names_path_and_remedy_and_makes_nothing(cluster: Cluster, what: str) -> None:
    changes, named = NAMED_BY_THE_OPERATOR[what]

    cluster.apply(bad(changes))
    refused = cluster.wait_for_job(
        "bad",
        "it is refused",
        lambda job: condition(job, "Validated").get("status") == "False",
        seconds=30,
    )

    assert named in condition(refused, "Validated")["message"]
    assert cluster.objects("RayCluster", "ray.io/v1") == []
    assert cluster.pods("bad") == []
    cluster.delete_job("bad")
    cluster.wait("rljob.io/v1alpha1", "RLJob", "it is gone", lambda jobs: not jobs, seconds=30)


def test_the_model_of_a_job_never_changes(cluster: Cluster) -> None:
    job = small("fixed", suspend=True)
    cluster.apply(job)

    with pytest.raises(DynamicApiError) as refused:
        cluster.patch("fixed", {"seed": 12345})

    assert "seed" in str(refused.value.body)
    cluster.delete_job("fixed")


def test_server_side_dry_run_says_what_apply_would(cluster: Cluster) -> None:
    applied = cluster.apply(small("trial"), dry_run="All")

    assert applied["metadata"]["name"] == "trial"
    assert cluster.objects("RLJob", "rljob.io/v1alpha1") == []
