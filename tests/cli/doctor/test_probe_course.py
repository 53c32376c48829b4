"""A probe's pods: like the job's own, waited for within a deadline, and gone at the end whatever happens."""

import threading
from dataclasses import replace
from typing import Any

import pytest
from cluster_jobs import JOB, SETTINGS, identity, merged
from clusters import ASCEND, HEALTHY, NPU, OPERATOR, RUNTIME, cluster, deployment, need, node, pod
from probe_world import ProbeWorld, unplaced, waiting
from scripts.ascend_facts import pinned

from rljob_api.check.load import read_job
from rljob_operator.build.gang import gang
from rljob_operator.build.pods import pod_template
from rljob_runtime.cli.doctor.cluster_facts import UnreadableFact
from rljob_runtime.cli.doctor.findings import Skip
from rljob_runtime.cli.doctor.installed import operator_of_deployment
from rljob_runtime.cli.doctor.need import need_of
from rljob_runtime.cli.doctor.probe.course import probe
from rljob_runtime.cli.doctor.probe.plan import Options, plan_of
from rljob_runtime.cli.doctor.probe.pods import pods_of
from rljob_runtime.errors import ClusterError

OPTIONS = Options(token="abc", seconds=60)
JOBS: dict[str, Any] = {
    "emulated": {"accelerator": {"nodes": 2, "devicesPerNode": 2}},
    "ascend": {
        "accelerator": {
            "type": "ascend910b",
            "nodes": 2,
            "devicesPerNode": 8,
            "nodeSelector": {"accelerator-type": "module-910b-8"},
        },
        "podTemplates": {
            "worker": {
                "tolerations": [{"key": "npu", "operator": "Exists"}],
                "env": [{"name": "HCCL_SOCKET_IFNAME", "value": "eth1"}],
                "imagePullSecrets": [{"name": "registry"}],
                "resources": {"requests": {"memory": "16Gi"}, "limits": {"memory": "32Gi"}},
            }
        },
        "batch": {"globalBatchSize": 16},
    },
    "with the node's driver": {
        "accelerator": {"type": "ascend910b", "devicesPerNode": 8, "injection": "hostPath"},
        "batch": {"globalBatchSize": 16},
    },
}

SEVERAL: dict[str, Any] = {
    "image": "a/b:1",
    "accelerator": {"nodeSelector": {"npu": "yes"}},
    "podTemplates": {
        "head": {
            "image": "a/head:1",
            "imagePullSecrets": [{"name": "login"}],
            "nodeSelector": {"disk": "ssd"},
        },
        "worker": {"tolerations": [{"key": "npu", "operator": "Exists"}]},
        "warehouse": {"image": "a/b:2"},
    },
}


def a_plan(**spec):
    return plan_of(HEALTHY, need(**spec), OPERATOR, OPTIONS)


@pytest.fixture(params=JOBS)
def both(request):
    """A probe's pod and the operator's own worker pod of the same job."""
    job = read_job(merged(JOB, {"spec": JOBS[request.param]}))
    plan = plan_of(HEALTHY, need_of(job, OPERATOR), OPERATOR, OPTIONS)
    settings = SETTINGS.__class__(
        runtime_image=RUNTIME, ascend_image=ASCEND, emulated_device_plugin=True
    )
    placing = gang(job.spec.scheduling, settings, cluster="c")
    own = pod_template(job, identity(), settings, role="worker", gang=placing)
    return pods_of(plan)[0], own


def test_a_probes_pod_asks_for_what_a_worker_pod_of_the_job_asks_for(both):
    probing, own = (template["spec"] for template in both)

    for key in ("securityContext", "nodeSelector", "imagePullSecrets", "enableServiceLinks"):
        assert probing.get(key) == own.get(key)
    taints = [t for t in own["tolerations"] if not t["key"].startswith("node.kubernetes.io")]
    assert probing.get("tolerations", []) == taints
    container, template = probing["containers"][0], own["containers"][0]
    for key in ("image", "imagePullPolicy", "securityContext"):
        assert container[key] == template[key]
    assert container["resources"]["limits"][NPU] == template["resources"]["limits"][NPU]
    hccl = [v for v in template["env"] if v["name"].startswith("HCCL_") and "IF" in v["name"]]
    assert all(variable in container["env"] for variable in hccl)
    paths = [v["hostPath"] for v in own["volumes"] if "hostPath" in v]
    assert [v["hostPath"] for v in probing["volumes"] if "hostPath" in v] == paths


def test_pods_end_by_themselves_and_sleep_until_they_are_asked():
    (first, _) = pods_of(a_plan())

    assert first["spec"]["activeDeadlineSeconds"] == 60 + 180
    assert first["spec"]["containers"][0]["command"] == ["sleep", "240"]


