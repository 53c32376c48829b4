"""Jobs in super-pods of Atlas A3 ask for what Volcano's Ascend plugin accepts, and others are left alone."""

from dataclasses import replace

import pytest
from cluster_jobs import SETTINGS, TOKEN, identity, make_job
from scripts.ascend_facts import pinned

from rljob_api.spec.problems import InvalidJob
from rljob_operator.build import children

POD = {"accelerator-type": "module-a3-16-super-pod"}
A3 = {
    "type": "ascend910c",
    "nodeSelector": POD,
    "acceptUntested": True,
}
VOLCANO = {"scheduler": "volcano", "queue": "research"}


def built(*, settings=SETTINGS, scheduling=VOLCANO, worker=None, nodes=1, devices=16, **others):
    """The job's RayCluster and its PodGroup, {} where the operator makes none."""
    templates = {"worker": {"annotations": worker}} if worker else {}
    given = A3 | {"nodes": nodes, "devicesPerNode": devices} | others
    prompts = nodes * devices
    batch = {"globalBatchSize": prompts, "samplesPerPrompt": 2, "miniBatchSize": prompts}
    job = make_job(scheduling=scheduling, accelerator=given, podTemplates=templates, batch=batch)
    made = children(job, identity(), settings, TOKEN, cluster="words-1", released=False)
    group = next((one for one in made if one["kind"] == "PodGroup"), {})
    return made[-1], group


def annotations_of_workers(cluster):
    (template,) = (
        group["template"]
        for group in cluster["spec"]["workerGroupSpecs"]
        if group["groupName"] == "worker"
    )
    return template["metadata"].get("annotations", {})


def refused(pods, devices, block, *, node=16, super_pod=48):
    """What the plugin checks, as the pinned facts tell it."""
    asked = pods * devices
    if pods == 1:
        return block != asked
    return bool(devices != node or asked % block or block % node or block // node > super_pod)


def test_the_rules_that_are_tested_here_are_the_pinned_ones():
    for release in pinned("mindcluster"):
        assert release.value("whole-nodes") == release.value("blocks-of-nodes") == "MaxNodeNPUNum"
        assert release.value("one-node") == release.value("blocks-divide") == "SpBlockNPUNum"
        assert release.value("blocks-fit") == "SuperPodSize"
        assert release.value("sp-block-means-super-pod") == "A3x16SchedulerName"
        assert release.value("super-pod-policies") == "Chip2Node16Sp Chip2Node8Sp"


@pytest.mark.parametrize(
    ("nodes", "spares", "block"),
    [(1, 0, 16), (2, 0, 32), (4, 1, 80), (48, 0, 768), (49, 0, 112), (96, 0, 768), (53, 0, 16)],
)
def test_blocks_are_as_large_as_a_super_pod_and_the_job_allow(nodes, spares, block):
    cluster, _ = built(nodes=nodes, spareNodes=spares)

    assert annotations_of_workers(cluster)["sp-block"] == str(block)
    assert cluster["metadata"]["annotations"]["sp-block"] == str(block)
    assert not refused(nodes + spares, 16, block)


def test_a_part_of_one_node_is_a_block_of_its_own():
    cluster, _ = built(devices=4)

    assert annotations_of_workers(cluster)["sp-block"] == "4"


@pytest.mark.parametrize(
    ("accelerator", "worker", "path", "says"),
    [
        ({"nodes": 2, "devices": 8}, None, "devicesPerNode", "whole nodes of 16"),
        ({"spareNodes": 1, "devices": 8}, None, "devicesPerNode", "whole nodes of 16"),
        ({"nodes": 4}, {"sp-block": "48"}, "[sp-block]", "use one of 16, 32, 64"),
        ({"nodes": 4}, {"sp-block": "all"}, "[sp-block]", "is 'all'"),
        ({"nodes": 1, "devices": 8}, {"sp-block": "16"}, "[sp-block]", "use one of 8"),
        (
            {"nodes": 2, "devices": 16},
            {"huawei.com/schedule_policy": "chip2-node8-sp"},
            "devicesPerNode",
            "whole nodes of 8",
        ),
    ],
)
def test_what_the_plugin_would_refuse_is_refused_before(accelerator, worker, path, says):
    with pytest.raises(InvalidJob) as told:
        built(worker=worker, **accelerator)

    (problem,) = told.value.problems
    assert problem.path.endswith(path) and says in problem.message


def test_what_a_job_says_itself_stays():
    cluster, _ = built(nodes=4, worker={"sp-block": "32"})

    assert annotations_of_workers(cluster)["sp-block"] == "32"


@pytest.mark.parametrize(
    "other",
    [
        {"nodeSelector": {"accelerator-type": "module-a3-16"}, "devices": 8},
        {"nodeSelector": {}, "devices": 8},
        {"scheduling": {"scheduler": "default"}, "devices": 8},
        {"worker": {"huawei.com/schedule_policy": "chip2-node16"}, "devices": 8},
    ],
)
def test_sp_block_is_for_super_pods_alone(other):
    cluster, _ = built(nodes=2, **other)

    assert "sp-block" not in annotations_of_workers(cluster)
    assert "sp-block" not in cluster["metadata"]["annotations"]


def test_the_pod_group_tells_the_plugin_what_the_pods_do():

    policy = {"huawei.com/schedule_policy": "chip2-node16-sp", "example.com/note": "ours"}

    _, group = built(settings=replace(SETTINGS, volcano=True), nodes=2, worker=policy)

    told = {"sp-block": "32", "huawei.com/schedule_policy": "chip2-node16-sp"}
    assert group["metadata"]["annotations"] == told
