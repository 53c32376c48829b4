"""A job on two nodes is suspended and goes on, on one of them, in another layout from its checkpoint."""

import pytest
from support.cluster import Cluster
from support.jobs import ended, events_of, holds, small, step, wait_until_it_trains

pytestmark = [pytest.mark.nightly]

JOB = "moves"
WAIT_SECONDS = 300.0


def test_a_suspended_job_goes_on_from_its_checkpoint_with_fewer_nodes_and_another_layout(
    cluster: Cluster,
) -> None:
    cluster.apply(small(JOB, nodes=2, steps=5000, update={"parallelism": {"tensor": 2}}))
    wait_until_it_trains(cluster, JOB)
    cluster.patch(JOB, {"suspend": True})
    suspended = cluster.wait_for_job(
        JOB, "it holds no pods", lambda job: holds(job, "Suspended"), seconds=WAIT_SECONDS
    )
    steps = step(suspended) + 10  # more than it did behind what its status knew

    layout = {"accelerator": {"nodes": 1}, "update": {"parallelism": {"tensor": 1}}}
    cluster.patch(JOB, layout | {"suspend": False, "steps": steps})
    done = cluster.wait_for_job(JOB, "it has ended", ended, seconds=WAIT_SECONDS)

    assert holds(done, "Succeeded"), done["status"]
    assert done["status"]["restarts"] == 0
    events = events_of(cluster, JOB)
    (first, second) = [event for event in events if event["kind"] == "run_started"]
    assert first.get("resumed_from") is None
    assert 0 < second["resumed_from"] < steps
    assert [event["step"] for event in events if event["kind"] == "step"] == [*range(1, steps + 1)]