def test_a_volume_of_the_job_is_mounted_only_if_it_is_bound():
    runs: dict[str, Any] = {
        "checkpoint": {"storage": {"persistentVolumeClaim": {"claimName": "runs"}}}
    }
    pending = [c | {"status": {"phase": "Pending"}} for c in HEALTHY.claims]  # type: ignore[union-attr]

    bound = plan_of(HEALTHY, need(**runs), OPERATOR, OPTIONS)
    unbound = plan_of(cluster(claims=tuple(pending)), need(**runs), OPERATOR, OPTIONS)

    assert bound.claim == "runs"
    assert unbound.claim is None


def test_without_a_job_each_node_with_a_free_device_gets_one_pod():
    facts = cluster(
        nodes=(node("a"), node("b"), node("c", 0), node("d", ready=False)), pods=(pod("b", 8),)
    )

    plan = plan_of(facts, None, OPERATOR, OPTIONS)

    assert (plan.pods, plan.resource, plan.devices, plan.image) == (1, NPU, 1, RUNTIME)


def test_without_devices_each_node_gets_one_pod_and_without_an_operator_an_image_is_needed():
    facts = cluster(nodes=(node("a", 0), node("b", 0)))
    named = Options(token="abc", seconds=60, image="mine:1")

    assert plan_of(facts, None, operator_of_deployment(deployment()), OPTIONS).pods == 2
    assert plan_of(cluster(nodes=UnreadableFact("forbidden")), None, None, named).image == "mine:1"
    with pytest.raises(Skip, match="--image"):
        plan_of(facts, None, None, OPTIONS)


def test_what_pods_are_made_is_said():
    assert str(a_plan()) == (
        f"2 pods rljob-doctor-abc-* in namespace research, of {RUNTIME} with 2 {NPU}"
    )


def test_images_of_head_and_warehouses_that_workers_do_not_have_get_pods_of_their_own():
    plan = a_plan(**SEVERAL)

    head, warehouse = pods_of(plan)[2:]

    assert str(plan).endswith("and 1 with a/head:1 of the head, and 1 with a/b:2 of the warehouse")
    assert head["metadata"]["name"] == "rljob-doctor-abc-head"
    assert [pod["spec"]["containers"][0]["image"] for pod in (head, warehouse)] == [
        "a/head:1", "a/b:2",
    ]  # fmt: skip
    assert head["spec"]["imagePullSecrets"] == [{"name": "login"}]
    assert head["spec"]["nodeSelector"] == {"disk": "ssd"}
    assert warehouse["spec"]["nodeSelector"] == {"npu": "yes"}  # beside a worker
    assert warehouse["spec"]["tolerations"] == [{"key": "npu", "operator": "Exists"}]
    assert all(
        one["spec"]["containers"][0]["resources"]["limits"] == {} for one in (head, warehouse)
    )


def test_a_pod_for_an_image_takes_no_workers_node():
    worker, _, head, _ = pods_of(a_plan(**SEVERAL))

    (term,) = worker["spec"]["affinity"]["podAntiAffinity"][
        "requiredDuringSchedulingIgnoredDuringExecution"
    ]
    wanted = term["labelSelector"]["matchLabels"]
    assert wanted.items() <= worker["metadata"]["labels"].items()
    assert not wanted.items() <= head["metadata"]["labels"].items()
    assert "affinity" not in head["spec"]


def test_an_image_of_the_command_line_is_the_only_one():
    named = replace(OPTIONS, image="mine:1")

    assert plan_of(HEALTHY, need(**SEVERAL), OPERATOR, named).images == ()
    assert a_plan().images == ()


def test_a_pod_that_only_pulls_an_image_is_neither_asked_nor_left():
    world = ProbeWorld(podhead=waiting("ImagePullBackOff", "denied"))

    seen = probe(a_plan(**SEVERAL), world.means())

    assert [p.problem for p in seen.pods] == ["", ""]
    assert [(p.name, p.problem) for p in seen.images] == [
        ("rljob-doctor-abc-head", "ImagePullBackOff: denied"),
        ("rljob-doctor-abc-warehouse", ""),
    ]
    assert {name for name, _, _ in world.asked} == {"rljob-doctor-abc-0", "rljob-doctor-abc-1"}
    assert world.pods == {}


def test_pods_that_run_are_asked_and_sum_and_are_gone():
    world = ProbeWorld()
    world.starts = 10

    seen = probe(a_plan(), world.means())

    assert [p.problem for p in seen.pods] == ["", ""]
    assert [p.all_reduce["rank"] for p in seen.pods] == [0, 1]
    given = [given for _, work, given in world.asked if work == "reduce"]
    assert {g["address"] for g in given} == {"10.0.0.7"}
    assert {(g["backend"], g["size"]) for g in given} == {("gloo", 2)}
    assert world.pods == {}
    assert seen.undeleted == {}
    assert (
        "waiting for 2 of 2 pods, 60 s at most: rljob-doctor-abc-0: ContainerCreating"
        in (world.told[0])
    )


