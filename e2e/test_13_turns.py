"""Two jobs that hold half of the devices each: the one that came first goes on, the other waits for it."""

from collections.abc import Iterator

import pytest
from conftest import offered
from support.chips import set_broken, wait_for_chips
from support.cluster import Cluster, Manifest
from support.jobs import STARTED_SECONDS, condition, ended, holds, small
from support.tools import run

pytestmark = [pytest.mark.nightly]

EARLIER, LATER = "earlier", "later"
LABEL = "rljob.io/e2e-"
WAIT_SECONDS = STARTED_SECONDS + 300


@pytest.fixture(scope="module")
def nodes(cluster: Cluster) -> Iterator[list[str]]:
    """Two nodes, which offer one device each meanwhile."""
    number = {node["metadata"]["name"]: offered(node) for node in cluster.objects("Node")}
    two = [name for name, chips in sorted(number.items()) if chips][:2]
    for name in two:
        set_broken(cluster, name, ",".join(map(str, range(1, number[name]))))
        wait_for_chips(cluster, name, 1)
    yield two
    for name in two:
        set_broken(cluster, name, "")
        wait_for_chips(cluster, name, number[name])
        run(
            ["kubectl", "label", "node", name, *(f"{LABEL}{j}-" for j in (EARLIER, LATER))],
            seconds=60,
        )


def open_to(job: str, node: str) -> None:
    """From now on the job's worker pods may go there."""
    run(["kubectl", "label", "node", node, f"{LABEL}{job}=yes"], seconds=60)


def wait_until_placed(cluster: Cluster, job: str, node: str) -> None:
    """One worker pod is there."""

    def there(_: dict[str, Manifest]) -> bool:
        places = [pod["spec"].get("nodeName") for pod in cluster.pods(job, "worker")]
        return [place for place in places if place] == [node]

    cluster.wait("v1", "Pod", f"{job} has a worker on {node}", there, seconds=120)


def test_of_two_jobs_that_wait_for_each_others_devices_both_end_well(
    cluster: Cluster, nodes: list[str]
) -> None:
    for job, node in zip((EARLIER, LATER), nodes, strict=True):
        open_to(job, node)
        manifest = small(job, nodes=2, steps=3)
        manifest["spec"]["accelerator"]["nodeSelector"] = {f"{LABEL}{job}": "yes"}
        cluster.apply(manifest)
        wait_until_placed(cluster, job, node)
    for job, node in zip((LATER, EARLIER), nodes, strict=True):
        open_to(job, node)

    held = cluster.wait_for_job(
        LATER, "it gives its device back", lambda job: holds(job, "Held"), seconds=150
    )
    assert condition(held, "Held")["message"] == (
        f"waits for {cluster.namespace}/{EARLIER}, which began before it and lacks 1 of 2 worker pods"
    )
    for name in (EARLIER, LATER):
        done = cluster.wait_for_job(name, f"{name} has ended", ended, seconds=WAIT_SECONDS)
        assert holds(done, "Succeeded"), cluster.dump(name)
        assert done["status"].get("restarts", 0) == 0
