"""Jobs on Ascend 950 ask for its resource, and only for what a device plugin gives."""

import pytest
from cluster_jobs import SETTINGS, TOKEN, identity, make_job
from scripts.ascend_facts import pinned

from rljob_api.spec.infrastructure import Accelerator
from rljob_api.spec.problems import InvalidJob
from rljob_api.topology.resolved import resolve
from rljob_api.topology.worker_pods import device_resource_name
from rljob_operator.build import children
from rljob_runtime.devices.ascend import CHIPS
from rljob_runtime.devices.backend_table import BACKENDS


def job(*, nodes=1, devices=8, **accelerator):
    given = {"type": "ascend950", "acceptUntested": True, "nodes": nodes, "devicesPerNode": devices}
    prompts = nodes * devices
    batch = {"globalBatchSize": prompts, "samplesPerPrompt": 2, "miniBatchSize": prompts}
    return make_job(accelerator=given | accelerator, batch=batch)


def test_a_worker_pod_asks_for_the_resource_of_its_generation():
    made = children(job(nodes=2), identity(), SETTINGS, TOKEN, cluster="words-1", released=False)

    (worker,) = (g for g in made[-1]["spec"]["workerGroupSpecs"] if g["groupName"] == "worker")
    template = worker["template"]
    assert template["spec"]["containers"][0]["resources"]["limits"]["huawei.com/npu"] == "8"
    assert template["metadata"]["labels"]["ring-controller.atlas"] == "ascend-npu"
    assert worker["resources"]["NPU"] == "8"


def test_a_name_that_a_job_gives_stays_and_others_keep_theirs():
    named = Accelerator(type="ascend950", resource_name="example.com/a5")

    assert device_resource_name(named) == "example.com/a5"
    assert device_resource_name(Accelerator(type="ascend910b")) == "huawei.com/Ascend910"


@pytest.mark.parametrize(("nodes", "devices"), [(1, 16), (2, 4)])
def test_what_a_node_does_not_give_is_refused(nodes, devices):
    with pytest.raises(InvalidJob, match=f"devicesPerNode: is {devices}, which ascend950"):
        job(nodes=nodes, devices=devices)


def test_a_device_has_its_own_memory_and_backend():
    assert resolve(job()).spec.accelerator.memory == "128Gi"
    assert BACKENDS["ascend950"] is BACKENDS["ascend910c"]
    for release in pinned("vllm-ascend"):
        assert [*CHIPS["ascend950"]] == [int(release.value("chips-a5"))]