def test_all_pods_of_a_large_cluster_sum_at_the_same_time():
    world = ProbeWorld()
    everybody = threading.Barrier(40, timeout=10)
    plan = plan_of(HEALTHY, need(), OPERATOR, replace(OPTIONS, nodes=40))

    def shell(name, command):
        if command[-2] == "reduce":
            everybody.wait()
        return world.shell(name, command)

    seen = probe(plan, replace(world.means(), shell=shell))

    assert sorted(p.all_reduce["rank"] for p in seen.pods) == list(range(40))


def test_an_image_that_cannot_be_pulled_is_told_at_once_and_the_others_are_asked():
    world = ProbeWorld(pod1=waiting("ImagePullBackOff", "no such image"))

    seen = probe(a_plan(), world.means())

    assert [p.problem for p in seen.pods] == ["", "ImagePullBackOff: no such image"]
    assert [work for _, work, _ in world.asked] == ["look"]  # one pod alone sums nothing
    assert world.now < 5
    assert world.pods == {}


def test_a_pod_without_a_place_is_given_up_before_the_deadline():
    world = ProbeWorld(pod0=unplaced(f"2 Insufficient {NPU}"))

    seen = probe(a_plan(), world.means())

    assert seen.pods[0].problem == f"Pending: 2 Insufficient {NPU}"
    assert 20 <= world.now < 30


def test_a_pod_that_does_not_start_is_given_up_at_the_deadline():
    world = ProbeWorld(pod0=waiting("ContainerCreating"))

    seen = probe(a_plan(), world.means())

    assert seen.pods[0].problem == "does not run after 60 s: ContainerCreating"
    assert 60 <= world.now < 65


def test_a_refused_pod_tells_who_refuses():
    world = ProbeWorld()
    world.refusal = "pods is forbidden: exceeded quota: team"

    seen = probe(a_plan(), world.means())

    assert {p.problem for p in seen.pods} == {world.refusal}
    assert world.asked == []


def test_a_program_that_breaks_is_told_by_its_last_line():
    world = ProbeWorld()
    world.silent = True

    seen = probe(a_plan(), world.means())

    assert seen.pods[0].problem == (
        "the program in the pod ended with 1: ModuleNotFoundError: no psutil"
    )


@pytest.mark.parametrize("blow", [KeyboardInterrupt, ClusterError])
def test_pods_are_deleted_when_the_probe_is_broken_off(blow):
    world = ProbeWorld(pod0=waiting("ContainerCreating"))
    means = world.means()

    def sleep(seconds):
        raise blow("now")

    broken = means.__class__(
        api=world, shell=world.shell, report=world.told.append, sleep=sleep, clock=means.clock
    )

    with pytest.raises(blow):
        probe(a_plan(), broken)

    assert world.pods == {}


def test_pods_that_stay_are_named():
    world = ProbeWorld()
    world.stays = True

    seen = probe(a_plan(), world.means())

    assert set(seen.undeleted) == {"rljob-doctor-abc-0", "rljob-doctor-abc-1"}
    assert any("rljob-doctor-abc-0 is left" in line for line in world.told)


(MINDCLUSTER,) = pinned("mindcluster")
NICS = MINDCLUSTER.value("nics-annotation")
TOLD = (
    '{"pod_name": "x", "server_id": "10.0.0.1", "devices": [{"device_id": "0", "device_ip": "29.0.0.1"},'
    ' {"device_id": "1", "device_ip": ""}]}'
)


def test_the_device_plugin_tells_addresses_that_pods_have_no_file_of():
    world = ProbeWorld()
    world.annotations, world.annotated = {NICS: TOLD}, 4.0

    seen = probe(a_plan(**JOBS["ascend"]), world.means())

    assert [pod.nics for pod in seen.pods] == [{"0": "29.0.0.1"}] * 2
    assert 4 <= world.now < 6


@pytest.mark.parametrize("text", [None, "", "[]", "{}", '{"devices": [1]}'])
def test_a_device_plugin_that_tells_nothing_is_waited_for_ten_seconds(text):
    world = ProbeWorld()
    world.annotations = {} if text is None else {NICS: text}

    seen = probe(a_plan(**JOBS["ascend"]), world.means())

    assert [pod.nics for pod in seen.pods] == [None, None]
    assert 10 <= world.now < 12
    assert world.pods == {}
